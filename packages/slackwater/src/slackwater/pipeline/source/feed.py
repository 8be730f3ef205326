"""Markers and transactions for the driver, from the cut log; Redis only signals that there is news."""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta

from slackwater.cdc.batch import BatchContent
from slackwater.cuts import (
    CutLog,
    CutLogReplacedError,
    LoggedRecord,
    RecordsGoneError,
    RedisMarkerStore,
    TopicUnavailableError,
)
from slackwater.cuts.errors import cuts_gone
from slackwater.engine.settings import Scope
from slackwater.pipeline.source.log_watch import LogWatch
from slackwater.pipeline.source.markers import KnownMarkers, MarkerHistory
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.position import GroupWindow, Offsets, Position, group_offsets
from slackwater.pipeline.source.segments import (
    LsnRange,
    Segment,
    Segments,
    find_snapshot_rows,
    make_segment,
    merge_windows,
    skipped_xids,
)
from slackwater.protocol import (
    AheadMarkers,
    CommittedTransaction,
    ConfigError,
    Cut,
    PublishedCut,
    TimelineDecision,
)
from slackwater.protocol.keys import cut_log_topic

_PAGE = 50
"""The number of records that are requested at once; a cut contains up to 10,000 transactions."""
_WIDENING = (1024, 16 * 1024, 256 * 1024)
"""How far below a position's place the log is searched, step by step, before it is read completely."""
_PASSED_TRANSACTIONS_KEPT = 300_000
"""The number of transactions in memory (about 50 MB) that only slow groups still need; others are read from
the log again."""


