"""Reads a source from Kafka with one consumer."""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from slackwater_cdc import EndOffsets, Frontier, Partition
from slackwater_protocol import SystemClock
from slackwater_protocol.keys import cut_log_topic
from slackwater_sidecar.avro import avro_values
from slackwater_sidecar.errors import SourceTruncatedError, SourceUnavailableError
from slackwater_sidecar.kafka_config import admin_config, consumer_config
from slackwater_sidecar.offsets import first_offsets, high_watermarks
from slackwater_sidecar.reader import Starts
from slackwater_sidecar.segments import by_partition, by_run, is_keyless, pairs, triples
from slackwater_sidecar.settings import SidecarSettings

logger = logging.getLogger(__name__)

MAX_RECORDS = 10_000
"""Of one call of :meth:`KafkaSourceReader.poll`, about."""
_CHUNK = 500
"""Messages taken from librdkafka at once: what fits into a core's cache costs a fifth less."""
_GATHER_SECONDS = 0.002
"""So long more is waited for once a record has come: a turn for each single one costs ten times as much."""
_ASK_SECONDS = 3.0
_FAR_AHEAD = 100_000
"""So many transactions may be known of a partition, or twice as many ENDs, before reading it is paused."""
_BALANCE_RECORDS = 20_000
"""Records between two looks at who is ahead: a look costs time for every partition."""
_LOST = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001 - no public name
_AT_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - no public name

Key = tuple[str, int]
T = TypeVar("T")


