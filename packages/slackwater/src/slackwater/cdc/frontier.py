"""The pure frontier: records in, cuts out. It uses no Kafka, Redis, clock or thread.

One :class:`Frontier` follows one source. The reader of Kafka passes it every record, in the order of offsets
within a partition and in any order between partitions, and requests cuts.
"""

from collections.abc import Iterable, Mapping
from itertools import chain

from slackwater.cdc.commits import Commits, Regression, RegressionWatch
from slackwater.cdc.completeness import Completeness, late_rows, open_snapshot, open_transaction
from slackwater.cdc.cuts import Barriers, Cuts
from slackwater.cdc.initial_snapshot import InitialSnapshot
from slackwater.cdc.partition import Partition
from slackwater.cdc.partition_queues import (
    EndOffsets,
    Fences,
    Obstacle,
    PartitionQueue,
    Partitions,
    Pending,
    Waiting,
)
from slackwater.cdc.snapshots import Snapshots
from slackwater.cdc.transaction import Subscription, Transaction
from slackwater.protocol import (
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
        start: The cut to continue from; data must be read from its end offsets, the transaction topic from
            its ``transaction_offset``, notifications from their beginning.
        done: Transactions of that cut and those before it, so that repeated rows of theirs are recognised.
        partition_counts: By topic, the fewest partitions in that cut and those before it: rows above it may
            have been written when there were no more, and be repeated in one that was added. None: those in
            ``start``.
        topics: Names of the source's topics, where they are not Debezium's default ones.
        evidence: By table, what counts as proof of completeness; ``counts`` for tables not named.
        barrier_interval_ms: From one barrier to the next, in commit time; 0: there are none.
        complete_tables: Tables that need no snapshot, as an operator says; ``*``: all that the connector's
            first one did not contain.
    """

    def __init__(  # noqa: PLR0913 - all but the source have a default
        self,
        source: str,
        *,
        tables: frozenset[str] | None = None,
        timeline: int = 1,
        start: Cut | None = None,
        done: Iterable[CommittedTransaction] = (),
        partition_counts: Mapping[str, int] | None = None,
        topics: SourceTopics | None = None,
        evidence: Mapping[str, Evidence] | None = None,
        barrier_interval_ms: int = 0,
        complete_tables: frozenset[str] = frozenset(),
    ) -> None:
        self._topics = topics or SourceTopics(source)
        remembered = list(done)
        newest_ms = max([start.commit_ts_ms if start else 0, *(t.commit_ts_ms for t in remembered)])
        self._watch = RegressionWatch(start.lsn if start else 0, newest_ms)
        self._subscription = Subscription(tables, evidence)
        self._fences = Fences()
        counts = {} if start is None else {t: len(offsets) for t, offsets in start.end_offsets.items()}
        self._partitions = Partitions(self._topics, counts if partition_counts is None else partition_counts)
        self._readers: dict[tuple[str, int], Partition] = {}
        self._barriers = Barriers(barrier_interval_ms, start)
        self._cuts = Cuts(source, timeline, start, self._partitions, self._barriers)
        self._commits = Commits(
            self._topics.transactions,
            self._subscription,
            self._watch,
            lsn=self._cuts.lsn,
            position=self._cuts.transaction_offset,
            done=remembered,
        )
        self._completeness = Completeness(self._subscription, self._commits, self._partitions, self._fences)
        self._snapshots = Snapshots(
            self._topics,
            self._subscription,
            self._commits,
            self._partitions,
            self._fences,
            self._watch,
            start=start,
            complete=complete_tables,
        )
        self._start_topics = set() if start is None or tables is not None else set(start.end_offsets)
        self._skip_lsn = 0
        self._beginning = None if start is not None else Waiting()
        self._resuming = None if start is None else Waiting()

    # --- what is read

    def add_partition(self, topic: str, number: int, start: int) -> Partition:
        """Returns a partition of a data topic, which takes its records from the offset `start` on.

        A partition that is already known is the same object.
        """
        known = self._readers.get((topic, number))
        if known is not None:
            return known
        partition = self._readers[topic, number] = Partition(
            topic,
            number,
            start,
            mark=1 + len(self._readers) % 255,
            subscription=self._subscription,
            commits=self._commits,
            snapshots=self._snapshots,
        )
        self._partitions.add(partition)
        return partition

    def read_transactions(self, records: Iterable[tuple[int, bytes | None, int]]) -> None:
        """Takes records of the transaction topic (partition 0): offset, value, record timestamp (ms)."""
        self._commits.read(records)

    def read_notifications(self, records: Iterable[tuple[int, bytes | None]]) -> None:
        """Takes records of the notification topic (partition 0).

        An unreadable record may have announced the number of rows of an initial snapshot. The current attempt
        then never counts as complete, and :meth:`open_transactions` says why.
        """
        self._snapshots.read_notifications(records)

    def end_offsets(self, ends: EndOffsets) -> None:
        """Answers :attr:`end_offsets_wanted`, for the data, transaction and notification topics.

        They must be high watermarks (whether committed or not), requested after everything that was passed to
        the frontier was read; new partitions must have been discovered and declared in between. A topic that
        does not exist is omitted.
        """
        self._fences.answer(ends)
        self._completeness.answer(ends)

    def skip_transactions_to(self, position: int) -> None:
        """Notes that the transaction topic has no more below an offset, or nothing of this timeline."""
        self._commits.skip_to(position)
        if not self._cuts.lsn and not self._commits.queue and not self._commits.open:
            self._cuts.transaction_offset = self._commits.position

    def skip_notifications_to(self, position: int) -> None:
        """Notes that the notification topic contains nothing more below an offset."""
        self._snapshots.skip_notifications_to(position)

    def skip_announcements_to(self, commit_ts_ms: int) -> None:
        """Notes when the previous timeline committed last, milliseconds since the epoch.

        Snapshots that had STARTED by then (with a tolerance of one second of skew) are not of this timeline.
        Must be called before notifications are read.
        """
        self._snapshots.announced.skip_to(commit_ts_ms)

    def skip_to(self, lsn: int) -> None:
        """Lets incomplete transactions with a commit LSN up to this pass, as an operator has decided.

        One is passed only after everything in the topics was read. What is missing of it is lost to all
        pipelines; the cut names it in ``skipped``.
        """
        self._skip_lsn = max(self._skip_lsn, lsn)

    @property
    def rest_wanted(self) -> bool:
        """Whether something could pass if the source were known to be at rest: see :meth:`rest`."""
        return self._snapshots.pending is not None or bool(self._snapshots.late)

    def rest(self, ends: EndOffsets) -> None:
        """Notes that nothing has been written to any topic of the source for a long time.

        Rows of a snapshot that may be newer than their LSN then need not wait for a commit: the connector
        would have written it by now. Call it regularly while :attr:`rest_wanted`, with the present end
        offsets as in :meth:`end_offsets`; those that it also needs are requested by
        :attr:`end_offsets_wanted`.
        """
        if not self._has_read_to(ends):
            return
        self._snapshots.settle_at_rest()
        self._cuts.add_late(self._snapshots.release(self._cuts.passed))
        self._advance(is_at_rest=True)

    def _has_read_to(self, ends: EndOffsets) -> bool:
        positions = {p.key: p.position for p in self._partitions}
        positions[self._topics.transactions, 0] = self._commits.position
        positions[self._topics.notifications, 0] = self._snapshots.notification_position
        return all(positions.get(key, 0) >= end for key, end in ends.items())

    # --- what comes out

    def advance(self) -> int:
        """Moves the frontier as far as the evidence allows; returns the number of change events in no cut."""
        self._advance(is_at_rest=False)
        return self._cuts.ready_events

    def cuts(self) -> list[Cut]:
        """Returns the cuts since the last call, in order; several after more than 10,000 commits."""
        if self._cuts.may_end and (
            self._cuts.lsn > self._cuts.cut_lsn
            or (self._has_rows_between_commits and self._cuts.step_between_commits())
        ):
            self._end_cut()
        return self._cuts.take()

    def markers_ahead(self) -> AheadMarkers | None:
        """Returns markers of partitions that are further than the frontier; None if none has risen.

        For scope ``aggregate``, while a sibling partition holds the frontier back. Publish the cuts first.
        """
        if self._snapshots.pending is not None:
            return None
        return self._cuts.markers_ahead(
            self._commits.queue,
            self._commits.repeated,
            self._snapshots.incremental.first,
            self._snapshots.tables.find_missing(),
        )

    @property
    def lsn(self) -> int:
        """The commit LSN of the frontier."""
        return self._cuts.lsn

    @property
    def newest_lsn(self) -> int:
        """The commit LSN of the newest END that was read, complete or not."""
        return self._commits.last_lsn

    @property
    def transaction_position(self) -> int:
        """The offset up to which the transaction topic was read."""
        return self._commits.position

    @property
    def has_moved(self) -> bool:
        """Whether there is something to publish, including transactions without change events."""
        return self._cuts.has_moved or self._has_rows_between_commits

    @property
    def end_offsets_wanted(self) -> bool:
        """Whether progress requires end offsets; answer with :meth:`end_offsets`."""
        return self._fences.are_wanted or self._completeness.is_waiting

    @property
    def regression(self) -> Regression | None:
        """The position at which LSNs went back, which no cut passes; None while they rise."""
        return self._watch.found

    @property
    def stale_end_count(self) -> int:
        """ENDs at or below the newest one, since the last one above it."""
        return self._commits.stale_count

    @property
    def obstacles(self) -> list[Obstacle]:
        """Records that no cut can pass, in the order in which they were read; at most a hundred."""
        return list(self._commits.obstacles)

    @property
    def missing_snapshot(self) -> str:
        """The reason why the source has had no snapshot; empty if it has, needs none, or has a cut."""
        if self._beginning is None:
            return ""
        return self._snapshots.tables.why_none() or self._snapshots.why_unmentioned(self._beginning.fence)

    @property
    def is_in_snapshot(self) -> bool:
        """Whether the connector has begun a snapshot and may still complete it."""
        return self._snapshots.announced.is_under_way

    @property
    def without_snapshot(self) -> Mapping[str, str]:
        """The topics of tables without a complete snapshot at the newest cut, with what they lack."""
        return self._snapshots.tables.missing

    @property
    def queue_length(self) -> int:
        """Transactions above the frontier whose END was read."""
        return len(self._commits.queue)

    @property
    def partitions(self) -> list[Partition]:
        """The declared partitions."""
        return list(self._readers.values())

    def missing_tables(self, limit: int = 10) -> list[str]:
        """Returns the tables of the first waiting transactions whose partitions are unknown."""
        found = (self._missing_tables(t) for t in self._commits.first_waiting(limit))
        return list(dict.fromkeys(chain.from_iterable(found)))

    def named_topics(self) -> set[str]:
        """Returns the topics of tables that transactions and snapshots name, and those of earlier cuts.

        If the name of a table contains dots, only this shows that a topic belongs to the source.
        """
        announced = filter(self._subscription.is_followed, self._snapshots.announced.scanned_tables())
        tables = {*self.missing_tables(), *announced}
        return self._start_topics | {self._topics.data(table) for table in tables}

    def open_transactions(self, limit: int = 100) -> list[OpenTransaction]:
        """Lists the transactions that hold back the frontier, next first; ``since_ms`` is left at 0."""
        first = self._commits.first_waiting(limit)
        result = [open_transaction(t, self._missing_tables(t), self._partitions_with_rows(t)) for t in first]
        if self._snapshots.pending is not None:
            result.insert(0, open_snapshot(self._snapshots.pending, self._snapshots.announced))
        elif self._snapshots.late:
            result.insert(0, late_rows(self._snapshots.late[0].lsn))
        return result[:limit]

    # --- rules

    def _advance(self, *, is_at_rest: bool) -> None:
        self._partitions.remember_counts()
        if self._watch.found is not None:
            self._commits.stop_at_regression()
        self._snapshots.settle()
        while self._step(is_at_rest=is_at_rest):
            if len(self._cuts.ready) >= MAX_TRANSACTIONS_PER_CUT and self._cuts.may_end:
                self._end_cut()

    def _step(self, *, is_at_rest: bool) -> bool:
        """Passes the next transaction or snapshot; returns False if it may not be passed yet."""
        snapshot, head = self._snapshots.pending, self._commits.head
        if snapshot is not None and not self._snapshots.shows_before(
            head, snapshot, is_beginning=not self._cuts.lsn
        ):
            if self._watch.found is not None:
                return False
            if not self._snapshots.may_pass(snapshot, is_at_rest=is_at_rest):
                return False
            self._pass_snapshot(snapshot)
            return True
        if not isinstance(head, Transaction):
            return self._commits.skip_obstacle(self._skip_lsn)
        if not self._completeness.is_complete(head):
            return self._skip(head)
        if not self._is_under_way():
            return False
        if snapshot is not None and any(p.front() is snapshot for p in head.partitions):
            self._end_cut_below()
            self._take_off(head)  # written after the snapshot, which contains it
            return True
        if self._may_pass(head) or self._drop_unfinished_before(head):
            self._pass(head)
            return True
        return False

    def _is_under_way(self) -> bool:
        """Returns whether transactions may pass: what has to precede the first one was read."""
        if self._beginning is not None and not self._has_begun(self._beginning):
            return False
        return self._resuming is None or self._has_resumed(self._resuming)

    def _has_begun(self, beginning: Pending) -> bool:
        """Returns whether no snapshot rows can precede the first transaction.

        They would be the first records of partitions, so one record of each non-empty partition is enough.
        """
        unread = [p for p in self._partitions if p.position == p.start]
        if self._fences.fence(beginning) is None or self.missing_snapshot:
            return False
        if self._fences.is_read_past(beginning, unread) and self._snapshots.has_read_notifications(beginning):
            self._beginning = None
            return True
        return False

    def _has_resumed(self, resuming: Pending) -> bool:
        """Returns whether it is known which topics that no cut has named have had a snapshot."""
        if self._snapshots.tables.has_new_topics and not self._snapshots.has_read_notifications(resuming):
            return False
        self._resuming = None
        return True

    def _may_pass(self, transaction: Transaction) -> bool:
        """Returns whether nothing undecided precedes the rows of a complete transaction.

        Late rows of snapshots, and repeated rows of tables without keys, may be in between: then the next cut
        must also contain the later commits to which those belong.
        """
        for partition in transaction.partitions:
            front = partition.front()
            if front is None or (front is transaction and not transaction.may_be_scattered):
                continue
            sequence = partition.last_sequence_before(transaction)
            if sequence is None:
                return False
            self._cuts.keep_whole_to(sequence)
        return True

    @property
    def _has_rows_between_commits(self) -> bool:
        """Whether there are rows of an ad hoc snapshot to show that no commit has shown.

        After a regression they may be of either timeline.
        """
        if self._cuts.ready or not self._cuts.cut_lsn or self._watch.found is not None:
            return False
        return self._cuts.has_late or self._snapshots.incremental.can_be_shown()

    # --- decisions of an operator

    def _skip(self, transaction: Transaction) -> bool:
        """Passes an incomplete transaction if it may be skipped and no more of it can be read."""
        if transaction.commit_lsn > self._skip_lsn or not self._is_under_way():
            return False
        if not self._fences.is_read_past(transaction, self._partitions):
            return False
        if not self._may_pass(transaction) and not self._drop_unfinished_before(transaction):
            return False
        self._pass(transaction, is_skipped=True)
        return True

    def _drop_unfinished_before(self, transaction: Transaction) -> bool:
        """Gives up transactions without END before one that is at or below the LSN to skip to.

        Order in a partition is commit order, so their ENDs would have come earlier; but a repeated row
        without a key may follow rows of later commits. Only a cut that contains the later transaction may end
        after the rows of those that are given up.
        """
        if transaction.commit_lsn > self._skip_lsn or self._may_have_moved_back(transaction):
            return False
        self._end_at_barrier(transaction)
        self._end_cut_below()
        for xid in self._commits.drop_unfinished(transaction.partitions, transaction.commit_lsn):
            self._cuts.add_skipped(xid)
            self._cuts.keep_whole_to(transaction.sequence or 0)
        return self._may_pass(transaction)

    def _may_have_moved_back(self, transaction: Transaction) -> bool:
        """Returns whether a transaction's first row in a partition may have been written again."""
        if not transaction.is_keyless:
            return False
        return transaction.is_repeated or not self._fences.is_read_past(transaction, self._partitions)

    # --- moves

    def _pass(self, transaction: Transaction, *, is_skipped: bool = False) -> None:
        self._end_at_barrier(transaction)
        if is_skipped:
            self._cuts.add_skipped(transaction.xid)
        self._take_off(transaction)
        self._cuts.add(transaction)
        if self._snapshots.late:
            self._cuts.add_late(self._snapshots.release(self._cuts.passed))

    def _end_at_barrier(self, following: Transaction) -> None:
        """Ends a cut if the newest commit is a barrier, unless rows after it belong to the one before."""
        end, cuts = following.end, self._cuts
        if end is None or not self._barriers.is_before(end.commit_ts_ms) or not cuts.may_end:
            return
        self._barriers.mark()
        self._end_cut_below()

    def _end_cut_below(self) -> None:
        """Ends a cut at the present frontier, if that is above the newest cut and one may end there."""
        if self._cuts.lsn > self._cuts.cut_lsn and self._cuts.may_end:
            self._end_cut()

    def _take_off(self, transaction: Transaction) -> None:
        """Passes the next transaction: it is on the frontier, or contained in a snapshot."""
        self._commits.take_off()
        self._cuts.passed = transaction.sequence or 0

    def _pass_snapshot(self, snapshot: InitialSnapshot) -> None:
        commits = self._commits
        while isinstance(commits.head, Transaction) and commits.head.commit_lsn <= snapshot.lsn:
            self._take_off(commits.head)
        commits.drop_unfinished(snapshot.partitions, snapshot.lsn)  # the snapshot contains these
        self._snapshots.finish(snapshot)
        self._cuts.add_snapshot(snapshot, sum(snapshot.received().values()))
        commits.pass_snapshot(snapshot.lsn)
        if snapshot.is_late:
            self._cuts.keep_whole_to(commits.sequence)
        elif self._cuts.may_end:
            self._end_cut()  # an ad hoc one of an idle database has the same LSN

    def _end_cut(self) -> None:
        incremental = self._snapshots.incremental
        cut = self._cuts.end(
            repeated=self._commits.take_repeated() | self._snapshots.take_repeated(),
            incremental_rows=incremental.count,
            has_incremental_rows=incremental.show(),
            without_snapshot=self._snapshots.tables.find_missing(),
        )
        self._snapshots.pass_lsn(cut.lsn, cut.commit_ts_ms)

    # --- what people see

    def _partitions_with_rows(self, transaction: Transaction) -> list[PartitionQueue]:
        end = transaction.end
        named = (self._partitions.with_table(table) for table in (end.counts if end else ()))
        return list(dict.fromkeys([*chain.from_iterable(named), *transaction.partitions]))

    def _missing_tables(self, transaction: Transaction) -> list[str]:
        counts = {} if transaction.end is None else transaction.end.counts
        return [table for table in counts if not self._partitions.with_table(table)]
