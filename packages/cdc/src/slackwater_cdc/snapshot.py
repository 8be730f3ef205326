"""Snapshots: rows outside transactions.

The rows of an initial snapshot carry one LSN and together are one pseudo-transaction. It is complete by the
counts in Debezium's notifications, rows that the producer wrote twice left out. Where there is no topic of
notifications nothing says how many rows there are, and the row marked ``last`` may be readable before others:
it is complete when a commit behind it was written so much later that no row can still be on its way.

An interrupted attempt is void; the next one repeats everything. It usually has a higher LSN, but the same
when nothing was written to the database in between, and a lower one was seen. So attempts are told apart by
time: the portion of rows that was begun last says which announcement counts, and every portion counts for the
announcement of its own time only.

Debezium 3.7 reads only the first attempt at exactly its LSN (in the database snapshot of the new slot); a
later one reads each table when it comes to it. So do ad hoc snapshots that block the stream: their LSN is the
position where the stream paused. Such rows are *late*: newer than their LSN, and what changed them comes
behind them in the stream. They may be shown only together with a commit that is newer than they are (by
commit time against the connector's clock), or when the source has been at rest for so long that there is
none.
"""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from slackwater_cdc.announcements import Announcement, Announcements
from slackwater_cdc.envelope import UNREADABLE, End, Row
from slackwater_cdc.errors import UndecodableRecordError, shortened
from slackwater_cdc.regression import RegressionWatch
from slackwater_cdc.transaction import LateRows, Waiting

if TYPE_CHECKING:
    from slackwater_cdc.partition import Partition

_SKEW_MS = 1000
"""By how much the clocks of connector and database may differ."""
_ON_ITS_WAY_MS = 30_000
"""Longer than a row may take to become readable: at most 1.2 s were measured, without a crash."""
_RECENT_ROWS = 20_000
"""Of a partition, among which a row written twice is looked for: more than one batch of a producer holds."""


_NEVER = 1 << 63


class _Origin(msgspec.Struct, frozen=True, gc=False):
    sequence: str | None = None


class _Sequenced(msgspec.Struct, frozen=True, gc=False):
    source: _Origin = _Origin()
    payload: "_Sequenced | None" = None


_decode_sequence = msgspec.json.Decoder(_Sequenced).decode


class Portion:
    """Rows that one database transaction of one connector run has read: a run reads with several at once."""

    __slots__ = ("first_ms", "has_last", "is_ad_hoc", "lsn", "received", "run", "ts_ms")

    def __init__(self, lsn: int, ts_ms: int, run: str, *, is_ad_hoc: bool) -> None:
        self.lsn = lsn
        self.ts_ms = ts_ms
        """When the transaction began, by the database's clock."""
        self.run = run
        self.is_ad_hoc = is_ad_hoc
        """Whether its snapshot paused the stream."""
        self.first_ms = _NEVER
        """When its first row was read from the database, by the connector's clock."""
        self.received: dict[str, int] = {}
        """Rows per table, those written twice left out."""
        self.has_last = False
        """Whether the row marked ``last`` is among them."""


class Snapshot(Waiting):
    """The initial snapshot: all attempts at it since the frontier, of which the newest counts.

    Attempts may have the same LSN, when nothing was written to the database in between, and even a lower one.
    Which attempt a portion belongs to is told by the announcements; without any, by the connector's run.
    Where records do not name that either, every further portion may be of another attempt.
    """

    __slots__ = (
        "is_late",
        "is_repeated",
        "newest",
        "newest_ms",
        "over",
        "partitions",
        "portions",
        "written_ms",
    )

    def __init__(self, first: Portion) -> None:
        super().__init__()
        self.portions = {first: None}
        self.newest = first
        """The portion that was begun last: its attempt is the one that counts."""
        self.is_late = False
        """Whether its rows are newer than its LSN: it repeats an interrupted one."""
        self.newest_ms = 0
        """When the newest row was read from the database, by the connector's clock."""
        self.partitions: dict[Partition, RecentRows] = {}
        self.is_repeated = False
        """Whether a row was written twice."""
        self.over: Waiting | None = None
        """What the end offsets of the moment are known by when no more rows can come."""
        self.written_ms = 0
        """Record timestamp, at least, of the newest row."""

    @property
    def lsn(self) -> int:
        """The LSN at which rows are shown."""
        return self.newest.lsn

    @property
    def ts_ms(self) -> int:
        """When the newest attempt began, by the database's clock."""
        return self.newest.ts_ms

    def add(self, portion: Portion) -> None:
        """Takes a further portion."""
        self.portions[portion] = None
        self.newest = max(self.newest, portion, key=lambda p: (p.ts_ms, p.lsn))


class RecentRows:
    """The newest rows of a partition: a producer that tries again may write a batch twice."""

    __slots__ = ("_hashes", "_order")

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._hashes: set[int] = set()

    def has(self, value: bytes) -> bool:
        """Whether a row is among them; it is from now on."""
        key = hash(value)
        if key in self._hashes:
            return True
        self._hashes.add(key)
        self._order.append(key)
        if len(self._order) > _RECENT_ROWS:
            self._hashes.discard(self._order.popleft())
        return False