class Feed:
    """Follows the cut log from the position of a query.

    If Redis is unavailable, behind or wrong, this is slower, but never wrong, and it never blocks. Everything
    that is kept is a cache, which is rebuilt when another position is requested. The memory depends on the
    number of records since the slowest group's position, and on the transactions that no group has passed.
    Not thread-safe; methods may block for the time-outs of log and store. They raise TopicUnavailableError if
    Kafka does not answer, CutLogReplacedError if the log is another one than a position was planned from or
    has become shorter, RecordsGoneError if it no longer lists what is needed, and in scope ``aggregate``
    ConfigError if the topics do not have the same number of partitions, or the number has changed.
    """

    def __init__(
        self,
        options: SourceOptions,
        *,
        store: RedisMarkerStore | None,
        log: CutLog,
        monotonic: Callable[[], float],
    ) -> None:
        self._options = options
        self._topics = sorted(options.topics)
        self._log = log
        self._watch = LogWatch(options.source, store=store, log=log, monotonic=monotonic)
        self._beginning: Mapping[str, Offsets] | None = None
        self.withheld: tuple[str, ...] = ()
        """The topics that are read whose tables have had no complete snapshot as of the newest cut."""
        self._begin_at(Position(source=options.source, timeline=options.timeline, scope=options.scope), 0)

    @property
    def log_id(self) -> str:
        """The id of the log; empty while there is no log."""
        return self._watch.log_id

    @property
    def known_markers(self) -> KnownMarkers:
        """The markers after the position, as far as the log has been read."""
        segments, withheld = self.segments, self._withheld_lsn
        return KnownMarkers(
            self._histories,
            segments.covered_lsn,
            segments.exact_up_to_lsn,
            [lsn for lsn in segments.stops if lsn > withheld],
            segments.barriers[bisect_right(segments.barriers, withheld) :],
        )

    def beginning(self) -> Mapping[str, Offsets]:
        """Returns where the timeline begins in the data topics; a missing topic begins at 0.

        Call it when the timeline has a cut; the answer is then final.
        """
        if self._beginning is None:
            self._beginning = _end_of_earlier_timelines(self._options, self._log)
        return self._beginning

    def newest(self) -> PublishedCut | None:
        """Returns the newest cut in the log."""
        self._watch.check("")
        newest = self._log.newest()
        if newest is None or newest.cut.timeline != self._options.timeline:
            return None
        self._check_partitions(newest.cut)
        self.withheld = self._without_snapshot(newest.cut)
        return newest

    def log_end(self) -> int:
        """Returns the current end of the log."""
        return self._log.end()

    def move_to(self, start: Position) -> None:
        """Prepares for the batch that begins at ``start``, and forgets what only earlier batches needed."""
        self._watch.check(start.log_id)
        if (start.lsns, start.log) == self._stands_at:
            return
        known_from_lsn = start.known_from_lsn
        is_ahead = self._floor <= start.floor and start.log <= self.log_position
        has_other_groups = bool(start.lsns) and len(start.lsns) != self.groups
        if not is_ahead or has_other_groups or known_from_lsn < self._known_from_lsn:
            self._begin_at(start, start.floor)
            return
        self.segments.move_to(start.floor, known_from_lsn)
        self._stand_at(start, start.floor)
        self.listed = sum(
            len(self._kept.get(s.log_offset, ())) for s in self.segments.within(start.log, self.log_position)
        )
        for topic, positions in start.topics.items():
            for history, position in zip(self._histories.get(topic, ()), positions, strict=False):
                history.drop_to(position.lsn)

    def read_page(self, up_to: int | None = None) -> bool:
        """Reads further in the log; returns whether there may be more to read immediately.

        Up to an exclusive end, it is read without asking Redis whether there may be something new.
        """
        position = self.log_position
        if not (self._watch.has_news(position) if up_to is None else position < up_to):
            return False
        page = self._log.records(position - 1, limit=_PAGE)
        for logged in page:
            if up_to is not None and logged.log_offset >= up_to:
                return False
            self._take(logged)
        is_end = len(page) < _PAGE
        if is_end:
            self._watch.note_end(found=bool(page))
            self._check_length(self._stands_at[1])
        return not is_end

    def fill_holes(self, start: Position) -> None:
        """Searches earlier parts of the log for what leads to the cuts that were read after ``start``.

        Another sidecar may have written it there. Markers ahead of the frontier may wait for what is missing,
        but a cut after a hole cannot.
        """
        floors = _lower_floors(start.floor)
        while (hole := self.segments.find_hole()) is not None:
            floor = next(floors, None)
            if floor is None:
                raise self._missing(*hole)
            self._read_range(start, floor, self.log_position)

    def content(self, start: Position, end: Position, windows: Sequence[GroupWindow]) -> BatchContent:
        """Returns what a batch contains. The result depends only on the two positions and the log."""
        self.move_to(start)
        missing: RecordsGoneError | None = None
        for floor in (start.floor, *_lower_floors(start.floor)):
            self._read_range(start, floor, end.log)
            try:
                return self._content(start, end, windows, self.segments.within(floor, end.log))
            except RecordsGoneError as error:
                missing = missing or error
        self._check_length(end.log, must_exist=True)
        raise missing or self._missing(start.lsn, end.lsn)

    def close(self) -> None:
        """Closes connections."""
        self._log.close()
        self._watch.close()

    # --- positions

    def _begin_at(self, start: Position, floor: int) -> None:
        """Forgets everything, and begins at an offset of the log."""
        self.log_position = floor
        """The offset of the log below which everything has been read."""
        self.segments = Segments(start.known_from_lsn, may_start_anywhere=self._options.allow_truncated_start)
        """The records that have been read and may still be needed."""
        self._kept: dict[int, tuple[CommittedTransaction, ...]] = {}
        self.groups: int | None = None
        """The number of groups; None until a cut shows it."""
        self._histories: dict[str, list[MarkerHistory]] = {}
        self.listed = 0
        """The number of transactions in records after the position."""
        self.withheld = ()
        self._withheld_lsn = 0
        self._stand_at(start, floor)
        self._watch.expect_news()
        if start.lsns:
            self._know_groups(len(start.lsns))

    def _stand_at(self, start: Position, floor: int) -> None:
        self._stands_at = start.lsns, start.log
        self._floor = floor
        self._known_from_lsn = start.known_from_lsn
        self._passed_lsn = max(start.lsns, default=0)
        self._passed_count = 0
        kept, self._kept = self._kept, {}
        for segment in self.segments.within(floor, self.log_position):
            if segment.log_offset in kept:
                self._keep(segment, kept[segment.log_offset])

    def _know_groups(self, groups: int) -> None:
        self.groups = groups
        self._histories = {topic: [MarkerHistory() for _ in range(groups)] for topic in self._topics}

    # --- reading

    def _read_range(self, start: Position, floor: int, end: int) -> None:
        """Ensures that everything in the log's range ``[floor, end)`` has been read."""
        if floor < self._floor:
            self._begin_at(start, floor)
        while self.read_page(end):
            pass

    def _check_length(self, read_to: int, *, must_exist: bool = False) -> None:
        """Refuses a log that ends below an offset up to which it was read before."""
        if self.log_position >= read_to:
            return
        topic, end = cut_log_topic(self._options.source), self._log.end()
        if end == 0 and must_exist:
            raise TopicUnavailableError(
                "read", topic, f"it is empty or does not exist, but had been read up to offset {read_to}"
            )
        if 0 < end < read_to:
            raise CutLogReplacedError(topic, f"it ends at offset {end}, but was read up to {read_to}")

    def _take(self, logged: LoggedRecord) -> None:
        record, options = logged.record, self._options
        if isinstance(record, Cut) and record.timeline == options.timeline:
            self._take_ends(record)
            self._take_table(record, logged.log_offset, logged.written_ms)
        elif (
            options.scope is Scope.AGGREGATE  # else partitions do not run ahead of the frontier
            and isinstance(record, AheadMarkers)
            and record.timeline == options.timeline
        ):
            self._take_markers(record)
            self._take_table(record, logged.log_offset, logged.written_ms)
        self.log_position = logged.log_offset + 1

    def _take_ends(self, cut: Cut) -> None:
        self._check_partitions(cut)
        if self.groups is None and (groups := self._count_groups(cut)):
            self._know_groups(groups)
        self.withheld = self._without_snapshot(cut)
        if self.withheld:
            self._withheld_lsn = max(self._withheld_lsn, cut.lsn)
            return  # nothing stops here: what there is of these tables is not all
        scope, lsn = self._options.scope, cut.lsn
        for topic, histories in self._histories.items():
            ends = cut.end_offsets.get(topic, ())
            for number, history in enumerate(histories):
                history.add(lsn, group_offsets(scope, ends, number))

    def _without_snapshot(self, cut: Cut) -> tuple[str, ...]:
        return tuple(topic for topic in cut.without_snapshot if topic in self._options.topics)

    def _take_markers(self, ahead: AheadMarkers) -> None:
        for (topic, partition), marker in ahead.markers.items():
            histories = self._histories.get(topic)
            if histories is None:
                continue
            if partition >= len(histories):
                raise _changed_partitions(topic, len(histories), partition + 1)
            histories[partition].add(marker.safe_commit_lsn, (marker.safe_offset,))

    def _take_table(self, record: Cut | AheadMarkers, log_offset: int, written_ms: int) -> None:
        segment = make_segment(record, log_offset, written_ms)
        self.segments.add(segment)
        self._keep(segment, record.transactions)
        if log_offset >= self._stands_at[1]:
            self.listed += len(record.transactions)

    def _count_groups(self, cut: Cut) -> int:
        """Returns the number of groups in a cut; 0 if it has none of the topics."""
        if self._options.scope is Scope.STRICT:
            return 1
        return max((len(cut.end_offsets[t]) for t in self._topics if t in cut.end_offsets), default=0)

    def _check_partitions(self, cut: Cut) -> None:
        """In scope ``aggregate``, refuses numbers of partitions that are not equal or have changed."""
        if self._options.scope is Scope.STRICT:
            return
        ends = cut.end_offsets
        counts = {topic: len(ends[topic]) for topic in self._topics if topic in ends}
        for topic, count in counts.items():
            if self.groups is not None and count != self.groups:
                raise _changed_partitions(topic, self.groups, count)
        if len(set(counts.values())) > 1:
            raise _unlike_partitions(counts)

    # --- transactions

    def _content(
        self, start: Position, end: Position, windows: Sequence[GroupWindow], segments: Sequence[Segment]
    ) -> BatchContent:
        read = [(window.known_from_lsn, window.up_to_lsn) for window in windows]
        transactions = tuple(t for each in merge_windows(read) for t in self._transactions(each, segments))
        repeated = frozenset[int]().union(*(segment.repeated for segment in segments))
        if repeated:
            repeated = repeated.intersection(t.commit_lsn for t in transactions)
        late_snapshots, has_incremental_rows = find_snapshot_rows(read, segments)
        return BatchContent(
            transactions,
            repeated,
            end.commit_ts_ms or self.segments.commit_ts_ms(end.lsn),
            skipped_xids((start.lsn, end.lsn), segments),
            late_snapshots,
            has_incremental_rows,
        )

    def _transactions(self, window: LsnRange, segments: Sequence[Segment]) -> Iterator[CommittedTransaction]:
        """Yields the transactions of a window in commit order."""
        covered, up_to_lsn = window
        chain, reached = self.segments.chain(window, segments)
        if reached < up_to_lsn:
            raise self._missing(reached, up_to_lsn)
        for segment in chain:
            table = self._table(segment)
            if segment.previous_lsn >= covered and segment.lsn <= up_to_lsn:
                yield from table
            else:
                yield from (t for t in table if covered < t.commit_lsn <= up_to_lsn)
            covered = segment.lsn

    def _table(self, segment: Segment) -> tuple[CommittedTransaction, ...]:
        kept = self._kept.get(segment.log_offset)
        if kept is not None:
            return kept
        page = self._log.records(segment.log_offset - 1, limit=1)
        for logged in page:
            if logged.log_offset == segment.log_offset and isinstance(logged.record, Cut | AheadMarkers):
                return logged.record.transactions
        raise self._missing(segment.previous_lsn, segment.lsn)

    def _missing(self, after_lsn: int, up_to_lsn: int) -> RecordsGoneError:
        source = self._options.source
        return RecordsGoneError(
            f"source {source}, timeline {self._options.timeline}: no cut in the cut log "
            f"({cut_log_topic(source)}) lists the transactions after commit LSN {after_lsn}, up to "
            f"{up_to_lsn}: records of it were deleted, or it was recreated while a sidecar was running "
            "(docs/runbooks.md#cut-log)",
            "the cut log must be kept as long as the data topics; to start with what is left, use a new "
            'checkpoint and option("allow_truncated_start", "true")',
        )

    def _keep(self, segment: Segment, transactions: tuple[CommittedTransaction, ...]) -> None:
        """Stores transactions. Of those that the fastest group has passed, only the oldest are kept."""
        if segment.lsn <= self._passed_lsn:
            if self._passed_count + len(transactions) > _PASSED_TRANSACTIONS_KEPT:
                return
            self._passed_count += len(transactions)
        self._kept[segment.log_offset] = transactions


