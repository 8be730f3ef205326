"""The simulated Kafka: partitions of which parts become readable at their own time, and clients over them."""

import random
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from slackwater_sidecar.consumption import RUN_HEADER

Key = tuple[str, int]
"""Topic and partition."""

NOT_AT_ALL = 1 << 62
"""Larger than any offset."""


@dataclass(eq=False, slots=True)
class SentRecord:
    """A record that the connector hands to the producer."""

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
    record: SentRecord | None
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

    def append(self, record: SentRecord, transaction: KafkaTransaction | None = None) -> int:
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

    def reveal(self, count: int) -> list[SentRecord]:
        """Makes more records readable, as far as transactions permit; returns the newly acknowledged ones."""
        before = self.high_watermark
        self.high_watermark = min(self.end, before + count)
        return [e.record for e in self._entries[before : self.high_watermark] if e.record is not None]

    @property
    def readable_end(self) -> int:
        """The last stable offset: the end for a reader of committed records."""
        end = self.high_watermark
        self._undecided = [t for t in self._undecided if t.markers.get(self.key, end) >= end]
        return min((t.first_offsets[self.key] for t in self._undecided), default=end)

    def read(self, first: int, last: int) -> Iterator[tuple[int, SentRecord]]:
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


OnWritten = Callable[[SentRecord, int], None]
"""Receives each record that stays in Kafka, with its offset."""


class Producer(ABC):
    """A producer of the connector: takes records in its order and writes each partition at its own time."""

    def __init__(self, broker: Broker, on_written: OnWritten) -> None:
        self.doubles = 0
        """How many of the next batches are written twice, where the producer writes at least once."""
        self._broker = broker
        self._on_written = on_written
        self._queues: dict[Key, deque[SentRecord]] = {}

    def send(self, record: SentRecord) -> None:
        """Takes a record."""
        self._queues.setdefault(record.target, deque()).append(record)

    def kill(self) -> None:
        """Loses what was not written; the next producer may start."""
        self._queues.clear()

    @property
    def is_done(self) -> bool:
        """True if everything taken is written."""
        return not any(self._queues.values())

    @abstractmethod
    def work(self, rng: random.Random) -> str:
        """Does one thing, if there is anything to do; says what."""

    def _choose(self, rng: random.Random) -> Key | None:
        """A partition with records to write; None: there is none."""
        ready = [key for key, queue in self._queues.items() if queue]
        return rng.choice(ready) if ready else None


class PlainProducer(Producer):
    """A producer that writes at least once: a batch may be written twice in a row.

    A record counts as acknowledged when it is readable.
    """

    def work(self, rng: random.Random) -> str:
        """Writes a batch."""
        key = self._choose(rng)
        if key is None:
            return ""
        queue = self._queues[key]
        batch = [queue.popleft() for _ in range(min(len(queue), rng.choice((1, 2, 5, 50))))]
        times = 1 + (self.doubles > 0)
        self.doubles -= times - 1
        for record in batch * times:
            self._on_written(record, self._broker.partitions[key].append(record))
        twice = " twice" if times > 1 else ""
        return f"{len(batch)} records to {key[0]}/{key[1]}{twice}"


class TransactionalProducer(Producer):
    """Exactly once: what is written between two decisions becomes readable together, or never."""

    def __init__(self, broker: Broker, on_written: OnWritten) -> None:
        super().__init__(broker, on_written)
        self._transaction = KafkaTransaction()
        self._written: list[tuple[SentRecord, int]] = []
        """What the open transaction holds, with offsets."""
        self._undecided: list[Key] = []
        """Partitions that wait for the marker of a decided transaction."""

    def work(self, rng: random.Random) -> str:
        """Writes a record, or decides the transaction, or writes one of its markers."""
        if self._undecided:
            return self._write_marker(rng.randrange(len(self._undecided)))
        key = self._choose(rng)
        if key is not None:
            record = self._queues[key].popleft()
            offset = self._broker.partitions[key].append(record, self._transaction)
            self._written.append((record, offset))
            return f"a record to {key[0]}/{key[1]}"
        partitions = self._broker.partitions
        if not self._written or any(
            o >= partitions[r.target].high_watermark for r, o in reversed(self._written)
        ):
            return ""
        self._decide(is_committed=True)
        return f"commits {len(self._written)} records"

    def kill(self) -> None:
        """As above; the next producer waits until the old transaction is decided everywhere."""
        super().kill()
        if not self._undecided and self._written:
            self._decide(is_committed=False)
        while self._undecided:
            self._write_marker(0)

    @property
    def is_done(self) -> bool:
        """True if everything taken is written, and decided."""
        return not self._written and super().is_done

    def _decide(self, *, is_committed: bool) -> None:
        self._transaction.is_committed = is_committed
        self._undecided = list(self._transaction.first_offsets)
        if is_committed:
            for record, offset in self._written:
                record.is_acknowledged = True
                self._on_written(record, offset)

    def _write_marker(self, index: int) -> str:
        key = self._undecided.pop(index)
        self._broker.partitions[key].decide(self._transaction)
        if not self._undecided:
            self._transaction, self._written = KafkaTransaction(), []
        return f"marker in {key[0]}/{key[1]}"


