"""Planning in scope ``aggregate``: every group of partitions goes as far as its own markers allow."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slackwater_protocol import SNAPSHOT_XID, BatchHeader, encode_batch_header
from slackwater_spark.source.batch import BatchContent, BatchTask, TransactionTable
from slackwater_spark.source.batch_planner import BatchPlanner, cut_log, marker_store
from slackwater_spark.source.group_offset import GroupOffset, PartitionPosition
from slackwater_spark.source.groups import GroupWindow, Known, Spread, advance, group_spans, windows_between
from slackwater_spark.source.plan import OffsetSpan, TaskPolicy, plan_tasks
from slackwater_spark.stage.owner import sequence_in_group

if TYPE_CHECKING:
    from slackwater_spark.source.group_feed import GroupFeed


class AggregatePlanner(BatchPlanner[GroupOffset, "GroupFeed"]):
    """Plans batches of groups: tasks follow from two offsets and the cut log."""

    def start(self) -> GroupOffset:
        """Where a query without a checkpoint begins."""
        beginning = GroupOffset(source=self.options.source, timeline=self.options.timeline)
        newest = self.feed.newest() if self.options.starting == "latest" else None
        if newest is None:
            return beginning
        ends = newest.cut.end_offsets
        positions = {
            topic: tuple(PartitionPosition(end, newest.cut.lsn, end) for end in ends[topic])
            for topic in sorted(self.options.topics)
            if topic in ends
        }
        self.feed.check_alike({topic: len(of_topic) for topic, of_topic in positions.items()})
        at_cut = GroupOffset.at_cut(newest, positions)
        return self._spread_out(at_cut, len(at_cut.lsns)) if positions else beginning

    def target(self) -> int:
        """Where the cut log ends now: what a run that takes only what is there does not read beyond."""
        return self.feed.log_end()

    def next(self, start: GroupOffset, max_events: int | None, target: int | None) -> GroupOffset:
        """Where the batch that begins at ``start`` ends; ``start`` itself when no group can go on."""
        feed = self.feed
        feed.move_to(start)
        may_be_more = True
        while may_be_more and not self._is_enough(start, max_events):
            may_be_more = feed.read_page(target)
        feed.check_connected()
        begun = self._begun(start)
        spread = None if begun is None else self._advance(begun, max_events)
        return start if spread is None else self._end(start, spread)

    def tasks(self, start: GroupOffset, end: GroupOffset) -> list[BatchTask]:
        """The tasks of a batch; none when it is empty."""
        start = self._spread_out(start, len(end.lsns)) if end.lsns else start
        windows = windows_between(start, end)
        if not windows:
            return []
        content = self._content(start, end, windows)
        options = self.options
        policy = TaskPolicy(options.parallelism, options.min_task_events, options.target_task_events)
        spans = group_spans(start.positions, end.positions)
        plans = plan_tasks(spans, policy, may_split=content.may_split)
        header = None
        if options.packing is not None:
            header = encode_batch_header(_header(start, end, windows, content))
            plans = plans or [[]]
        table = TransactionTable(content.transactions)
        by_number = {window.number: window for window in windows}
        return [
            BatchTask(
                tuple(_span(span, by_number[span.partition], end) for span in plan),
                table,
                content.repeated,
                None if number else header,
                options.allow_truncated_start and start.lsn == 0,
                content.late_snapshots,
                content.has_incremental_rows,
                max(window.up_to_lsn for window in windows),
            )
            for number, plan in enumerate(plans)
        ]

    def _content(self, start: GroupOffset, end: GroupOffset, windows: Sequence[GroupWindow]) -> BatchContent:
        """From the cut log's range that the offsets name, whatever else has been read since."""
        feed = self.feed
        feed.move_to(start)
        while feed.read_page(end.log):
            pass
        log_range = start.floor, end.log
        read = [(window.table_from_lsn, window.up_to_lsn) for window in windows]
        transactions = feed.transactions(read, *log_range)
        late_snapshots, has_incremental_rows = feed.snapshot_rows(read, *log_range)
        return BatchContent(
            tuple(transactions),
            feed.repeated(*log_range) & {t.commit_lsn for t in transactions},
            end.commit_ts_ms,
            feed.skipped((start.lsn, end.lsn), *log_range),
            late_snapshots,
            has_incremental_rows,
        )

    def offset(self, data: dict[str, Any]) -> GroupOffset:
        """Reads an offset that Spark hands over."""
        return GroupOffset.from_json(data, source=self.options.source, timeline=self.options.timeline)

    def _connect(self) -> "GroupFeed":
        from slackwater_spark.source.cut_feed import FeedKey
        from slackwater_spark.source.group_feed import GroupFeed

        options = self.options
        return GroupFeed(
            FeedKey(options.source, options.timeline, options.allow_truncated_start),
            options.topics,
            store=marker_store(options),
            log=cut_log(options),
            monotonic=time.monotonic,
        )

    def _is_enough(self, start: GroupOffset, max_events: int | None) -> bool:
        """Whether more of the log could not make the batch larger."""
        if max_events is None or self.feed.log_position < start.log or (begun := self._begun(start)) is None:
            return False
        spread = self._advance(begun, None)
        return spread is not None and spread.size_after(begun) >= max_events

    def _advance(self, begun: GroupOffset, max_events: int | None) -> Spread | None:
        feed = self.feed
        known = Known(feed.histories, feed.covered_lsn, feed.exact_up_to_lsn, feed.stops)
        return advance(begun, known, max_events)

    def _begun(self, start: GroupOffset) -> GroupOffset | None:
        """``start`` with all groups and positions; None while the number of groups is not known."""
        groups = self.feed.groups
        return None if groups is None else self._spread_out(start, groups)

    def _spread_out(self, start: GroupOffset, groups: int) -> GroupOffset:
        lsns = start.lsns or (0,) * groups
        begin = self.feed.beginning() if len(start.positions) < len(self.options.topics) else {}
        positions = {
            topic: start.positions.get(topic) or _beginning(lsns, begin.get(topic, ()))
            for topic in sorted(self.options.topics)
        }
        return replace(start, lsns=lsns, positions=positions)

    def _end(self, start: GroupOffset, spread: Spread) -> GroupOffset:
        feed = self.feed
        low = min(position.lsn for of_topic in spread.positions.values() for position in of_topic)
        end = replace(
            start,
            lsns=spread.lsns,
            positions=spread.positions,
            log=max(start.log, feed.log_position),
            log_id=feed.log_id,
            cut=max(start.cut or 0, start.lsn, feed.cut_lsn),
        )
        return replace(
            end,
            commit_ts_ms=max(start.commit_ts_ms, feed.commit_ts_ms(end.lsn)),
            floor=max(start.floor, feed.floor(min(low, end.lsn))),
        )


