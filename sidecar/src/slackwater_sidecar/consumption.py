"""Takes records of partitions out of Kafka for any receiver; values in Avro become JSON before.

The errors of the sidecar that a caller reacts to in particular; all others are of the general kinds::

    UnavailableError
    └── SidecarUnavailableError      Kafka does not answer; the sidecar waits and says so
        └── SchemasUnavailableError  the schema registry does not answer: try again

All can be pickled: workers send theirs to the process they read for.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple, Protocol, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from slackwater.cdc import UndecodableRecordError
from slackwater.cdc.avro import MAGIC, ToJson
from slackwater.cdc.partition import ParsedRows
from slackwater.kafka.registry import RegistryUnavailableError, Send, avro_to_json, over_http
from slackwater.kafka.retry import GROUP_REFUSED, OUT_OF_RANGE_CODES, reason_of
from slackwater.protocol import Clock, ConfigError, SystemClock, UnavailableError
from slackwater_sidecar.settings import SidecarSettings


class SidecarUnavailableError(UnavailableError):
    """Kafka did not do what it was asked. Nothing is lost: asking again may succeed."""

    def __init__(self, operation: str, bootstrap: str, reason: str) -> None:
        super().__init__(
            f"Kafka at {bootstrap}: {operation} failed: {reason}",
            "check that the broker is running and reachable, and that these topics may be accessed",
        )
        self.args = (operation, bootstrap, reason)
        self.reason = reason


class SchemasUnavailableError(SidecarUnavailableError):
    """The schema registry does not help; what was read waits for it."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__("asking for schemas", address, reason)
        self.args = (address, reason)
        self.problem = f"the schema registry at {address} is needed to continue reading: {reason}"
        self.hint = ""
        self.address = address


logger = logging.getLogger(__name__)

_TIMEOUT = timedelta(seconds=1)
"""How long one question may take: a stop waits for it."""
_PAUSE_SECONDS = 0.5
"""How long a registry that did not answer is left alone."""


class AvroValues:
    """Converts the values of messages where they are; for one thread."""

    def __init__(self, to_json: ToJson, address: str, clock: Clock) -> None:
        self._to_json = to_json
        self._address = address
        self._clock = clock
        self._ask_again_at = float("-inf")

    def convert(self, messages: Sequence[Message]) -> None:
        """Replaces every value that is Avro. What cannot be read stays, and the frontier names its place.

        May be called again with the same messages after an error.

        Raises:
            SchemasUnavailableError: the registry does not answer; nothing is lost.
        """
        for message in messages:
            value = message.value()
            if value and value[0] == MAGIC and message.error() is None:
                message.set_value(self._converted(message, value))

    def _converted(self, message: Message, value: bytes) -> bytes | None:
        now = self._clock.monotonic()
        if now < self._ask_again_at:
            raise SchemasUnavailableError(self._address, "it did not answer a moment ago")
        try:
            return self._to_json(value)
        except UndecodableRecordError as error:
            where = message.topic(), message.partition(), message.offset()
            logger.warning("cannot be read: %s/%s, offset %s: %s", *where, error)
            return value
        except (ConfigError, RegistryUnavailableError) as error:
            self._ask_again_at = now + _PAUSE_SECONDS
            raise SchemasUnavailableError(self._address, str(error)) from error


def avro_values(settings: SidecarSettings, clock: Clock, send: Send = over_http) -> AvroValues | None:
    """Returns what converts values as the settings say; None when the topics are JSON."""
    registry = settings.servers.registry
    if registry is None or registry.url is None:
        return None
    return AvroValues(avro_to_json(replace(registry, timeout=_TIMEOUT), send), registry.url, clock)


PartitionId = tuple[str, int]
"""Topic and partition."""
Pairs = Iterator[tuple[int, bytes | None]]
"""Offset and value of each record of one partition."""
RUN_HEADER = "__debezium.context.runId"

MAX_RECORDS = 10_000
"""The most records that one call of :meth:`Consumption.read` hands over, about."""
CHUNK = 500
"""Messages taken from librdkafka at once: what fits into a core's cache costs a fifth less."""
_GATHER_SECONDS = 0.002
"""How long more is waited for once a record has come: a turn for each single one costs ten times as much."""
_ASK_SECONDS = 3.0
_AT_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - no public name

