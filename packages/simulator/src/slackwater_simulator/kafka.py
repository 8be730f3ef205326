"""Kafka's clients over the simulated broker: as much of them as the product's readers use."""

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from slackwater_sidecar.segments import RUN_HEADER
from slackwater_simulator.broker import Broker, Key, Record

_AT_END = KafkaError(KafkaError._PARTITION_EOF)  # noqa: SLF001 - no public name
_LOST = KafkaError(KafkaError._AUTO_OFFSET_RESET)  # noqa: SLF001 - no public name
_AWAY = KafkaError(KafkaError._ALL_BROKERS_DOWN)  # noqa: SLF001 - no public name


class SimulatedConsumer:
    """A consumer; what it is asked for it has at once.

    Args:
        broker: Where records are.
    """

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
        """Reads these partitions, too, when it is told to fetch."""
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
        """Takes what stands at the next offsets of a partition.

        Args:
            key: Topic and partition.
            size: How many offsets; None: all that can be read.
            tells_end: Whether the end of the partition is told, once, when it is reached.
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
        """Where a partition begins and ends."""
        found = self._broker.partitions[partition.topic, partition.partition]
        return found.begin, found.high_watermark

    def list_topics(self, timeout: float) -> Any:
        """What topics there are."""
        return _metadata(self._broker)

    def close(self) -> None:
        """Frees nothing."""


class SimulatedAdmin:
    """Says what topics there are, and where they begin and end.

    Args:
        broker: Has them.
        is_away: Whether it does not answer now.
    """

    def __init__(self, broker: Broker, is_away: Callable[[], bool]) -> None:
        self._broker = broker
        self._is_away = is_away

    def list_topics(self, timeout: float) -> Any:
        """What topics there are."""
        self._answer()
        return _metadata(self._broker)

    def list_offsets(self, asked: Mapping[TopicPartition, Any], **_: object) -> dict[TopicPartition, Any]:
        """The first offset of partitions, or the one after the last."""
        self._answer()
        answers = {}
        for place, spec in asked.items():
            partition = self._broker.partitions[place.topic, place.partition]
            is_first = type(spec).__name__ == "EarliestSpec"
            answers[place] = _Answer(partition.begin if is_first else partition.high_watermark)
        return answers

    def _answer(self) -> None:
        if self._is_away():
            raise KafkaException(_AWAY)


class _Answer:
    """A future that is there, and what it says."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def result(self, timeout: float) -> "_Answer":
        return self


def _metadata(broker: Broker) -> Any:
    counts: dict[str, int] = {}
    for topic, _ in broker.partitions:
        counts[topic] = counts.get(topic, 0) + 1
    return SimpleNamespace(
        topics={t: SimpleNamespace(error=None, partitions=range(n)) for t, n in counts.items()}
    )


def _message(record: Record, offset: int) -> Message:
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
