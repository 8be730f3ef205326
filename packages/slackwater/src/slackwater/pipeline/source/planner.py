"""Plans batches in the driver: where the next one ends, and what its tasks read."""

from dataclasses import replace
from typing import Any, NamedTuple

from slackwater.cdc.batch import (
    BatchContent,
    BatchTask,
    OffsetSpan,
    PlannedBatch,
    TaskPolicy,
    TransactionTable,
    plan_tasks,
    ticks_of,
)
from slackwater.cdc.initial_snapshot import SNAPSHOT_HINT
from slackwater.engine.settings import Scope
from slackwater.pipeline.source.feed import Feed, connect_feed
from slackwater.pipeline.source.markers import advance
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.position import (
    GroupWindow,
    Position,
    TopicPosition,
    group_offsets,
    size_between,
    spans_between,
    windows_between,
)
from slackwater.protocol import SNAPSHOT_XID, BatchHeader, ConfigError


class PlannedCut(NamedTuple):
    """When a cut, and the newest transaction in it, were written to Kafka; 0 if it is not known."""

    lsn: int
    ended_ms: int
    """The time of its newest transaction's END, in milliseconds since the epoch."""
    written_ms: int
    """The time of the cut, in milliseconds since the epoch."""


class Planner:
    """Plans the batches of a query. It only keeps a cache: every answer depends only on the arguments.

    Not thread-safe; methods may block for the time-outs of Kafka and Redis. They raise what those of
    :class:`Feed` raise, ConfigError if a table that is read has had no complete snapshot, and StateError for
    an offset that does not fit this query or this version. Without a feed, it connects one on first use.
    """

    def __init__(self, options: SourceOptions, feed: Feed | None = None) -> None:
        self.options = options
        self._topics = tuple(sorted(options.topics))
        self._feed = feed

    def start(self) -> Position:
        """Returns the position at which a query without a checkpoint begins."""
        options = self.options
        newest = self.feed.newest() if options.starting == "latest" else None
        self._refuse_withheld()
        if newest is not None:
            at_cut = Position.at_cut(newest, self._topics, options.scope, self.feed.log_id)
            if at_cut.lsns:
                return at_cut
        return Position(source=options.source, timeline=options.timeline, scope=options.scope)

    def target(self) -> int:
        """Returns the current end of the cut log; a run that only takes what exists reads no further."""
        return self.feed.log_end()

    def next(self, start: Position, max_events: int | None, target: int | None) -> Position:
        """Chooses where the batch that begins at ``start`` ends; ``start`` itself if there is nothing new.

        It may read `max_events` offsets, but the next marker is always admitted. From the offset `target` of
        the cut log on, nothing counts.
        """
        feed = self.feed
        feed.move_to(start)
        while not self._is_enough(start, max_events) and feed.read_page(target):
            pass
        feed.fill_holes(start)
        begun = self._begun(start)
        moved = None if begun is None else advance(begun, feed.known_markers, max_events)
        if moved is None:
            self._refuse_withheld()
            return start
        return self._end(start, moved)

    def content(self, start: Position, end: Position) -> BatchContent:
        """Returns what the batch between two positions contains."""
        start = self._with_topics(start, len(end.lsns))
        return self.feed.content(start, end, windows_between(start, end))

    def tasks(self, start: Position, end: Position) -> list[BatchTask]:
        """Divides what is to be read between two positions into tasks; empty if that is nothing."""
        planned = self.plan(start, end)
        return [] if planned is None else [task for task in planned.tasks if task.spans]

    def plan(self, start: Position, end: Position) -> PlannedBatch | None:
        """Divides a batch, whose end was chosen now or earlier, into tasks; None if it is empty."""
        options = self.options
        start = self._with_topics(start, len(end.lsns))
        windows = windows_between(start, end)
        if not windows:
            return None
        content = self.feed.content(start, end, windows)
        policy = TaskPolicy(options.parallelism, options.min_task_events, options.target_task_events)
        has_whole_topics = bool(content.repeated) and options.scope is Scope.STRICT
        spans = spans_between(start, end)
        plans = plan_tasks(spans, policy, may_split=content.may_split, keep_topics=has_whole_topics)
        header = batch_header(start, end, windows, content)
        first_lsn = header.transactions[0][1] if header.transactions else header.to_lsn
        if options.scope is Scope.AGGREGATE:
            by_number = {window.number: window for window in windows}
            plans = [[_group_span(span, by_number[span.partition], end) for span in plan] for plan in plans]
        table = TransactionTable(content.transactions)
        tasks = (
            BatchTask(
                tuple(plan),
                table,
                content.repeated,
                None if number else first_lsn,
                () if number else ticks_of(header.transactions, start.commit_ts_ms),
                options.allow_truncated_start and start.lsn == 0,
                content.late_snapshots,
                content.has_incremental_rows,
                max(window.up_to_lsn for window in windows),
                has_whole_topics=has_whole_topics,
            )
            for number, plan in enumerate(plans or [[]])
        )
        return PlannedBatch(header, tuple(tasks))

    def cuts(self, header: BatchHeader) -> list[PlannedCut]:
        """Returns the cuts in a batch, ascending, as far as they are in memory."""
        found = self.feed.segments.cuts((header.from_lsn, header.to_lsn))
        return [PlannedCut(each.lsn, each.ended_ms, each.written_ms) for each in found]

    def offset(self, data: dict[str, Any]) -> Position:
        """Decodes an offset that Spark passes."""
        options = self.options
        return Position.from_json(data, source=options.source, timeline=options.timeline, scope=options.scope)

    @property
    def feed(self) -> Feed:
        """The feed, connected on first use."""
        if self._feed is None:
            self._feed = connect_feed(self.options)
        return self._feed

    def close(self) -> None:
        """Closes connections; the next use connects again."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def _is_enough(self, start: Position, max_events: int | None) -> bool:
        """Returns whether more of the log could not make the batch larger, or would list too much in it.

        Transactions of tables that are not read have no offsets, but are listed in the table of every task.
        """
        feed = self.feed
        if max_events is None or feed.log_position < start.log or (begun := self._begun(start)) is None:
            return False
        furthest = advance(begun, feed.known_markers, None)
        if furthest is None:
            return False
        return feed.listed >= max_events or size_between(begun, furthest) >= max_events

    def _refuse_withheld(self) -> None:
        topics, source = self.feed.withheld, self.options.source
        if topics:
            one = "this topic has" if len(topics) == 1 else "these topics have"
            raise ConfigError(
                f"source {source!r}: {', '.join(topics)}: the table of {one} had no complete snapshot, so "
                "nothing of it is shown",
                f"{SNAPSHOT_HINT}; `slackwater status --source {source}` says what is lacking",
            )

    def _begun(self, start: Position) -> Position | None:
        """Returns ``start`` with all groups and topics; None while the number of groups is not known."""
        groups = self.feed.groups
        return None if groups is None else self._with_topics(start, groups)

    def _with_topics(self, start: Position, groups: int) -> Position:
        """Adds missing groups and topics to a position; what was not read begins with the timeline."""
        if start.lsns and start.topics.keys() == set(self._topics):
            return start
        lsns = start.lsns or (0,) * groups
        known, begin = start.topics, self.feed.beginning()
        topics = {
            topic: known.get(topic) or tuple(_unread(self.options.scope, begin.get(topic, ()), lsns))
            for topic in self._topics
        }
        return replace(start, lsns=lsns, topics=topics)

    def _end(self, start: Position, moved: Position) -> Position:
        """Adds to the end of a batch the place in the cut log from which the next batch follows."""
        feed = self.feed
        segments = feed.segments
        cut = max(start.cut or 0, start.lsn, segments.newest_cut_lsn)
        end = replace(moved, log=max(start.log, feed.log_position), log_id=feed.log_id, cut=cut)
        floor = segments.floor(min(end.known_from_lsn, end.lsn), feed.log_position)
        return replace(
            end,
            commit_ts_ms=max(start.commit_ts_ms, segments.commit_ts_ms(end.lsn)),
            event_count=_largest(start.event_count, segments.event_count(end.lsn)),
            floor=max(start.floor, floor),
        )


def batch_header(
    start: Position, end: Position, windows: list[GroupWindow], content: BatchContent
) -> BatchHeader:
    """Returns the header for sinks: the LSNs of the positions, and the transactions that some group passes.

    In scope ``aggregate``, a group's end counts as a transaction, too, if rows of snapshots may have its LSN.
    """
    transactions = [(t.xid, t.commit_lsn, t.commit_ts_ms) for t in content.transactions]
    if end.scope is Scope.AGGREGATE:
        transactions = _passed(transactions, end, windows, content)
    return BatchHeader(
        source=end.source,
        timeline=end.timeline,
        from_lsn=start.lsn,
        to_lsn=end.lsn,
        commit_ts_ms=content.commit_ts_ms,
        event_count=_event_count(start, end),
        transactions=tuple(transactions),
        skipped=content.skipped,
    )


def _event_count(start: Position, end: Position) -> int:
    """Returns the number of change events between two positions; of offsets if the start lacks the number."""
    if start.event_count is None or end.event_count is None:
        return size_between(start, end)
    return end.event_count - start.event_count


def _largest(*counts: int | None) -> int | None:
    return max((count for count in counts if count is not None), default=None)


def _passed(
    transactions: list[tuple[int, int, int]], end: Position, windows: list[GroupWindow], content: BatchContent
) -> list[tuple[int, int, int]]:
    passed = {
        transaction[1]: transaction
        for transaction in transactions
        if any(window.after_lsn < transaction[1] <= window.up_to_lsn for window in windows)
    }
    if content.late_snapshots or content.has_incremental_rows:
        for window in windows:
            passed.setdefault(window.up_to_lsn, (SNAPSHOT_XID, window.up_to_lsn, content.commit_ts_ms))
    return [passed[lsn] for lsn in sorted(passed)]


def _unread(scope: Scope, ends: tuple[int, ...], lsns: tuple[int, ...]) -> list[TopicPosition]:
    """Returns the positions of all groups in a topic of which nothing was read."""
    starts = (group_offsets(scope, ends, number) for number in range(len(lsns)))
    return [TopicPosition(start, lsn, start) for start, lsn in zip(starts, lsns, strict=True)]


def _group_span(span: OffsetSpan, window: GroupWindow, end: Position) -> OffsetSpan:
    """Limits a span of a partition that advances by its own markers; parts may belong to other batches."""
    from slackwater.engine.owners import sequence_in_group

    next_offset = end.start_in(span.topic, span.partition)
    return replace(
        span,
        sequence=sequence_in_group(span.partition, span.sequence),
        after_lsn=window.after_lsn,
        up_to_lsn=window.up_to_lsn,
        next_offset=next_offset if next_offset < span.to_offset else None,
        is_of_group=True,
    )
