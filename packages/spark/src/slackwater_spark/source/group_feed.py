"""Markers and transactions for scope ``aggregate``, from the cut log; Redis only says that there is news."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from slackwater_markers import CutLog, LoggedRecord, MarkerStore
from slackwater_protocol import AheadMarkers, CommittedTransaction, Cut, PublishedCut
from slackwater_spark.source.cut_feed import FeedKey, end_of_earlier_timelines
from slackwater_spark.source.errors import MissingCutsError, PartitionsChangedError, UnlikePartitionsError
from slackwater_spark.source.group_offset import GroupOffset
from slackwater_spark.source.log_watch import LogWatch
from slackwater_spark.source.marker_history import MarkerHistory

_PAGE = 50
_TRANSACTIONS_KEPT = 300_000
"""In memory, about 50 MB; others are read from the log again."""

Window = tuple[int, int]
"""Commits above the first LSN, up to the second."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A record of the log without its markers and transactions."""

    previous_lsn: int
    lsn: int
    """Its table covers ``(previous_lsn, lsn]``."""
    log_offset: int
    commit_ts_ms: int
    is_cut: bool
    repeated: frozenset[int]
    skipped: tuple[tuple[int, int], ...]
    """``(xid, commit LSN)``; the LSN of the record where the table does not have the transaction."""
    late_snapshots: frozenset[int] = frozenset()
    has_incremental_rows: bool = False
    exact_snapshots: frozenset[int] = frozenset()
    """LSNs of snapshots whose rows are true at it."""

    @property
    def has_snapshot_rows(self) -> bool:
        """Whether rows of snapshots that belong to no commit stand in it."""
        return self.has_incremental_rows or bool(self.late_snapshots)


