"""What is known of transactions the frontier has not reached yet."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from slackwater_cdc.envelope import End
from slackwater_cdc.rows import RunRows, Track, union

if TYPE_CHECKING:
    from slackwater_cdc.partition import Partition

EndOffsets = Mapping[tuple[str, int], int]
"""(topic, partition) to the first offset that was not readable when it was asked for."""


class Pending(Protocol):
    """Something whose records hold back the end offsets of cuts until it is done."""

    is_done: bool
    """Whether the frontier has passed it, or it turned out to be void."""
    sequence: int | None
    """Its place in the commit order; None while that is unknown."""
    past: EndOffsets | None
    """End offsets that were asked for when everything else pointed to completeness."""


class Waiting:
    """Implements :class:`Pending` for what is no transaction."""

    __slots__ = ("is_done", "past", "sequence")

    def __init__(self) -> None:
        self.is_done = False
        self.sequence: int | None = None
        self.past: EndOffsets | None = None


class LateRows(Waiting):
    """Rows of a snapshot in one partition that are newer than the snapshot's LSN.

    ``sequence`` is that of a commit that is newer than the rows: no cut ends between them and it.
    """

    __slots__ = ("lsn", "ts_ms")

    def __init__(self, lsn: int) -> None:
        super().__init__()
        self.lsn = lsn
        self.ts_ms = 0
        """When the newest row was read from the database, by the connector's clock."""


class Obstacle(Waiting):
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


class Transaction(RunRows):
    """A transaction of which something was read and that is not on the frontier.

    It is itself the rows of the first run of which rows were read.
    """

    __slots__ = (
        "begins",
        "begins_at_first_end",
        "counted",
        "end",
        "end_offset",
        "exempt",
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
        "past",
        "sequence",
        "xid",
    )

    def __init__(self, xid: int) -> None:
        self.run = ""
        self.tracks = {}
        self.missing = 0
        self.is_done = False
        self.sequence: int | None = None
        self.past: EndOffsets | None = None
        self.xid = xid
        self.begins = 0
        self.last_begin_ms = 0
        """Record timestamp of the last BEGIN; 0 if unknown."""
        self.end: End | None = None
        """The first END: orders the transaction, has the true counts unless a BEGIN was repeated before."""
        self.counted: Mapping[str, int] = {}
        """What the first END counts of tables that are judged by counts."""
        self.last_counted: Mapping[str, int] = {}
        """What the last END counts of them."""
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
        """Rows of further connector runs, in the order in which they were met."""
        self.partitions: dict[Partition, int] = {}
        """Where rows were read, with the offset of the first one."""
        self.is_repeated = False
        """Whether a row may have been read more than once."""
        self.is_behind_late_rows = False
        """Whether it has rows on both sides of rows of a snapshot in a partition."""
        self.is_renumbered = False
        """Whether rows may stand under more than one numbering: the fast evidence is void."""
        self.is_keyless = False
        """Whether a repeated row may be in another partition than the first one."""

    @property
    def may_be_scattered(self) -> bool:
        """Whether rows of it may stand behind rows of something later in a partition."""
        return self.is_keyless or self.is_behind_late_rows

    @property
    def commit_lsn(self) -> int:
        """The commit LSN; 0 before END."""
        return 0 if self.end is None else self.end.commit_lsn

    def read_begin(self, timestamp_ms: int) -> None:
        """Counts a BEGIN: at a further one the connector has started the transaction again."""
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
        self.past = None

    def rows_of(self, run: str) -> RunRows:
        """Where the rows of a run are kept."""
        if not self.has_counted_rows:
            self.has_counted_rows = True
            self.run = run
        for rows in self.runs:
            if rows.run == run:
                return rows
        return self._rows_of_new_run(run)

    def exempt_rows_of(self, run: str) -> RunRows:
        """Where the rows of a run are kept that belong to tables not judged by counts."""
        if self.exempt is None:
            self.exempt = {}
        rows = self.exempt.get(run)
        if rows is None:
            self.is_repeated = self.is_repeated or bool(self.exempt)
            rows = self.exempt[run] = RunRows(run)
        return rows

    @property
    def runs(self) -> list[RunRows]:
        """All runs of which rows were read, the first at the front."""
        return [self] if self.later is None else [self, *self.later]

    def tracks_of(self, table: str) -> list[Track]:
        """What the runs have written of a table."""
        return [r.tracks[table] for r in self.runs if table in r.tracks]

    def received(self, table: str) -> int:
        """How many different orders of a table were read, over all runs."""
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
