"""The pure frontier: records in, cuts out. Knows no Kafka, Redis, clock or thread.

One :class:`Frontier` follows one source. Whoever reads Kafka gives it every record, in the order of offsets
within a partition and in any order between partitions, and asks for cuts.
"""

from collections import deque
from collections.abc import Iterable
from itertools import chain, islice

from slackwater_cdc.context import Context
from slackwater_cdc.envelope import End, decode_notification, decode_transaction
from slackwater_cdc.errors import UndecodableRecordError
from slackwater_cdc.evidence import (
    counts_are_complete,
    is_overtaken,
    last_numbering_is_complete,
    original_numbering_is_complete,
)
from slackwater_cdc.partition import Partition
from slackwater_cdc.report import open_snapshot, open_transaction
from slackwater_cdc.snapshot import Snapshot, Snapshots
from slackwater_cdc.transaction import EndOffsets, Obstacle, Pending, Transaction, Waiting
from slackwater_protocol import SNAPSHOT_XID, CommittedTransaction, Cut, OpenTransaction
from slackwater_protocol.keys import data_topic, notification_topic, transaction_topic

MAX_TRANSACTIONS_PER_CUT = 10_000


class Frontier:
    """Finds the commits up to which everything has been read.

    Args:
        source: The connector's ``topic.prefix``.
        tables: The tables (``schema.table``) whose topics are read; None: all that the connector captures, so
            a commit waits for the topic of every table it names.
        timeline: The timeline of the cuts.
        start: The cut to go on from; data must be read from its end offsets, the transaction topic from its
            ``transaction_offset``, notifications from their beginning.
        done: Transactions of that cut and those before it: their rows are recognised when they come again.
    """

    def __init__(
        self,
        source: str,
        *,
        tables: frozenset[str] | None = None,
        timeline: int = 1,
        start: Cut | None = None,
        done: Iterable[CommittedTransaction] = (),
    ) -> None:
        self._source = source
        self._timeline = timeline if start is None else start.timeline
        self._lsn = 0 if start is None else start.lsn
        self._commit_ts_ms = 0 if start is None else start.commit_ts_ms
        self._event_count = 0 if start is None else start.event_count
        self._transaction_offset = 0 if start is None else start.transaction_offset
        self._last_end_lsn = self._lsn
        self._cut_lsn = self._lsn
        self._snapshots = Snapshots(tables, self._lsn)
        self._context = Context(tables, self._snapshots)
        for transaction in done:
            self._context.done.add(transaction.xid, transaction.commit_lsn)
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._queue: deque[Transaction | Obstacle] = deque()
        self._sequence = 0
        self._passed = 0
        self._whole_at = 0
        self._ready: list[CommittedTransaction] = []
        self._ready_events = 0
        self._cuts: list[Cut] = []
        self._beginning = None if start is not None else Waiting()
        self._waiting: list[Pending] = []
        self._transaction_position = self._transaction_offset
        self._notification_position = 0
        self.stale_end_count = 0
        """END records at or below the newest one, since the last that was above it."""

    # --- what is read

    def add_partition(self, topic: str, number: int, start: int) -> Partition:
        """Declares a partition of a data topic and where reading begins; give its records to the result."""
        key = topic, number
        if key not in self._partitions:
            self._partitions[key] = Partition(self._context, topic, number, start)
        return self._partitions[key]

    def read_transactions(self, records: Iterable[tuple[int, bytes | None, int]]) -> None:
        """Takes records of the transaction topic (partition 0): offset, value, record timestamp (ms)."""
        transactions = self._context.transactions
        for offset, value, timestamp_ms in records:
            self._transaction_position = offset + 1
            if value is None:
                continue
            try:
                record = decode_transaction(value)
            except UndecodableRecordError as error:
                self._refuse(offset, error)
                continue
            if isinstance(record, End):
                self._read_end(offset, record, timestamp_ms)
                continue
            transaction = transactions.get(record.xid)
            if transaction is not None and transaction.begins:
                transaction.read_begin_again(timestamp_ms)
            elif transaction is not None:
                transaction.begins = 1
            elif self._context.done.get(record.xid) is None:
                transactions[record.xid] = transaction = Transaction(record.xid)
                transaction.begins = 1

    def read_notifications(self, records: Iterable[tuple[int, bytes | None]]) -> None:
        """Takes records of the notification topic (partition 0); passes over those it cannot read."""
        for offset, value in records:
            self._notification_position = offset + 1
            if value is None:
                continue
            try:
                notification = decode_notification(value)
            except UndecodableRecordError:
                continue
            self._snapshots.read_notification(notification)

    def end_offsets(self, ends: EndOffsets) -> None:
        """Answers :attr:`end_offsets_wanted`, for the data, transaction and notification topics.

        They must have been asked for after everything that was given to the frontier was read, under
        ``read_committed``. A topic that does not exist is left out.
        """
        for pending in self._waiting:
            pending.past = ends
        self._waiting.clear()

    def skip_transactions_to(self, position: int) -> None:
        """Says that the transaction topic holds nothing more below an offset."""
        self._transaction_position = max(self._transaction_position, position)

    def skip_notifications_to(self, position: int) -> None:
        """Says that the notification topic holds nothing more below an offset."""
        self._notification_position = max(self._notification_position, position)

    # --- what comes out

    def advance(self) -> int:
        """Moves the frontier as far as the evidence allows.

        Returns:
            Change events on the frontier that are in no cut yet.
        """
        while True:
            snapshot = self._snapshots.pending
            head = self._queue[0] if self._queue else None
            if snapshot is not None and not (
                isinstance(head, Transaction) and head.commit_lsn < snapshot.lsn
            ):
                if not self._snapshot_is_complete(snapshot):
                    break
                self._pass_snapshot(snapshot)
            elif not isinstance(head, Transaction) or not self._is_complete(head):
                break
            elif snapshot is not None and any(p.front() is snapshot for p in head.partitions):
                self._queue.popleft()
                self._drop(head, head.commit_lsn)  # written after the snapshot: in it
            elif self._may_pass(head):
                self._pass(head)
            else:
                break
            if len(self._ready) >= MAX_TRANSACTIONS_PER_CUT and self._passed >= self._whole_at:
                self._cuts.append(self._new_cut())
        return self._ready_events

    def cuts(self) -> list[Cut]:
        """The cuts since the last call, in order: several when more than 10,000 transactions passed."""
        if self._lsn > self._cut_lsn and self._passed >= self._whole_at:
            self._cuts.append(self._new_cut())
        cuts, self._cuts = self._cuts, []
        self._ready_events = 0
        return cuts

    @property
    def lsn(self) -> int:
        """The commit LSN of the frontier."""
        return self._lsn

    @property
    def has_moved(self) -> bool:
        """Whether there is something to publish, transactions without change events included."""
        return bool(self._cuts) or self._lsn > self._cut_lsn

    @property
    def end_offsets_wanted(self) -> bool:
        """Whether the frontier cannot go on without end offsets; answer with :meth:`end_offsets`."""
        return bool(self._waiting)

    @property
    def obstacles(self) -> list[Obstacle]:
        """Records that no cut can pass, in the order in which they were read; at most a hundred."""
        return list(self._context.obstacles)

    @property
    def queue_length(self) -> int:
        """Transactions of which END was read and that are above the frontier."""
        return len(self._queue)

    @property
    def partitions(self) -> list[Partition]:
        """The declared partitions."""
        return list(self._partitions.values())

    def missing_tables(self, limit: int = 10) -> list[str]:
        """Subscribed tables that the first waiting transactions name, but whose partitions are unknown."""
        found = (self._missing_tables_of(t) for t in self._first_waiting(limit))
        return list(dict.fromkeys(chain.from_iterable(found)))

    def open_transactions(self, limit: int = 100) -> list[OpenTransaction]:
        """What the frontier waits for, next first; ``since_ms`` is left at 0, for there is no clock here."""
        first = self._first_waiting(limit)
        result = [open_transaction(t, self._missing_tables_of(t)) for t in first]
        if self._snapshots.pending is not None:
            result.insert(0, open_snapshot(self._snapshots.pending, self._snapshots))
        return result[:limit]

    # --- rules

    def _read_end(self, offset: int, end: End, timestamp_ms: int) -> None:
        context = self._context
        transaction = context.transactions.get(end.xid)
        if end.commit_lsn <= self._last_end_lsn:
            self.stale_end_count += 1
            if transaction is None:
                context.done.add(end.xid, end.commit_lsn)
            elif transaction.end is None:
                self._drop(transaction, end.commit_lsn)
            else:
                transaction.read_end_again(self._subscribed(end), timestamp_ms)
            return
        self.stale_end_count = 0
        self._last_end_lsn = end.commit_lsn
        if transaction is None:
            transaction = context.transactions[end.xid] = Transaction(end.xid)
        self._sequence += 1
        transaction.end_offset = offset + 1
        transaction.read_end(self._subscribed(end), self._sequence, timestamp_ms)
        self._queue.append(transaction)

    def _subscribed(self, end: End) -> End:
        is_subscribed = self._context.is_subscribed
        if all(map(is_subscribed, end.counts)):
            return end
        counts = {table: count for table, count in end.counts.items() if is_subscribed(table)}
        return End(end.xid, end.commit_lsn, end.commit_ts_ms, counts)

    def _is_complete(self, transaction: Transaction) -> bool:
        complete = not transaction.is_renumbered and counts_are_complete(transaction)
        if not complete and (transaction.is_renumbered or transaction.begins > 1):
            complete = self._renumbered_is_complete(transaction)
        return complete and (self._beginning is None or self._has_begun(self._beginning))

    def _renumbered_is_complete(self, transaction: Transaction) -> bool:
        if original_numbering_is_complete(transaction):
            return True
        partitions, newest_ms = self._partitions.values(), self._context.newest_ms
        is_complete = last_numbering_is_complete(transaction, newest_ms)
        if is_complete and self._is_read_past(transaction, partitions):
            return True
        end = transaction.end
        if end is None or transaction.begins_at_first_end > 1:
            return is_overtaken(transaction, partitions, newest_ms)
        return all(is_overtaken(transaction, self._partitions_of(t), newest_ms) for t in end.counts)

    def _has_begun(self, beginning: Pending) -> bool:
        """Whether it is certain that no snapshot rows come before the first transaction.

        They would be the first records of partitions, so one record of each that is not empty is enough.
        """
        unread = [p for p in self._partitions.values() if p.position == p.start]
        if self._is_read_past(beginning, unread) and self._notifications_are_read_past(beginning):
            self._beginning = None
            return self._snapshots.pending is None
        return False

    def _may_pass(self, transaction: Transaction) -> bool:
        """Whether nothing undecided lies before the rows of a complete transaction.

        Repeated rows of tables without keys may lie behind rows of later commits: then the next cut must hold
        those, too.
        """
        for partition in transaction.partitions:
            front = partition.front()
            if front is None or (front is transaction and not transaction.is_keyless):
                continue
            sequence = partition.last_sequence_before(transaction)
            if sequence is None:
                return False
            self._whole_at = max(self._whole_at, sequence)
        return True

    def _snapshot_is_complete(self, snapshot: Snapshot) -> bool:
        """By counts; where there are no notifications, by the last row and end offsets."""
        is_announced = self._snapshots.is_announced
        if not (self._snapshots.is_counted(snapshot) if is_announced else snapshot.has_last):
            return False
        undecided = [p for p in self._partitions.values() if not p.has_streamed_rows(snapshot)]
        return (
            self._notifications_are_read_past(snapshot)
            and self._has_read_commits_below(snapshot)
            and (is_announced or self._is_read_past(snapshot, undecided))
        )

    def _notifications_are_read_past(self, pending: Pending) -> bool:
        past = self._past(pending)
        topic = notification_topic(self._source)
        return past is not None and self._notification_position >= past.get((topic, 0), 0)

    def _has_read_commits_below(self, snapshot: Snapshot) -> bool:
        """Whether every END below the snapshot was read: an earlier connector may have written some."""
        past = self._past(snapshot)
        topic = transaction_topic(self._source)
        return self._last_end_lsn > snapshot.lsn or (
            past is not None and self._transaction_position >= past.get((topic, 0), 0)
        )

    def _is_read_past(self, pending: Pending, partitions: Iterable[Partition]) -> bool:
        past = self._past(pending)
        return past is not None and all(p.position >= past.get(p.key, 0) for p in partitions)

    def _past(self, pending: Pending) -> EndOffsets | None:
        if pending.past is None and pending not in self._waiting:
            self._waiting.append(pending)
        return pending.past

    # --- moves

    def _pass(self, transaction: Transaction) -> None:
        self._queue.popleft()
        end = transaction.end
        if end is None:
            return
        self._drop(transaction, end.commit_lsn)
        self._passed = transaction.sequence or 0
        self._transaction_offset = transaction.end_offset
        if end.counts or transaction.partitions:
            self._ready_events += sum(end.counts.values())
            self._ready.append(CommittedTransaction(end.xid, end.commit_lsn, end.commit_ts_ms))
        self._event_count += sum(end.counts.values())
        self._lsn, self._commit_ts_ms = end.commit_lsn, end.commit_ts_ms

    def _drop(self, transaction: Transaction, commit_lsn: int) -> None:
        """Takes a transaction off the list of open ones: it is at or below the frontier."""
        transaction.is_done = True
        del self._context.transactions[transaction.xid]
        self._context.done.add(transaction.xid, commit_lsn)
        if transaction.is_repeated or (transaction.end is None and transaction.partitions):
            self._context.repeated.add(commit_lsn)

    def _pass_snapshot(self, snapshot: Snapshot) -> None:
        for partition in snapshot.partitions:
            self._drop_unfinished_before(snapshot, partition)
        self._snapshots.finish()
        self._ready.append(CommittedTransaction(SNAPSHOT_XID, snapshot.lsn, snapshot.ts_ms))
        self._ready_events += snapshot.row_count
        self._event_count += snapshot.row_count
        self._lsn, self._commit_ts_ms = snapshot.lsn, snapshot.ts_ms
        self._last_end_lsn = max(self._last_end_lsn, snapshot.lsn)

    def _drop_unfinished_before(self, snapshot: Snapshot, partition: Partition) -> None:
        """What an earlier connector left without END is contained in the snapshot that replaced it."""
        front = partition.front()
        while isinstance(front, Transaction) and front.sequence is None:
            self._drop(front, snapshot.lsn)
            front = partition.front()

    def _new_cut(self) -> Cut:
        topics: dict[str, list[int]] = {}
        for (topic, _), partition in sorted(self._partitions.items()):
            topics.setdefault(topic, []).append(partition.end_offset())
        cut = Cut(
            source=self._source,
            timeline=self._timeline,
            lsn=self._lsn,
            previous_lsn=self._cut_lsn,
            commit_ts_ms=self._commit_ts_ms,
            event_count=self._event_count,
            transactions=tuple(self._ready),
            end_offsets={topic: tuple(offsets) for topic, offsets in topics.items()},
            transaction_offset=self._transaction_offset,
            repeated=frozenset(self._context.repeated),
        )
        self._context.repeated.clear()
        self._ready = []
        self._cut_lsn = self._lsn
        self._snapshots.pass_lsn(self._lsn)
        return cut

    # --- what people see

    def _refuse(self, offset: int, error: UndecodableRecordError) -> None:
        topic = transaction_topic(self._source)
        obstacle = Obstacle(topic, 0, offset, str(error), is_misconfiguration=False)
        self._context.add_obstacle(obstacle)
        self._queue.append(obstacle)

    def _partitions_of(self, table: str) -> list[Partition]:
        topic = data_topic(self._source, table)
        return [p for p in self._partitions.values() if p.topic == topic or table in p.tables]

    def _missing_tables_of(self, transaction: Transaction) -> list[str]:
        end = transaction.end
        return [] if end is None else [table for table in end.counts if not self._partitions_of(table)]

    def _first_waiting(self, limit: int) -> list[Transaction]:
        """Transactions in the order in which the frontier needs them; those without END at the end."""
        queued = [t for t in islice(self._queue, limit) if isinstance(t, Transaction)]
        unfinished = (t for t in self._context.transactions.values() if t.end is None)
        return queued + list(islice(unfinished, limit - len(queued)))