class Snapshots:
    """Follows snapshot rows and notifications."""

    def __init__(
        self, tables: frozenset[str] | None, passed_lsn: int, passed_ms: int, watch: RegressionWatch
    ) -> None:
        self._tables = tables
        self._watch = watch
        self._passed_lsn = passed_lsn
        self.announced = Announcements()
        """What the notifications say."""
        self.pending: Snapshot | None = None
        """The initial snapshot, while it is above the frontier."""
        self._shown_lsn, self._shown_ms = passed_lsn, passed_ms
        self.doubled: set[int] = set()
        """LSNs of snapshots on the frontier of which rows came again since the last cut."""
        self.late: list[LateRows] = []
        """Rows of ad hoc snapshots that no cut has shown."""
        self._portions: dict[tuple[int, int, str], Portion] = {}

    def read_row(self, partition: "Partition", offset: int, row: Row, value: bytes) -> None:
        """Takes a row whose ``source.lsn`` is the snapshot's LSN.

        Raises:
            UndecodableRecordError: it does not say when or at which LSN it was read.
        """
        source = row.source
        table = f"{source.schema}.{source.table}"
        if not self._is_read(table):
            return
        read_ms = _read_ms(row, partition, value)
        key = _lsn(row, value), source.ts_ms, partition.run
        portion = self._portions.get(key)
        if portion is None:
            portion = self._portions[key] = Portion(*key, is_ad_hoc=_is_ad_hoc(value))
        if portion.is_ad_hoc or (portion.lsn == self._shown_lsn and portion.ts_ms > self._shown_ms):
            self._read_late(partition, offset, portion.lsn, read_ms)
            partition.tables.add(table)
            return
        snapshot = self._snapshot_of(portion)
        if snapshot is None:
            return
        if partition not in snapshot.partitions:
            snapshot.partitions[partition] = RecentRows()
            partition.add_first(snapshot, offset)
        partition.tables.add(table)
        snapshot.written_ms = max(snapshot.written_ms, partition.timestamp_ms)
        snapshot.newest_ms = max(snapshot.newest_ms, read_ms)
        portion.first_ms = min(portion.first_ms, row.ts_ms or source.ts_ms)
        if snapshot.partitions[partition].has(value):
            snapshot.is_repeated = True
            return
        portion.received[table] = portion.received.get(table, 0) + 1
        portion.has_last = portion.has_last or source.snapshot == "last"

    def is_counted(self, snapshot: Snapshot) -> bool:
        """Whether the notifications say that all rows of the newest attempt were read."""
        announced = self.announcement(snapshot.newest)
        if announced is None or not announced.is_completed or announced.unreadable:
            return False
        return all(read >= count for count, read in self._counts(snapshot).values())

    def has_last(self, snapshot: Snapshot) -> bool:
        """Whether the row marked ``last`` of the newest attempt was read."""
        return any(portion.has_last for portion in self.attempt(snapshot))

    def announcement(self, portion: Portion) -> Announcement | None:
        """What announced the attempt that a portion belongs to; None if that is not known."""
        return self.announced.of(portion.first_ms)

    def expected(self, snapshot: Snapshot) -> dict[str, int]:
        """Rows per table, as far as the notifications say."""
        return {table: count for table, (count, _) in self._counts(snapshot).items()}

    def received(self, snapshot: Snapshot) -> dict[str, int]:
        """Rows per table that were read of the newest attempt."""
        counted = {table: read for table, (_, read) in self._counts(snapshot).items() if read}
        return _received(self.attempt(snapshot)) | counted

    def attempt(self, snapshot: Snapshot) -> list[Portion]:
        """The portions of the newest attempt."""
        newest = snapshot.newest
        announced = self.announcement(newest)
        same = [p for p in snapshot.portions if p.lsn == newest.lsn and self.announcement(p) is announced]
        return same if self.announced else [p for p in same if p.run == newest.run]

    def is_long_over(self, snapshot: Snapshot, newest_written_ms: int) -> bool:
        """Whether something was written so much later that no row of a snapshot can be on its way."""
        return snapshot.written_ms > 0 and newest_written_ms >= snapshot.written_ms + _ON_ITS_WAY_MS

    def settle(self, newest_end: End, sequence: int) -> None:
        """Ties late rows to the newest END if that committed after they were read."""
        for rows in self.late:
            if rows.sequence is None and newest_end.commit_ts_ms > rows.ts_ms + _SKEW_MS:
                rows.sequence = sequence

    def settle_at_rest(self, sequence: int) -> None:
        """Ties late rows to the newest END, since no more is to be expected."""
        for rows in self.late:
            rows.sequence = sequence if rows.sequence is None else rows.sequence

    def is_before(self, snapshot: Snapshot, end: End | None) -> bool:
        """Whether a commit is certainly newer than the rows of a snapshot."""
        return end is not None and end.commit_ts_ms > snapshot.newest_ms + _SKEW_MS

    def release(self, passed: int) -> set[int]:
        """Says that a sequence was passed; returns the LSNs of late rows that may be shown now."""
        shown = [rows for rows in self.late if rows.sequence is not None and rows.sequence <= passed]
        for rows in shown:
            rows.is_done = True
        self.late = [rows for rows in self.late if not rows.is_done]
        return {rows.lsn for rows in shown}

    def finish(self) -> None:
        """Says that the pending snapshot is on the frontier."""
        if self.pending is not None:
            self.pending.is_done = True
            self._passed_lsn = self._shown_lsn = self.pending.lsn
            self._shown_ms = self.pending.ts_ms
            self._watch.pass_commit(self._shown_ms)
            self.pending = None

    def pass_lsn(self, lsn: int, commit_ts_ms: int) -> None:
        """Says that the frontier is at a commit: a snapshot at or below its LSN is no longer waited for."""
        self._passed_lsn = max(self._passed_lsn, lsn)
        self._watch.pass_commit(commit_ts_ms)

    def is_late(self, snapshot: Snapshot) -> bool:
        """Whether the newest attempt repeats an interrupted one, of which rows or the start were read."""
        newest = snapshot.newest
        if self.announced.is_again(self.announcement(newest)):
            return True
        is_known_by = self.announced or newest.run
        return len(self.attempt(snapshot) if is_known_by else [newest]) < len(snapshot.portions)

    def _counts(self, snapshot: Snapshot) -> dict[str, tuple[int, int]]:
        """Per table how many rows were announced, and how many of those were read.

        An ad hoc snapshot of an idle database may look like a further attempt, but has some of the tables
        only: for the others an earlier attempt counts, if it was completed at the same LSN.
        """
        newest = self.announcement(snapshot.newest)
        result: dict[str, tuple[int, int]] = {}
        for announced in [] if newest is None else self.announced.up_to(newest):
            portions = [p for p in snapshot.portions if self.announcement(p) is announced]
            here = [p for p in portions if p.lsn == snapshot.lsn]
            if announced is newest or (announced.is_completed and (here or not portions)):
                received = _received(here)
                counts = announced.scanned.items()
                result |= {t: (count, received.get(t, 0)) for t, count in counts if self._is_read(t)}
        return result

    def _is_read(self, table: str) -> bool:
        return self._tables is None or table in self._tables

    def _snapshot_of(self, portion: Portion) -> Snapshot | None:
        """The pending snapshot, which takes the portion if it is new; None if that is not waited for."""
        lsn, pending = portion.lsn, self.pending
        if pending is not None and portion in pending.portions:
            return pending
        if lsn == self._shown_lsn:
            self.doubled.add(lsn)
            return None
        if lsn <= self._passed_lsn:
            self._watch.read_old_snapshot(lsn, portion.ts_ms)
            return None
        if self._passed_lsn:
            self._watch.read_snapshot_after_commits(lsn, portion.ts_ms)
        else:
            self._watch.read_new_snapshot(portion.ts_ms)
        if pending is None:
            self.pending = pending = Snapshot(portion)
        else:
            pending.add(portion)
        return pending

    def _read_late(self, partition: "Partition", offset: int, lsn: int, read_ms: int) -> None:
        rows = partition.newest()
        if not isinstance(rows, LateRows) or rows.lsn != lsn or rows.sequence is not None:
            rows = LateRows(lsn)
            self.late.append(rows)
            partition.add_first(rows, offset)
        rows.ts_ms = max(rows.ts_ms, read_ms)


