"""Takes records of partitions out of Kafka, whoever they are for."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from slackwater_protocol import SystemClock
from slackwater_sidecar.avro import AvroValues, avro_values
from slackwater_sidecar.errors import SchemasUnavailableError, SourceUnavailableError
from slackwater_sidecar.kafka_config import consumer_config
from slackwater_sidecar.segments import by_partition
from slackwater_sidecar.settings import SidecarSettings

Key = tuple[str, int]

MAX_RECORDS = 10_000
"""Of one call of :meth:`Consumption.poll`, about."""
CHUNK = 500
"""Messages taken from librdkafka at once: what fits into a core's cache costs a fifth less."""
_GATHER_SECONDS = 0.002
"""So long more is waited for once a record has come: a turn for each single one costs ten times as much."""
_ASK_SECONDS = 3.0
_LOST = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001 - no public name
_AT_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - no public name


class Failure(NamedTuple):
    """An error of the consumer."""

    topic: str
    number: int
    offset: int
    is_lost: bool
    """Whether the offset that is wanted does not exist."""
    is_fatal: bool
    """Whether the consumer is of no use any more."""
    reason: str
    registry: str = ""
    """Address of the schema registry when that is what fails, not Kafka."""


class RecordSink(Protocol):
    """Whom records are for."""

    def take(self, topic: str, number: int, messages: Sequence[Message]) -> None:
        """Takes messages of one partition, offsets ascending; at least one."""
        ...

    def take_end(self, topic: str, number: int, offset: int) -> None:
        """Is told that a partition holds nothing more below an offset."""
        ...

    def take_failure(self, failure: Failure) -> None:
        """Is told of an error, after all records that came with it; may raise."""
        ...


class Consumption:
    """One consumer; used by one thread. Joins no group and commits nothing.

    Values in Avro are JSON when they are handed over.

    Args:
        settings: Brokers, schema registry.
        partitions: How many are read in all, here or elsewhere: bounds what is kept of each.
        sink: Whom records are for.
        consumer: Where they come from; None: connects as the settings say.
        avro: What makes JSON of Avro; None: asks the registry that the settings name.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        partitions: int,
        sink: RecordSink,
        *,
        consumer: Consumer | None = None,
        avro: AvroValues | None = None,
    ) -> None:
        self._bootstrap = settings.bootstrap
        self._sink = sink
        self._consumer = Consumer(consumer_config(settings, partitions)) if consumer is None else consumer
        self._avro = avro_values(settings, SystemClock()) if avro is None else avro
        self._held: list[Message] = []
        """Out of Kafka already, and waiting for the schema registry."""

    def assign(self, starts: Mapping[Key, int]) -> None:
        """Begins to read further partitions, from these offsets; all or none.

        The consumer must know of them before: one that it meets unknown it may never begin to read.

        Raises:
            SourceUnavailableError: that cannot be.
        """
        try:
            self._consumer.list_topics(timeout=_ASK_SECONDS)
            self._consumer.incremental_assign([TopicPartition(*key, start) for key, start in starts.items()])
        except KafkaException as error:
            raise SourceUnavailableError("assign", self._bootstrap, reason_of(error)) from error

    def poll(self, timeout_seconds: float, max_records: int = MAX_RECORDS) -> int:
        """Hands over what has come, after at most the time-out; returns the number of records, about.

        Raises:
            SchemasUnavailableError: the schema registry does not answer; nothing is lost, call again.
        """
        consumer = self._consumer
        if self._held:
            self._hand_over_held(timeout_seconds)
        first = consumer.poll(timeout_seconds)
        if first is None:
            return 0
        messages = [first, *consumer.consume(CHUNK - 1, _GATHER_SECONDS)]
        count = len(messages)
        self._hand_over(messages)
        while len(messages) >= CHUNK - 1 and count < max_records:
            messages = consumer.consume(CHUNK, 0)
            count += len(messages)
            self._hand_over(messages)
        return count

    def pause(self, keys: Iterable[Key]) -> None:
        """Stops reading partitions; what was fetched of them is fetched again later."""
        self._consumer.pause(_topic_partitions(keys))

    def resume(self, keys: Iterable[Key]) -> None:
        """Goes on reading partitions."""
        self._consumer.resume(_topic_partitions(keys))

    def close(self) -> None:
        """Frees connections."""
        self._consumer.close()

    def _hand_over_held(self, timeout_seconds: float) -> None:
        try:
            self._hand_over(self._held)
        except SchemasUnavailableError:
            time.sleep(timeout_seconds)  # nobody waits for Kafka meanwhile
            raise

    def _hand_over(self, messages: list[Message]) -> None:
        if self._avro is not None:
            self._held = messages
            self._avro.convert(messages)
            self._held = []
        errors: list[Message] = []
        if any(map(Message.error, messages)):
            errors = [m for m in messages if m.error() is not None]
            messages = [m for m in messages if m.error() is None]
        for topic, number, segment in by_partition(messages):
            self._sink.take(topic, number, segment)
        if errors:
            self._tell_errors(errors)

    def _tell_errors(self, messages: Sequence[Message]) -> None:
        """First those that tell of the end of a partition, hence of gaps there, too."""
        failures = []
        for message in messages:
            error = message.error()
            if error is not None and error.code() != _AT_END:
                failures.append(_failure(message, error))
            else:
                self._sink.take_end(message.topic() or "", message.partition() or 0, message.offset() or 0)
        for failure in failures:
            self._sink.take_failure(failure)


def reason_of(error: KafkaException) -> str:
    """What Kafka says, without the decoration."""
    found = error.args[0] if error.args else error
    return found.str() if isinstance(found, KafkaError) else str(error)


def _failure(message: Message, error: KafkaError) -> Failure:
    return Failure(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        error.code() in _LOST,
        error.fatal(),
        error.str(),
    )


def _topic_partitions(keys: Iterable[Key]) -> list[TopicPartition]:
    return [TopicPartition(*key) for key in keys]