class KafkaSourceReader:
    """Implements :class:`~slackwater_sidecar.reader.SourceReader`.

    Args:
        settings: Source, brokers, tables.
        starts: From where partitions are read.
    """

    def __init__(self, settings: SidecarSettings, starts: Starts) -> None:
        self._settings = settings
        self._starts = starts
        topics = settings.source_topics
        self._transactions = topics.transactions
        self._notifications = topics.notifications
        self._is_data_topic = data_topics(settings)
        self._partitions: dict[Key, Partition] = {}
        self._assigned: set[Key] = set()
        self._paused: set[Key] = set()
        self._unbalanced = 0
        self._admin = AdminClient(admin_config(settings))
        self._consumer: Consumer | None = None
        self._avro = avro_values(settings, SystemClock())
        self._held: list[Message] = []

    def discover(self, frontier: Frontier) -> list[str]:
        """See the protocol."""
        metadata = self._ask("list topics", lambda: self._admin.list_topics(timeout=_ASK_SECONDS))
        found = {name: len(t.partitions) for name, t in metadata.topics.items() if t.error is None}
        data = sorted(filter(self._is_data_topic, found))
        wanted = [(topic, number) for topic in data for number in range(found[topic])]
        wanted += [(t, 0) for t in (self._transactions, self._notifications) if t in found]
        new = [key for key in wanted if key not in self._assigned]
        if new:
            self._begin(frontier, new)
        return data

    def poll(self, frontier: Frontier, timeout_seconds: float) -> int:
        """See the protocol."""
        consumer = self._consumer
        if consumer is None:
            return 0
        if self._held:
            self._take(frontier, self._held)
        first = consumer.poll(timeout_seconds)
        if first is None:
            return 0
        messages = [first, *consumer.consume(_CHUNK, _GATHER_SECONDS)]
        count = len(messages)
        self._take(frontier, messages)
        while len(messages) >= _CHUNK and count < MAX_RECORDS:
            messages = consumer.consume(_CHUNK, 0)
            count += len(messages)
            self._take(frontier, messages)
        self._unbalanced += count
        return count

    def end_offsets(self) -> EndOffsets:
        """See the protocol."""
        return self._ask("asking for end offsets", lambda: high_watermarks(self._admin, self._assigned))

    def balance(self, frontier: Frontier) -> None:
        """See the protocol."""
        if self._consumer is None or (self._unbalanced < _BALANCE_RECORDS and not self._paused):
            return
        self._unbalanced = 0
        ahead = {key for key, p in self._partitions.items() if self._is_ahead(key, p.backlog)}
        transactions = (self._transactions, 0)
        if transactions in self._assigned and self._is_ahead(transactions, frontier.queue_length // 2):
            ahead.add(transactions)
        if len(ahead) == len(self._assigned):
            ahead = set()
        if ahead != self._paused:
            self._consumer.pause(_topic_partitions(ahead - self._paused))
            self._consumer.resume(_topic_partitions(self._paused - ahead))
            self._paused = ahead

    @property
    def paused_partitions(self) -> int:
        """See the protocol."""
        return len(self._paused)

    def close(self) -> None:
        """See the protocol."""
        if self._consumer is not None:
            self._consumer.close()

    def _begin(self, frontier: Frontier, keys: list[Key]) -> None:
        """Begins to read partitions; all or none."""
        low = self._ask("asking for first offsets", lambda: first_offsets(self._admin, keys))
        high = self._ask("asking for end offsets", lambda: high_watermarks(self._admin, keys))
        starts = {key: self._start(key, low[key], high[key]) for key in keys}
        assignment = [TopicPartition(*key, start) for key, start in starts.items()]
        consumer = self._consumer = self._consumer or Consumer(consumer_config(self._settings, len(keys)))
        self._ask("assign", lambda: consumer.incremental_assign(assignment))
        for (topic, number), start in starts.items():
            self._assigned.add((topic, number))
            if self._is_data_topic(topic):
                self._partitions[topic, number] = frontier.add_partition(topic, number, start)
        logger.info("reading %s", _listed(starts))

    def _start(self, key: Key, low: int, high: int) -> int:
        wanted = self._starts(*key)
        if wanted is None:
            return low
        if not low <= wanted <= high:
            raise SourceTruncatedError(*key, wanted, low, high)
        return wanted

    def _take(self, frontier: Frontier, messages: list[Message]) -> None:
        if self._avro is not None:
            self._held = messages  # taken from Kafka already: they wait here while the registry is away
            self._avro.convert(messages)
            self._held = []
        if any(map(Message.error, messages)):
            messages = self._without_errors(frontier, messages)
        for topic, number, segment in by_partition(messages):
            partition = self._partitions.get((topic, number))
            if partition is not None:
                self._read(partition, segment)
            elif topic == self._transactions:
                frontier.read_transactions(triples(segment))
            else:
                frontier.read_notifications(pairs(segment))

    def _read(self, partition: Partition, segment: Sequence[Message]) -> None:
        keyless = is_keyless(segment)
        for run, messages in by_run(segment):
            newest = messages[-1].timestamp()[1]
            partition.read(pairs(messages), run, timestamp_ms=newest, is_keyless=keyless)

    def _is_ahead(self, key: Key, backlog: int) -> bool:
        return backlog > (_FAR_AHEAD // 2 if key in self._paused else _FAR_AHEAD)

    def _without_errors(self, frontier: Frontier, messages: list[Message]) -> list[Message]:
        """Notes the ends of partitions, which tell of gaps at their end, too; raises for anything else."""
        at_end = []
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() != _AT_END:
                self._raise(message, error)
            at_end.append(message)
        rest = [m for m in messages if m.error() is None]
        for message in at_end:
            self._skip(frontier, message)
        return rest

    def _skip(self, frontier: Frontier, message: Message) -> None:
        key, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
        if key in self._partitions:
            self._partitions[key].skip_to(offset)
        elif key[0] == self._transactions:
            frontier.skip_transactions_to(offset)
        else:
            frontier.skip_notifications_to(offset)

    def _raise(self, message: Message, error: KafkaError) -> None:
        key = topic, number = message.topic() or "", message.partition() or 0
        if error.code() in _LOST and key in self._assigned:
            low = self._ask("asking for first offsets", lambda: first_offsets(self._admin, [key]))
            high = self._ask("asking for end offsets", lambda: high_watermarks(self._admin, [key]))
            raise SourceTruncatedError(topic, number, message.offset() or 0, low[key], high[key])
        if error.fatal() or topic in {t for t, _ in self._assigned}:
            raise SourceUnavailableError(f"reading {topic}/{number}", self._settings.bootstrap, error.str())
        logger.warning("Kafka: %s", error.str())

    def _ask(self, operation: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except KafkaException as error:
            reason = error.args[0].str() if isinstance(error.args[0], KafkaError) else str(error)
            raise SourceUnavailableError(operation, self._settings.bootstrap, reason) from error


def _topic_partitions(keys: Iterable[Key]) -> list[TopicPartition]:
    return [TopicPartition(*key) for key in keys]


def _listed(starts: Mapping[Key, int]) -> str:
    """Where reading begins; of many partitions only the first ones."""
    first = ", ".join(f"{t}/{n} from {s}" for (t, n), s in islice(starts.items(), 20))
    return first if len(starts) <= 20 else f"{first} and {len(starts) - 20} more"


def data_topics(settings: SidecarSettings) -> Callable[[str], bool]:
    """Which topics hold rows: those of the tables, or everything named or routed like one."""
    source, topics = settings.source, settings.source_topics
    if settings.tables is not None:
        return frozenset(map(topics.data, settings.tables)).__contains__
    others = {cut_log_topic(source), topics.transactions, topics.notifications}
    routed = frozenset(topics.routed.values())
    named = re.compile(re.escape(source) + r"\.[^.]+\.[^.]+").fullmatch
    return lambda topic: topic not in others and (topic in routed or named(topic) is not None)
