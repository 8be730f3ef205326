"""Snapshots: rows outside transactions, and when they are shown (``docs/design/0004-evidence.md``).

The initial snapshot passes when its newest attempt is complete (see ``initial_snapshot``). Without a topic of
notifications, nothing says how many rows there are, and the row marked ``last`` may be readable before
others. It is then complete when that row was read, and a commit after it was written so much later that no
row can still be on its way. Rows of other snapshots are *late*, that is, newer than their LSN, or have no LSN
at all (incremental ones).
"""

from collections.abc import Iterable
from dataclasses import InitVar, dataclass

from slackwater.cdc.commits import Commits, RegressionWatch
from slackwater.cdc.envelope import UNREADABLE, Row, decode_full_row, decode_notification
from slackwater.cdc.errors import UndecodableRecordError, shortened
from slackwater.cdc.initial_snapshot import (
    Announcements,
    InitialSnapshot,
    Portion,
    RecentRows,
    TableSnapshots,
)
from slackwater.cdc.partition_queues import (
    EndOffsets,
    Fences,
    Obstacle,
    PartitionQueue,
    Partitions,
    Pending,
    Waiting,
)
from slackwater.cdc.postgres import CLOCK_SKEW_MS, ON_ITS_WAY_MS
from slackwater.cdc.transaction import Subscription, Transaction
from slackwater.protocol import Cut, SourceTopics

_END_OF_TIME = 1 << 63


@dataclass(eq=False)
class LateRows(Waiting):
    """Rows of a snapshot in one partition that are newer than the snapshot's LSN.

    ``sequence`` is that of a commit that is newer than the rows: no cut ends between them and it.
    """

    lsn: int
    ts_ms: int = 0
    """The time at which the newest row was read from the database, by the connector's clock."""


class IncrementalRows:
    """Rows of incremental snapshots that no cut has shown."""

    def __init__(self) -> None:
        self.count = 0
        """Rows that were read since the last cut."""
        self.first: dict[PartitionQueue, int] = {}
        """The offset of the first such row in each partition, or a lower bound of it."""
        self._newest: dict[PartitionQueue, int] = {}

    def add(self, partition: PartitionQueue, offset: int) -> None:
        """Takes a row."""
        self.count += 1
        self._newest[partition] = offset
        self.first.setdefault(partition, offset)

    def can_be_shown(self) -> bool:
        """Returns whether a cut at the present frontier would end after such a row."""
        return any(first < p.end_offset() for p, first in self.first.items())

    def show(self) -> bool:
        """Notes that a cut ends at the present frontier; returns whether it has such rows."""
        self.count = 0
        shown = {p: end for p, first in self.first.items() if first < (end := p.end_offset())}
        for partition, end in shown.items():
            if self._newest[partition] < end:
                del self.first[partition]
            else:
                self.first[partition] = end
        return bool(shown)


