"""The records of the cut log without their transactions, and which commits they cover together. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from slackwater.protocol import SNAPSHOT_XID, AheadMarkers, CommittedTransaction, Cut

LsnRange = tuple[int, int]
"""The commits above the first LSN, up to the second."""

_log_offset = attrgetter("log_offset")
_xid = attrgetter("xid")


@dataclass(frozen=True, slots=True)
class Segment:
    """A record of the log without its markers and transactions."""

    previous_lsn: int
    lsn: int
    """The record's table covers ``(previous_lsn, lsn]``."""
    log_offset: int
    commit_ts_ms: int
    event_count: int | None
    """The number of change events of the source in commits at or below ``lsn``; None if the record is not a
    cut."""
    repeated: frozenset[int]
    skipped: tuple[tuple[int, int], ...]
    """``(xid, commit LSN)``; the LSN of the record if the table does not contain the transaction."""
    late_snapshots: frozenset[int] = frozenset()
    has_incremental_rows: bool = False
    exact_snapshots: frozenset[int] = frozenset()
    """The LSNs of snapshots whose rows are correct at the LSN."""
    barrier_lsn: int = 0
    """The newest barrier that the record contains; 0 if there is none."""
    ended_ms: int = 0
    """When the END of its newest transaction was written, in milliseconds since the epoch; 0 if it is not
    known."""
    written_ms: int = 0
    """When the record itself was written, in milliseconds since the epoch; 0 if it is not known."""

    @property
    def is_cut(self) -> bool:
        """Whether the record is a cut; otherwise it contains markers ahead of one."""
        return self.event_count is not None

    @property
    def has_snapshot_rows(self) -> bool:
        """Whether it contains rows of snapshots that belong to no commit."""
        return self.has_incremental_rows or bool(self.late_snapshots)


def make_segment(record: Cut | AheadMarkers, log_offset: int, written_ms: int = 0) -> Segment:
    """Returns the segment of a record."""
    if isinstance(record, AheadMarkers):
        newest = record.transactions[-1].commit_ts_ms if record.transactions else 0
        return Segment(record.previous_lsn, record.lsn, log_offset, newest, None, record.repeated, ())
    return Segment(
        record.previous_lsn,
        record.lsn,
        log_offset,
        record.commit_ts_ms,
        record.event_count,
        record.repeated,
        _skipped(record) if record.skipped else (),
        frozenset(record.late_snapshots),
        record.has_incremental_rows,
        _exact_snapshots(record.transactions),
        record.barrier_lsn,
        record.ended_ms,
        written_ms,
    )


