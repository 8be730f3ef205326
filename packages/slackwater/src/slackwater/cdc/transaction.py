"""Transactions that the frontier has not reached yet, and their rows that were read: one byte per row.

Which tables are followed, and what proves that all rows of a table were read, is here, too.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from slackwater.cdc.envelope import MAX_ROWS, End
from slackwater.cdc.partition_queues import EndOffsets, PartitionQueue
from slackwater.protocol import Evidence

_CAPACITY = 16
_TO_ONE = bytes([0] + [1] * 255)
Track = bytearray
"""The rows of one table by their order: 0, or the mark of the partition in which the row was read first."""


class Subscription:
    """The tables of a frontier that are followed (None: all), and what proves completeness. Never changes."""

    def __init__(self, tables: frozenset[str] | None, evidence: Mapping[str, Evidence] | None = None) -> None:
        self._tables = tables
        self.exempt = {t: kind for t, kind in (evidence or {}).items() if kind is not Evidence.COUNTS}
        """Tables whose completeness is not judged by counts, with what judges it."""
        self._names: dict[tuple[str, str], str | None] = {}

    def is_followed(self, table: str) -> bool:
        """Returns whether rows of a table (``schema.table``) are read."""
        return self._tables is None or table in self._tables

    def table(self, place: tuple[str, str]) -> str | None:
        """Returns ``schema.table`` for a schema and a table; None if the table is not followed."""
        try:
            return self._names[place]
        except KeyError:
            name = ".".join(place)
            self._names[place] = result = name if place[1] and self.is_followed(name) else None
            return result

    def only_followed(self, end: End) -> End:
        """Returns END without the counts of tables that are not followed."""
        if all(map(self.is_followed, end.counts)):
            return end
        counts = {table: count for table, count in end.counts.items() if self.is_followed(table)}
        return End(end.xid, end.commit_lsn, end.commit_ts_ms, counts)

    def counted(self, end: End) -> Mapping[str, int]:
        """Returns the counts of END for the tables that are judged by counts."""
        if not self.exempt or self.exempt.keys().isdisjoint(end.counts):
            return end.counts
        return {table: count for table, count in end.counts.items() if table not in self.exempt}


class RunRows:
    """The rows of one transaction that one run of the connector has written.

    Everything that the hot loop touches is here. Tracks hold no reference back: without cyclic garbage
    collection that would be a leak.
    """

    __slots__ = ("missing", "run", "tracks")

    def __init__(self, run: str) -> None:
        self.run = run
        self.tracks: dict[str, Track] = {}
        self.missing = 0
        """Rows that END counts and that were not read; before END, minus the number of rows read."""

    def track(self, table: str) -> Track:
        """Returns the track of a table, created if missing."""
        track = self.tracks.get(table)
        if track is None:
            track = self.tracks[table] = Track(_CAPACITY)
        return track

    def expect(self, counts: Mapping[str, int]) -> bool:
        """Adopts the counts of END; False if rows beyond them were read: there are several numberings."""
        tracks = self.tracks
        missing, is_beyond = 0, False
        for table, count in counts.items():
            track = tracks.get(table)
            if track is None:
                tracks[table] = Track(count + 1)
                missing += count
                continue
            beyond = len(track) - count - 1
            if beyond <= 0:
                track.extend(bytes(-beyond))
            elif track.count(0, count + 1) == beyond:
                del track[count + 1 :]
            else:
                is_beyond = True
            missing += track.count(0, 1, count + 1)
        self.missing = missing
        return not is_beyond and len(tracks) == len(counts)

    def add(self, track: Track, order: int, mark: int) -> None:
        """Notes a row outside the hot loop."""
        if order >= len(track):
            track.extend(bytes(max(order + 1, min(2 * len(track), MAX_ROWS + 1)) - len(track)))
        if not track[order]:
            track[order] = mark
            self.missing -= 1


def covers(runs: Sequence[RunRows], table: str, count: int) -> bool:
    """Returns whether the runs together have written rows 1 … count of a table."""
    seen = union(runs, table)
    return len(seen) > count and not seen.count(0, 1, count + 1)


def is_exactly(runs: Sequence[RunRows], table: str, count: int) -> bool:
    """Returns whether the runs together have written rows 1 … count of a table, and none beyond."""
    return covers(runs, table, count) and not union(runs, table).count(1, count + 1)


def union(runs: Sequence[RunRows], table: str) -> bytes:
    """Joins tracks: 1 at every order at which any of the runs has a row of the table."""
    if len(runs) == 1:
        return bytes(runs[0].tracks.get(table, b"").translate(_TO_ONE))
    bits = size = 0
    for rows in runs:
        track = rows.tracks.get(table, b"")
        size = max(size, len(track))
        bits |= int.from_bytes(track.translate(_TO_ONE), "little")
    return bits.to_bytes(size, "little")


class Transaction(RunRows):
    """A transaction of which something was read and that is not on the frontier.

    Implements :class:`~slackwater.cdc.partition_queues.Pending`. It also holds the rows of the first run that
    was read.
    """

    __slots__ = (
        "begins",
        "begins_at_first_end",
        "counted",
        "end",
        "end_offset",
        "exempt",
        "fence",
        "has_counted_rows",
        "is_behind_late_rows",
        "is_done",
        "is_keyless",
        "is_renumbered",
        "is_repeated",
        "last_begin_ms",
        "last_counted",
        "last_end",
        "last_end_ms",
        "later",
        "partitions",
        "sequence",
        "xid",
    )

    is_transaction: ClassVar[bool] = True

    def __init__(self, xid: int) -> None:
        self.run = ""
        self.tracks = {}
        self.missing = 0
        self.is_done = False
        self.sequence: int | None = None
        self.fence: EndOffsets | None = None
        self.xid = xid
        self.begins = 0
        self.last_begin_ms = 0
        """Record timestamp of the last BEGIN; 0 if unknown."""
        self.end: End | None = None
        """The first END: orders the transaction, has the true counts unless a BEGIN was repeated before."""
        self.counted: Mapping[str, int] = {}
        """The counts of the first END, for tables that are judged by counts."""
        self.last_counted: Mapping[str, int] = {}
        """The counts of the last END, for the same tables."""
        self.has_counted_rows = False
        """Whether rows of tables that are judged by counts were read."""
        self.exempt: dict[str, RunRows] | None = None
        """Rows, by connector run, of tables that are not judged by counts: kept to see repeats."""
        self.end_offset = 0
        """The offset after the first END, in the transaction topic."""
        self.begins_at_first_end = 0
        self.last_end: End | None = None
        self.last_end_ms = 0
        """Record timestamp of the last END."""
        self.later: list[RunRows] | None = None
        """Rows of further connector runs, in the order in which they were found."""
        self.partitions: dict[PartitionQueue, int] = {}
        """The partitions in which rows were read, with the offset of the first one."""
        self.is_repeated = False
        """Whether a row may have been read more than once."""
        self.is_behind_late_rows = False
        """Whether it has rows on both sides of rows of a snapshot in a partition."""
        self.is_renumbered = False
        """Whether rows may have more than one numbering: the fast evidence is void."""
        self.is_keyless = False
        """Whether a repeated row may be in another partition than the first one."""

    @property
    def may_be_scattered(self) -> bool:
        """Whether its rows may follow rows of something later in a partition."""
        return self.is_keyless or self.is_behind_late_rows

    @property
    def commit_lsn(self) -> int:
        """The commit LSN; 0 before END."""
        return 0 if self.end is None else self.end.commit_lsn

    def read_begin(self, timestamp_ms: int) -> None:
        """Counts a BEGIN: a further one shows that the connector has started the transaction again."""
        self.begins += 1
        self.last_begin_ms = timestamp_ms
        if self.begins == 1:
            return
        self.is_repeated = True
        if self.end is None or self.is_keyless:
            self.is_renumbered = True

    def read_keyless(self) -> None:
        """Notes that repeated rows may be in other partitions than the first ones."""
        if not self.is_keyless:
            self.is_keyless = True
            self.is_renumbered = self.is_renumbered or self.begins > 1 or self.later is not None

    def read_end(self, end: End, counted: Mapping[str, int], sequence: int, timestamp_ms: int) -> None:
        """Takes the first END, and those of its counts that are evidence."""
        self.last_end_ms = timestamp_ms
        self.end = self.last_end = end
        self.counted = self.last_counted = counted
        self.begins_at_first_end = self.begins
        self.sequence = sequence
        fits = [rows.expect(counted) for rows in self.runs]
        if not all(fits):
            self.is_renumbered = True

    def read_end_again(self, end: End, counted: Mapping[str, int], timestamp_ms: int) -> None:
        """Takes a further END, which may count only what the last run numbered."""
        self.last_end_ms = timestamp_ms
        self.last_end = end
        self.last_counted = counted
        self.is_repeated = True
        self.fence = None

    def rows_of(self, run: str) -> RunRows:
        """Returns the rows of a run, which is remembered if it is new."""
        if not self.has_counted_rows:
            self.has_counted_rows = True
            self.run = run
        for rows in self.runs:
            if rows.run == run:
                return rows
        return self._rows_of_new_run(run)

    def exempt_rows_of(self, run: str) -> RunRows:
        """Returns the rows of a run that belong to tables not judged by counts."""
        if self.exempt is None:
            self.exempt = {}
        rows = self.exempt.get(run)
        if rows is None:
            self.is_repeated = self.is_repeated or bool(self.exempt)
            rows = self.exempt[run] = RunRows(run)
        return rows

    @property
    def runs(self) -> list[RunRows]:
        """All runs with rows that were read, the first at the front."""
        return [self] if self.later is None else [self, *self.later]

    def tracks_of(self, table: str) -> list[Track]:
        """Returns the tracks of a table, one for each run that has written rows of it."""
        return [r.tracks[table] for r in self.runs if table in r.tracks]

    def received(self, table: str) -> int:
        """Returns the number of different orders of a table that were read, over all runs."""
        return union([*self.runs, *(self.exempt or {}).values()], table).count(1)

    def _rows_of_new_run(self, run: str) -> RunRows:
        rows = RunRows(run)
        self.later = [*(self.later or ()), rows]
        self.is_repeated = True
        if self.is_keyless:
            self.is_renumbered = True
        if self.end is not None:
            rows.expect(self.counted)
        return rows
