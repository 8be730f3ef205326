"""What was read of partitions and not handed out yet. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from slackwater.cdc.batch import Record
from slackwater.client.transaction import Place

_RECORD_BYTES = 400
"""What a record takes besides its value, about: objects of Python and of the client."""


class PartitionQueue:
    """Records of one partition in their order.

    Args:
        start: The offset at which reading begins.
    """

    __slots__ = ("_begin", "_offsets", "_records", "position", "size")

    def __init__(self, start: int) -> None:
        self.position = start
        """Everything below was read: records with higher offsets come, or nothing does."""
        self.size = 0
        """Bytes, about."""
        self._records: list[Record] = []
        self._offsets: list[int] = []
        self._begin = 0

    def add(self, records: Sequence[Record], position: int) -> None:
        """Takes records behind those that it has, and the offset that was reached."""
        self._records += records
        self._offsets += [record.offset() or 0 for record in records]
        self.size += size_of(records)
        self.position = max(self.position, position)

    def take_below(self, bound: int) -> list[Record]:
        """Removes and returns the records below an offset."""
        begin = self._begin
        end = bisect_left(self._offsets, bound, begin)
        if end == begin:
            return []
        taken = self._records[begin:end]
        self.size -= size_of(taken)
        if 2 * end >= len(self._records):
            del self._records[:end], self._offsets[:end]
            end = 0
        self._begin = end
        return taken


class PartitionQueues:
    """The queues of all partitions that are read, and when they have enough.

    Args:
        max_bytes: From here on only partitions are read that the next transaction waits for. From twice as
            much on a transaction is streamed.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._queues: dict[Place, PartitionQueue] = {}
        self._starts: dict[Place, int] = {}

    def start(self, place: Place, offset: int) -> PartitionQueue:
        """Returns a partition's queue; a new one begins at the offset, and is to be read from there."""
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = PartitionQueue(offset)
            self._starts[place] = offset
        return queue

    def take_starts(self) -> dict[Place, int]:
        """Returns the partitions that nobody reads yet, and from where on; each once."""
        starts, self._starts = self._starts, {}
        return starts

    def add(self, place: Place, records: Sequence[Record], position: int) -> None:
        """Takes what was read of a partition."""
        queue = self._queues.get(place)
        if queue is not None:
            queue.add(records, position)

    def paused(self, needed: Iterable[Place], held: int = 0) -> frozenset[Place]:
        """Returns the partitions that must not be read now.

        Args:
            needed: Those that the next transaction waits for.
            held: Bytes that are kept elsewhere.
        """
        if self.size + held < self._max_bytes:
            return frozenset()
        return frozenset(self._queues).difference(needed)

    def is_overfull(self, held: int = 0) -> bool:
        """Says that what the next transaction has already is too much to wait for the rest of it."""
        return self.size + held >= 2 * self._max_bytes

    @property
    def size(self) -> int:
        """Bytes in all queues, about."""
        return sum(queue.size for queue in self._queues.values())

    def __iter__(self) -> Iterator[Place]:
        return iter(self._queues)


def size_of(records: Iterable[Record]) -> int:
    """Returns the bytes that records take in memory, about."""
    return sum([_RECORD_BYTES + len(record.value() or b"") for record in records])