def _lsn(row: Row, value: bytes) -> int:
    if not row.source.lsn:
        raise UndecodableRecordError("change", "it has no LSN, but is a row of a snapshot", value)
    return row.source.lsn


def _read_ms(row: Row, partition: "Partition", value: bytes) -> int:
    """When a row was read from the database; where it does not say, when it was written or later."""
    if row.ts_ms is None:
        return partition.timestamp_ms
    if type(row.ts_ms) is not int or not 0 <= row.ts_ms < _NEVER:
        reason = f"'ts_ms' is {shortened(row.ts_ms)}, expected milliseconds"
        raise UndecodableRecordError("change", reason, value)
    return row.ts_ms


def _is_ad_hoc(value: bytes) -> bool:
    """Whether a row belongs to a snapshot that paused the stream, not to one at start-up."""
    try:
        record = _decode_sequence(value)
    except UNREADABLE as error:
        raise UndecodableRecordError("change", str(error), value) from None
    sequence = (record.payload or record).source.sequence
    return bool(sequence) and not str(sequence).startswith("[null")


def _received(portions: Iterable[Portion]) -> dict[str, int]:
    result: dict[str, int] = {}
    for portion in portions:
        for table, count in portion.received.items():
            result[table] = result.get(table, 0) + count
    return result
