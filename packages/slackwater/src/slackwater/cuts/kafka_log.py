"""The cut log in Kafka."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import timedelta

from confluent_kafka import KafkaException, Message, TopicCollection
from confluent_kafka.admin import AdminClient

from slackwater.cuts.cut_log import LoggedRecord, RecordDecoder, beyond_end, cuts_of, is_no_cut
from slackwater.cuts.errors import CutLogUnavailableError, cuts_gone
from slackwater.kafka.retry import ABSENT_CODES, OUT_OF_RANGE_CODES, code_of
from slackwater.kafka.topic import LogTopic
from slackwater.protocol import Cut, LogRecord, PassDecision, PublishedCut, encode_log_record
from slackwater.protocol.keys import cut_log_topic

_FETCH_WAIT_MS = 1
"""Only available records are read: a fetch that waits for more delays the next request."""
_TOPIC_CONFIG = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}


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
        self._decoder = RecordDecoder(source, self._decisions)
        self._topic = LogTopic(
            cut_log_topic(source),
            {"bootstrap.servers": bootstrap, **(kafka or {})},
            timeout.total_seconds(),
            lambda operation, reason: CutLogUnavailableError(operation, cut_log_topic(source), reason),
            reading={"fetch.wait.max.ms": _FETCH_WAIT_MS, "fetch.message.max.bytes": 4 * 1024 * 1024},
            writing={
                "compression.type": "lz4",
                "enable.idempotence": True,
                "message.max.bytes": 16 * 1024 * 1024,
            },
        )
        self._admin: AdminClient | None = None

    def ensure_topic(self, *, replication_factor: int = -1) -> None:
        """Creates the topic if it does not exist; leaves an existing one unchanged. Prepares to append.

        Args:
            replication_factor: -1 for the broker's default.

        Raises:
            CutLogUnavailableError: Kafka refuses or does not answer.
        """
        self._topic.create(replication_factor, _TOPIC_CONFIG)
        self._topic.reader.expected.add(self._topic.name)
        _ = self._topic.producer  # it requests its id at once, which may take a second

    def append(self, cuts: Sequence[Cut]) -> list[PublishedCut]:
        """See the protocol. The topic must exist: :meth:`ensure_topic`."""
        return [PublishedCut(cut, *place) for cut, place in zip(cuts, self._append(cuts), strict=True)]

    def append_records(self, records: Sequence[LogRecord]) -> list[int]:
        """See the protocol. The topic must exist: :meth:`ensure_topic`."""
        return [offset for offset, _ in self._append(records)]

    def _append(self, records: Sequence[LogRecord]) -> list[tuple[int, int]]:
        """Returns offset and timestamp of each record."""
        return self._topic.write("append", [(None, encode_log_record(record)) for record in records])

    def read_range(self, from_offset: int, to_offset: int) -> list[PublishedCut]:
        """See the protocol."""
        if from_offset >= to_offset:
            return []
        low, high = self._bounds()
        if from_offset < low:
            raise cuts_gone(self._topic.name, from_offset, low)
        if high == 0:  # a broker that has just started may not know the topic yet
            raise CutLogUnavailableError(
                "read",
                self._topic.name,
                f"it is empty or does not exist, but {to_offset} offsets are expected",
            )
        if to_offset > high:
            raise beyond_end(self._topic.name, high, to_offset)
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
        reader = self._topic.reader
        with self._topic.guarded("read"):
            try:
                found = reader.newest(self._topic.place, is_wanted=self._is_cut)
            except KafkaException as error:
                if self._topic.is_absent(error, may_vanish=False):
                    return None
                raise
        if found:
            return cuts_of(self._decoded(found))[0]
        if low := self._bounds()[0]:
            raise cuts_gone(self._topic.name, 0, low)
        return None

    def begin(self) -> int:
        """See the protocol."""
        return self._bounds()[0]

    def end(self) -> int:
        """See the protocol."""
        return self._bounds()[1]

    def identity(self) -> str | None:
        """See the protocol: Kafka's id of the topic."""
        admin = self._admin = self._admin or AdminClient(dict(self._topic.config))

        def describe(seconds: float) -> str | None:
            try:
                asked = admin.describe_topics(TopicCollection([self._topic.name]), request_timeout=seconds)
                return str(asked[self._topic.name].result(seconds).topic_id)
            except KafkaException as error:
                if code_of(error) in ABSENT_CODES:
                    return None
                raise

        return self._topic.asked("description", describe)

    def close(self) -> None:
        """See the protocol."""
        self._topic.close()
        self._admin = None

    def _range_after(self, after_offset: int) -> tuple[int, int]:
        low, high = self._bounds()
        if 0 < high <= after_offset:
            raise beyond_end(self._topic.name, high, after_offset + 1)
        return max(low, after_offset + 1), high

    def _bounds(self) -> tuple[int, int]:
        return self._topic.bounds(may_vanish=False)

    def _read(
        self, from_offset: int, to_offset: int, wanted: Callable[[bytes], bool], limit: int | None = None
    ) -> list[LoggedRecord]:
        result: list[LoggedRecord] = []
        position, span = from_offset, {self._topic.place: (from_offset, to_offset)}
        with self._topic.guarded("read"), closing(self._topic.reader.read(span)) as messages:
            try:
                for message in messages:
                    position = (message.offset() or 0) + 1
                    if wanted(message.value() or b""):
                        result += self._decoded([message])
                    if len(result) == limit:
                        break
            except KafkaException as error:
                if code_of(error) in OUT_OF_RANGE_CODES:
                    raise cuts_gone(self._topic.name, position, self._bounds()[0]) from error
                raise
        return result

    def _decoded(self, messages: Iterable[Message]) -> list[LoggedRecord]:
        found = (self._decoder.decode(m.value(), m.offset() or 0, m.timestamp()[1]) for m in messages)
        return [record for record in found if record is not None]

    def _is_cut(self, message: Message) -> bool:
        return not is_no_cut(message.value() or b"") and bool(cuts_of(self._decoded([message])))

    def _decisions(self, after_offset: int) -> list[PassDecision]:
        """Uses another reader, because this one is still at the damaged record."""
        place = self._topic.place
        with self._topic.guarded("read"), self._topic.new_reader() as reader:
            messages = reader.read({place: (after_offset + 1, reader.bounds(place)[1])})
            found = (self._decoder.decision(m.value(), m.offset() or 0) for m in messages)
            return [decision for decision in found if decision is not None]


def _is_cut(value: bytes) -> bool:
    return not is_no_cut(value)


def _is_anything(_: bytes) -> bool:
    return True
