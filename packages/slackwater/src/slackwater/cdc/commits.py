"""Commits: the transaction topic in commit order, and every transaction above the frontier.

``docs/design/0004-evidence.md`` describes what shows that LSNs have gone back. Times are compared with a
margin, because commit times may be out of order by as much time as a commit takes.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from slackwater.cdc.envelope import Begin, End, decode_transaction
from slackwater.cdc.errors import UndecodableRecordError
from slackwater.cdc.partition_queues import Obstacle, PartitionQueue
from slackwater.cdc.postgres import CLOCK_SKEW_MS, COMMIT_TIME_MARGIN_MS
from slackwater.cdc.transaction import Subscription, Transaction
from slackwater.protocol import CommittedTransaction

_WINDOW = 1_000_000
_MAX_OBSTACLES = 100


@dataclass(slots=True)
class Regression:
    """The position at which LSNs went back, or a new snapshot began; no cut passes it."""

    transaction_offset: int
    """The offset of the first END that went back: where the new timeline begins in the transaction topic."""
    xid: int
    """The xid of that transaction; 0 for an initial snapshot."""
    commit_lsn: int
    newest_lsn: int
    """The newest LSN before that."""
    has_snapshot: bool = False
    """Whether an initial snapshot was seen after it."""


class RegressionWatch:
    """Follows ENDs and snapshot rows."""

    def __init__(self, newest_lsn: int, newest_ms: int) -> None:
        self._all_known_above = self._newest_lsn = newest_lsn
        self._newest_ms = self._passed_ms = newest_ms
        self._snapshot_ms = 0
        self._first_unknown_offset: int | None = None
        self.transaction_position = 0
        """The next offset to be read in the transaction topic."""
        self.found: Regression | None = None
        self._found_ms: int | None = None

    def read_new_end(self, commit_lsn: int, commit_ts_ms: int) -> None:
        """Notes an END above all earlier ones."""
        self._newest_lsn = max(self._newest_lsn, commit_lsn)
        self._newest_ms = max(self._newest_ms, commit_ts_ms)
        self._first_unknown_offset = None

    def read_unknown_end(self, offset: int, end: End, known_from_lsn: int) -> bool:
        """Returns whether an END at or below the newest one, not read before, shows that LSNs went back."""
        if self._first_unknown_offset is None:
            self._first_unknown_offset = offset
        is_new = max(self._all_known_above, known_from_lsn) < end.commit_lsn <= self._newest_lsn
        if is_new or end.commit_ts_ms > self._newest_ms + COMMIT_TIME_MARGIN_MS:
            self._find(self._first_unknown_offset, end.xid, end.commit_lsn)
            return True
        return False

    def pass_commit(self, commit_ts_ms: int) -> None:
        """Notes a commit, or a snapshot, that is on the frontier."""
        self._passed_ms = max(self._passed_ms, commit_ts_ms)

    def read_old_snapshot(self, lsn: int, ts_ms: int) -> None:
        """Takes a row of an initial snapshot at or below the frontier: a repeat, or LSNs that went back.

        Commits above the frontier prove nothing: they may follow the new snapshot.
        """
        if ts_ms > self._passed_ms + COMMIT_TIME_MARGIN_MS:
            self._find_snapshot(lsn, ts_ms)
        self.read_new_snapshot(ts_ms)

    def read_snapshot_after_commits(self, lsn: int, ts_ms: int) -> None:
        """Takes a start-up snapshot above what was published: deletes in between are unknown."""
        self._find_snapshot(lsn, ts_ms)
        self.read_new_snapshot(ts_ms)

    def read_new_snapshot(self, ts_ms: int) -> None:
        """Notes that a row was read of an initial snapshot that was taken at this time."""
        self._snapshot_ms = max(self._snapshot_ms, ts_ms)
        if self.found is not None:
            self.found.has_snapshot = True

    def may_be_behind(self, commit_ts_ms: int) -> bool:
        """Returns whether a commit whose END was read before may nevertheless be of the new timeline."""
        return self._found_ms is not None and commit_ts_ms > self._found_ms - COMMIT_TIME_MARGIN_MS

    def begin_at(self, offset: int, commit_ts_ms: int) -> None:
        """Lets the new timeline begin with an END that was read before the snapshot, if that was taken first.

        What was committed before the snapshot is in it, or of the old timeline.
        """
        if self.found is None or self._found_ms is None or commit_ts_ms < self._found_ms - CLOCK_SKEW_MS:
            return
        self.found.transaction_offset = min(self.found.transaction_offset, offset)

    def _find_snapshot(self, lsn: int, ts_ms: int) -> None:
        if self.found is None:
            self._found_ms = ts_ms
        self._find(self.transaction_position, 0, lsn)

    def _find(self, offset: int, xid: int, lsn: int) -> None:
        if self.found is None:
            has_snapshot = self._snapshot_ms > self._newest_ms + COMMIT_TIME_MARGIN_MS
            self.found = Regression(offset, xid, lsn, self._newest_lsn, has_snapshot)


class DoneTransactions:
    """The commit LSNs of the newest transactions at or below the frontier, by xid.

    Keeps at least ``window``, at most twice as many. Rows of older ones are not repeated, since a connector
    returns to the offset that it stored last, at most minutes ago.
    """

    def __init__(self, window: int = _WINDOW) -> None:
        self._window = window
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self.known_from_lsn = 0
        """Every commit above this LSN whose END was read is remembered."""

    def add(self, xid: int, commit_lsn: int) -> None:
        """Remembers a transaction."""
        self._young[xid] = commit_lsn
        if len(self._young) >= self._window:
            if self._old:
                self.known_from_lsn = max(self.known_from_lsn, *self._old.values())
            self._old, self._young = self._young, {}

    def get(self, xid: int) -> int | None:
        """Returns the commit LSN; None if the transaction is unknown."""
        lsn = self._young.get(xid)
        return self._old.get(xid) if lsn is None else lsn


class Commits:
    """Owns the transactions that have begun, their commit order and the records that cannot be read.

    Readers of partitions open transactions here; only this class closes them.
    """

    def __init__(
        self,
        topic: str,
        subscription: Subscription,
        watch: RegressionWatch,
        *,
        lsn: int,
        position: int,
        done: Iterable[CommittedTransaction],
    ) -> None:
        self._topic = topic
        self._subscription = subscription
        self._watch = watch
        self.open: dict[int, Transaction] = {}
        """Transactions above the frontier of which something was read, by xid."""
        self.queue: deque[Transaction | Obstacle] = deque()
        """Transactions above the frontier whose END was read, in commit order."""
        self.obstacles: list[Obstacle] = []
        """The first records that cannot be attributed, at most a hundred."""
        self.repeated: set[int] = set()
        """Commit LSNs with rows that were repeated since the last cut."""
        self.are_whole = False
        """Whether pipelines or services write the source: its topics then contain every commit there was."""
        self.run_times_ms: dict[str, int] = {}
        """The newest record timestamp of each connector run."""
        self.position = watch.transaction_position = position
        self.last_lsn = lsn
        """ENDs at or below this are repeats, or contained in a snapshot."""
        self.sequence = 0
        self.newest: End | None = None
        self.newest_written_ms = 0
        """The record timestamp of the newest END."""
        self.stale_count = 0
        """ENDs at or below the newest one, since the last one above it."""
        self._barrier: Obstacle | None = None
        """The position in the queue at which LSNs went back; nothing passes it."""
        self._begun = Begin(0, 0)
        self._done = DoneTransactions()
        for transaction in done:
            self._done.add(transaction.xid, transaction.commit_lsn)

    # --- what is read

    def read(self, records: Iterable[tuple[int, bytes | None, int]]) -> None:
        """Takes records of the transaction topic: offset, value, record timestamp (ms)."""
        for offset, value, timestamp_ms in records:
            self.position = self._watch.transaction_position = offset + 1
            if value is None:
                continue
            try:
                record = decode_transaction(value)
            except UndecodableRecordError as error:
                self._refuse(offset, error)
                continue
            if isinstance(record, End):
                begun = self._begun
                self.are_whole = self.are_whole or (begun.xid, begun.lsn) == (record.xid, record.commit_lsn)
                self._read_end(offset, record, timestamp_ms)
            else:
                self._begun = record
                self._read_begin(record.xid, timestamp_ms)

    def skip_to(self, position: int) -> None:
        """Notes that nothing more can be read below an offset."""
        self.position = self._watch.transaction_position = max(self.position, position)

    def read_run(self, run: str, timestamp_ms: int) -> None:
        """Notes that a connector run has written rows, the last one at this record timestamp."""
        if timestamp_ms > self.run_times_ms.get(run, 0):
            self.run_times_ms[run] = timestamp_ms

    def open_transaction(self, xid: int) -> Transaction | None:
        """Returns the transaction whose first row was read; None if the row repeats one that is done."""
        commit_lsn = self._done.get(xid)
        if commit_lsn is not None:
            self.repeated.add(commit_lsn)
            return None
        transaction = self.open[xid] = Transaction(xid)
        return transaction

    def add_obstacle(self, obstacle: Obstacle) -> None:
        """Remembers a record that no cut may pass."""
        if len(self.obstacles) < _MAX_OBSTACLES:
            self.obstacles.append(obstacle)

    # --- what is done

    @property
    def head(self) -> Transaction | Obstacle | None:
        """The next transaction in commit order; None if nothing is above the frontier."""
        return self.queue[0] if self.queue else None

    def take_off(self) -> None:
        """Closes the next transaction: it is on the frontier, or contained in a snapshot."""
        transaction = self.queue.popleft()
        if isinstance(transaction, Transaction):
            self._close(transaction, transaction.commit_lsn)

    def skip_obstacle(self, skip_lsn: int) -> bool:
        """Removes an unreadable record before a commit to skip to; returns whether there was one."""
        if not skip_lsn:
            return False
        behind = next((i for i in self.queue if isinstance(i, Transaction) or i is self._barrier), None)
        if not isinstance(behind, Transaction) or behind.commit_lsn > skip_lsn:
            return False
        passed = self.queue.popleft()
        self.obstacles = [o for o in self.obstacles if o is not passed]
        return True

    def drop_unfinished(self, partitions: Iterable[PartitionQueue], lsn: int) -> list[int]:
        """Closes transactions without END at the front of partitions; returns their xids."""
        dropped = []
        for partition in partitions:
            front = partition.front()
            while isinstance(front, Transaction) and front.sequence is None:
                self._close(front, lsn)
                dropped.append(front.xid)
                front = partition.front()
        return dropped

    def pass_snapshot(self, lsn: int) -> None:
        """Notes that a snapshot is on the frontier: it contains the commits up to its LSN."""
        self.last_lsn = max(self.last_lsn, lsn)

    def take_repeated(self) -> set[int]:
        """Returns the commit LSNs with rows that were repeated since the last call."""
        repeated, self.repeated = self.repeated, set()
        return repeated

    def first_waiting(self, limit: int) -> list[Transaction]:
        """Returns transactions in the order in which the frontier needs them; those without END last."""
        queued = [t for t in islice(self.queue, limit) if isinstance(t, Transaction)]
        unfinished = (t for t in self.open.values() if t.end is None)
        return queued + list(islice(unfinished, limit - len(queued)))

    # --- LSNs that went back

    def stop_at_regression(self) -> None:
        """Blocks what is read from now on, or may be of the new timeline, because LSNs went back."""
        if self._barrier is not None:
            return
        self._barrier = Obstacle(self._topic, 0, 0, "LSNs went back", is_misconfiguration=False)
        behind: list[Transaction | Obstacle] = []
        while self.queue and self._may_be_behind(self.queue[-1]):
            behind.append(self.queue.pop())
        self.queue += [self._barrier, *reversed(behind)]
        for item in behind:
            if isinstance(item, Transaction) and item.end is not None:
                self._watch.begin_at(item.end_offset - 1, item.end.commit_ts_ms)

    def _may_be_behind(self, item: Transaction | Obstacle) -> bool:
        end = item.end if isinstance(item, Transaction) else None
        return end is not None and self._watch.may_be_behind(end.commit_ts_ms)

    # --- BEGIN and END

    def _read_begin(self, xid: int, timestamp_ms: int) -> None:
        transaction = self.open.get(xid)
        if transaction is None:
            if self._done.get(xid) is not None:
                return
            self.open[xid] = transaction = Transaction(xid)
        transaction.read_begin(timestamp_ms)

    def _read_end(self, offset: int, end: End, timestamp_ms: int) -> None:
        transaction = self.open.get(end.xid)
        if end.commit_lsn <= self.last_lsn:
            self._read_old_end(offset, end, transaction, timestamp_ms)
            return
        self.stale_count = 0
        self.last_lsn = end.commit_lsn
        if self._watch.found is not None:
            return  # after a regression, LSNs order nothing, also those above the newest
        self._watch.read_new_end(end.commit_lsn, end.commit_ts_ms)
        if transaction is None:
            transaction = self.open[end.xid] = Transaction(end.xid)
        self.sequence += 1
        self.newest, self.newest_written_ms = end, timestamp_ms
        transaction.end_offset = offset + 1
        end = self._subscription.only_followed(end)
        transaction.read_end(end, self._subscription.counted(end), self.sequence, timestamp_ms)
        self.queue.append(transaction)

    def _read_old_end(
        self, offset: int, end: End, transaction: Transaction | None, timestamp_ms: int
    ) -> None:
        """Handles an END at or below the newest one: a repeat, or LSNs that went back."""
        self.stale_count += 1
        done = self._done
        if transaction is not None and transaction.commit_lsn == end.commit_lsn:
            end = self._subscription.only_followed(end)
            transaction.read_end_again(end, self._subscription.counted(end), timestamp_ms)
        elif done.get(end.xid) != end.commit_lsn and self._watch.read_unknown_end(
            offset, end, done.known_from_lsn
        ):
            self.stop_at_regression()
        elif transaction is None:
            done.add(end.xid, end.commit_lsn)
        elif transaction.end is None:
            self._close(transaction, end.commit_lsn)

    def _close(self, transaction: Transaction, commit_lsn: int) -> None:
        """Removes a transaction from the open ones: it is at or below the frontier, or given up."""
        transaction.is_done = True
        del self.open[transaction.xid]
        self._done.add(transaction.xid, commit_lsn)
        if transaction.is_repeated or (transaction.end is None and transaction.partitions):
            self.repeated.add(commit_lsn)

    def _refuse(self, offset: int, error: UndecodableRecordError) -> None:
        obstacle = Obstacle(self._topic, 0, offset, str(error), is_misconfiguration=False)
        self.add_obstacle(obstacle)
        self.queue.append(obstacle)
