"""The topic of a run's documents: made, and watched from outside."""

from dataclasses import dataclass
from functools import partial

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater_markers import KafkaRetry

PARTITIONS = 4
TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Appended:
    """The records of a topic: how many, and when the broker appended the first and the last."""

    records: int
    first_ms: int
    last_ms: int


class WatchedTopic:
    """One topic, created so that each record has the time of its append.

    Args:
        bootstrap: The broker.
        name: Must not exist.
    """

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        admin = AdminClient({"bootstrap.servers": bootstrap})
        config = {"message.timestamp.type": "LogAppendTime"}
        for created in admin.create_topics([NewTopic(name, PARTITIONS, 1, config=config)]).values():
            created.result(TIMEOUT_SECONDS)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"watch-{name}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )

    def end(self) -> int:
        """Offsets of all partitions added up."""
        return sum(high for _, high in self._watermarks())

    def appended(self) -> Appended | None:
        """First and last record; None while there are none. Reads a few records."""
        times: list[int] = []
        for partition, (low, high) in enumerate(self._watermarks()):
            newest = (self._time_at(partition, offset) for offset in range(high - 1, low - 1, -1))
            last = next((time for time in newest if time is not None), None)
            if last is not None:
                times += [self._time_at(partition, low) or last, last]
        return Appended(self.end(), min(times), max(times)) if times else None

    def close(self) -> None:
        """Leaves the broker."""
        self._consumer.close()

    def _watermarks(self) -> list[tuple[int, int]]:
        return [
            KafkaRetry(f"asking where {self.name}/{number} ends", TIMEOUT_SECONDS).call(
                partial(self._watermarks_of, number)
            )
            for number in range(PARTITIONS)
        ]

    def _watermarks_of(self, partition: int, seconds: float) -> tuple[int, int]:
        found = self._consumer.get_watermark_offsets(TopicPartition(self.name, partition), timeout=seconds)
        if found is None:
            raise TimeoutError
        return found

    def _time_at(self, partition: int, offset: int) -> int | None:
        """When the record at the offset was appended; None where a Kafka transaction ends."""
        self._consumer.assign([TopicPartition(self.name, partition, offset)])
        message = self._consumer.poll(TIMEOUT_SECONDS)
        return None if message is None or message.error() else int(message.timestamp()[1])
