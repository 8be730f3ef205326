"""Judges whether a transaction is complete, by the evidence of all its tables together.

These are the rules for tables judged by ``counts``. The usual case costs nothing here: one numbering, one
run, all of 1 … n read. The other cases:

* One numbering over several runs (the connector continued it): all of 1 … n read, over all runs.
* More than one numbering (``is_renumbered``), and any of the following:

  1. END was read after a single BEGIN, so its count n is true, and one run (known by its header) has written
  1 … n: a later numbering only lowers numbers, so it cannot reach n.
  2. The last run that wrote rows (known by its header) has written exactly 1 … n of the last END (nothing, if
  its count is 0); it is not older than the last BEGIN, because it wrote something later; and every partition
  was read past the end offsets that were requested after the last END was read, when rows of earlier runs
  were readable. Or the runs between the last BEGIN and the last END have done so together, because the later
  ones continued the numbering. The runs are known by the times of their newest records and by the start time
  in a run id (UUID version 7).
  3. ``overtaken``: in every partition of the tables that a true END names (of all tables, if there is none),
  a row of a later transaction was read, and one run that is not older than the last END has written all of
  these rows. A row without a key may be repeated in another partition than the first one, and whether a row
  has a key is unknown before it is read. Only if records do not name their run, and no row without a key was
  read, any rows of later transactions suffice.

Rows without the header are treated as those of one run, though several may have written them: their numbers
may be those of several numberings, so together they prove nothing once there is more than one.

The texts that tell people what the frontier is waiting for are here, too.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from uuid import UUID

from slackwater.cdc.commits import Commits
from slackwater.cdc.initial_snapshot import Announcements, InitialSnapshot
from slackwater.cdc.partition_queues import EndOffsets, Fences, PartitionQueue, Partitions
from slackwater.cdc.transaction import RunRows, Subscription, Transaction, covers, is_exactly
from slackwater.protocol import SNAPSHOT_XID, Evidence, OpenTransaction

WAITS_FOR_OTHERS = "complete, waits for others"
"""The hint for a transaction that lacks nothing itself."""
UNDECIDED_SNAPSHOT = "initial snapshot, its announcements do not match its rows"
"""Begins the hint of a snapshot that may have to be taken again; the doctor searches for it."""

_SERVED = 10_000
"""The number of transactions for which an answer is kept."""

_MAX_ASKS = 64
"""The number of answers that partitions have not been read past yet; more are not requested."""

_TIME_ORDERED = 7
"""The UUID version whose upper 48 bits are milliseconds since the epoch."""


class Completeness:
    """Judges transactions, and knows which end offsets that requires.

    Tables judged by ``counts`` follow the rules above. For the others an answer about end offsets
    (:meth:`answer`) settles all transactions at once:

    * ``overtaken``: the list of partitions was read after the overtaking rows, so none is missing from it.
    * ``offsets``: what an exactly-once connector wrote before END is below the high watermarks of that time.
    """

    def __init__(
        self, subscription: Subscription, commits: Commits, partitions: Partitions, fences: Fences
    ) -> None:
        self._commits = commits
        self._partitions = partitions
        self._fences = fences
        self._evidence = evidence = subscription.exempt
        self._overtaken_tables = [t for t, kind in evidence.items() if kind is Evidence.OVERTAKEN]
        self._offsets_tables = [t for t, kind in evidence.items() if kind is Evidence.OFFSETS]
        self._wants_answer = False
        self._overtaken_to: dict[str, int] = {}
        self._offsets_to = 0
        self._asks: deque[tuple[int, EndOffsets]] = deque()
        self._newest: dict[tuple[str, int], int] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether progress requires end offsets, besides those of the fences."""
        return self._wants_answer and len(self._asks) < _MAX_ASKS

    def answer(self, ends: EndOffsets) -> None:
        """Takes end offsets requested after everything up to now was read; one answer serves all."""
        for transaction in islice(self._commits.queue, _SERVED):
            if isinstance(transaction, Transaction) and _may_be_renumbered(transaction):
                transaction.fence = transaction.fence or ends
        self._newest = {p.key: p.newest_sequence() for p in self._partitions}
        if not self._wants_answer:
            return
        self._wants_answer = False
        for table in self._overtaken_tables:
            partitions = self._partitions.with_table(table)
            self._overtaken_to[table] = min((p.newest_sequence() for p in partitions), default=0)
        if self._offsets_tables:
            self._asks.append((self._commits.sequence, ends))

    def is_complete(self, transaction: Transaction) -> bool:
        """Returns whether every row of a transaction with END has been read."""
        complete = not transaction.is_renumbered and counts_are_complete(transaction)
        if not complete and _may_be_renumbered(transaction):
            complete = self._renumbered_is_complete(transaction)
        return complete and (not self._evidence or self._exempt_are_complete(transaction))

    def _renumbered_is_complete(self, transaction: Transaction) -> bool:
        if _original_numbering_is_complete(transaction):
            return True
        partitions, run_times_ms = list(self._partitions), self._commits.run_times_ms
        is_complete = _last_numbering_is_complete(transaction, run_times_ms)
        if is_complete and self._fences.is_read_past(transaction, partitions):
            return True
        if transaction.end is None or transaction.begins_at_first_end > 1:
            return self._is_overtaken(transaction, partitions)
        return all(
            self._is_overtaken(transaction, self._partitions.with_table(table))
            for table in transaction.counted
        )

    def _is_overtaken(self, transaction: Transaction, partitions: Collection[PartitionQueue]) -> bool:
        """Applies rule 3 to rows that were read before the list of partitions was read last."""
        if not _is_overtaken_by_rows(transaction, partitions, self._commits.run_times_ms):
            return False
        sequence = transaction.sequence or 0
        if all(self._newest.get(p.key, 0) > sequence for p in partitions):
            return True
        self._wants_answer = True
        return False

    def _exempt_are_complete(self, transaction: Transaction) -> bool:
        """Judges the tables without counts; an END after a repeated BEGIN may name too few of them."""
        end = transaction.end
        if end is None:
            return False
        may_name_too_few = transaction.begins_at_first_end > 1
        for table, kind in self._evidence.items():
            if table not in end.counts and not (may_name_too_few and self._partitions.with_table(table)):
                continue
            if not self._is_settled(table, kind, transaction.sequence or 0):
                self._wants_answer = True
                return False
        return True

    def _is_settled(self, table: str, kind: Evidence, sequence: int) -> bool:
        if kind is Evidence.OVERTAKEN:
            return sequence < self._overtaken_to.get(table, 0)
        self._settle_by_answers()
        return sequence <= self._offsets_to

    def _settle_by_answers(self) -> None:
        partitions = [p for table in self._offsets_tables for p in self._partitions.with_table(table)]
        while self._asks:
            sequence, ends = self._asks[0]
            if any(p.position < ends.get(p.key, 0) for p in partitions):
                return
            self._offsets_to = sequence
            self._asks.popleft()


