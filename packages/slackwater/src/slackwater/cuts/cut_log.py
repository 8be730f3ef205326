"""The cut log: every cut of a source, in order, permanently, and the decisions of operators."""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from confluent_kafka import KafkaException, Message, TopicCollection
from confluent_kafka.admin import AdminClient

from slackwater.cuts.errors import CutLogDamagedError, CutLogReplacedError, cuts_gone
from slackwater.kafka.retry import ABSENT_CODES, OUT_OF_RANGE_CODES, code_of
from slackwater.kafka.topic import LogTopic, TopicUnavailableError
from slackwater.protocol import (
    Cut,
    KafkaSettings,
    LogRecord,
    MalformedRecordError,
    PassDecision,
    PublishedCut,
    decode_log_record,
    encode_log_record,
)
from slackwater.protocol.keys import cut_log_topic

logger = logging.getLogger(__name__)

_BEGIN = b'{"v":'
_OTHER_KIND = re.compile(rb'\{"v":\d+,"kind":"(?!cut")')
_PASS = re.compile(rb'\{"v":\d+,"kind":"pass"')
_FETCH_WAIT_MS = 1
"""Only available records are read: a fetch that waits for more delays the next request."""
_ALL: Final = frozenset((True, False))
_CUTS: Final = frozenset((True,))
_OTHERS: Final = frozenset((False,))
_TOPIC_CONFIG = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A record with its position in the cut log."""

    record: LogRecord
    log_offset: int
    written_ms: int = field(default=0, compare=False)
    """Its timestamp, milliseconds since the epoch; 0 if unknown."""


def cuts_of(records: Sequence[LoggedRecord]) -> list[PublishedCut]:
    """Returns the cuts among records."""
    return [PublishedCut(r.record, r.log_offset, r.written_ms) for r in records if isinstance(r.record, Cut)]


class RecordDecoder:
    """Decodes the records of one log.

    Records that do not begin like ours (including tombstones), or are of another source, were written by
    something else: they are skipped and logged once. One that begins like ours and cannot be read may be a
    cut or a decision that others rely on: nothing is read past it until an operator has decided so.

    Args:
        decisions: Returns the operators' decisions that are written after an offset; called only for a
            damaged record.
    """

    def __init__(self, source: str, decisions: Callable[[int], Iterable[PassDecision]]) -> None:
        self._source = source
        self._decisions = decisions
        self._topic = cut_log_topic(source)
        self._told_up_to = -1
        self._passed: set[int] = set()
        """Offsets of damaged records that operators let pass, as far as they were read."""

    def decode(self, value: bytes | None, log_offset: int, written_ms: int = 0) -> LoggedRecord | None:
        """Returns a record; None if it is skipped.

        Raises:
            CutLogDamagedError: It cannot be read. slackwater.protocol.InputError: A newer
                version wrote it.
        """
        if value is None or not value.startswith(_BEGIN):
            self._log_passed(log_offset, "it is not a record of Slackwater")
            return None
        try:
            record = decode_log_record(value)
        except MalformedRecordError as error:
            if log_offset not in self._passed:
                self._passed.update(each.log_offset for each in self._decisions(log_offset))
            if log_offset in self._passed:
                self._log_passed(log_offset, "it is damaged, and an operator decided to skip it")
                return None
            raise CutLogDamagedError(self._topic, log_offset, error.reason) from error
        if record.source != self._source:
            self._log_passed(log_offset, f"it belongs to source {record.source!r}")
            return None
        return LoggedRecord(record, log_offset, written_ms)

    def decision(self, value: bytes | None, log_offset: int) -> PassDecision | None:
        """Returns a record that lets a damaged one pass; None for any other record, which is not decoded.

        Raises like :meth:`decode`.
        """
        logged = self.decode(value, log_offset) if value is not None and _PASS.match(value) else None
        return logged.record if logged is not None and isinstance(logged.record, PassDecision) else None

    def _log_passed(self, log_offset: int, reason: str) -> None:
        if log_offset > self._told_up_to:
            self._told_up_to = log_offset
            logger.warning(
                "skipping the record at offset %d of %s: %s",
                log_offset,
                self._topic,
                reason,
                extra={"source": self._source},
            )


def may_be_cut(value: bytes | None) -> bool:
    """Returns whether the first bytes of a record are not of another kind of ours; a cut may be large."""
    return _OTHER_KIND.match(value or b"") is None


class CutLog:
    """The durable record of cuts; one partition, offsets rise with each record and may have gaps.

    Besides cuts it contains markers of partitions ahead of the frontier, refusals, and decisions of
    operators. Methods that return cuts skip everything else, and all skip records that are not Slackwater's,
    see :class:`RecordDecoder`.

    Several sidecars may append, so cuts may be repeated and interleave. All methods block, for at most the
    log's time-out, and raise only :class:`~slackwater.kafka.topic.TopicUnavailableError`, the errors of
    :mod:`slackwater.cuts.errors` and protocol errors. Not thread-safe.

    Args:
        source: The connector's ``topic.prefix``.
        kafka: The cluster; its options override the settings chosen here.
        timeout: How long to wait for an answer, including transient errors.
    """

    def __init__(
        self, source: str, kafka: KafkaSettings, *, timeout: timedelta = timedelta(seconds=30)
    ) -> None:
        self._decoder = RecordDecoder(source, self._decisions)
        self._name = cut_log_topic(source)
        self._topic = LogTopic(
            self._name,
            kafka.client_config,
            timeout.total_seconds(),
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
            TopicUnavailableError: Kafka refuses or does not answer.
        """
        self._topic.create(replication_factor, _TOPIC_CONFIG)
        self._topic.reader.expected.add(self._name)
        _ = self._topic.producer  # it requests its id at once, which may take a second

    def append(self, cuts: Sequence[Cut]) -> list[PublishedCut]:
        """Writes cuts and returns when all of them are acknowledged, with their offsets.

        If it raises, any prefix of the cuts may have been written. The topic must exist.
        """
        return [PublishedCut(cut, *place) for cut, place in zip(cuts, self._append(cuts), strict=True)]

    def append_records(self, records: Sequence[LogRecord]) -> list[int]:
        """Writes records of any kind; returns their offsets when all are acknowledged.

        If it raises, any prefix of the records may have been written. The topic must exist.
        """
        return [offset for offset, _ in self._append(records)]

    def read_range(self, from_offset: int, to_offset: int) -> list[PublishedCut]:
        """Returns the cuts at offsets in ``[from_offset, to_offset)``, ascending.

        Raises:
            RecordsGoneError: The log starts above ``from_offset``. CutLogReplacedError: The log ends
                below ``to_offset``.
        """
        if from_offset >= to_offset:
            return []
        low, high = self._bounds()
        if from_offset < low:
            raise cuts_gone(self._name, from_offset, low)
        if high == 0:  # a broker that has just started may not know the topic yet
            reason = f"it is empty or does not exist, but {to_offset} offsets are expected"
            raise TopicUnavailableError("read", self._name, reason)
        if to_offset > high:
            raise _beyond_end(self._name, high, to_offset)
        return cuts_of(self._read(from_offset, to_offset, _CUTS))

    def tail(self, after_offset: int, *, limit: int | None = None) -> list[PublishedCut]:
        """Returns the cuts that were readable above ``after_offset`` at the time of the call, ascending.

        Args:
            after_offset: Exclusive; -1 for everything. A log that starts above it is read from its start.
            limit: The most cuts to return, the oldest.

        Raises:
            CutLogReplacedError: The log ends at or below ``after_offset``, at which there was a record. A log
                that is empty, or briefly missing, is not evidence: :meth:`identity` is.
        """
        return cuts_of(self._read(*self._range_after(after_offset), _CUTS, limit))

    def records(
        self, after_offset: int, *, limit: int | None = None, with_cuts: bool = True
    ) -> list[LoggedRecord]:
        """Returns all that was readable above ``after_offset`` at the time of the call, ascending.

        Args:
            after_offset: As for :meth:`tail`, and it raises the same.
            limit: The most records to return, the oldest.
            with_cuts: False to skip cuts without decoding them.
        """
        wanted = _ALL if with_cuts else _OTHERS
        return self._read(*self._range_after(after_offset), wanted, limit)

    def newest(self) -> PublishedCut | None:
        """Returns the last cut in the log; None if it has none or does not exist.

        Raises:
            RecordsGoneError: It has none any more, since its records were deleted.
        """
        found = self._newest()
        if found is None and (low := self.begin()):
            raise cuts_gone(self._name, 0, low)
        return found

    def begin(self) -> int:
        """Returns the first offset that the log still has, or had; 0 unless records were deleted."""
        return self._bounds()[0]

    def end(self) -> int:
        """Returns a lower bound of the next record's offset; 0 if the log does not exist."""
        return self._bounds()[1]

    def identity(self) -> str | None:
        """Returns an id that differs for every other log, even one of the same name, recreated or elsewhere.

        It is Kafka's id of the topic; None if the log does not exist.
        """
        admin = self._admin = self._admin or AdminClient(dict(self._topic.config))

        def describe(seconds: float) -> str | None:
            try:
                asked = admin.describe_topics(TopicCollection([self._name]), request_timeout=seconds)
                return str(asked[self._name].result(seconds).topic_id)
            except KafkaException as error:
                if code_of(error) in ABSENT_CODES:
                    return None
                raise

        return self._topic.asked("description", describe)

    def close(self) -> None:
        """Frees connections. The log must not be used afterwards."""
        self._topic.close()
        self._admin = None

    def _range_after(self, after_offset: int) -> tuple[int, int]:
        low, high = self._bounds()
        if 0 < high <= after_offset:
            raise _beyond_end(self._name, high, after_offset + 1)
        return max(low, after_offset + 1), high

    def _append(self, records: Sequence[LogRecord]) -> list[tuple[int, int]]:
        """Returns offset and timestamp of each record."""
        return self._topic.write("append", [(None, encode_log_record(record)) for record in records])

    def _bounds(self) -> tuple[int, int]:
        return self._topic.bounds(may_vanish=False)

    def _newest(self) -> PublishedCut | None:
        with self._topic.guarded("read"):
            try:
                found = self._topic.reader.newest(self._topic.place, is_wanted=self._is_cut)
            except KafkaException as error:
                if self._topic.is_absent(error, may_vanish=False):
                    return None
                raise
        return cuts_of(self._decoded(found))[0] if found else None

    def _read(
        self, from_offset: int, to_offset: int, wanted: frozenset[bool], limit: int | None = None
    ) -> list[LoggedRecord]:
        """Returns records; `wanted` contains True if cuts are, and False if others are."""
        result: list[LoggedRecord] = []
        position, span = from_offset, {self._topic.place: (from_offset, to_offset)}
        with self._topic.guarded("read"), closing(self._topic.reader.read(span)) as messages:
            try:
                for message in messages:
                    position = (message.offset() or 0) + 1
                    if may_be_cut(message.value()) in wanted:
                        result += self._decoded([message])
                    if len(result) == limit:
                        break
            except KafkaException as error:
                if code_of(error) in OUT_OF_RANGE_CODES:
                    raise cuts_gone(self._name, position, self._bounds()[0]) from error
                raise
        return result

    def _decoded(self, messages: Iterable[Message]) -> list[LoggedRecord]:
        found = (self._decoder.decode(m.value(), m.offset() or 0, m.timestamp()[1]) for m in messages)
        return [record for record in found if record is not None]

    def _is_cut(self, message: Message) -> bool:
        return may_be_cut(message.value()) and bool(cuts_of(self._decoded([message])))

    def _decisions(self, after_offset: int) -> list[PassDecision]:
        """Uses another reader, because this one is still at the damaged record."""
        place = self._topic.place
        with self._topic.guarded("read"), self._topic.new_reader() as reader:
            messages = reader.read({place: (after_offset + 1, reader.bounds(place)[1])})
            found = (self._decoder.decision(m.value(), m.offset() or 0) for m in messages)
            return [decision for decision in found if decision is not None]


def _beyond_end(topic: str, end: int, read_to: int) -> CutLogReplacedError:
    return CutLogReplacedError(topic, f"it ends at offset {end}, but was read up to {read_to}")