@dataclass(eq=False)
class Snapshots:
    """Owns the rows of snapshots above the frontier, and the notifications about snapshots."""

    _topics: SourceTopics
    _subscription: Subscription
    _commits: Commits
    _partitions: Partitions
    _fences: Fences
    _watch: RegressionWatch
    start: InitVar[Cut | None]
    complete: InitVar[frozenset[str]]

    def __post_init__(self, start: Cut | None, complete: frozenset[str]) -> None:
        self.announced = Announcements()
        self.tables = TableSnapshots(
            self._topics, self.announced, self._commits, self._partitions, start, complete
        )
        """Which topics have tables without a complete snapshot."""
        self.notification_position = 0
        """The next offset to be read in the notification topic."""
        self.pending: InitialSnapshot | None = None
        """The initial snapshot, while it is above the frontier."""
        self.late: list[LateRows] = []
        """Rows of ad hoc snapshots that no cut has shown."""
        self.incremental = IncrementalRows()
        self._repeated: set[int] = set()
        self._passed_lsn = self._shown_lsn = 0 if start is None else start.lsn
        self._shown_ms = 0 if start is None else start.commit_ts_ms
        self._portions: dict[tuple[int, int, str], Portion] = {}

    # --- what is read

    def read_notifications(self, records: Iterable[tuple[int, bytes | None]]) -> None:
        """Takes records of the notification topic: offset and value."""
        for offset, value in records:
            self.notification_position = offset + 1
            if value is None:
                continue
            try:
                self.announced.read(decode_notification(value))
            except UndecodableRecordError as error:
                problem = f"{self._topics.notifications}/0 offset {offset}: {error}"
                self.announced.read_unreadable(problem)

    def skip_notifications_to(self, position: int) -> None:
        """Notes that nothing more can be read below an offset of the notification topic."""
        self.notification_position = max(self.notification_position, position)

    def read_row(self, partition: PartitionQueue, offset: int, row: Row, value: bytes) -> None:
        """Takes a row whose ``source.lsn`` is the snapshot's LSN.

        Raises:
            UndecodableRecordError: It does not contain the time or the LSN at which it was read.
        """
        source = row.source
        table = f"{source.schema}.{source.table}"
        if not self._subscription.is_followed(table):
            return
        read_ms = _read_ms(row, partition, value)
        key = _lsn(row, value), source.ts_ms, partition.run
        portion = self._portions.get(key)
        if portion is None:
            portion = self._portions[key] = Portion(*key, is_ad_hoc=_is_ad_hoc(value))
        if portion.is_ad_hoc or (portion.lsn == self._shown_lsn and portion.ts_ms > self._shown_ms):
            self.tables.read_ad_hoc(table)
            self._read_late(partition, offset, portion.lsn, read_ms)
            partition.tables.add(table)
            return
        snapshot = self._snapshot_with(portion)
        if snapshot is None:
            return
        if partition not in snapshot.partitions:
            snapshot.partitions[partition] = RecentRows()
            partition.append(snapshot, offset)
        partition.tables.add(table)
        snapshot.written_ms = max(snapshot.written_ms, partition.timestamp_ms)
        snapshot.newest_ms = max(snapshot.newest_ms, read_ms)
        portion.first_ms = min(portion.first_ms, row.ts_ms or source.ts_ms)
        if snapshot.partitions[partition].has(value):
            snapshot.is_repeated = True
            return
        portion.received[table] = portion.received.get(table, 0) + 1
        portion.has_last = portion.has_last or source.is_last_of_snapshot

    def read_incremental_row(self, partition: PartitionQueue, offset: int, row: Row) -> None:
        """Takes a row of an incremental snapshot."""
        table = f"{row.source.schema}.{row.source.table}"
        if self._subscription.is_followed(table):
            partition.tables.add(table)
            self.tables.read_ad_hoc(table)
        self.incremental.add(partition, offset)

    def _snapshot_with(self, portion: Portion) -> InitialSnapshot | None:
        """Returns the pending snapshot, which takes the portion if it is new; None if it is not expected."""
        lsn, pending = portion.lsn, self.pending
        if pending is not None and portion in pending.portions:
            return pending
        if lsn == self._shown_lsn:
            self._repeated.add(lsn)
            return None
        if lsn <= self._passed_lsn:
            self._watch.read_old_snapshot(lsn, portion.ts_ms)
            return None
        if self._passed_lsn:
            self._watch.read_snapshot_after_commits(lsn, portion.ts_ms)
        else:
            self._watch.read_new_snapshot(portion.ts_ms)
        if pending is None:
            self.pending = pending = InitialSnapshot(portion, self.announced, self._subscription)
        else:
            pending.add(portion)
        return pending

    def _read_late(self, partition: PartitionQueue, offset: int, lsn: int, read_ms: int) -> None:
        rows = partition.newest()
        if not isinstance(rows, LateRows) or rows.lsn != lsn or rows.sequence is not None:
            rows = LateRows(lsn)
            self.late.append(rows)
            partition.append(rows, offset)
        rows.ts_ms = max(rows.ts_ms, read_ms)

    # --- when the initial snapshot may pass

    def may_pass(self, snapshot: InitialSnapshot, *, is_at_rest: bool) -> bool:
        """Returns whether the pending snapshot may be shown; decides whether its rows are late.

        The source is at rest if everything written was read and nothing has been written for a long time.
        """
        if not self._has_all_rows(snapshot, is_at_rest=is_at_rest):
            return False
        nothing_behind = is_at_rest and not self._commits.queue
        snapshot.is_late = snapshot.repeats_interrupted_one() and not nothing_behind
        is_settled = is_at_rest or self._has_newer_commit(snapshot)
        if snapshot.is_late and not is_settled:
            return False
        return (
            self.has_read_notifications(snapshot)
            and self._has_read_commits_below(snapshot)
            and self._has_read_earlier_runs(snapshot)
        )

    def shows_before(
        self, head: Transaction | Obstacle | None, snapshot: InitialSnapshot, *, is_beginning: bool
    ) -> bool:
        """Returns whether a commit below a snapshot is shown before it: an earlier connector's.

        Not if nothing was shown yet, and an earlier snapshot is void or there was none: commits after it are
        useless without it, and the newer snapshot contains them.
        """
        if not isinstance(head, Transaction) or head.commit_lsn >= snapshot.lsn:
            return False
        return not (is_beginning and (snapshot.repeats_interrupted_one() or self.tables.are_unmentioned))

    def has_read_notifications(self, pending: Pending) -> bool:
        """Returns whether every notification that existed when something began to wait was read."""
        fence = self._fences.fence(pending)
        topic = self._topics.notifications
        return fence is not None and self.notification_position >= fence.get((topic, 0), 0)

    def why_unmentioned(self, fence: EndOffsets | None) -> str:
        """Returns why no record mentions a snapshot; empty if one does, or need not, or nothing waits yet."""
        if fence is None or not self.tables.are_unmentioned:
            return ""
        if fence.get((self._topics.notifications, 0), 0) > 0:
            return "its notification topic exists, but contains no readable notification of a snapshot"
        return self.tables.why_unmentioned()

    def _has_all_rows(self, snapshot: InitialSnapshot, *, is_at_rest: bool) -> bool:
        """Judges by counts whether all rows were read; without notifications, by what was written later."""
        if self.announced:
            return snapshot.is_counted()
        fence = self._fences.fence(snapshot)
        if fence is None or (self._topics.notifications, 0) in fence or not snapshot.has_last():
            return False
        if all(p.has_streamed_rows() for p in self._partitions):
            return True
        if is_at_rest or self._is_long_over(snapshot):
            snapshot.over = snapshot.over or Waiting()
            return self._fences.is_read_past(snapshot.over, self._partitions)
        return False

    def _is_long_over(self, snapshot: InitialSnapshot) -> bool:
        """Returns whether something was written so much later that no row can be on its way."""
        newest_written_ms = self._commits.newest_written_ms
        return snapshot.written_ms > 0 and newest_written_ms >= snapshot.written_ms + ON_ITS_WAY_MS

    def _has_newer_commit(self, snapshot: InitialSnapshot) -> bool:
        """Returns whether a commit is certainly newer than the rows of a snapshot."""
        end = self._commits.newest
        return end is not None and end.commit_ts_ms > snapshot.newest_ms + CLOCK_SKEW_MS

    def _has_read_commits_below(self, snapshot: InitialSnapshot) -> bool:
        """Returns whether every END below the snapshot was read: there may be an earlier connector's."""
        fence = self._fences.fence(snapshot)
        topic = self._topics.transactions
        return self._commits.last_lsn > snapshot.lsn or (
            fence is not None and self._commits.position >= fence.get((topic, 0), 0)
        )

    def _has_read_earlier_runs(self, snapshot: InitialSnapshot) -> bool:
        """Returns whether rows of interrupted runs would have been seen: they precede all others."""
        undecided = [
            p for p in self._partitions if p not in snapshot.partitions and not p.has_streamed_rows()
        ]
        return self._fences.is_read_past(snapshot, undecided)

    # --- when late rows may be shown

    def settle(self) -> None:
        """Ties late rows to the newest END if that committed after they were read."""
        newest_end = self._commits.newest
        if newest_end is None:
            return
        for rows in self.late:
            if rows.sequence is None and newest_end.commit_ts_ms > rows.ts_ms + CLOCK_SKEW_MS:
                rows.sequence = self._commits.sequence

    def settle_at_rest(self) -> None:
        """Ties late rows to the newest END, since no more is expected."""
        for rows in self.late:
            rows.sequence = self._commits.sequence if rows.sequence is None else rows.sequence

    def release(self, passed: int) -> set[int]:
        """Notes that a sequence was passed; returns the LSNs of late rows that may be shown now."""
        shown = [rows for rows in self.late if rows.sequence is not None and rows.sequence <= passed]
        for rows in shown:
            rows.is_done = True
        self.late = [rows for rows in self.late if not rows.is_done]
        return {rows.lsn for rows in shown}

    # --- what is shown

    def finish(self, snapshot: InitialSnapshot) -> None:
        """Notes that the pending snapshot is on the frontier."""
        snapshot.is_done = True
        self.pending = None
        self.tables.finish(snapshot)
        self._passed_lsn = self._shown_lsn = snapshot.lsn
        self._shown_ms = snapshot.ts_ms
        self._watch.pass_commit(self._shown_ms)
        if snapshot.is_repeated:
            self._repeated.add(snapshot.lsn)

    def pass_lsn(self, lsn: int, commit_ts_ms: int) -> None:
        """Notes that the frontier is at a commit: a snapshot at or below its LSN is no longer expected."""
        self._passed_lsn = max(self._passed_lsn, lsn)
        self._watch.pass_commit(commit_ts_ms)

    def take_repeated(self) -> set[int]:
        """Returns the LSNs of shown snapshots with rows that were repeated since the last call."""
        repeated, self._repeated = self._repeated, set()
        return repeated


def _lsn(row: Row, value: bytes) -> int:
    if not row.source.lsn:
        raise UndecodableRecordError("change", "it has no LSN, but is a row of a snapshot", value)
    return row.source.lsn


def _read_ms(row: Row, partition: PartitionQueue, value: bytes) -> int:
    """Returns the time at which a row was read from the database, or else the time of its record."""
    if row.ts_ms is None:
        return partition.timestamp_ms
    if type(row.ts_ms) is not int or not 0 <= row.ts_ms < _END_OF_TIME:
        reason = f"'ts_ms' is {shortened(row.ts_ms)}, expected milliseconds"
        raise UndecodableRecordError("change", reason, value)
    return row.ts_ms


def _is_ad_hoc(value: bytes) -> bool:
    """Returns whether a row belongs to a snapshot that paused the stream, not to one at start-up."""
    try:
        return decode_full_row(value).source.has_paused_stream()
    except UNREADABLE as error:
        raise UndecodableRecordError("change", str(error), value) from None