_FETCH_WAIT_MS = 10
_FETCH_BYTES = 16 * 1024
"""The broker answers a fetch when it has this many bytes, or after the wait. If it answered with the first
record, low rates would mean a response for every few: the sidecar would take a quarter to two thirds more
processor time, for 4 to 10 ms less delay at the median. High rates fill this in less than the wait."""
_FETCH_PAUSE_MS = 10
"""The pause once a partition's queue is full; librdkafka's default of a second leaves the sidecar idle in
catch-up."""
_QUEUE_KIB = 96 * 1024
"""The space for records fetched and not yet read, over all partitions."""
_QUEUE_KIB_OF_PARTITION = (128, 32 * 1024)
"""The least and the most of that space for one partition."""
_FETCH_KIB = 1024
"""The most per partition and fetch, compressed: small, so that partitions are read evenly."""
_MANY_PARTITIONS = 200
"""With more partitions fetches are fewer and larger: each names all of them, which is work for the broker."""


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
    """Takes what was read; offsets of a partition ascend."""

    def take_rows(
        self, key: PartitionId, rows: Pairs | ParsedRows, run: str, timestamp_ms: int, *, is_keyless: bool
    ) -> None:
        """Takes rows of one partition that one run of the connector has written; at least one.

        Those that no worker has decoded are to be iterated at once. The run is empty when records do not name
        it; the timestamp is that of the last record.
        """
        ...

    def take_others(self, key: PartitionId, records: Sequence[tuple[int, bytes | None, int]]) -> None:
        """Takes records of the transaction or the notification topic, at least one.

        Each has an offset, a value and a timestamp in milliseconds.
        """
        ...

    def take_end(self, key: PartitionId, offset: int) -> None:
        """Receives the offset below which a partition holds nothing more."""
        ...

    def take_failure(self, failure: Failure) -> None:
        """Receives an error, after all records that came with it."""
        ...


class Consumption:
    """Reads with one consumer; used by one thread. Joins no group and commits nothing.

    Values in Avro are JSON when they are handed over. Implements
    :class:`~slackwater_sidecar.reader.RecordReader`.

    ``partitions`` is how many are read in all, here or elsewhere: it bounds what is kept of each.
    """

    orphans: frozenset[PartitionId] = frozenset()
    """A consumer in this process reads as long as the process does."""
    pids: Sequence[int] = ()
    """No other process reads."""

    def __init__(
        self,
        settings: SidecarSettings,
        others: frozenset[str],
        partitions: int,
        *,
        consumer: Consumer | None = None,
        avro: AvroValues | None = None,
    ) -> None:
        self._bootstrap = settings.servers.kafka.bootstrap
        self._others = others
        self._consumer = Consumer(consumer_config(settings, partitions)) if consumer is None else consumer
        self._avro = avro_values(settings, SystemClock()) if avro is None else avro
        self._held: list[Message] = []
        """Out of Kafka already, and waiting for the schema registry."""

    def assign(self, starts: Mapping[PartitionId, int]) -> None:
        """Begins to read further partitions, from these offsets; all or none.

        The consumer must know of them before: one that it meets unknown it may never begin to read.

        Raises:
            SidecarUnavailableError: that cannot be.
        """
        try:
            self._consumer.list_topics(timeout=_ASK_SECONDS)
            self._consumer.incremental_assign([TopicPartition(*key, start) for key, start in starts.items()])
        except KafkaException as error:
            raise SidecarUnavailableError("assign", self._bootstrap, reason_of(error)) from error

    def read(self, sink: RecordSink, timeout_seconds: float, max_records: int = MAX_RECORDS) -> int:
        """Hands over new records, after at most the time-out; returns their number, approximately.

        It ends after about ``max_records``.

        Raises:
            SchemasUnavailableError: the schema registry does not answer; nothing is lost, call again.
        """
        consumer = self._consumer
        if held := self._held:
            self._convert_held(timeout_seconds)
            self._hand_over(held, sink)
        first = consumer.poll(timeout_seconds)
        if first is None:
            return 0
        messages = [first, *consumer.consume(CHUNK - 1, _GATHER_SECONDS)]
        count = len(messages)
        self._convert(messages)
        self._hand_over(messages, sink)
        while len(messages) >= CHUNK - 1 and count < max_records:
            messages = consumer.consume(CHUNK, 0)
            count += len(messages)
            self._convert(messages)
            self._hand_over(messages, sink)
        return count

    def hold(self, pause: frozenset[PartitionId], resume: frozenset[PartitionId]) -> None:
        """Pauses and resumes partitions; what was fetched of a paused one is fetched again later."""
        if pause:
            self._consumer.pause([TopicPartition(*key) for key in pause])
        if resume:
            self._consumer.resume([TopicPartition(*key) for key in resume])

    def close(self) -> None:
        """Frees connections."""
        self._consumer.close()

    def _convert_held(self, timeout_seconds: float) -> None:
        try:
            self._convert(self._held)
        except SchemasUnavailableError:
            time.sleep(timeout_seconds)  # nobody waits for Kafka meanwhile
            raise

    def _convert(self, messages: list[Message]) -> None:
        """Makes JSON of Avro; keeps the messages while that cannot be."""
        if self._avro is not None:
            self._held = messages
            self._avro.convert(messages)
            self._held = []

    def _hand_over(self, messages: list[Message], sink: RecordSink) -> None:
        errors: list[Message] = []
        if any(map(Message.error, messages)):
            errors = [m for m in messages if m.error() is not None]
            messages = [m for m in messages if m.error() is None]
        others = self._others
        for topic, number, segment in by_partition(messages):
            if topic in others:
                sink.take_others((topic, number), list(triples(segment)))
                continue
            keyless = is_keyless(segment)
            for run, part in by_run(segment):
                newest_ms = part[-1].timestamp()[1]
                sink.take_rows((topic, number), pairs(part), run, newest_ms, is_keyless=keyless)
        if errors:
            _hand_over_errors(errors, sink)