def connect_feed(options: SourceOptions) -> Feed:
    """Connects a feed to the servers that the options name."""
    store, redis, kafka = None, options.servers.redis, options.servers.kafka
    if redis is not None:
        store = RedisMarkerStore.connect(redis.url, password=redis.password, timeout=timedelta(seconds=1))
    timeout = timedelta(milliseconds=options.read_timeout_ms)
    log = CutLog(options.source, kafka, timeout=timeout)
    return Feed(options, store=store, log=log, monotonic=time.monotonic)


def _end_of_earlier_timelines(options: SourceOptions, log: CutLog) -> Mapping[str, Offsets]:
    """Returns where a timeline begins in the data topics: at the newest cut before it.

    Records below that belong to another history, with transactions of the same xids. Sidecars begin there,
    too.
    """
    newest: Cut | None = None
    if options.timeline == 1:
        return {}
    for cut in _cuts_before(options.timeline, log):
        newest = cut if newest is None else max(newest, cut, key=lambda each: each.position)
    if newest is not None:
        return newest.end_offsets
    if (earliest := log.begin()) and not options.allow_truncated_start:
        raise cuts_gone(cut_log_topic(options.source), 0, earliest)
    return {}


def _cuts_before(timeline: int, log: CutLog) -> Iterator[Cut]:
    """Yields the cuts of earlier timelines in the log until a timeline begins."""
    position = 0
    while page := log.records(position - 1, limit=_PAGE):
        for record in (logged.record for logged in page):
            if isinstance(record, Cut | AheadMarkers | TimelineDecision) and record.timeline == timeline:
                return
            if isinstance(record, Cut) and record.timeline < timeline:
                yield record
        position = page[-1].log_offset + 1


def _lower_floors(floor: int) -> Iterator[int]:
    """Yields decreasing offsets below one of the log, down to the log's beginning."""
    yield from (floor - step for step in _WIDENING if step < floor)
    if floor > 0:
        yield 0


_ALIKE = (
    "In scope 'aggregate' partitions with the same number belong together, so all inputs must be partitioned "
    "in the same way by the stage key"
)


def _unlike_partitions(counts: Mapping[str, int]) -> ConfigError:
    found = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
    return ConfigError(
        f"the topics have different numbers of partitions: {found}. {_ALIKE}",
        "recreate the topics with the same number of partitions (the connector's "
        "topic.creation.default.partitions) and take a new snapshot, or use scope 'strict'",
    )


def _changed_partitions(topic: str, before: int, now: int) -> ConfigError:
    return ConfigError(
        f"topic {topic} has {now} partitions, but had {before}. {_ALIKE}, for the whole life of a "
        "checkpoint: with another number, keys move from group to group",
        "start with a new checkpoint and a new output after a new snapshot, with the same number of "
        "partitions in all topics, or use scope 'strict', which supports added partitions",
    )