_AT_END = KafkaError(KafkaError._PARTITION_EOF)  # noqa: SLF001 - no public name
_LOST = KafkaError(KafkaError._AUTO_OFFSET_RESET)  # noqa: SLF001 - no public name
_AWAY = KafkaError(KafkaError._ALL_BROKERS_DOWN)  # noqa: SLF001 - no public name


class SimulatedConsumer:
    """A consumer; what it is asked for it has at once."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: list[Message] = []
        self._paused: set[Key] = set()
        self._told_ends: dict[Key, int] = {}
        self.positions: dict[Key, int] = {}
        """What is read next of each assigned partition."""

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions, and nothing else, to their ends."""
        self.unassign()
        self.incremental_assign(partitions)
        for key in self.positions:
            self.fetch(key, None, tells_end=True)

    def incremental_assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions, too, when it fetches next."""
        self.positions.update({(p.topic, p.partition): p.offset for p in partitions})

    def incremental_unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions no more."""
        gone = {(p.topic, p.partition) for p in partitions}
        self.positions = {key: at for key, at in self.positions.items() if key not in gone}
        self._waiting = [m for m in self._waiting if (m.topic(), m.partition()) not in gone]

    def unassign(self) -> None:
        """Reads nothing."""
        self.positions.clear()
        self._told_ends.clear()
        self._waiting.clear()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Leaves partitions alone for a while."""
        self._paused.update((p.topic, p.partition) for p in partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Ends that."""
        self._paused.difference_update((p.topic, p.partition) for p in partitions)

    def fetch(self, key: Key, size: int | None, *, tells_end: bool) -> None:
        """Takes what is at the next offsets of a partition.

        Args:
            key: Topic and partition.
            size: How many offsets; None: all that can be read.
            tells_end: Whether the end of the partition is reported, once, when it is reached.
        """
        if key in self._paused:
            return
        partition, first = self._broker.partitions[key], self.positions[key]
        if first < partition.begin:
            self._waiting.append(_failed(key, first, _LOST))
            return
        end = partition.readable_end
        last = end if size is None else min(end, first + size)
        self._waiting += (_message(record, offset) for offset, record in partition.read(first, last))
        self.positions[key] = last
        if last == end and tells_end and self._told_ends.get(key) != end:
            self._told_ends[key] = end
            self._waiting.append(_failed(key, end, _AT_END))

    def poll(self, timeout: float) -> Message | None:
        """The next message, if there is one; waits for nothing."""
        return self._waiting.pop(0) if self._waiting else None

    def consume(self, number: int, timeout: float) -> list[Message]:
        """The next messages; waits for nothing."""
        given, self._waiting = self._waiting[:number], self._waiting[number:]
        return given

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        """Tells where a partition begins and ends."""
        found = self._broker.partitions[partition.topic, partition.partition]
        return found.begin, found.high_watermark

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Lists all topics; a reader asks for one of them if its machine stood still for long."""
        return _metadata(self._broker)

    def close(self) -> None:
        """Frees nothing."""


class SimulatedAdmin:
    """Says what topics there are, and where they begin and end."""

    def __init__(self, broker: Broker, is_away: Callable[[], bool]) -> None:
        self._broker = broker
        self._is_away = is_away

    def list_topics(self, timeout: float) -> Any:
        """Lists the topics."""
        self._answer()
        return _metadata(self._broker)

    def list_offsets(self, asked: Mapping[TopicPartition, Any], **_: object) -> dict[TopicPartition, Any]:
        """The first offset of partitions, or the one after the last."""
        self._answer()
        answers = {}
        for place, spec in asked.items():
            partition = self._broker.partitions[place.topic, place.partition]
            is_first = type(spec).__name__ == "EarliestSpec"
            found = SimpleNamespace(offset=partition.begin if is_first else partition.high_watermark)
            answers[place] = SimpleNamespace(result=lambda timeout, found=found: found)
        return answers

    def _answer(self) -> None:
        if self._is_away():
            raise KafkaException(_AWAY)


def _metadata(broker: Broker) -> Any:
    counts = Counter(topic for topic, _ in broker.partitions)
    return SimpleNamespace(
        topics={t: SimpleNamespace(error=None, partitions=range(n)) for t, n in counts.items()}
    )


def _message(record: SentRecord, offset: int) -> Message:
    return Message(
        topic=record.target[0],
        partition=record.target[1],
        offset=offset,
        key=record.key,
        value=record.value,
        headers=[(RUN_HEADER, record.run.encode())] if record.run else [],
        timestamp=(1, record.ts_ms),
    )


def _failed(key: Key, offset: int, error: KafkaError) -> Message:
    return Message(topic=key[0], partition=key[1], offset=offset, error=error)