def consumer_config(settings: SidecarSettings, partitions: int) -> dict[str, str | int | bool]:
    """Returns the consumer's settings; what it queues is bounded over all partitions known at the start."""
    least, most = _QUEUE_KIB_OF_PARTITION
    is_wide = partitions > _MANY_PARTITIONS
    queue_kib = min(most, max(least, _QUEUE_KIB // partitions))
    return {
        "bootstrap.servers": settings.servers.kafka.bootstrap,
        "group.id": f"slackwater-sidecar-{settings.source}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "allow.auto.create.topics": False,
        "fetch.wait.max.ms": min(100, partitions // 20) if is_wide else _FETCH_WAIT_MS,
        "fetch.min.bytes": 64 * partitions if is_wide else _FETCH_BYTES,
        "fetch.queue.backoff.ms": _FETCH_PAUSE_MS,
        "fetch.message.max.bytes": 1024 * min(_FETCH_KIB, max(least, queue_kib // 4)),
        "queued.min.messages": 50_000,
        "queued.max.messages.kbytes": queue_kib,
        **settings.servers.kafka.options,
    }


def _hand_over_errors(messages: Sequence[Message], sink: RecordSink) -> None:
    """Reports the ends of partitions, and so the gaps before them; then failures."""
    failures = []
    for message in messages:
        error = message.error()
        if error is not None and error.code() == GROUP_REFUSED:
            continue
        if error is not None and error.code() != _AT_END:
            failures.append(_failure(message, error))
        else:
            sink.take_end((message.topic() or "", message.partition() or 0), message.offset() or 0)
    for failure in failures:
        sink.take_failure(failure)


def _failure(message: Message, error: KafkaError) -> Failure:
    return Failure(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        error.code() in OUT_OF_RANGE_CODES,
        error.fatal(),
        error.str(),
    )


def by_partition(messages: Sequence[Message]) -> Iterator[tuple[str, int, Sequence[Message]]]:
    """Splits messages where topic or partition changes: (topic, partition, messages)."""
    topics = list(map(Message.topic, messages))
    numbers = list(map(Message.partition, messages))
    count, begin = len(messages), 0
    while begin < count:
        topic, number = topics[begin], numbers[begin]
        end = begin + 1
        while end < count and numbers[end] == number and topics[end] == topic:
            end += 1
        yield cast(str, topic), cast(int, number), messages[begin:end]
        begin = end


def by_run(messages: Sequence[Message]) -> Iterator[tuple[str, Sequence[Message]]]:
    """Splits messages of one partition where the connector run changes.

    Runs follow each other in a partition, so it is enough to look at the ends; more would cost too much.
    """
    first = run_of(messages[0])
    if len(messages) == 1 or run_of(messages[-1]) == first:
        yield first, messages
        return
    middle = len(messages) // 2
    for part in (messages[:middle], messages[middle:]):
        yield from by_run(part)


def run_of(message: Message) -> str:
    """Returns the connector run that wrote a message; empty when the message does not say."""
    for name, value in cast(Sequence[tuple[str, bytes | None]], message.headers() or ()):
        if name == RUN_HEADER and value is not None:
            return value.decode(errors="replace")
    return ""


def pairs(messages: Sequence[Message]) -> Pairs:
    """Returns offset and value of each message."""
    return cast(Pairs, zip(map(Message.offset, messages), map(Message.value, messages), strict=True))


def triples(messages: Sequence[Message]) -> Iterator[tuple[int, bytes | None, int]]:
    """Returns offset, value and timestamp in milliseconds of each message."""
    for message in messages:
        yield message.offset() or 0, message.value(), message.timestamp()[1]


def is_keyless(messages: Sequence[Message]) -> bool:
    """Returns whether messages come from a table without a key; one without (a truncate) does not tell."""
    return messages[0].key() is None and messages[-1].key() is None