def _beginning(lsns: Sequence[int], ends: Sequence[int]) -> tuple[PartitionPosition, ...]:
    """Positions in a topic of which nothing was read."""
    starts = (*ends, *(0 for _ in lsns[len(ends) :]))
    return tuple(PartitionPosition(first, lsn, first) for first, lsn in zip(starts, lsns, strict=False))


def _span(span: OffsetSpan, window: GroupWindow, end: GroupOffset) -> OffsetSpan:
    next_offset = end.positions[span.topic][span.partition].start
    return replace(
        span,
        sequence=sequence_in_group(span.partition, span.sequence),
        after_lsn=window.after_lsn,
        up_to_lsn=window.up_to_lsn,
        next_offset=next_offset if next_offset < span.to_offset else None,
        is_of_group=True,
    )


def _header(
    start: GroupOffset, end: GroupOffset, windows: Sequence[GroupWindow], content: BatchContent
) -> BatchHeader:
    """The LSNs are the offsets'; transactions are those that some group passes.

    Where a group ends is one, too, when rows of snapshots may take that LSN.
    """
    passed = {
        t.commit_lsn: (t.xid, t.commit_lsn, t.commit_ts_ms)
        for t in content.transactions
        if any(w.after_lsn < t.commit_lsn <= w.up_to_lsn for w in windows)
    }
    if content.late_snapshots or content.has_incremental_rows:
        for window in windows:
            passed.setdefault(window.up_to_lsn, (SNAPSHOT_XID, window.up_to_lsn, end.commit_ts_ms))
    return BatchHeader(
        source=end.source,
        timeline=end.timeline,
        from_lsn=start.lsn,
        to_lsn=end.lsn,
        commit_ts_ms=end.commit_ts_ms,
        event_count=end.event_count - start.event_count,
        transactions=tuple(passed[lsn] for lsn in sorted(passed)),
        skipped=content.skipped,
    )
