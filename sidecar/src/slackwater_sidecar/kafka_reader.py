"""Reads a source from Kafka with one consumer."""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from slackwater_cdc import EndOffsets, Frontier, Partition
from slackwater_protocol.keys import cut_log_topic, data_topic, notification_topic, transaction_topic
from slackwater_sidecar.errors import SourceTruncatedError, SourceUnavailableError
from slackwater_sidecar.reader import Starts
from slackwater_sidecar.segments import by_partition, by_run, is_keyless, pairs, triples
from slackwater_sidecar.settings import SidecarSettings

logger = logging.getLogger(__name__)

MAX_RECORDS = 10_000
_ASK_SECONDS = 3.0
_FAR_AHEAD = 100_000
"""So many transactions may be known of a partition, or twice as many ENDs, before reading it is paused."""
_LOST = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001 - no public name
_AT_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - no public name

_FETCH_BYTES = 1024 * 1024
"""Per partition and fetch, compressed: small, so that partitions are read evenly."""
_FETCH_PAUSE_MS = 10
"""Once a partition's queue is full; librdkafka's default of a second leaves the sidecar idle in catch-up."""

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
        self._transactions = transaction_topic(settings.source)
        self._notifications = notification_topic(settings.source)
        self._is_data_topic = _data_topics(settings)
        self._partitions: dict[Key, Partition] = {}
        self._assigned: set[Key] = set()
        self._paused: set[Key] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": settings.bootstrap,
                "group.id": f"slackwater-sidecar-{settings.source}",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": 10,
                "fetch.queue.backoff.ms": _FETCH_PAUSE_MS,
                "fetch.message.max.bytes": _FETCH_BYTES,
                "queued.min.messages": 50_000,
                "queued.max.messages.kbytes": 32 * 1024,
                **settings.kafka,
            }
        )

    def discover(self, frontier: Frontier) -> list[str]:
        """See the protocol."""
        metadata = self._ask("list topics", lambda: self._consumer.list_topics(timeout=_ASK_SECONDS))
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
        if not self._assigned:
            return 0
        messages = self._consumer.consume(MAX_RECORDS, timeout_seconds)
        if not messages:
            return 0
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
        return len(messages)

    def end_offsets(self) -> EndOffsets:
        """See the protocol."""
        return {key: self._bounds(key)[1] for key in self._assigned}

    def balance(self, frontier: Frontier) -> None:
        """See the protocol."""
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

    def close(self) -> None:
        """See the protocol."""
        self._consumer.close()

    def _begin(self, frontier: Frontier, keys: list[Key]) -> None:
        """Begins to read partitions; all or none."""
        starts = {key: self._start(key) for key in keys}
        assignment = [TopicPartition(*key, start) for key, start in starts.items()]
        self._ask("assign", lambda: self._consumer.incremental_assign(assignment))
        for (topic, number), start in starts.items():
            self._assigned.add((topic, number))
            if self._is_data_topic(topic):
                self._partitions[topic, number] = frontier.add_partition(topic, number, start)
        logger.info("reading %s", ", ".join(f"{t}/{n} from {s}" for (t, n), s in starts.items()))

    def _start(self, key: Key) -> int:
        low, high = self._bounds(key)
        wanted = self._starts(*key)
        if wanted is None:
            return low
        if not low <= wanted <= high:
            raise SourceTruncatedError(*key, wanted, low, high)
        return wanted

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
        topic, number = message.topic() or "", message.partition() or 0
        if error.code() in _LOST and (topic, number) in self._assigned:
            raise SourceTruncatedError(topic, number, message.offset() or 0, *self._bounds((topic, number)))
        if error.fatal() or topic in {t for t, _ in self._assigned}:
            raise SourceUnavailableError(f"reading {topic}/{number}", self._settings.bootstrap, error.str())
        logger.warning("Kafka: %s", error.str())

    def _bounds(self, key: Key) -> tuple[int, int]:
        """First offset and end offset (of committed records)."""
        bounds = self._ask(
            f"asking for offsets of {key[0]}/{key[1]}",
            lambda: self._consumer.get_watermark_offsets(TopicPartition(*key), _ASK_SECONDS),
        )
        if bounds is None:
            raise SourceUnavailableError("asking for offsets", self._settings.bootstrap, "no answer in time")
        return bounds

    def _ask(self, operation: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except KafkaException as error:
            reason = error.args[0].str() if isinstance(error.args[0], KafkaError) else str(error)
            raise SourceUnavailableError(operation, self._settings.bootstrap, reason) from error


def _topic_partitions(keys: Iterable[Key]) -> list[TopicPartition]:
    return [TopicPartition(*key) for key in keys]


def _data_topics(settings: SidecarSettings) -> Callable[[str], bool]:
    """Which topics hold rows: those of the tables, or everything named like one."""
    source = settings.source
    if settings.tables is not None:
        return frozenset(data_topic(source, table) for table in settings.tables).__contains__
    others = {cut_log_topic(source), transaction_topic(source), notification_topic(source)}
    named = re.compile(re.escape(source) + r"\.[^.]+\.[^.]+").fullmatch
    return lambda topic: topic not in others and named(topic) is not None
