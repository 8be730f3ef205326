"""The cut log in Kafka."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater.cuts.cut_log import LoggedRecord, RecordDecoder, beyond_end, cuts_of, is_no_cut
from slackwater.cuts.errors import WITHOUT_OFFSET, CutLogUnavailableError, cuts_gone
from slackwater.kafka.reader import Place, TopicReader
from slackwater.kafka.retry import (
    ABSENT_CODES,
    OUT_OF_RANGE_CODES,
    KafkaRetry,
    code_of,
    create_topics,
    reason_of,
)
from slackwater.protocol import Cut, LogRecord, PassDecision, PublishedCut, encode_log_record
from slackwater.protocol.keys import cut_log_topic

_FETCH_WAIT_MS = 1
"""Only available records are read: a fetch that waits for more delays the next request."""
_TOPIC_CONFIG = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}

T = TypeVar("T")


class KafkaCutLog:
    """Implements :class:`~slackwater.cuts.cut_log.CutLog`; one topic with one partition per source.

    Args:
        source: The connector's ``topic.prefix``.
        bootstrap: Kafka's ``bootstrap.servers``.
        kafka: Further librdkafka settings, e.g. for security; override the ones chosen here.
        timeout: How long to wait for an answer, including transient errors.
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
        self._place: Place = self._topic, 0
        self._decoder = RecordDecoder(source, self._decisions)
        self._config: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap, **(kafka or {})}
        self._timeout = timeout.total_seconds()
        self._admin: AdminClient | None = None
        self._producer: Producer | None = None
        self._reader: TopicReader | None = None

    def ensure_topic(self, *, replication_factor: int = -1) -> None:
        """Creates the topic if it does not exist; leaves an existing one unchanged. Prepares to append.

        Args:
            replication_factor: -1 for the broker's default.

        Raises:
            CutLogUnavailableError: Kafka refuses or does not answer.
        """
        admin = AdminClient(self._config)
        topic = NewTopic(self._topic, 1, replication_factor, config=_TOPIC_CONFIG)

        self._asked("creation", functools.partial(create_topics, admin, [topic]))
        self._opened().expected.add(self._topic)
        self._writer()  # a producer requests its id at once, which may take a second

    def append(self, cuts: Sequence[Cut]) -> list[PublishedCut]:
        """See the protocol. The topic must exist: :meth:`ensure_topic`."""
        return [PublishedCut(cut, *place) for cut, place in zip(cuts, self._append(cuts), strict=True)]

    def append_records(self, records: Sequence[LogRecord]) -> list[int]:
        """See the protocol. The topic must exist: :meth:`ensure_topic`."""
        return [offset for offset, _ in self._append(records)]

    def _append(self, records: Sequence[LogRecord]) -> list[tuple[int, int]]:
        """Returns offset and timestamp of each record."""
        producer = self._writer()
        offsets: dict[int, tuple[int, int]] = {}
        failures: list[str] = []

        def acknowledged(index: int, error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None:
                offsets[index] = offset, max(0, message.timestamp()[1])
            else:
                failures.append(WITHOUT_OFFSET if error is None else str(error))

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
            raise cuts_gone(self._topic, from_offset, low)
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
        reader = self._opened()
        with self._guarded("read"):
            try:
                found = reader.newest(self._place, is_wanted=self._is_cut)
            except KafkaException as error:
                if self._is_absent(error):
                    return None
                raise
        if found:
            return cuts_of(self._decoded(found))[0]
        if low := self._bounds()[0]:
            raise cuts_gone(self._topic, 0, low)
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
                if code_of(error) in ABSENT_CODES:
                    return None
                raise

        return self._asked("description", describe)

    def close(self) -> None:
        """See the protocol."""
        self._discard_writer()
        if self._reader is not None:
            self._reader.close()
            self._reader = None
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

    def _opened(self) -> TopicReader:
        if self._reader is None:
            self._reader = self._new_reader()
        return self._reader

    def _new_reader(self) -> TopicReader:
        settings = {"fetch.wait.max.ms": _FETCH_WAIT_MS, "fetch.message.max.bytes": 4 * 1024 * 1024}
        return TopicReader({**settings, **self._config}, self._timeout)

    def _range_after(self, after_offset: int) -> tuple[int, int]:
        low, high = self._bounds()
        if 0 < high <= after_offset:
            raise beyond_end(self._topic, high, after_offset + 1)
        return max(low, after_offset + 1), high

    def _bounds(self) -> tuple[int, int]:
        """Returns the first readable and the end offset; (0, 0) if the topic does not exist.

        A topic that was seen is waited for: a broker that has just created it or just started may deny it.
        """
        reader = self._opened()
        with self._guarded("read"):
            try:
                return reader.bounds(self._place)
            except KafkaException as error:
                if self._is_absent(error):
                    return 0, 0
                raise

    def _is_absent(self, error: KafkaException) -> bool:
        return code_of(error) in ABSENT_CODES and self._topic not in self._opened().expected

    def _read(
        self, from_offset: int, to_offset: int, wanted: Callable[[bytes], bool], limit: int | None = None
    ) -> list[LoggedRecord]:
        result: list[LoggedRecord] = []
        position, span = from_offset, {self._place: (from_offset, to_offset)}
        with self._guarded("read"), closing(self._opened().read(span)) as messages:
            try:
                for message in messages:
                    position = (message.offset() or 0) + 1
                    if wanted(message.value() or b""):
                        result += self._decoded([message])
                    if len(result) == limit:
                        break
            except KafkaException as error:
                if code_of(error) in OUT_OF_RANGE_CODES:
                    raise cuts_gone(self._topic, position, self._bounds()[0]) from error
                raise
        return result

    def _decoded(self, messages: Iterable[Message]) -> list[LoggedRecord]:
        found = (self._decoder.decode(m.value(), m.offset() or 0, m.timestamp()[1]) for m in messages)
        return [record for record in found if record is not None]

    def _is_cut(self, message: Message) -> bool:
        return not is_no_cut(message.value() or b"") and bool(cuts_of(self._decoded([message])))

    def _decisions(self, after_offset: int) -> list[PassDecision]:
        """Uses another reader, because this one is still at the damaged record."""
        with self._guarded("read"), self._new_reader() as reader:
            messages = reader.read({self._place: (after_offset + 1, reader.bounds(self._place)[1])})
            found = (self._decoder.decision(m.value(), m.offset() or 0) for m in messages)
            return [decision for decision in found if decision is not None]

    def _asked(self, operation: str, request: Callable[[float], T]) -> T:
        with self._guarded(operation):
            return KafkaRetry(f"{operation} of {self._topic}", self._timeout).call(request)

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
