"""Kafka's default partitioner."""

from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater_testing.errors import RunFailedError
from slackwater_testing.generator.debezium_records import Headers

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def kafka_partition(key: bytes, partitions: int) -> int:
    """The partition in which Kafka's producers put a key. Slow: a few microseconds."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """32 bits, unsigned."""
    length = len(data)
    h = _SEED ^ length
    whole = length - length % 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


FLUSH_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class HoldBack:
    """One partition whose records arrive late while all others go on."""

    topic: str
    partition: int
    seconds: float
    """After the beginning of the call that writes them."""


class TopicOutput:
    """Produces records; used by one thread.

    Args:
        bootstrap: The broker.
        partitions: Of each data topic.
    """

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._error: KafkaError | None = None
        self._held: list[tuple[str, str | None, str, Headers]] = []
        self._hold: HoldBack | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "compression.type": "lz4",
                "linger.ms": 50,
                "batch.size": 1_000_000,
                "queue.buffering.max.messages": 500_000,
                "error_cb": self._note,
                "delivery.report.only.error": True,
                "on_delivery": self._note_delivery,
            }
        )

    def put(self, topic: str, value: str | None, key: str, headers: Headers) -> None:
        """Takes one record."""
        if self._hold is not None and self._is_held(topic, key):
            self._held.append((topic, value, key, headers))
            return
        try:
            self._producer.produce(topic, value, key, headers=headers)
        except BufferError:
            self._producer.poll(0.2)
            self.put(topic, value, key, headers)

    def hold(self, hold: HoldBack | None) -> None:
        """Keeps one partition's records back from now on; None: lets those go that were kept."""
        self._hold = hold
        if hold is None:
            held, self._held = self._held, []
            for record in held:
                self.put(*record)

    def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Waits until the broker has all records but those held back.

        Raises:
            RunFailedError: it does not get them.
        """
        left = self._producer.flush(seconds)
        if self._error is not None:
            raise self._not_taken(self._error.str())
        if left:
            raise self._not_taken(f"{left} records are left after {seconds:g} s")

    def _not_taken(self, reason: str) -> RunFailedError:
        what = f"Kafka at {self._bootstrap} did not take all records"
        return RunFailedError(what, f"{reason}; is it running?")

    def _is_held(self, topic: str, key: str) -> bool:
        hold = self._hold
        if hold is None or topic != hold.topic:
            return False
        return kafka_partition(key.encode(), self._partitions) == hold.partition

    def _note(self, error: KafkaError) -> None:
        if error.fatal():
            self._error = error

    def _note_delivery(self, error: KafkaError | None, _: Message) -> None:
        self._error = error or self._error


def create_topics(bootstrap: str, topics: Sequence[str], partitions: int) -> None:
    """Creates data topics with so many partitions; topics of transactions are created with one.

    Raises:
        confluent_kafka.KafkaException: one exists, or the broker does not answer.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [NewTopic(name, 1 if name.endswith(".transaction") else partitions, 1) for name in topics]
    for created in admin.create_topics(wanted).values():
        created.result(30)
