"""Snapshots: rows outside transactions.

The rows of an initial snapshot carry one LSN and together are one pseudo-transaction. It is complete by the
counts in Debezium's notifications, or, where there are none, by the row marked ``last`` together with end
offsets asked for after it.

Debezium 3.7 reads only the first one at exactly its LSN (in the database snapshot of the new slot). An
interrupted run is void; the next one repeats everything at a higher LSN, but reads each table when it comes
to it. So do ad hoc snapshots that block the stream: their LSN is the position where the stream paused. Such
rows are *late*: newer than their LSN, and what changed them comes behind them in the stream. They may be
shown only together with a commit that is newer than they are, by commit time against the connector's clock; or
once the source has been at rest for so long that there is none.
"""

from typing import TYPE_CHECKING

import msgspec

from slackwater_cdc.envelope import End, Notification, Row
from slackwater_cdc.regression import RegressionWatch
from slackwater_cdc.transaction import LateRows, Waiting

if TYPE_CHECKING:
    from slackwater_cdc.partition import Partition

_INITIAL = "Initial Snapshot"
_SKEW_MS = 1000
"""By how much the clocks of connector and database may differ."""


class _Origin(msgspec.Struct, frozen=True, gc=False):
    sequence: str | None = None


class _Late(msgspec.Struct, frozen=True, gc=False):
    ts_ms: int = 0
    source: _Origin = _Origin()
    payload: "_Late | None" = None


_decode_late = msgspec.json.Decoder(_Late).decode


class Snapshot(Waiting):
    """One run of an initial snapshot."""

    __slots__ = ("has_last", "is_late", "lsn", "newest_ms", "partitions", "received", "ts_ms")

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
        self.partitions: dict[Partition, None] = {}
        self.has_last = False
        """Whether the row marked ``last`` was read."""

    @property
    def row_count(self) -> int:
        """Rows of all tables."""
        return sum(self.received.values())


class Snapshots:
    """Follows snapshot rows and notifications."""

    def __init__(self, tables: frozenset[str] | None, passed_lsn: int, watch: RegressionWatch) -> None:
        self._tables = tables
        self._watch = watch
        self._passed_lsn = passed_lsn
        self._scanned: dict[str, int] = {}
        self.is_announced = False
        """Whether any notification of an initial snapshot was read."""
        self._is_completed = False
        self.pending: Snapshot | None = None
        """The newest run, while it is above the frontier."""
        self.late: list[LateRows] = []
        """Rows of ad hoc snapshots that no cut has shown."""
        self._ad_hoc: dict[int, bool] = {}

    @property
    def scanned(self) -> dict[str, int]:
        """Rows per table, as far as the notifications of the newest run say."""
        return dict(self._scanned)

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
            snapshot.partitions[partition] = None
            partition.add_first(snapshot, offset)
            partition.tables.add(table)
        snapshot.received[table] = snapshot.received.get(table, 0) + 1
        snapshot.has_last = snapshot.has_last or source.snapshot == "last"

    def read_notification(self, notification: Notification) -> None:
        """Takes a notification; only those of initial snapshots matter."""
        if notification.aggregate_type != _INITIAL or notification.type == "SKIPPED":
            return
        data = notification.additional_data or {}
        self.is_announced = True
        if notification.type in ("STARTED", "ABORTED"):
            self._scanned, self._is_completed = {}, False
        elif notification.type == "TABLE_SCAN_COMPLETED":
            self._scanned[data.get("scanned_collection", "")] = int(data.get("total_rows_scanned", "0"))
        elif notification.type == "COMPLETED":
            self._is_completed = True

    def is_counted(self, snapshot: Snapshot) -> bool:
        """Whether the notifications say that all rows of the snapshot were read."""
        return self._is_completed and all(
            snapshot.received.get(table, 0) >= count
            for table, count in self._scanned.items()
            if self._tables is None or table in self._tables
        )

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
            self._passed_lsn = self.pending.lsn
            self.pending = None

    def pass_lsn(self, lsn: int) -> None:
        """Says that the frontier is at an LSN: a snapshot at or below it is no longer waited for."""
        self._passed_lsn = max(self._passed_lsn, lsn)

    def _run(self, lsn: int, ts_ms: int) -> Snapshot | None:
        pending = self.pending
        if pending is not None and pending.lsn == lsn:
            return pending
        if lsn <= self._passed_lsn:
            self._watch.read_old_snapshot(lsn, ts_ms)
            return None
        if pending is not None and lsn < pending.lsn:
            return None
        self._watch.read_new_snapshot()
        if self._passed_lsn:
            self._watch.read_snapshot_after_commits(lsn)
        if pending is not None:
            pending.is_done = True
        self.pending = Snapshot(lsn, ts_ms, is_late=pending is not None)
        return self.pending

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
