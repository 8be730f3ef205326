"""The simulated broker: partitions with offsets, of which parts become readable at their own time."""

from collections.abc import Iterator
from dataclasses import dataclass, field

Key = tuple[str, int]
"""Topic and partition."""


@dataclass(eq=False, slots=True)
class Record:
    """What the connector hands to the producer."""

    target: Key
    key: bytes | None
    value: bytes | None
    run: str
    ts_ms: int
    change: tuple[int, int] | None = None
    """Commit LSN and number of the change; None for anything that is no row."""
    is_written: bool = False
    """Whether it stays in Kafka."""
    is_acknowledged: bool = False


@dataclass(eq=False, slots=True)
class KafkaTransaction:
    """A producer's transaction."""

    is_committed: bool = False
    first_offsets: dict[Key, int] = field(default_factory=dict)
    markers: dict[Key, int] = field(default_factory=dict)
    """Offset of the commit or abort marker in each partition."""


@dataclass(frozen=True, slots=True)
class _Entry:
    record: Record | None
    """None: a marker."""
    transaction: KafkaTransaction | None


class BrokerPartition:
    """One partition. ``high_watermark`` moves by itself, records above it are not readable."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.begin = 0
        """The first offset that Kafka still has."""
        self.high_watermark = 0
        self._entries: list[_Entry] = []
        self._undecided: list[KafkaTransaction] = []

    @property
    def end(self) -> int:
        """The next offset to be written."""
        return len(self._entries)

    def append(self, record: Record, transaction: KafkaTransaction | None = None) -> int:
        """Writes a record; returns its offset."""
        if transaction is not None and self.key not in transaction.first_offsets:
            transaction.first_offsets[self.key] = self.end
            self._undecided.append(transaction)
        self._entries.append(_Entry(record, transaction))
        return self.end - 1

    def decide(self, transaction: KafkaTransaction) -> None:
        """Writes the marker that commits or aborts."""
        transaction.markers[self.key] = self.end
        self._entries.append(_Entry(None, transaction))

    def delete_before(self, offset: int) -> None:
        """Loses the oldest records, as retention does; never what is not readable yet."""
        self.begin = max(self.begin, min(offset, self.readable_end))

    def reveal(self, count: int) -> list[Record]:
        """Makes more records readable, as far as transactions permit; returns the newly acknowledged ones."""
        before = self.high_watermark
        self.high_watermark = min(self.end, before + count)
        return [e.record for e in self._entries[before : self.high_watermark] if e.record is not None]

    @property
    def readable_end(self) -> int:
        """The last stable offset: the end for whoever reads committed records only."""
        end = self.high_watermark
        self._undecided = [t for t in self._undecided if t.markers.get(self.key, end) >= end]
        return min((t.first_offsets[self.key] for t in self._undecided), default=end)

    def read(self, first: int, last: int) -> Iterator[tuple[int, Record]]:
        """Committed records at offsets in ``[first, last)``."""
        for offset, entry in enumerate(self._entries[first:last], first):
            if entry.record is not None and (entry.transaction is None or entry.transaction.is_committed):
                yield offset, entry.record


class Broker:
    """All topics."""

    def __init__(self) -> None:
        self.partitions: dict[Key, BrokerPartition] = {}
        self.stalled: set[Key] = set()
        """Partitions of which nothing more becomes readable for now."""

    def add_topic(self, topic: str, partitions: int) -> None:
        """Makes a topic, or gives it more partitions."""
        for number in range(partitions):
            self.partitions.setdefault((topic, number), BrokerPartition((topic, number)))

    def partition_count(self, topic: str) -> int:
        """0 when the topic does not exist."""
        return sum(name == topic for name, _ in self.partitions)

    def hidden(self) -> list[BrokerPartition]:
        """Partitions with records that are not readable yet, but could become so."""
        return [
            p for key, p in self.partitions.items() if p.high_watermark < p.end and key not in self.stalled
        ]