class GroupFeed:
    """Follows the cut log from where a query stands. Everything it keeps is a cache.

    Memory follows the number of records since the slowest group's position, not their transactions. Not
    thread-safe; methods may block for the time-outs of log and store.

    Args:
        key: What to follow.
        topics: Those that the query reads.
        store: Asked whether there is a newer cut; None where there is no Redis.
        log: Has everything.
        monotonic: Seconds that never go back.
    """

    def __init__(
        self,
        key: FeedKey,
        topics: Iterable[str],
        *,
        store: MarkerStore | None,
        log: CutLog,
        monotonic: Callable[[], float],
    ) -> None:
        self._key = key
        self._topics = sorted(topics)
        self._log = log
        self._watch = LogWatch(key.source, store=store, log=log, monotonic=monotonic)
        self._kept: OrderedDict[int, tuple[CommittedTransaction, ...]] = OrderedDict()
        self._kept_count = 0
        self._stands_at: tuple[tuple[int, ...], int] = (), 0
        self._floor = self._position = self._low = self._covered = 0
        self._exact_up_to_lsn = 0
        self._segments: list[Segment] = []
        self._unconnected: list[Segment] = []
        self._groups: int | None = None
        self._histories: dict[str, list[MarkerHistory]] = {}

    @property
    def covered_lsn(self) -> int:
        """Up to here every commit above the slowest partition's position is in a table."""
        return self._covered

    @property
    def cut_lsn(self) -> int:
        """The LSN of the newest cut that was read; 0 before the first."""
        return max((s.lsn for s in self._segments if s.is_cut), default=0)

    @property
    def log_id(self) -> str:
        """What tells the log that is read from every other; empty while there is none."""
        return self._watch.log_id

    @property
    def log_position(self) -> int:
        """Below this offset of the log everything has been read."""
        return self._position

    @property
    def groups(self) -> int | None:
        """The number of partitions of each topic; None while no cut names one."""
        return self._groups

    @property
    def histories(self) -> dict[str, list[MarkerHistory]]:
        """The markers of every partition; nothing while their number is not known."""
        return self._histories

    def beginning(self) -> Mapping[str, tuple[int, ...]]:
        """Where the timeline begins in the data topics; a topic that is not there begins at 0.

        Raises:
            CutLogError: Kafka does not answer, or has lost part of the log.
        """
        return end_of_earlier_timelines(self._key, self._log)

    def move_to(self, start: GroupOffset) -> None:
        """Prepares for the batch that begins at ``start``; whatever only earlier ones needed is forgotten.

        Raises:
            CutLogReplacedError: ``start`` was planned from another log.
        """
        self._watch.check(start.log_id)
        if (start.lsns, start.log) == self._stands_at:
            return
        is_ahead = self._floor <= start.floor and start.log <= self._position
        if not is_ahead or _low(start) < self._low or (start.lsns and len(start.lsns) != self._groups):
            self._begin_at(start)
        self._stands_at = start.lsns, start.log
        self._floor = max(self._floor, start.floor)
        self._low = _low(start)
        self._segments = [s for s in self._segments if s.log_offset >= start.floor]
        for topic, positions in start.positions.items():
            for history, position in zip(self._histories.get(topic, ()), positions, strict=False):
                history.drop_to(position.lsn)

    def read_page(self, up_to: int | None = None) -> bool:
        """Reads on in the log; asks Redis first whether that is worth while.

        Args:
            up_to: Exclusive; reads on to there without asking. None: all there is.

        Returns:
            Whether there may be more to read at once.

        Raises:
            PartitionsChangedError: the number of partitions is another one than before.
            UnlikePartitionsError: the topics do not have the same number of partitions.
            CutLogError: Kafka does not answer.
        """
        is_wanted = self._watch.has_news(self._position) if up_to is None else self._position < up_to
        if not is_wanted:
            return False
        page = self._log.records(self._position - 1, limit=_PAGE)
        for logged in page:
            if up_to is not None and logged.log_offset >= up_to:
                return False
            self._take(logged)
        is_end = len(page) < _PAGE
        if is_end:
            self._watch.note_end(found=bool(page))
        return not is_end

    def check_connected(self) -> None:
        """Whether all that was read connects to where the query stands.

        Markers ahead of the frontier may wait for what is missing; a cut beyond a hole cannot.

        Raises:
            MissingCutsError: the log was truncated.
        """
        beyond = [s for s in self._unconnected if s.is_cut and s.lsn > self._covered]
        if beyond:
            self._raise_missing(self._covered, beyond[0].lsn)

    def transactions(self, windows: Sequence[Window], floor: int, end: int) -> list[CommittedTransaction]:
        """All in any of the windows, in commit order, from the log's range ``[floor, end)``.

        Raises:
            MissingCutsError: the log does not list every transaction in between.
            CutLogError: Kafka does not answer.
        """
        found: dict[int, CommittedTransaction] = {}
        for after_lsn, up_to_lsn in merged(windows):
            for segment in self._chain(after_lsn, up_to_lsn, floor, end):
                for transaction in self._transactions_of(segment):
                    if after_lsn < transaction.commit_lsn <= up_to_lsn:
                        found[transaction.commit_lsn] = transaction
        return [found[lsn] for lsn in sorted(found)]

    def repeated(self, floor: int, end: int) -> frozenset[int]:
        """Commit LSNs of transactions with rows that may stand in Kafka twice."""
        return frozenset().union(*(s.repeated for s in self._segments if floor <= s.log_offset < end))

    @property
    def exact_up_to_lsn(self) -> int:
        """Up to here groups must end at cuts.

        What stands behind a snapshot's row decides which commit it takes, so such rows must be read once.
        """
        return self._exact_up_to_lsn

    @property
    def stops(self) -> frozenset[int]:
        """LSNs of cuts that no group passes without stopping there.

        Behind them are late rows of a snapshot with the LSN of one that they hold: in one batch, rows of both
        would be taken for late ones.
        """
        late = [(lsn, segment.lsn) for segment in self._segments for lsn in segment.late_snapshots]
        return frozenset(
            segment.lsn
            for segment in self._segments
            if any(lsn in segment.exact_snapshots and above > segment.lsn for lsn, above in late)
        )

    def snapshot_rows(self, windows: Sequence[Window], floor: int, end: int) -> tuple[frozenset[int], bool]:
        """Late snapshots, and whether incremental rows stand, in cuts that lie in the windows."""
        touched = [
            s
            for s in self._segments
            if s.has_snapshot_rows
            and floor <= s.log_offset < end
            and any(s.lsn > after and s.previous_lsn < up_to for after, up_to in windows)
        ]
        late = frozenset(lsn for segment in touched for lsn in segment.late_snapshots)
        return late, any(segment.has_incremental_rows for segment in touched)

    def skipped(self, window: Window, floor: int, end: int) -> tuple[int, ...]:
        """Xids of the transactions of a window that an operator let pass, in commit order."""
        found = {
            xid: lsn
            for segment in self._segments
            if floor <= segment.log_offset < end
            for xid, lsn in segment.skipped
            if window[0] < lsn <= window[1]
        }
        return tuple(sorted(found, key=found.__getitem__))

    def floor(self, low: int) -> int:
        """Where in the log the records begin that a query needs whose slowest partition stands at an LSN."""
        return min((s.log_offset for s in self._segments if s.lsn > low), default=self._position)

    def commit_ts_ms(self, lsn: int) -> int:
        """Commit time at about an LSN; 0 when nothing is known of it."""
        below = ((s.lsn, s.commit_ts_ms) for s in self._segments if s.lsn <= lsn)
        return max(below, default=(0, 0))[1]

    def check_alike(self, counts: Mapping[str, int]) -> None:
        """Whether the topics' numbers of partitions are equal, and as before.

        Raises:
            PartitionsChangedError: a topic has another number than before.
            UnlikePartitionsError: they differ.
        """
        for topic, count in counts.items():
            if self._groups is not None and count != self._groups:
                raise PartitionsChangedError(topic, self._groups, count)
        if len(set(counts.values())) > 1:
            raise UnlikePartitionsError(tuple(counts.items()))

    def newest(self) -> PublishedCut | None:
        """The newest cut in the log."""
        newest = self._log.newest()
        return newest if newest is not None and newest.cut.timeline == self._key.timeline else None

    def log_end(self) -> int:
        """Where the log ends now."""
        return self._log.end()

    def close(self) -> None:
        """Frees connections."""
        self._log.close()
        self._watch.close()

    # --- reading

    def _begin_at(self, start: GroupOffset) -> None:
        self._floor = self._position = start.floor
        self._low = self._covered = _low(start)
        self._exact_up_to_lsn = 0
        self._segments, self._unconnected = [], []
        self._groups, self._histories = None, {}
        if start.lsns:
            self._know_groups(len(start.lsns))

    def _know_groups(self, groups: int) -> None:
        self._groups = groups
        self._histories = {topic: [MarkerHistory() for _ in range(groups)] for topic in self._topics}

    def _take(self, logged: LoggedRecord) -> None:
        record = logged.record
        if isinstance(record, Cut | AheadMarkers) and record.timeline == self._key.timeline:
            if isinstance(record, Cut):
                self._take_ends(record)
            else:
                self._take_markers(record)
            self._keep(logged.log_offset, record.transactions)
            self._connect(_segment(record, logged.log_offset))
        self._position = logged.log_offset + 1

    def _take_ends(self, cut: Cut) -> None:
        counts = {topic: len(cut.end_offsets[topic]) for topic in self._topics if topic in cut.end_offsets}
        self.check_alike(counts)
        if self._groups is None and counts:
            self._know_groups(next(iter(counts.values())))
        for topic, histories in self._histories.items():
            ends = cut.end_offsets.get(topic, (0,) * len(histories))
            for history, end in zip(histories, ends, strict=True):
                history.add(cut.lsn, end)

    def _take_markers(self, ahead: AheadMarkers) -> None:
        for (topic, partition), marker in ahead.markers.items():
            histories = self._histories.get(topic)
            if histories is None:
                continue
            if partition >= len(histories):
                raise PartitionsChangedError(topic, len(histories), partition + 1)
            histories[partition].add(marker.safe_commit_lsn, marker.safe_offset)

    # --- tables

    def _connect(self, segment: Segment) -> None:
        self._segments.append(segment)
        if segment.has_snapshot_rows:
            self._exact_up_to_lsn = max(self._exact_up_to_lsn, segment.lsn)
        self._unconnected.append(segment)
        has_grown = True
        while has_grown:
            has_grown = False
            for waiting in list(self._unconnected):
                if waiting.previous_lsn <= self._covered or self._is_beginning(waiting):
                    self._covered = max(self._covered, waiting.lsn)
                    self._unconnected.remove(waiting)
                    has_grown = True

    def _is_beginning(self, segment: Segment) -> bool:
        """Whether nothing has to be known of what came before."""
        return self._covered == 0 and self._low == 0 and self._may_be_first(segment)

    def _may_be_first(self, segment: Segment) -> bool:
        return segment.is_cut and self._key.may_start_anywhere

    def _chain(self, after_lsn: int, up_to_lsn: int, floor: int, end: int) -> list[Segment]:
        """As few segments as cover ``(after_lsn, up_to_lsn]``."""
        usable = [
            s
            for s in self._segments
            if floor <= s.log_offset < end and s.lsn > after_lsn and s.previous_lsn < up_to_lsn
        ]
        chain: list[Segment] = []
        covered = after_lsn
        if after_lsn == 0:
            covered = min((s.previous_lsn for s in usable if self._may_be_first(s)), default=0)
        while covered < up_to_lsn:
            best = max((s for s in usable if s.previous_lsn <= covered), key=lambda s: s.lsn, default=None)
            if best is None or best.lsn <= covered:
                self._raise_missing(covered, up_to_lsn)
            chain.append(best)
            covered = best.lsn
        return chain

    def _raise_missing(self, covered: int, up_to_lsn: int) -> NoReturn:
        raise MissingCutsError(self._key.source, self._key.timeline, covered, up_to_lsn)

    def _transactions_of(self, segment: Segment) -> tuple[CommittedTransaction, ...]:
        kept = self._kept.get(segment.log_offset)
        if kept is None:
            [logged] = self._log.records(segment.log_offset - 1, limit=1)
            record = logged.record
            if logged.log_offset != segment.log_offset or not isinstance(record, Cut | AheadMarkers):
                self._raise_missing(segment.previous_lsn, segment.lsn)
            kept = self._keep(logged.log_offset, record.transactions)
        return kept

    def _keep(
        self, log_offset: int, transactions: tuple[CommittedTransaction, ...]
    ) -> tuple[CommittedTransaction, ...]:
        if log_offset not in self._kept:
            self._kept[log_offset] = transactions
            self._kept_count += len(transactions)
        while self._kept_count > _TRANSACTIONS_KEPT and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._kept_count -= len(dropped)
        return transactions


