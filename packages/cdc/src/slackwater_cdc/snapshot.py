"""Snapshots: rows outside transactions.

The rows of an initial snapshot carry one LSN and together are one pseudo-transaction. It is complete by the
counts in Debezium's notifications, rows that the producer wrote twice left out. Where there is no topic of
notifications nothing says how many rows there are, and the row marked ``last`` may be readable before others:
it is complete when a commit behind it was written so much later that no row can still be on its way.

Debezium 3.7 reads only the first one at exactly its LSN (in the database snapshot of the new slot). An
interrupted run is void; the next one repeats everything at a higher LSN, but reads each table when it comes
to it. So do ad hoc snapshots that block the stream: their LSN is the position where the stream paused. Such
rows are *late*: newer than their LSN, and what changed them comes behind them in the stream. They may be
shown only together with a commit that is newer than they are (by commit time against the connector's clock),
or when the source has been at rest for so long that there is none.
"""

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from slackwater_cdc.announcements import Announcements
from slackwater_cdc.envelope import End, Row
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


class _Origin(msgspec.Struct, frozen=True, gc=False):
    sequence: str | None = None


class _Late(msgspec.Struct, frozen=True, gc=False):
    ts_ms: int = 0
    source: _Origin = _Origin()
    payload: "_Late | None" = None


_decode_late = msgspec.json.Decoder(_Late).decode


class Snapshot(Waiting):
    """One run of an initial snapshot."""

    __slots__ = (
        "has_last",
        "is_late",
        "is_repeated",
        "lsn",
        "newest_ms",
        "over",
        "partitions",
        "received",
        "ts_ms",
        "written_ms",
    )

    def __init__(self, lsn: int, ts_ms: int, *, is_late: bool) -> None:
        super().__init__()
        self.lsn = lsn
        self.ts_ms = ts_ms
        self.is_late = is_late
        """Whether its rows are newer than its LSN: it repeats an interrupted one."""
        self.newest_ms = 0
        """When the newest row was read from the database, by the connector's clock; only if it is late."""
        self.received: dict[str, int] = {}
        """Rows per table."""
        self.partitions: dict[Partition, RecentRows] = {}
        self.has_last = False
        """Whether the row marked ``last`` was read."""
        self.is_repeated = False
        """Whether a row was written twice."""
        self.over: Waiting | None = None
        """What the end offsets of the moment are known by when no more rows can come."""
        self.written_ms = 0
        """Record timestamp, at least, of the newest row."""

    @property
    def row_count(self) -> int:
        """Rows of all tables."""
        return sum(self.received.values())


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

    def __init__(self, tables: frozenset[str] | None, passed_lsn: int, watch: RegressionWatch) -> None:
        self._tables = tables
        self._watch = watch
        self._passed_lsn = passed_lsn
        self.announced = Announcements()
        """What the notifications say."""
        self.pending: Snapshot | None = None
        """The newest run, while it is above the frontier."""
        self._shown_lsn = passed_lsn
        self.doubled: set[int] = set()
        """LSNs of snapshots on the frontier of which rows came again since the last cut."""
        self.late: list[LateRows] = []
        """Rows of ad hoc snapshots that no cut has shown."""
        self._ad_hoc: dict[int, bool] = {}

    def read_row(self, partition: "Partition", offset: int, row: Row, value: bytes) -> None:
        """Takes a row whose ``source.lsn`` is the snapshot's LSN."""
        source = row.source
        table = f"{source.schema}.{source.table}"
        if self._tables is not None and table not in self._tables:
            return
        lsn = source.lsn or 0
        if self._is_ad_hoc(lsn, value):
            self._read_ad_hoc(partition, offset, lsn, value)
            partition.tables.add(table)
            return
        snapshot = self._run(lsn, source.ts_ms)
        if snapshot is None:
            return
        if snapshot.is_late:
            snapshot.newest_ms = max(snapshot.newest_ms, _late(value).ts_ms)
        if partition not in snapshot.partitions:
            snapshot.partitions[partition] = RecentRows()
            partition.add_first(snapshot, offset)
        partition.tables.add(table)
        snapshot.written_ms = max(snapshot.written_ms, partition.timestamp_ms)
        if snapshot.partitions[partition].has(value):
            snapshot.is_repeated = True
            return
        snapshot.received[table] = snapshot.received.get(table, 0) + 1
        snapshot.has_last = snapshot.has_last or source.snapshot == "last"

    def is_counted(self, snapshot: Snapshot) -> bool:
        """Whether the notifications say that all rows of the snapshot were read."""
        announced = self.announced.of(snapshot.ts_ms)
        return (
            announced is not None
            and announced.is_completed
            and all(
                snapshot.received.get(table, 0) >= count
                for table, count in announced.scanned.items()
                if self._tables is None or table in self._tables
            )
        )

    def expected(self, snapshot: Snapshot) -> dict[str, int]:
        """Rows per table, as far as the notifications say."""
        announced = self.announced.of(snapshot.ts_ms)
        return {} if announced is None else dict(announced.scanned)

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
        return end is not None and end.commit_ts_ms > (snapshot.newest_ms or snapshot.written_ms) + _SKEW_MS

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
            self.pending = None

    def pass_lsn(self, lsn: int) -> None:
        """Says that the frontier is at an LSN: a snapshot at or below it is no longer waited for."""
        self._passed_lsn = max(self._passed_lsn, lsn)

    def _run(self, lsn: int, ts_ms: int) -> Snapshot | None:
        pending = self.pending
        if pending is not None and pending.lsn == lsn:
            return pending
        if lsn == self._shown_lsn:
            self.doubled.add(lsn)
            return None
        if lsn <= self._passed_lsn:
            self._watch.read_old_snapshot(lsn, ts_ms)
            return None
        if pending is not None and lsn < pending.lsn:
            pending.is_late, pending.newest_ms = True, pending.written_ms
            return None
        self._watch.read_new_snapshot()
        if self._passed_lsn:
            self._watch.read_snapshot_after_commits(lsn)
        if pending is not None:
            pending.is_done = True
        self.pending = Snapshot(lsn, ts_ms, is_late=self.announced.is_again(ts_ms) or pending is not None)
        return self.pending

    def is_late(self, snapshot: Snapshot) -> bool:
        """Whether a complete snapshot repeats an interrupted one, of which rows or the start were read."""
        return snapshot.is_late or self.announced.is_again(snapshot.ts_ms)

    def _is_ad_hoc(self, lsn: int, value: bytes) -> bool:
        """Whether rows with this LSN belong to a snapshot that paused the stream, not to one at start-up."""
        is_ad_hoc = self._ad_hoc.get(lsn)
        if is_ad_hoc is None:
            sequence = _late(value).source.sequence
            is_ad_hoc = self._ad_hoc[lsn] = bool(sequence) and not str(sequence).startswith("[null")
        return is_ad_hoc

    def _read_ad_hoc(self, partition: "Partition", offset: int, lsn: int, value: bytes) -> None:
        rows = partition.newest()
        if not isinstance(rows, LateRows) or rows.lsn != lsn or rows.sequence is not None:
            rows = LateRows(lsn)
            self.late.append(rows)
            partition.add_first(rows, offset)
        rows.ts_ms = max(rows.ts_ms, _late(value).ts_ms)


def _late(value: bytes) -> _Late:
    record = _decode_late(value)
    return record.payload or record
