"""Initial snapshots: rows outside transactions that together are one pseudo-transaction.

All rows of a run carry one LSN. An interrupted run is void: the next one repeats everything at a higher LSN.
A run is complete by the counts in Debezium's notifications, or, where there are none, by the row marked
``last`` together with end offsets asked for after it.
"""

from typing import TYPE_CHECKING

from slackwater_cdc.envelope import Notification, Row
from slackwater_cdc.regression import RegressionWatch
from slackwater_cdc.transaction import Waiting

if TYPE_CHECKING:
    from slackwater_cdc.partition import Partition

_INITIAL = "Initial Snapshot"


class Snapshot(Waiting):
    """One run of an initial snapshot."""

    __slots__ = ("has_last", "is_repeated", "lsn", "partitions", "received", "ts_ms")

    def __init__(self, lsn: int, ts_ms: int) -> None:
        super().__init__()
        self.lsn = lsn
        self.ts_ms = ts_ms
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

    @property
    def scanned(self) -> dict[str, int]:
        """Rows per table, as far as the notifications of the newest run say."""
        return dict(self._scanned)

    def read_row(self, partition: "Partition", offset: int, row: Row) -> None:
        """Takes a row whose ``source.lsn`` is the snapshot's LSN."""
        source = row.source
        table = f"{source.schema}.{source.table}"
        if self._tables is not None and table not in self._tables:
            return
        snapshot = self._run(source.lsn or 0, source.ts_ms)
        if snapshot is None:
            return
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
        if pending is not None:
            pending.is_done = True
        self.pending = Snapshot(lsn, ts_ms)
        return self.pending
