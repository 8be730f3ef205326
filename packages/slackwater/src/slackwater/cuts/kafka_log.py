"""The cut log in Kafka."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater.cuts.cut_log import (
    LoggedRecord,
    RecordDecoder,
    beyond_end,
    cuts_of,
    is_no_cut,
    is_pass_decision,
)
from slackwater.cuts.errors import CutLogDamagedError, CutLogTruncatedError, CutLogUnavailableError
from slackwater.kafka.retry import (
    ABSENT_CODES,
    GROUP_REFUSED,
    KafkaRetry,
    create_topics,
    kafka_error,
    reason_of,
    watermark_offsets,
)
from slackwater.protocol import Cut, LogRecord, PassDecision, PublishedCut, encode_log_record
from slackwater.protocol.keys import cut_log_topic

_NEWEST_STEP = 16
"""The offsets that ``newest`` goes back at first; more when none of them holds a record."""
_FETCH_WAIT_MS = 1
"""Only what is there is read: a fetch that waits for more delays the next question."""
_TOPIC_CONFIG = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}

T = TypeVar("T")


class KafkaCutLog:
    """Implements :class:`~slackwater.cuts.cut_log.CutLog`; one topic with one partition per source.

    Args:
        source: The connector's ``topic.prefix``.
        bootstrap: Kafka's ``bootstrap.servers``.
        kafka: Further librdkafka settings, e.g. for security; override the ones chosen here.
        timeout: How long one request may block; errors that pass are waited for so long.
    """

    def __init__(
        self,
        source: str,
        bootstrap: str,
        *,
        kafka: Mapping[str, str] | None = None,
        timeout: timedelta = timedelta(seconds=30),
    ) -> None:
        self._topic = cut_log_topic(source)
        self._decoder = RecordDecoder(source)
        self._config: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap, **(kafka or {})}
        self._timeout = timeout.total_seconds()
        self._admin: AdminClient | None = None
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._exists = False

    def ensure_topic(self, *, replication_factor: int = -1) -> None:
        """Creates the topic when it does not exist; leaves an existing one as it is. Prepares to append.

        Args:
            replication_factor: -1: the broker's default.

        Raises:
            CutLogUnavailableError: Kafka refuses or does not answer.
        """
        admin = AdminClient(self._config)
        topic = NewTopic(self._topic, 1, replication_factor, config=_TOPIC_CONFIG)

        self._asked("creation", functools.partial(create_topics, admin, [topic]))
        self._exists = True
        self._writer()  # a producer begins to ask for its id at once, which may take a second

    def append(self, cuts: Sequence[Cut]) -> list[PublishedCut]:
        """See the protocol. The topic must exist: :meth:`ensure_topic`."""
        return [PublishedCut(cut, *place) for cut, place in zip(cuts, self._append(cuts), strict=True)]

    def append_records(self, records: Sequence[LogRecord]) -> list[int]:
        """See the protocol. The topic must exist: :meth:`ensure_topic`."""
        return [offset for offset, _ in self._append(records)]

    def _append(self, records: Sequence[LogRecord]) -> list[tuple[int, int]]:
        """Returns offset and timestamp of each."""
        producer = self._writer()
        offsets: dict[int, tuple[int, int]] = {}
        failures: list[str] = []

        def acknowledged(index: int, error: KafkaError | None, message: Message) -> None:
            if error is None:
                offsets[index] = message.offset() or 0, max(0, message.timestamp()[1])
            else:
                failures.append(str(error))

        for index, record in enumerate(records):
            delivered = functools.partial(acknowledged, index)
            with self._guarded("append"):
                producer.produce(self._topic, encode_log_record(record), partition=0, on_delivery=delivered)
        producer.flush(self._timeout)
        if failures or len(offsets) < len(records):
            reason = failures[0] if failures else f"no acknowledgement within {self._timeout:g} s"
            self._discard_writer()
            raise CutLogUnavailableError("append", self._topic, reason)
        return [offsets[index] for index in range(len(records))]

    def read_range(self, from_offset: int, to_offset: int) -> list[PublishedCut]:
        """See the protocol."""
        if from_offset >= to_offset:
            return []
        low, high = self._bounds()
        if from_offset < low:
            raise CutLogTruncatedError(self._topic, from_offset, low)
        if high == 0:  # a broker that has just started may not know the topic yet
            raise CutLogUnavailableError(
                "read", self._topic, f"it is empty or does not exist, but {to_offset} offsets are expected"
            )
        if to_offset > high:
            raise beyond_end(self._topic, high, to_offset)
        return cuts_of(self._read(from_offset, to_offset, _is_cut))

    def tail(self, after_offset: int, *, limit: int | None = None) -> list[PublishedCut]:
        """See the protocol."""
        return cuts_of(self._read(*self._range_after(after_offset), _is_cut, limit))

    def records(
        self, after_offset: int, *, limit: int | None = None, with_cuts: bool = True
    ) -> list[LoggedRecord]:
        """See the protocol."""
        wanted = _is_anything if with_cuts else is_no_cut
        return self._read(*self._range_after(after_offset), wanted, limit)

    def newest(self) -> PublishedCut | None:
        """See the protocol."""
        low, high = self._bounds()
        step = _NEWEST_STEP
        while high > low:
            found = self._read(max(low, high - step), high, _is_cut)
            if found:
                return cuts_of(found)[-1]
            high, step = max(low, high - step), step * 8
        if low > 0:
            raise CutLogTruncatedError(self._topic, 0, low)
        return None

    def begin(self) -> int:
        """See the protocol."""
        return self._bounds()[0]

    def end(self) -> int:
        """See the protocol."""
        return self._bounds()[1]

    def identity(self) -> str | None:
        """See the protocol: Kafka's id of the topic."""
        admin = self._admin = self._admin or AdminClient(self._config)

        def describe(seconds: float) -> str | None:
            try:
                asked = admin.describe_topics(TopicCollection([self._topic]), request_timeout=seconds)
                return str(asked[self._topic].result(seconds).topic_id)
            except KafkaException as error:
                if _code(error) in ABSENT_CODES:
                    return None
                raise

        return self._asked("description", describe)

    def close(self) -> None:
        """See the protocol."""
        self._discard_writer()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._admin = None

    def _writer(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    "linger.ms": 0,
                    "compression.type": "lz4",
                    "enable.idempotence": True,
                    "message.timeout.ms": int(self._timeout * 1000),
                    "message.max.bytes": 16 * 1024 * 1024,
                    **self._config,
                }
            )
        return self._producer

    def _discard_writer(self) -> None:
        """Drops what is queued: a cut must never be written after its append was reported as failed."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(0)
            self._producer = None

    def _reader(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(
                {
                    "group.id": f"{self._topic}.readers",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                    "isolation.level": "read_committed",
                    "fetch.wait.max.ms": _FETCH_WAIT_MS,
                    "fetch.message.max.bytes": 4 * 1024 * 1024,
                    "enable.partition.eof": True,
                    "allow.auto.create.topics": False,
                    **self._config,
                }
            )
        return self._consumer

    def _range_after(self, after_offset: int) -> tuple[int, int]:
        low, high = self._bounds()
        if 0 < high <= after_offset:
            raise beyond_end(self._topic, high, after_offset + 1)
        return max(low, after_offset + 1), high

    def _bounds(self) -> tuple[int, int]:
        """First readable and end offset; (0, 0) when the topic does not exist.

        One that was seen is waited for: a broker that has just made it, or has just started, may deny it.
        """
        consumer = self._reader()

        def bounds(seconds: float) -> tuple[int, int]:
            try:
                found = watermark_offsets(consumer, TopicPartition(self._topic, 0), seconds)
            except KafkaException as error:
                if _code(error) in ABSENT_CODES and not self._exists:
                    return 0, 0
                raise
            self._exists = True
            return found

        return self._asked("read", bounds)

    def _read(
        self, from_offset: int, to_offset: int, wanted: Callable[[bytes], bool], limit: int | None = None
    ) -> list[LoggedRecord]:
        """Goes by position, since offsets may have gaps."""
        try:
            return self._read_decoded(from_offset, to_offset, wanted, limit)
        except CutLogDamagedError as error:
            decided = self._read_decoded(error.log_offset + 1, self._bounds()[1], is_pass_decision, None)
            passed = {r.record.log_offset for r in decided if isinstance(r.record, PassDecision)}
            if error.log_offset not in passed:
                raise
            self._decoder.passed |= passed
            return self._read(from_offset, to_offset, wanted, limit)

    def _read_decoded(
        self, from_offset: int, to_offset: int, wanted: Callable[[bytes], bool], limit: int | None
    ) -> list[LoggedRecord]:
        result = list[LoggedRecord]()
        if from_offset >= to_offset:
            return result
        consumer, retry = self._reader(), self._retry("read")
        position = from_offset
        with self._guarded("read"):
            consumer.assign([TopicPartition(self._topic, 0, from_offset)])
        try:
            while position < to_offset and (limit is None or len(result) < limit):
                if retry.is_over:
                    reason = f"at offset {position} of {to_offset}, {retry.outcome}"
                    raise CutLogUnavailableError("read", self._topic, reason)
                most = min(to_offset - position, to_offset if limit is None else limit - len(result))
                for message in self._consume(consumer, position, most, retry):
                    offset, value = message.offset() or 0, message.value() or b""
                    position = max(position, offset if message.error() else offset + 1)
                    if message.error() is None and offset < to_offset and wanted(value):
                        record = self._decoder.decode(value, offset, message.timestamp()[1])
                        result += [record] if record else []
        finally:
            consumer.unassign()
        return result[:limit]

    def _consume(self, consumer: Consumer, position: int, most: int, retry: KafkaRetry) -> list[Message]:
        """Records, and the end of the partition as a message with that error.

        No more are asked for than there can be: waiting for more would take the whole time-out.
        """
        with self._guarded("read"):
            messages = consumer.consume(min(1000, most), 0.05)
        read = []
        for message in messages:
            error = message.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                read.append(message)
            else:
                self._raise_unless_transient(error, position, retry)
        return read

    def _raise_unless_transient(self, error: KafkaError, position: int, retry: KafkaRetry) -> None:
        """Raises an error that the consumer, which goes on by itself, will not get over."""
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):  # noqa: SLF001
            raise CutLogTruncatedError(self._topic, position, self._bounds()[0])
        if error.code() == GROUP_REFUSED:
            return
        if not retry.is_transient(error):
            raise CutLogUnavailableError("read", self._topic, str(error))
        retry.note(error)

    def _retry(self, operation: str) -> KafkaRetry:
        return KafkaRetry(
            f"{operation} of {self._topic}", self._timeout, also=ABSENT_CODES if self._exists else ()
        )

    def _asked(self, operation: str, request: Callable[[float], T]) -> T:
        with self._guarded(operation):
            return self._retry(operation).call(request)

    @contextmanager
    def _guarded(self, operation: str) -> Iterator[None]:
        try:
            yield
        except (KafkaException, BufferError) as error:
            reason = f"Kafka at {self._config['bootstrap.servers']}: {reason_of(error)}"
            raise CutLogUnavailableError(operation, self._topic, reason) from error


def _is_cut(value: bytes) -> bool:
    return not is_no_cut(value)


def _is_anything(_: bytes) -> bool:
    return True


def _code(error: KafkaException) -> int | None:
    found = kafka_error(error)
    return None if found is None else found.code()
