"""What is known of transactions the frontier has not reached yet."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slackwater_cdc.envelope import End

if TYPE_CHECKING:
    from slackwater_cdc.partition import Partition

EndOffsets = Mapping[tuple[str, int], int]
"""(topic, partition) to the first offset that was not readable when it was asked for."""

INITIAL_CAPACITY = 16


class Pending:
    """Something whose records hold back the end offsets of cuts until it is done."""

    __slots__ = ("is_done", "past", "sequence")

    def __init__(self) -> None:
        self.is_done = False
        """Whether the frontier has passed it, or it turned out to be void."""
        self.sequence: int | None = None
        """Its place in the commit order; None while that is unknown."""
        self.past: EndOffsets | None = None
        """End offsets that were asked for when everything else pointed to completeness."""


class Obstacle(Pending):
    """A record that cannot be attributed to a transaction: no cut ever passes it."""

    __slots__ = ("detail", "is_misconfiguration", "offset", "partition", "topic")

    def __init__(
        self, topic: str, partition: int, offset: int, detail: str, *, is_misconfiguration: bool
    ) -> None:
        super().__init__()
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.detail = detail
        self.is_misconfiguration = is_misconfiguration
        """Whether the connector lacks a setting, as opposed to an unreadable value."""

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} offset {self.offset}: {self.detail}"


class Track:
    """Which rows of one table of one transaction one connector run has written."""

    __slots__ = ("missing", "rows", "seen")

    def __init__(self, rows: "RunRows") -> None:
        self.rows = rows
        self.seen = bytearray(INITIAL_CAPACITY)
        """By order in the table: 0, or the mark of the partition in which the row was read first."""
        self.missing = 0
        """Rows still expected; negative before END: minus the number of rows read."""

    def expect(self, count: int) -> bool:
        """Takes over the count of END; False if rows beyond it were read: there are several numberings."""
        seen = self.seen
        beyond = len(seen) - count - 1
        if beyond > 0:
            if seen.count(0, count + 1) != beyond:
                return False
            del seen[count + 1 :]
        else:
            seen.extend(bytes(-beyond))
        self.missing = seen.count(0, 1)
        if self.missing:
            self.rows.incomplete += 1
        return True

    def add(self, order: int, mark: int) -> None:
        """Notes a row outside the hot loop."""
        seen = self.seen
        if order >= len(seen):
            seen.extend(bytes(max(order + 1, 2 * len(seen)) - len(seen)))
        if not seen[order]:
            seen[order] = mark
            self.missing -= 1
            if not self.missing:
                self.rows.incomplete -= 1

    def covers(self, count: int) -> bool:
        """Whether rows 1 … count were read."""
        return len(self.seen) > count and not self.seen.count(0, 1, count + 1)

    def is_exactly(self, count: int) -> bool:
        """Whether rows 1 … count were read and none beyond."""
        seen = self.seen
        return self.covers(count) and seen.count(0, count + 1) == len(seen) - count - 1

    @property
    def distinct(self) -> int:
        """How many different orders were read."""
        return len(self.seen) - self.seen.count(0)


class RunRows:
    """The rows of one transaction that one run of the connector has written."""

    __slots__ = ("has_first", "incomplete", "run", "tracks")

    def __init__(self, run: str) -> None:
        self.run = run
        self.tracks: dict[str, Track] = {}
        self.incomplete = 0
        """Tables of which END expects more rows; meaningful after END."""
        self.has_first = False
        """Whether the row with ``total_order`` 1 was among them: a numbering starts in this run."""

    def track(self, table: str) -> Track:
        """The track of a table, made when missing."""
        track = self.tracks.get(table)
        if track is None:
            track = self.tracks[table] = Track(self)
        return track


class Transaction(Pending):
    """A transaction of which something was read and that is not on the frontier."""

    __slots__ = (
        "begins",
        "begins_at_first_end",
        "begins_at_last_end",
        "end",
        "end_offset",
        "first",
        "is_keyless",
        "is_renumbered",
        "is_repeated",
        "last_begin_ms",
        "last_end",
        "last_end_ms",
        "later",
        "partitions",
        "xid",
    )

    def __init__(self, xid: int) -> None:
        super().__init__()
        self.xid = xid
        self.begins = 0
        self.last_begin_ms = 0
        """Record timestamp of a repeated BEGIN; 0 if unknown."""
        self.end: End | None = None
        """The first END: orders the transaction, has the true counts unless a BEGIN was repeated before."""
        self.end_offset = 0
        """The offset after the first END, in the transaction topic."""
        self.begins_at_first_end = 0
        self.last_end: End | None = None
        self.last_end_ms = 0
        """Record timestamp of the last END."""
        self.begins_at_last_end = 0
        self.first = RunRows("")
        self.later: list[RunRows] | None = None
        """Rows of further connector runs, in the order in which they were met."""
        self.partitions: dict[Partition, None] = {}
        self.is_repeated = False
        """Whether a row may have been read more than once."""
        self.is_renumbered = False
        """Whether rows may stand under more than one numbering: the fast evidence is void."""
        self.is_keyless = False
        """Whether a repeated row may be in another partition than the first one."""

    @property
    def commit_lsn(self) -> int:
        """The commit LSN; 0 before END."""
        return 0 if self.end is None else self.end.commit_lsn

    def read_begin_again(self, timestamp_ms: int) -> None:
        """Counts a further BEGIN: the connector has started the transaction again."""
        self.begins += 1
        self.last_begin_ms = timestamp_ms
        self.is_repeated = True
        if self.end is None or self.is_keyless:
            self.is_renumbered = True

    def read_keyless(self) -> None:
        """Notes that repeated rows may be in other partitions than the first ones."""
        if not self.is_keyless:
            self.is_keyless = True
            self.is_renumbered = self.is_renumbered or self.begins > 1 or self.later is not None

    def read_end(self, end: End, sequence: int, timestamp_ms: int) -> None:
        """Takes the first END."""
        self.last_end_ms = timestamp_ms
        self.end = self.last_end = end
        self.begins_at_first_end = self.begins_at_last_end = self.begins
        self.sequence = sequence
        for rows in self.runs:
            self._expect(rows, end)

    def read_end_again(self, end: End, timestamp_ms: int) -> None:
        """Takes a further END, which may count only what the last run numbered."""
        self.last_end_ms = timestamp_ms
        self.last_end = end
        self.begins_at_last_end = self.begins
        self.is_repeated = True
        self.past = None

    def rows_of(self, run: str) -> RunRows:
        """Where the rows of a run are kept."""
        if not self.partitions:
            self.first.run = run
        for rows in self.runs:
            if rows.run == run:
                return rows
        return self._rows_of_new_run(run)

    @property
    def runs(self) -> list[RunRows]:
        """All runs of which rows were read, the first at the front."""
        return [self.first] if self.later is None else [self.first, *self.later]

    def tracks_beside(self, track: Track) -> list[Track]:
        """The tracks of all runs for the same table, the given one among them."""
        if self.later is None:
            return [track]
        table = next(name for name, t in track.rows.tracks.items() if t is track)
        return [r.tracks[table] for r in self.runs if table in r.tracks]

    def received(self, table: str) -> int:
        """How many different orders of a table were read, over all runs."""
        return union([r.tracks[table] for r in self.runs if table in r.tracks]).count(1)

    def _rows_of_new_run(self, run: str) -> RunRows:
        rows = RunRows(run)
        self.later = [*(self.later or ()), rows]
        self.is_repeated = True
        if self.is_keyless:
            self.is_renumbered = True
        if self.end is not None:
            self._expect(rows, self.end)
        return rows

    def _expect(self, rows: RunRows, end: End) -> None:
        for table, count in end.counts.items():
            if not rows.track(table).expect(count):
                self.is_renumbered = True


def union(tracks: list[Track]) -> bytes:
    """By order: 1 where any of the tracks has a row."""
    result = bytearray(max((len(t.seen) for t in tracks), default=0))
    bits = 0
    for track in tracks:
        bits |= int.from_bytes(track.seen.translate(_TO_ONE), "little")
    result[:] = bits.to_bytes(len(result), "little")
    return bytes(result)


_TO_ONE = bytes([0] + [1] * 255)