class Segments:
    """The records of a range of the log, as far as they have been read.

    Commits up to `known_from_lsn` need no table. What precedes the first cut may be missing on request.
    """

    def __init__(self, known_from_lsn: int = 0, *, may_start_anywhere: bool = False) -> None:
        self._may_start_anywhere = may_start_anywhere
        self._from_lsn = known_from_lsn
        self._all: list[Segment] = []
        self._with_snapshots: list[Segment] = []
        self._with_skips: list[Segment] = []
        self._unconnected: list[Segment] = []
        self.barriers: list[int] = []
        """The LSNs at which all pipelines of the source end batches, ascending."""
        self.covered_lsn = known_from_lsn
        """The LSN up to which every commit that is needed is in a table."""
        self.exact_up_to_lsn = 0
        """The LSN up to which groups must end at cuts.

        What follows a snapshot's row determines the commit that it is shown with, so such rows must be read
        once.
        """
        self.newest_cut_lsn = 0
        """The LSN of the newest cut that was read; 0 before the first."""

    def add(self, segment: Segment) -> None:
        """Adds the next record of the log."""
        self._all.append(segment)
        if segment.has_snapshot_rows:
            self.exact_up_to_lsn = max(self.exact_up_to_lsn, segment.lsn)
        if segment.has_snapshot_rows or segment.exact_snapshots:
            self._with_snapshots.append(segment)
        if segment.skipped:
            self._with_skips.append(segment)
        if segment.barrier_lsn > self._from_lsn:
            self._add_barrier(segment.barrier_lsn)
        if segment.is_cut:
            self.newest_cut_lsn = max(self.newest_cut_lsn, segment.lsn)
        if self._connects(segment):
            self._cover(segment.lsn)
        else:
            self._unconnected.append(segment)

    def move_to(self, floor: int, known_from_lsn: int) -> None:
        """Removes records below an offset of the log; commits up to an LSN no longer need a table."""
        del self._all[: bisect_left(self._all, floor, key=_log_offset)]
        self._with_snapshots = [s for s in self._with_snapshots if s.log_offset >= floor]
        self._with_skips = [s for s in self._with_skips if s.log_offset >= floor]
        del self.barriers[: bisect_right(self.barriers, known_from_lsn)]
        self._from_lsn = known_from_lsn
        if known_from_lsn > self.covered_lsn:
            self._cover(known_from_lsn)

    def find_hole(self) -> LsnRange | None:
        """Returns commits that no table lists although a cut after them was read.

        Markers ahead of the frontier may wait for what is missing.
        """
        beyond = [s.lsn for s in self._unconnected if s.is_cut and s.lsn > self.covered_lsn]
        return (self.covered_lsn, beyond[0]) if beyond else None

    @property
    def stops(self) -> frozenset[int]:
        """The LSNs of cuts at which every group must stop.

        They are followed by late rows of a snapshot whose LSN they contain, and in one batch the rows of both
        would be treated as late rows. Or they pass a transaction that an operator skipped: a row of it that
        arrived later is lost to all pipelines, and a batch across the cut would show it in this one.
        """
        late = [(lsn, segment.lsn) for segment in self._with_snapshots for lsn in segment.late_snapshots]
        before_late_rows = (
            segment.lsn
            for segment in self._with_snapshots
            if any(lsn in segment.exact_snapshots and above > segment.lsn for lsn, above in late)
        )
        return frozenset((*before_late_rows, *(segment.lsn for segment in self._with_skips)))

    def within(self, floor: int, end: int) -> Sequence[Segment]:
        """Returns the segments in the log's range ``[floor, end)``, ascending."""
        first = bisect_left(self._all, floor, key=_log_offset)
        return self._all[first : bisect_left(self._all, end, first, key=_log_offset)]

    def chain(self, window: LsnRange, usable: Iterable[Segment]) -> tuple[list[Segment], int]:
        """Chooses as few segments as possible that cover the commits of a window, ascending.

        Returns:
            The segments, and the LSN up to which they cover it, which is below the window's end if there is a
            hole.
        """
        covered, up_to_lsn = window
        found = [s for s in usable if s.lsn > covered and s.previous_lsn < up_to_lsn]
        if covered == 0 and self._may_start_anywhere:
            covered = min((s.previous_lsn for s in found if s.is_cut), default=0)
        chain: list[Segment] = []
        best: Segment | None = None
        for segment in sorted(found, key=lambda s: s.previous_lsn):
            if segment.previous_lsn > covered and best is not None and best.lsn > covered:
                chain.append(best)
                covered = best.lsn
                if covered >= up_to_lsn:
                    return chain, covered
            if segment.previous_lsn > covered:
                return chain, covered
            best = segment if best is None or segment.lsn > best.lsn else best
        if best is not None and best.lsn > covered:
            chain.append(best)
            covered = best.lsn
        return chain, covered

    def floor(self, known_from_lsn: int, otherwise: int) -> int:
        """Returns the offset of the first record that is needed if the commits up to an LSN are known."""
        return next((s.log_offset for s in self._all if s.lsn > known_from_lsn), otherwise)

    def commit_ts_ms(self, lsn: int) -> int:
        """Returns the commit time at about an LSN; 0 if it is not known."""
        return max(((s.lsn, s.commit_ts_ms) for s in self._all if s.lsn <= lsn), default=(0, 0))[1]

    def event_count(self, lsn: int) -> int | None:
        """Returns the number of change events up to the newest cut at or below an LSN; None if unknown."""
        return max(
            (s.event_count for s in self._all if s.event_count is not None and s.lsn <= lsn), default=None
        )

    def cuts(self, window: LsnRange) -> Sequence[Segment]:
        """Returns the cuts whose LSN is in a window, ascending."""
        found = {s.lsn: s for s in reversed(self._all) if s.is_cut and window[0] < s.lsn <= window[1]}
        return [found[lsn] for lsn in sorted(found)]

    def _add_barrier(self, lsn: int) -> None:
        """Adds a barrier, which a record of another sidecar may already have contained."""
        place = bisect_left(self.barriers, lsn)
        if lsn not in self.barriers[place : place + 1]:
            self.barriers.insert(place, lsn)

    def _connects(self, segment: Segment) -> bool:
        is_first = self.covered_lsn == self._from_lsn == 0
        may_begin = is_first and self._may_start_anywhere and segment.is_cut
        return segment.previous_lsn <= self.covered_lsn or may_begin

    def _cover(self, lsn: int) -> None:
        """Records that all commits up to an LSN are in tables; segments that waited for this may connect."""
        self.covered_lsn = max(self.covered_lsn, lsn)
        while connecting := [s for s in self._unconnected if self._connects(s)]:
            self._unconnected = [s for s in self._unconnected if not self._connects(s)]
            self.covered_lsn = max(self.covered_lsn, *(s.lsn for s in connecting))


def merge_windows(windows: Iterable[LsnRange]) -> list[LsnRange]:
    """Merges windows that overlap or touch; ascending."""
    result: list[LsnRange] = []
    for after_lsn, up_to_lsn in sorted(windows):
        if result and after_lsn <= result[-1][1]:
            result[-1] = result[-1][0], max(result[-1][1], up_to_lsn)
        else:
            result.append((after_lsn, up_to_lsn))
    return result


def find_snapshot_rows(
    windows: Sequence[LsnRange], segments: Iterable[Segment]
) -> tuple[frozenset[int], bool]:
    """Returns the late snapshots in cuts of the windows, and whether the cuts have incremental rows."""
    touched = [
        s
        for s in segments
        if s.has_snapshot_rows and any(s.lsn > after and s.previous_lsn < up_to for after, up_to in windows)
    ]
    late = frozenset(lsn for segment in touched for lsn in segment.late_snapshots)
    return late, any(segment.has_incremental_rows for segment in touched)


def skipped_xids(window: LsnRange, segments: Iterable[Segment]) -> tuple[int, ...]:
    """Returns the xids of a window's transactions that an operator skipped, in commit order."""
    found = {xid: lsn for segment in segments for xid, lsn in segment.skipped if window[0] < lsn <= window[1]}
    return tuple(sorted(found, key=found.__getitem__))


def _skipped(cut: Cut) -> tuple[tuple[int, int], ...]:
    lsns = {t.xid: t.commit_lsn for t in cut.transactions}
    return tuple((xid, lsns.get(xid, cut.lsn)) for xid in cut.skipped)


def _exact_snapshots(transactions: Sequence[CommittedTransaction]) -> frozenset[int]:
    if SNAPSHOT_XID not in map(_xid, transactions):
        return frozenset()
    return frozenset(t.commit_lsn for t in transactions if t.is_snapshot)
