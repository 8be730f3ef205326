"""Who is too far ahead of the rest: reading that partition on would only fill memory."""

from collections.abc import Collection

from slackwater_cdc import Frontier, Partition
from slackwater_sidecar.consumption import Key

_FAR_AHEAD = 100_000
"""So many transactions may be known of a partition, or twice as many ENDs, before reading it is paused."""
_RECORDS = 20_000
"""Records between two looks: a look costs time for every partition."""


class Balance:
    """Remembers who is paused.

    Args:
        transactions: The partition with BEGIN and END.
    """

    def __init__(self, transactions: Key) -> None:
        self._transactions = transactions
        self._unlooked = 0
        self.paused: frozenset[Key] = frozenset()
        """Partitions that are not to be read at present."""

    def note(self, records: int) -> None:
        """Counts what was read since the last look."""
        self._unlooked += records

    def look(
        self, frontier: Frontier, partitions: Collection[Partition], assigned: Collection[Key]
    ) -> tuple[frozenset[Key], frozenset[Key]]:
        """Which partitions are to be paused and which to be resumed."""
        if self._unlooked < _RECORDS and not self.paused:
            return frozenset(), frozenset()
        self._unlooked = 0
        ahead = {p.key for p in partitions if self._is_ahead(p.key, p.backlog)}
        if self._transactions in assigned and self._is_ahead(self._transactions, frontier.queue_length // 2):
            ahead.add(self._transactions)
        before, self.paused = self.paused, frozenset(ahead if len(ahead) < len(assigned) else ())
        return self.paused - before, before - self.paused

    def _is_ahead(self, key: Key, backlog: int) -> bool:
        return backlog > (_FAR_AHEAD // 2 if key in self.paused else _FAR_AHEAD)
