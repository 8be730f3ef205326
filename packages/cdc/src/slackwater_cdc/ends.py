"""The transaction topic: BEGIN and END in commit order."""

from collections import deque
from collections.abc import Iterable

from slackwater_cdc.completeness import Completeness
from slackwater_cdc.context import Context
from slackwater_cdc.envelope import End, decode_transaction
from slackwater_cdc.errors import UndecodableRecordError
from slackwater_cdc.regression import RegressionWatch
from slackwater_cdc.transaction import Obstacle, Transaction


class Ends:
    """Puts transactions into commit order.

    Args:
        topic: The transaction topic.
        context: Shared state.
        completeness: Says which counts are evidence.
        watch: Told of every END.
        lsn: The newest commit that was published; ENDs up to it are repeats.
        position: Where reading begins.
    """

    def __init__(
        self,
        topic: str,
        context: Context,
        completeness: Completeness,
        watch: RegressionWatch,
        *,
        lsn: int,
        position: int,
    ) -> None:
        self._topic = topic
        self._context = context
        self._completeness = completeness
        self._watch = watch
        self.queue: deque[Transaction | Obstacle] = deque()
        """Transactions of which END was read and that are above the frontier, in commit order."""
        self.position = watch.transaction_position = position
        """The next offset to be read."""
        self.last_lsn = lsn
        """ENDs at or below this are repeats, or contained in a snapshot."""
        self.sequence = 0
        """Number of the newest END."""
        self.newest: End | None = None
        """The newest END; None before the first."""
        self.newest_written_ms = 0
        """Its record timestamp."""
        self.stale_count = 0
        """ENDs at or below the newest one, since the last that was above it."""
        self.barrier: Obstacle | None = None
        """In the queue where LSNs went back; nothing passes it."""

    def read(self, records: Iterable[tuple[int, bytes | None, int]]) -> None:
        """Takes records: offset, value, record timestamp (ms)."""
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
                self._read_end(offset, record, timestamp_ms)
            else:
                self._read_begin(record.xid, timestamp_ms)

    def skip_to(self, position: int) -> None:
        """Says that there is nothing more to be read below an offset."""
        self.position = self._watch.transaction_position = max(self.position, position)

    def stop_at_regression(self) -> None:
        """Lets nothing pass that is read from now on, or may be of the new timeline, for LSNs went back."""
        if self.barrier is not None:
            return
        self.barrier = Obstacle(self._topic, 0, 0, "LSNs went back", is_misconfiguration=False)
        behind: list[Transaction | Obstacle] = []
        while self.queue and self._may_be_behind(self.queue[-1]):
            behind.append(self.queue.pop())
        self.queue += [self.barrier, *reversed(behind)]
        for item in behind:
            if isinstance(item, Transaction) and item.end is not None:
                self._watch.begin_at(item.end_offset - 1, item.end.commit_ts_ms)

    def _may_be_behind(self, item: Transaction | Obstacle) -> bool:
        end = item.end if isinstance(item, Transaction) else None
        return end is not None and self._watch.may_be_behind(end.commit_ts_ms)

    def _read_begin(self, xid: int, timestamp_ms: int) -> None:
        transactions = self._context.transactions
        transaction = transactions.get(xid)
        if transaction is None:
            if self._context.done.get(xid) is not None:
                return
            transactions[xid] = transaction = Transaction(xid)
        transaction.read_begin(timestamp_ms)

    def _read_end(self, offset: int, end: End, timestamp_ms: int) -> None:
        context = self._context
        transaction = context.transactions.get(end.xid)
        if end.commit_lsn <= self.last_lsn:
            self._read_old_end(offset, end, transaction, timestamp_ms)
            return
        self.stale_count = 0
        self.last_lsn = end.commit_lsn
        if self._watch.found is not None:
            return  # LSNs order nothing behind a regression, also those above the newest
        self._watch.read_new_end(end.commit_lsn, end.commit_ts_ms)
        if transaction is None:
            transaction = context.transactions[end.xid] = Transaction(end.xid)
        self.sequence += 1
        self.newest, self.newest_written_ms = end, timestamp_ms
        transaction.end_offset = offset + 1
        end = self._subscribed(end)
        transaction.read_end(end, self._completeness.counted(end), self.sequence, timestamp_ms)
        self.queue.append(transaction)

    def _read_old_end(
        self, offset: int, end: End, transaction: Transaction | None, timestamp_ms: int
    ) -> None:
        """An END at or below the newest one: a repeat, or LSNs that went back."""
        self.stale_count += 1
        done = self._context.done
        if transaction is not None and transaction.commit_lsn == end.commit_lsn:
            end = self._subscribed(end)
            transaction.read_end_again(end, self._completeness.counted(end), timestamp_ms)
        elif done.get(end.xid) != end.commit_lsn and self._watch.read_unknown_end(
            offset, end, done.known_from_lsn
        ):
            self.stop_at_regression()
        elif transaction is None:
            done.add(end.xid, end.commit_lsn)
        elif transaction.end is None:
            self._context.drop(transaction, end.commit_lsn)

    def _subscribed(self, end: End) -> End:
        is_subscribed = self._context.is_subscribed
        if all(map(is_subscribed, end.counts)):
            return end
        counts = {table: count for table, count in end.counts.items() if is_subscribed(table)}
        return End(end.xid, end.commit_lsn, end.commit_ts_ms, counts)

    def _refuse(self, offset: int, error: UndecodableRecordError) -> None:
        obstacle = Obstacle(self._topic, 0, offset, str(error), is_misconfiguration=False)
        self._context.add_obstacle(obstacle)
        self.queue.append(obstacle)
