"""Says which partitions are too far ahead of the rest: reading them on would only fill memory."""

from collections.abc import Collection

from slackwater_cdc import Frontier, Partition
from slackwater_sidecar.consumption import PartitionId

_FAR_AHEAD = 100_000
"""How many transactions may be known of a partition, or twice as many ENDs, before reading it is paused."""
_RECORDS = 20_000
"""How many records are read between two comparisons: one costs time for every partition."""


class Balance:
    """Compares partitions and remembers which are paused.

    Args:
        transactions: The partition with BEGIN and END.
    """

    def __init__(self, transactions: PartitionId) -> None:
        self._transactions = transactions
        self._new_records = 0
        self.paused: frozenset[PartitionId] = frozenset()
        """Partitions that are not to be read at present."""

    def record(self, records: int) -> None:
        """Counts records that were read since the last comparison."""
        self._new_records += records

    def update(
        self, frontier: Frontier, partitions: Collection[Partition], assigned: Collection[PartitionId]
    ) -> tuple[frozenset[PartitionId], frozenset[PartitionId]]:
        """Returns the partitions that are to be paused now, and those that are to be resumed."""
        if self._new_records < _RECORDS and not self.paused:
            return frozenset(), frozenset()
        self._new_records = 0
        ahead = {p.key for p in partitions if self._is_ahead(p.key, p.backlog)}
        if self._transactions in assigned and self._is_ahead(self._transactions, frontier.queue_length // 2):
            ahead.add(self._transactions)
        before, self.paused = self.paused, frozenset(ahead if len(ahead) < len(assigned) else ())
        return self.paused - before, before - self.paused

    def _is_ahead(self, key: PartitionId, backlog: int) -> bool:
        return backlog > (_FAR_AHEAD // 2 if key in self.paused else _FAR_AHEAD)
