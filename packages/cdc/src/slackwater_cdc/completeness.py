"""Judges whether a transaction is complete, by the evidence of all its tables together."""

from collections import deque
from collections.abc import Collection
from itertools import islice

from slackwater_cdc.commits import Commits
from slackwater_cdc.evidence import (
    counts_are_complete,
    is_overtaken,
    last_numbering_is_complete,
    original_numbering_is_complete,
)
from slackwater_cdc.fences import Fences
from slackwater_cdc.partition_queues import PartitionQueue, Partitions
from slackwater_cdc.pending import EndOffsets
from slackwater_cdc.subscription import Subscription
from slackwater_cdc.transaction import Transaction
from slackwater_protocol import Evidence

_SERVED = 10_000
"""Transactions that one answer is kept for."""
_MAX_ASKS = 64
"""Answers that partitions have not been read past yet; more are not asked for."""


class Completeness:
    """Judges transactions, and knows which end offsets it needs for that.

    Tables judged by ``counts`` follow ``slackwater_cdc.evidence``. For the others an answer about end offsets
    (:meth:`answer`) settles all transactions at once:

    * ``overtaken``: the list of partitions was looked at after the overtaking rows were read, so none is
      missing from it.
    * ``offsets``: what an exactly-once connector wrote before END stands below the high watermarks of that
      moment.

    Args:
        subscription: What proves completeness, by table.
        commits: The transactions; only read.
        partitions: All that are read.
        fences: Asked for end offsets.
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
        """True if end offsets are needed to go on, besides those of the fences."""
        return self._wants_answer and len(self._asks) < _MAX_ASKS

    def answer(self, ends: EndOffsets) -> None:
        """Takes end offsets asked for after everything up to now was read; one answer serves all."""
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
        if original_numbering_is_complete(transaction):
            return True
        partitions, run_times_ms = list(self._partitions), self._commits.run_times_ms
        is_complete = last_numbering_is_complete(transaction, run_times_ms)
        if is_complete and self._fences.is_read_past(transaction, partitions):
            return True
        if transaction.end is None or transaction.begins_at_first_end > 1:
            return self._is_overtaken(transaction, partitions)
        return all(
            self._is_overtaken(transaction, self._partitions.with_table(table))
            for table in transaction.counted
        )

    def _is_overtaken(self, transaction: Transaction, partitions: Collection[PartitionQueue]) -> bool:
        """Rule 3, by rows that were read before the list of partitions was looked at last."""
        if not is_overtaken(transaction, partitions, self._commits.run_times_ms):
            return False
        sequence = transaction.sequence or 0
        if all(self._newest.get(p.key, 0) > sequence for p in partitions):
            return True
        self._wants_answer = True
        return False

    def _exempt_are_complete(self, transaction: Transaction) -> bool:
        """Judges the tables that counts do not; an END after a repeated BEGIN may name too few of them."""
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