def _may_be_renumbered(transaction: Transaction) -> bool:
    """Returns whether the connector has begun a transaction more than once, or may have."""
    return transaction.is_renumbered or transaction.begins > 1


def counts_are_complete(transaction: Transaction) -> bool:
    """Judges a transaction with one numbering by counts."""
    end = transaction.end
    if end is None:
        return False
    if not transaction.missing:
        return True
    if transaction.later is None:
        return False
    runs = transaction.runs
    return all(covers(runs, table, count) for table, count in transaction.counted.items())


def _original_numbering_is_complete(transaction: Transaction) -> bool:
    """Judges a renumbered transaction by rule 1."""
    end = transaction.end
    if end is None or transaction.begins_at_first_end > 1:
        return False
    return all(
        any(r.run and covers([r], table, count) for r in transaction.runs)
        for table, count in transaction.counted.items()
    )


def _last_numbering_is_complete(transaction: Transaction, newest_ms: Mapping[str, int]) -> bool:
    """Judges a renumbered transaction by rule 2, without the end offsets."""
    end, counted, runs = transaction.last_end, transaction.last_counted, transaction.runs
    if end is None or not counted:
        return end is not None
    together = _runs_of_last_numbering(transaction, newest_ms)
    if len(together) > 1 and all(is_exactly(together, t, n) for t, n in counted.items()):
        return True
    last = max(runs, key=lambda r: r.run)
    if not last.run or not newest_ms.get(last.run, 0) >= transaction.last_begin_ms > 0:
        return False
    return all(is_exactly([last], table, count) for table, count in counted.items())