def merged(windows: Iterable[Window]) -> list[Window]:
    """Windows that overlap or touch become one; ascending."""
    result: list[Window] = []
    for after_lsn, up_to_lsn in sorted(windows):
        if result and after_lsn <= result[-1][1]:
            result[-1] = result[-1][0], max(result[-1][1], up_to_lsn)
        else:
            result.append((after_lsn, up_to_lsn))
    return result


def _segment(record: Cut | AheadMarkers, log_offset: int) -> Segment:
    if isinstance(record, AheadMarkers):
        newest = record.transactions[-1].commit_ts_ms if record.transactions else 0
        return Segment(record.previous_lsn, record.lsn, log_offset, newest, False, record.repeated, ())
    lsn_of = {t.xid: t.commit_lsn for t in record.transactions} if record.skipped else {}
    skipped = tuple((xid, lsn_of.get(xid, record.lsn)) for xid in record.skipped)
    return Segment(
        record.previous_lsn,
        record.lsn,
        log_offset,
        record.commit_ts_ms,
        True,
        record.repeated,
        skipped,
        frozenset(record.late_snapshots),
        record.has_incremental_rows,
        frozenset(t.commit_lsn for t in record.transactions if t.is_snapshot),
    )


def _low(offset: GroupOffset) -> int:
    """The LSN above which the slowest partition needs to know all commits."""
    return min((p.lsn for ps in offset.positions.values() for p in ps), default=0)
