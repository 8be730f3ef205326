"""A topic with one partition, as logs use it: read it, write to it, and wait for what is written."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from slackwater.kafka.reader import Place, TopicReader
from slackwater.kafka.retry import ABSENT_CODES, KafkaRetry, code_of, create_topics, reason_of
from slackwater.protocol import UnavailableError

Config = Mapping[str, str | int | float | bool]

WITHOUT_OFFSET: Final = "a record was acknowledged without an offset"
"""It may be where any record is, e.g. if a broker recognised a repeated batch: it has to be written again."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


class TopicUnavailableError(UnavailableError):
    """A topic was not read or written; part of it may be written."""

    def __init__(self, operation: str, topic: str, reason: str) -> None:
        super().__init__(
            f"{operation} of Kafka topic {topic} failed: {reason}",
            "check that the broker is running and reachable, and permits this topic",
        )
        self.args = operation, topic, reason
        self.operation = operation
        self.topic = topic
        self.reason = reason


class LogTopic:
    """The only partition of a topic. Nothing is requested before the first method is called.

    Methods raise only :class:`TopicUnavailableError`, and wait at most for the time-out while Kafka is
    silent. Not thread-safe, except for :meth:`send`, which one other thread may call.

    Args:
        config: librdkafka's settings, with ``bootstrap.servers``.
        seconds: How long to wait for an answer, including transient errors.
        reading: Settings of the reader; `config` overrides them.
        writing: Settings of the producer; `config` overrides them.
    """

    def __init__(
        self,
        name: str,
        config: Config,
        seconds: float,
        *,
        reading: Config,
        writing: Config,
    ) -> None:
        self.name = name
        self.place: Place = name, 0
        self.config = config
        self._seconds = seconds
        self._reading, self._writing = {**reading, **config}, {**writing, **config}
        self._reader: TopicReader | None = None
        self._producer: Producer | None = None
        self._is_losing = False

    @property
    def reader(self) -> TopicReader:
        """Reads the topic."""
        if self._reader is None:
            self._reader = self.new_reader()
        return self._reader

    @property
    def producer(self) -> Producer:
        """Writes to the topic; the first call connects."""
        if self._producer is None:
            limits = {"linger.ms": 0, "message.timeout.ms": int(self._seconds * 1000)}
            self._producer = Producer({**limits, **self._writing})
        return self._producer

    def new_reader(self) -> TopicReader:
        """Returns another reader, which the caller closes."""
        return TopicReader(self._reading, self._seconds)

    def create(self, replication_factor: int, settings: Mapping[str, str]) -> None:
        """Creates the topic if it does not exist; leaves an existing one unchanged."""
        from confluent_kafka.admin import AdminClient  # most processes find an existing topic
        from confluent_kafka.cimpl import NewTopic

        topic = NewTopic(self.name, 1, replication_factor, config=dict(settings))
        self.asked("creation", partial(create_topics, AdminClient(dict(self.config)), [topic]))

    def bounds(self, *, may_vanish: bool) -> tuple[int, int]:
        """Returns the first readable and the end offset; (0, 0) if the topic does not exist.

        Args:
            may_vanish: Whether a topic that was seen counts as absent when brokers have denied it for the
                time-out; a broker that has just created it or just started does so for a while.
        """
        with self.guarded("read"):
            try:
                return self.reader.bounds(self.place)
            except KafkaException as error:
                if self.is_absent(error, may_vanish=may_vanish):
                    return 0, 0
                raise

    def is_absent(self, error: KafkaException, *, may_vanish: bool) -> bool:
        """Says whether an error means that there is no topic, see :meth:`bounds`."""
        return code_of(error) in ABSENT_CODES and (may_vanish or self.name not in self.reader.expected)

    def write(
        self, operation: str, records: Sequence[tuple[bytes | None, bytes | None]]
    ) -> list[tuple[int, int]]:
        """Writes records, of key and value; returns offset and timestamp of each when all are acknowledged.

        If it raises, any prefix of the records may have been written, and nothing is written later.
        """
        producer, written, failures = self.producer, dict[int, tuple[int, int]](), list[str]()

        def acknowledged(index: int, error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None:
                written[index] = offset, max(0, message.timestamp()[1])
            else:
                failures.append(WITHOUT_OFFSET if error is None else error.str())

        with self.guarded(operation):
            for index, (key, value) in enumerate(records):
                delivered = partial(acknowledged, index)
                producer.produce(self.name, value, key, partition=0, on_delivery=delivered)
        producer.flush(self._seconds)
        if failures or len(written) < len(records):
            reason = failures[0] if failures else f"no acknowledgement within {self._seconds:g} s"
            self._discard_producer(0)
            raise self.unavailable(operation, reason)
        return [written[index] for index in range(len(records))]

    def send(self, key: bytes, value: bytes) -> None:
        """Queues a record to be written soon, without waiting; never raises.

        A record that cannot be written is lost. The first failure is logged, and so is the first one after a
        success.
        """
        producer = self.producer
        try:
            producer.produce(self.name, value, key, partition=0, on_delivery=self._note_sent)
            producer.poll(0)
        except (KafkaException, BufferError) as error:
            self._note_loss(reason_of(error))

    def asked(self, operation: str, request: Callable[[float], T]) -> T:
        """Makes a request until it succeeds, see :class:`~slackwater.kafka.retry.KafkaRetry`."""
        with self.guarded(operation):
            return KafkaRetry(f"{operation} of {self.name}", self._seconds).call(request)

    @contextmanager
    def guarded(self, operation: str) -> Iterator[None]:
        """Replaces errors of Kafka's client by the one that names the topic."""
        try:
            yield
        except (KafkaException, BufferError) as error:
            reason = f"Kafka at {self.config['bootstrap.servers']}: {reason_of(error)}"
            raise self.unavailable(operation, reason) from error

    def unavailable(self, operation: str, reason: str) -> TopicUnavailableError:
        """Returns the error for an operation that failed."""
        return TopicUnavailableError(operation, self.name, reason)

    def close(self, patience_seconds: float = 0.0) -> None:
        """Waits for what was sent, but not for long, then frees connections."""
        self._discard_producer(patience_seconds)
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _discard_producer(self, patience_seconds: float) -> None:
        """Drops what is queued: a record must never be written after its failure was reported."""
        producer, self._producer = self._producer, None
        if producer is not None:
            if patience_seconds:
                producer.flush(patience_seconds)
            producer.purge()
            producer.flush(0)

    def _note_sent(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self._is_losing = False
        else:
            self._note_loss(error.str())

    def _note_loss(self, reason: str) -> None:
        if not self._is_losing:
            _log.warning("a record for Kafka topic %s was lost: %s", self.name, reason)
        self._is_losing = True