def _is_overtaken_by_rows(
    transaction: Transaction, partitions: Collection[PartitionQueue], newest_ms: Mapping[str, int]
) -> bool:
    """Judges a renumbered transaction by rule 3; partitions are those of the transaction's tables."""
    sequence = transaction.sequence
    if sequence is None or not partitions:
        return False
    runs = [p.runs_after(sequence) for p in partitions]
    if not transaction.is_keyless and any("" in r for r in runs):
        return all(runs)
    in_all = frozenset.intersection(*runs)
    return any(r and newest_ms.get(r, 0) >= transaction.last_end_ms > 0 for r in in_all)


def _runs_of_last_numbering(transaction: Transaction, newest_ms: Mapping[str, int]) -> list[RunRows]:
    """Returns the runs alive between the last BEGIN and the last END; none if unknown."""
    begin_ms, end_ms = transaction.last_begin_ms, transaction.last_end_ms
    starts = {r.run: _started_ms(r.run) for r in transaction.runs}
    if not begin_ms or None in starts.values():
        return []
    return [
        r for r in transaction.runs if newest_ms.get(r.run, 0) >= begin_ms and (starts[r.run] or 0) <= end_ms
    ]


def _started_ms(run: str) -> int | None:
    """Returns the time at which a run began, by its id; None if the id does not contain it."""
    try:
        parsed = UUID(run)
    except ValueError:
        return None
    return parsed.int >> 80 if parsed.version == _TIME_ORDERED else None


def open_transaction(
    transaction: Transaction, missing_tables: list[str], partitions: Iterable[PartitionQueue]
) -> OpenTransaction:
    """Returns a transaction above the frontier; ``since_ms`` is left at 0."""
    end = transaction.end
    rows_of_all = [*transaction.runs, *(transaction.exempt or {}).values()]
    tables = {table: None for rows in rows_of_all for table in rows.tracks}
    return OpenTransaction(
        xid=transaction.xid,
        commit_lsn=None if end is None else end.commit_lsn,
        since_ms=0,
        expected={} if end is None else dict(end.counts),
        received={table: transaction.received(table) for table in tables},
        hint=_hint(transaction, missing_tables),
        places={f"{p.topic}/{p.number}": (transaction.partitions.get(p, -1), p.position) for p in partitions},
    )


def open_snapshot(snapshot: InitialSnapshot, announcements: Announcements) -> OpenTransaction:
    """Returns an initial snapshot above the frontier; ``since_ms`` is left at 0."""
    hint = _snapshot_hint(snapshot, announcements)
    found = late_rows(snapshot.lsn)
    return replace(found, expected=snapshot.expected(), received=snapshot.received(), hint=hint)


def late_rows(lsn: int) -> OpenTransaction:
    """Returns rows of an ad hoc snapshot that cannot be shown yet; ``since_ms`` is left at 0."""
    hint = "rows of an ad hoc snapshot wait for a commit after it"
    return OpenTransaction(xid=SNAPSHOT_XID, commit_lsn=lsn, since_ms=0, expected={}, received={}, hint=hint)


def _snapshot_hint(snapshot: InitialSnapshot, announcements: Announcements) -> str:
    announced, newest = snapshot.announcement, announcements.newest()
    if newest is None:
        return (
            "initial snapshot without notifications: the row that ends it was not read, or others may follow"
        )
    if announced is None:
        return f"{UNDECIDED_SNAPSHOT}: its rows are older than every announcement of a snapshot"
    if announced.unreadable:
        return f"{UNDECIDED_SNAPSHOT}: a notification cannot be read: {announced.unreadable}"
    if announced.is_given_up:
        return f"{UNDECIDED_SNAPSHOT}: it was interrupted, and the connector did not take it again"
    if announced is not newest and not snapshot.is_counted():
        return f"{UNDECIDED_SNAPSHOT}: it was begun again, and no row of the newest attempt was read"
    if not snapshot.is_counted():
        return f"{UNDECIDED_SNAPSHOT}: rows are missing" if announced.is_completed else "initial snapshot"
    if snapshot.repeats_interrupted_one():
        return "initial snapshot, repeated after a crash: waits for a commit after it"
    return "initial snapshot"


def _hint(transaction: Transaction, missing_tables: list[str]) -> str:
    if transaction.end is None:
        return "END was not read"
    if missing_tables:
        return f"no topic was found for {', '.join(missing_tables)}"
    if transaction.is_renumbered:
        return "rows were numbered again after a connector restart"
    if not counts_are_complete(transaction):
        return "rows are missing"
    return WAITS_FOR_OTHERS
