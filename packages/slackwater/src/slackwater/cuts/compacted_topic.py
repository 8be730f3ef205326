"""Compacted topics with one partition, in which runs and readers publish state to the whole cluster."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from slackwater.cuts.errors import WITHOUT_OFFSET, CompactedTopicUnavailableError
from slackwater.kafka.reader import Place, TopicReader
from slackwater.kafka.retry import (
    ABSENT_CODES,
    OUT_OF_RANGE_CODES,
    KafkaRetry,
    code_of,
    create_topics,
    reason_of,
)

_CLOSING_SECONDS = 2.0
_SEGMENT_BYTES = 4 * 1024 * 1024
"""Only closed segments are compacted: with hundreds of reports a second, larger ones would hold gigabytes."""
_SEGMENT_MS = 60 * 60 * 1000
_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(_SEGMENT_BYTES),
    "segment.ms": str(_SEGMENT_MS),
    "min.cleanable.dirty.ratio": "0.1",
    "message.timestamp.type": "LogAppendTime",  # one clock for all hosts
}

_log = logging.getLogger(__name__)

T = TypeVar("T")
Entry = TypeVar("Entry")

Decode = Callable[[bytes, int, int, bytes], Entry | None]
"""Takes value, offset, time of writing (ms) and key of a record; returns None if it is not Slackwater's."""


