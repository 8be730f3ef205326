"""The pure frontier: records in, cuts out. Knows no Kafka, Redis, clock or thread.

One :class:`Frontier` follows one source. Whoever reads Kafka gives it every record, in the order of offsets
within a partition and in any order between partitions, and asks for cuts.
"""

from collections.abc import Iterable, Mapping
from itertools import chain, islice

from slackwater_cdc.ahead import Ahead
from slackwater_cdc.completeness import Completeness
from slackwater_cdc.context import Context
from slackwater_cdc.cut_builder import CutBuilder
from slackwater_cdc.ends import Ends
from slackwater_cdc.envelope import decode_notification
from slackwater_cdc.errors import UndecodableRecordError
from slackwater_cdc.partition import Partition
from slackwater_cdc.partitions import Partitions
from slackwater_cdc.regression import Regression, RegressionWatch
from slackwater_cdc.report import late_rows, open_snapshot, open_transaction
from slackwater_cdc.snapshot import Snapshot, Snapshots
from slackwater_cdc.snapshot_gate import SnapshotGate
from slackwater_cdc.transaction import EndOffsets, Obstacle, Pending, Transaction, Waiting
from slackwater_protocol import (
    AheadMarkers,
    CommittedTransaction,
    Cut,
    Evidence,
    OpenTransaction,
    SourceTopics,
)

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
        topics: Names of the source's topics, where they are not Debezium's default ones.
        evidence: By table, what counts as proof of completeness; ``counts`` for tables not named.
    """

    def __init__(
        self,
        source: str,
        *,
        tables: frozenset[str] | None = None,
        timeline: int = 1,
        start: Cut | None = None,
        done: Iterable[CommittedTransaction] = (),
        topics: SourceTopics | None = None,
        evidence: Mapping[str, Evidence] | None = None,
    ) -> None:
        self._topics = topics or SourceTopics(source)
        exempt = {t: kind for t, kind in (evidence or {}).items() if kind is not Evidence.COUNTS}
        self._built = CutBuilder(source, timeline, start)
        lsn = self._built.lsn
        remembered = list(done)
        started_ms = 0 if start is None else start.commit_ts_ms
        self._watch = RegressionWatch(lsn, max([started_ms, *(t.commit_ts_ms for t in remembered)]))
        self._snapshots = Snapshots(tables, lsn, started_ms, self._watch)
        self._context = Context(tables, self._snapshots, exempt)
        for transaction in remembered:
            self._context.done.add(transaction.xid, transaction.commit_lsn)
        counts = {} if start is None else {t: len(offsets) for t, offsets in start.end_offsets.items()}
        self._partitions = Partitions(self._topics, self._context, counts)
        self._completeness = Completeness(self._topics, self._context, self._partitions, exempt)
        self._ends = Ends(
            self._topics.transactions,
            self._context,
            self._completeness,
            self._watch,
            lsn=lsn,
            position=self._built.transaction_offset,
        )
        self._gate = SnapshotGate(
            self._topics, self._snapshots, self._ends, self._completeness, self._partitions
        )
        self._ahead = Ahead(source, self._built.timeline)
        self._passed = 0
        self._whole_at = 0
        self._skip_lsn = 0
        self._cuts: list[Cut] = []
        self._beginning = None if start is not None else Waiting()

    # --- what is read

    def add_partition(self, topic: str, number: int, start: int) -> Partition:
        """Declares a partition of a data topic and where reading begins; give its records to the result."""
        return self._partitions.add(topic, number, start)

    def read_transactions(self, records: Iterable[tuple[int, bytes | None, int]]) -> None:
        """Takes records of the transaction topic (partition 0): offset, value, record timestamp (ms)."""
        self._ends.read(records)

    def read_notifications(self, records: Iterable[tuple[int, bytes | None]]) -> None:
        """Takes records of the notification topic (partition 0).

        One that cannot be read may have told how many rows an initial snapshot has: the attempt that is under
        way then never counts as complete, and :meth:`open_transactions` says why.
        """
        for offset, value in records:
            self._gate.notification_position = offset + 1
            if value is None:
                continue
            try:
                self._snapshots.announced.read(decode_notification(value))
            except UndecodableRecordError as error:
                problem = f"{self._topics.notifications}/0 offset {offset}: {error}"
                self._snapshots.announced.read_unreadable(problem)

    def end_offsets(self, ends: EndOffsets) -> None:
        """Answers :attr:`end_offsets_wanted`, for the data, transaction and notification topics.

        They must be high watermarks (what is written counts, committed or not), and have been asked for after
        everything that was given to the frontier was read; new partitions must have been looked for and
        declared in between. A topic that does not exist is left out.
        """
        self._completeness.answer(ends, self._ends.sequence, self._ends.queue)

    def skip_transactions_to(self, position: int) -> None:
        """Says that the transaction topic holds nothing more below an offset, or nothing of this timeline."""
        self._ends.skip_to(position)
        if not self._built.lsn and not self._ends.queue and not self._context.transactions:
            self._built.transaction_offset = self._ends.position

    def skip_notifications_to(self, position: int) -> None:
        """Says that the notification topic holds nothing more below an offset."""
        self._gate.notification_position = max(self._gate.notification_position, position)

    def skip_announcements_to(self, commit_ts_ms: int) -> None:
        """Says when the timeline before committed last, milliseconds since the epoch.

        Snapshots that had STARTED by then (one second of skew is allowed for) are not of this timeline. Call
        it before notifications are read.
        """
        self._snapshots.announced.skip_to(commit_ts_ms)

    def skip_to(self, lsn: int) -> None:
        """Lets incomplete transactions with a commit LSN up to this pass: an operator has decided so.

        One is passed only after everything that stands in the topics was read. What is missing of it is lost
        to all pipelines; the cut names it in ``skipped``.
        """
        self._skip_lsn = max(self._skip_lsn, lsn)

    @property
    def rest_wanted(self) -> bool:
        """Whether something could pass if the source were known to be at rest: see :meth:`rest`."""
        return self._snapshots.pending is not None or bool(self._snapshots.late)

    def rest(self, ends: EndOffsets) -> None:
        """Says that nothing was written to any topic of the source for long.

        Rows of a snapshot that may be newer than their LSN then need not wait for a commit any more: had
        there been one that they hold, the connector would have written it by now. Call it now and then while
        :attr:`rest_wanted`: what it needs to know besides is asked for as :attr:`end_offsets_wanted`.

        Args:
            ends: Present end offsets, as in :meth:`end_offsets`.
        """
        if not self._has_read_to(ends):
            return
        self._snapshots.settle_at_rest(self._ends.sequence)
        self._built.add_late(self._snapshots.release(self._passed))
        self._gate.is_at_rest = True
        try:
            self.advance()
        finally:
            self._gate.is_at_rest = False

    def _has_read_to(self, ends: EndOffsets) -> bool:
        positions = {p.key: p.position for p in self._partitions}
        positions[self._topics.transactions, 0] = self._ends.position
        positions[self._topics.notifications, 0] = self._gate.notification_position
        return all(positions.get(key, 0) >= end for key, end in ends.items())

    # --- what comes out

    def advance(self) -> int:
        """Moves the frontier as far as the evidence allows.

        Returns:
            Change events on the frontier that are in no cut yet.
        """
        self._partitions.remember_counts()
        self._stop_at_regression()
        if self._ends.newest is not None:
            self._snapshots.settle(self._ends.newest, self._ends.sequence)
        while self._step():
            if len(self._built.ready) >= MAX_TRANSACTIONS_PER_CUT and self._passed >= self._whole_at:
                self._cuts.append(self._new_cut())
        return self._built.ready_events

    def cuts(self) -> list[Cut]:
        """The cuts since the last call, in order: several when more than 10,000 transactions passed."""
        if self._passed >= self._whole_at and (
            self._built.lsn > self._built.cut_lsn
            or (self._has_rows_between_commits and self._built.step_between_commits())
        ):
            self._cuts.append(self._new_cut())
        cuts, self._cuts = self._cuts, []
        self._built.ready_events = 0
        return cuts

    def markers_ahead(self) -> AheadMarkers | None:
        """Markers of partitions that are further than the frontier; None when none has risen.

        For scope ``aggregate``, while a sibling partition holds the frontier back. Publish the cuts first.
        """
        built, cut_lsn = self._built, self._built.cut_lsn
        if not cut_lsn or built.ready or built.has_late or self._cuts or self._snapshots.pending is not None:
            return None
        return self._ahead.markers(cut_lsn, self._ends.queue, self._partitions, self._context)

    @property
    def lsn(self) -> int:
        """The commit LSN of the frontier."""
        return self._built.lsn

    @property
    def newest_lsn(self) -> int:
        """The commit LSN of the newest END that was read, complete or not."""
        return self._ends.last_lsn

    @property
    def has_moved(self) -> bool:
        """Whether there is something to publish, transactions without change events included."""
        moved = bool(self._cuts) or self._built.lsn > self._built.cut_lsn
        return moved or self._has_rows_between_commits

    @property
    def end_offsets_wanted(self) -> bool:
        """Whether the frontier cannot go on without end offsets; answer with :meth:`end_offsets`."""
        return self._completeness.is_waiting

    @property
    def regression(self) -> Regression | None:
        """Where LSNs went back; no cut passes it. None while they rise."""
        return self._watch.found

    @property
    def stale_end_count(self) -> int:
        """ENDs at or below the newest one, since the last that was above it."""
        return self._ends.stale_count

    @property
    def obstacles(self) -> list[Obstacle]:
        """Records that no cut can pass, in the order in which they were read; at most a hundred."""
        return list(self._context.obstacles)

    @property
    def queue_length(self) -> int:
        """Transactions of which END was read and that are above the frontier."""
        return len(self._ends.queue)

    @property
    def partitions(self) -> list[Partition]:
        """The declared partitions."""
        return list(self._partitions)

    def missing_tables(self, limit: int = 10) -> list[str]:
        """Subscribed tables that the first waiting transactions name, but whose partitions are unknown."""
        found = (self._missing_tables_of(t) for t in self._first_waiting(limit))
        return list(dict.fromkeys(chain.from_iterable(found)))

    def open_transactions(self, limit: int = 100) -> list[OpenTransaction]:
        """What the frontier waits for, next first; ``since_ms`` is left at 0, for there is no clock here."""
        first = self._first_waiting(limit)
        result = [open_transaction(t, self._missing_tables_of(t), self._partitions_of(t)) for t in first]
        if self._snapshots.pending is not None:
            result.insert(0, open_snapshot(self._snapshots.pending, self._snapshots))
        elif self._snapshots.late:
            result.insert(0, late_rows(self._snapshots.late[0]))
        return result[:limit]

    # --- rules

    def _step(self) -> bool:
        """Passes the next transaction or snapshot; False when it may not be passed yet."""
        snapshot = self._snapshots.pending
        head = self._ends.queue[0] if self._ends.queue else None
        if snapshot is not None and not self._gate.shows_before(
            head, snapshot, is_beginning=not self._built.lsn
        ):
            if self._watch.found is not None or not self._gate.may_pass(snapshot):
                return False
            self._pass_snapshot(snapshot)
            return True
        if not isinstance(head, Transaction):
            return self._skip_obstacle()
        if not self._completeness.is_complete(head):
            return self._skip(head)
        if self._beginning is not None and not self._has_begun(self._beginning):
            return False
        if snapshot is not None and any(p.front() is snapshot for p in head.partitions):
            self._take_off(head)  # written after the snapshot: in it
            return True
        if self._may_pass(head) or self._drop_unfinished_before(head):
            self._pass(head)
            return True
        return False

    def _stop_at_regression(self) -> None:
        if self._watch.found is not None:
            self._ends.stop_at_regression()

    def _has_begun(self, beginning: Pending) -> bool:
        """Whether it is certain that no snapshot rows come before the first transaction.

        They would be the first records of partitions, so one record of each that is not empty is enough.
        """
        unread = [p for p in self._partitions if p.position == p.start]
        if self._completeness.is_read_past(beginning, unread) and self._gate.has_read_notifications(
            beginning
        ):
            self._beginning = None
            return True
        return False

    def _may_pass(self, transaction: Transaction) -> bool:
        """Whether nothing undecided lies before the rows of a complete transaction.

        Late rows of snapshots, and repeated rows of tables without keys, may lie in between: then the next
        cut must hold the later commits, too, to which those belong.
        """
        for partition in transaction.partitions:
            front = partition.front()
            if front is None or (front is transaction and not transaction.may_be_scattered):
                continue
            sequence = partition.last_sequence_before(transaction)
            if sequence is None:
                return False
            self._whole_at = max(self._whole_at, sequence)
        return True

    @property
    def _has_rows_between_commits(self) -> bool:
        """Whether rows of an ad hoc snapshot can be shown that no commit has shown.

        Behind a regression they may be of either timeline.
        """
        if self._built.ready or not self._built.cut_lsn or self._watch.found is not None:
            return False
        waiting = self._context.waiting_incremental
        return self._built.has_late or any(first < p.end_offset() for p, first in waiting.items())

    # --- decisions of an operator

    def _skip(self, transaction: Transaction) -> bool:
        """Passes an incomplete transaction if it may be skipped and nothing more of it can be read."""
        if transaction.commit_lsn > self._skip_lsn:
            return False
        if not self._completeness.is_read_past(transaction, self._partitions):
            return False
        if not self._may_pass(transaction) and not self._drop_unfinished_before(transaction):
            return False
        self._built.add_skipped(transaction.xid)
        self._pass(transaction)
        return True

    def _skip_obstacle(self) -> bool:
        """Passes an unreadable record of the transaction topic that lies before a commit to be skipped to."""
        if not self._skip_lsn:
            return False
        queue, barrier = self._ends.queue, self._ends.barrier
        behind = next((item for item in queue if isinstance(item, Transaction) or item is barrier), None)
        if not isinstance(behind, Transaction) or behind.commit_lsn > self._skip_lsn:
            return False
        passed = queue.popleft()
        self._context.obstacles = [o for o in self._context.obstacles if o is not passed]
        return True

    def _drop_unfinished_before(self, transaction: Transaction) -> bool:
        """Gives up transactions without END before one that is at or below the LSN to skip to.

        Order in a partition is commit order, so their ENDs would have come before that one's.
        """
        if transaction.commit_lsn > self._skip_lsn:
            return False
        for xid in self._drop_unfinished(transaction.partitions, transaction.commit_lsn):
            self._built.add_skipped(xid)
        return self._may_pass(transaction)

    # --- moves

    def _pass(self, transaction: Transaction) -> None:
        self._take_off(transaction)
        self._built.add(transaction)
        if self._snapshots.late:
            self._built.add_late(self._snapshots.release(self._passed))

    def _take_off(self, transaction: Transaction) -> None:
        """Goes on behind the next transaction: it is on the frontier, or contained in a snapshot."""
        self._ends.queue.popleft()
        self._context.drop(transaction, transaction.commit_lsn)
        self._passed = transaction.sequence or 0

    def _pass_snapshot(self, snapshot: Snapshot) -> None:
        self._drop_unfinished(snapshot.partitions, snapshot.lsn)  # an earlier connector's: contained in it
        queue = self._ends.queue
        while queue and isinstance(queue[0], Transaction) and queue[0].commit_lsn <= snapshot.lsn:
            self._take_off(queue[0])
        self._snapshots.finish()
        if snapshot.is_repeated:
            self._context.repeated.add(snapshot.lsn)
        self._built.add_snapshot(snapshot, sum(self._snapshots.received(snapshot).values()))
        self._ends.last_lsn = max(self._ends.last_lsn, snapshot.lsn)
        if snapshot.is_late:
            self._whole_at = max(self._whole_at, self._ends.sequence)
        elif self._passed >= self._whole_at:
            self._cuts.append(self._new_cut())  # an ad hoc one of an idle database has the same LSN

    def _drop_unfinished(self, partitions: Iterable[Partition], lsn: int) -> list[int]:
        """Drops transactions without END at the front of partitions, as if done by an LSN; their xids."""
        dropped = []
        for partition in partitions:
            front = partition.front()
            while isinstance(front, Transaction) and front.sequence is None:
                self._context.drop(front, lsn)
                dropped.append(front.xid)
                front = partition.front()
        return dropped

    def _new_cut(self) -> Cut:
        self._context.repeated |= self._snapshots.doubled
        self._snapshots.doubled.clear()
        cut = self._built.cut(self._partitions, self._context)
        self._snapshots.pass_lsn(cut.lsn, cut.commit_ts_ms)
        return cut

    # --- what people see

    def _partitions_of(self, transaction: Transaction) -> list[Partition]:
        end = transaction.end
        named = (self._partitions.of_table(table) for table in (end.counts if end else ()))
        return list(dict.fromkeys([*chain.from_iterable(named), *transaction.partitions]))

    def _missing_tables_of(self, transaction: Transaction) -> list[str]:
        end = transaction.end
        return [] if end is None else [table for table in end.counts if not self._partitions.of_table(table)]

    def _first_waiting(self, limit: int) -> list[Transaction]:
        """Transactions in the order in which the frontier needs them; those without END at the end."""
        queued = [t for t in islice(self._ends.queue, limit) if isinstance(t, Transaction)]
        unfinished = (t for t in self._context.transactions.values() if t.end is None)
        return queued + list(islice(unfinished, limit - len(queued)))