class CompactedTopic(Generic[Entry]):
    """Reads the newest record of each key of a topic, and writes records.

    Methods raise only :class:`~slackwater.cuts.errors.CompactedTopicUnavailableError`, and wait at most for
    the time-out while Kafka is silent. Not thread-safe, except for :meth:`send`.

    Args:
        topic: Its name.
        decode: Returns the entry of a record.
        bootstrap: Kafka's ``bootstrap.servers``.
        kafka: Further librdkafka settings, e.g. for security; override the ones chosen here.
        timeout: How long to wait for an answer, including transient errors.
        replication_factor: Used if the topic has to be created; -1 for the broker's default.
    """

    def __init__(
        self,
        topic: str,
        decode: Decode[Entry],
        bootstrap: str,
        *,
        kafka: Mapping[str, str] | None = None,
        timeout: timedelta = timedelta(seconds=5),
        replication_factor: int = -1,
    ) -> None:
        self._topic, self._decode = topic, decode
        self._place: Place = topic, 0
        self._config: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap, **(kafka or {})}
        self._timeout = timeout.total_seconds()
        self._replication_factor = replication_factor
        self._reader: TopicReader | None = None
        self._producer: Producer | None = None
        self._entries: dict[bytes, Entry] = {}
        self._position = 0
        self._is_losing = False

    def ensure(self) -> None:
        """Creates the topic if it does not exist, and prepares to write."""
        from confluent_kafka.admin import AdminClient  # most runs find an existing topic
        from confluent_kafka.cimpl import NewTopic

        producer = self._writer()

        def exists(seconds: float) -> bool:
            found = producer.list_topics(self._topic, seconds).topics[self._topic]
            if found.error is not None and found.error.code() not in ABSENT_CODES:
                raise KafkaException(found.error)
            return found.error is None

        if not self._asked("look-up", exists):
            topic = NewTopic(self._topic, 1, self._replication_factor, config=_TOPIC_CONFIG)
            admin = AdminClient(self._config)
            self._asked("creation", lambda seconds: create_topics(admin, [topic], seconds))

    def read(self) -> list[Entry]:
        """Returns the entries that are readable now, oldest first; none if there is no topic.

        A second call reads only what is new.
        """
        self._read_to(0)
        return list(self._entries.values())

    def write(self, operation: str, values: Mapping[bytes, bytes | None]) -> int:
        """Writes records by key and returns the largest offset when all are acknowledged; None removes a key.

        :meth:`read` returns them afterwards.

        Args:
            operation: The operation, for the error.
            values: By key.
        """
        offset = self._write(operation, values)
        self._read_to(offset + 1)
        return offset

    def send(self, key: bytes, value: bytes) -> None:
        """Queues a record to be written soon, without waiting; never raises.

        A record that cannot be written is lost. The first failure is logged, and so is the first success
        after it. May be called by one other thread.
        """
        producer = self._writer()
        try:
            producer.produce(self._topic, value, key, partition=0, on_delivery=self._note_sent)
            producer.poll(0)
        except (KafkaException, BufferError) as error:
            self._note_loss(reason_of(error))

    def close(self) -> None:
        """Waits two seconds at most for queued reports to be written, then frees connections."""
        if self._producer is not None:
            self._producer.flush(_CLOSING_SECONDS)
            self._producer.purge()
            self._producer = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _writer(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    "linger.ms": 0,
                    # These records are signs of life, and their absence means death.
                    "reconnect.backoff.max.ms": 1_000,
                    "message.timeout.ms": int(self._timeout * 1000),
                    # A record that is sent again must not follow a newer one.
                    "max.in.flight.requests.per.connection": 1,
                    **self._config,
                }
            )
        return self._producer

    def _write(self, operation: str, values: Mapping[bytes, bytes | None]) -> int:
        """Writes records and waits for them; returns the largest offset."""
        producer, offsets, failures = self._writer(), list[int](), list[str]()

        def acknowledged(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None:
                offsets.append(offset)
            else:
                failures.append(WITHOUT_OFFSET if error is None else error.str())

        with self._guarded(operation):
            for key, value in values.items():
                producer.produce(self._topic, value, key, partition=0, on_delivery=acknowledged)
        producer.flush(self._timeout)
        if failures or len(offsets) < len(values):
            reason = failures[0] if failures else f"no acknowledgement within {self._timeout:g} s"
            producer.purge()  # a record reported as failed must not be written later
            raise CompactedTopicUnavailableError(self._topic, operation, reason)
        return max(offsets)

    def _note_sent(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self._is_losing = False
        else:
            self._note_loss(error.str())

    def _note_loss(self, reason: str) -> None:
        if not self._is_losing:
            _log.warning("a record for Kafka topic %s was lost: %s", self._topic, reason)
        self._is_losing = True

    def _read_to(self, least_end: int) -> None:
        """Reads new records up to the present end; waits for the end while it is below `least_end`."""
        low, high = self._bounds()
        if high < self._position:  # the topic was recreated
            self._entries.clear()
            self._position = 0
        end, newest = max(high, least_end), dict[bytes, Message]()
        with self._guarded("read"):
            try:
                for message in self._opened().read({self._place: (max(self._position, low), end)}):
                    newest.pop(key := message.key() or b"", None)  # the order is that of the newest records
                    newest[key] = message
            except KafkaException as error:
                if code_of(error) not in OUT_OF_RANGE_CODES or self._bounds()[0] <= low:
                    raise
                self._read_to(least_end)  # records were deleted in the meantime
                return
        self._position = max(self._position, end)
        for key, message in newest.items():
            self._keep(key, message)

    def _keep(self, key: bytes, message: Message) -> None:
        self._entries.pop(key, None)
        value = message.value()
        if value is not None:
            entry = self._decode(value, message.offset() or 0, message.timestamp()[1], key)
            if entry is not None:
                self._entries[key] = entry

    def _opened(self) -> TopicReader:
        if self._reader is None:
            self._reader = TopicReader({"fetch.wait.max.ms": 1, **self._config}, self._timeout)
        return self._reader

    def _bounds(self) -> tuple[int, int]:
        """Returns the first and the end offset; (0, 0) if there is no topic."""
        with self._guarded("read"):
            try:
                return self._opened().bounds(self._place)
            except KafkaException as error:
                if code_of(error) in ABSENT_CODES:
                    return 0, 0
                raise

    def _asked(self, operation: str, request: Callable[[float], T]) -> T:
        with self._guarded(operation):
            return KafkaRetry(f"{operation} of {self._topic}", self._timeout).call(request)

    @contextmanager
    def _guarded(self, operation: str) -> Iterator[None]:
        try:
            yield
        except (KafkaException, BufferError) as error:
            reason = f"Kafka at {self._config['bootstrap.servers']}: {reason_of(error)}"
            raise CompactedTopicUnavailableError(self._topic, operation, reason) from error
