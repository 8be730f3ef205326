"""The topics in which runs and readers publish state to the whole cluster: of pipelines, and of leases.

Each is compacted and has one partition. Records of others, or of a newer version, are skipped and logged.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import ClassVar, Generic, TypeVar

from confluent_kafka import KafkaException, Message

from slackwater.kafka.retry import ABSENT_CODES, OUT_OF_RANGE_CODES, code_of
from slackwater.kafka.topic import LogTopic
from slackwater.protocol import (
    InputError,
    KafkaSettings,
    LeaseRecord,
    PipelineEntry,
    PipelineRegistration,
    PipelineReport,
    decode_lease_record,
    decode_pipeline_record,
    encode_lease_record,
    encode_pipeline_record,
    lease_record_key,
    pipeline_record_key,
)
from slackwater.protocol.keys import LEASES_TOPIC, PIPELINES_TOPIC, registration_key, report_key

_log = logging.getLogger(__name__)

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

Entry = TypeVar("Entry")
Record = TypeVar("Record")


class CompactedTopic(ABC, Generic[Entry]):
    """Reads the newest record of each key of a topic, and writes records.

    Methods raise only :class:`~slackwater.kafka.topic.TopicUnavailableError`, and wait at most for the
    time-out while Kafka is silent. Not thread-safe, except for :meth:`send`.

    Args:
        kafka: The cluster; its options override the settings chosen here.
        timeout: How long to wait for an answer, including transient errors.
        replication_factor: Used if the topic has to be created; -1 for the broker's default.
    """

    topic: ClassVar[str]

    def __init__(
        self,
        kafka: KafkaSettings,
        *,
        timeout: timedelta = timedelta(seconds=5),
        replication_factor: int = -1,
    ) -> None:
        self._replication_factor = replication_factor
        self._topic = LogTopic(
            self.topic,
            kafka.client_config,
            timeout.total_seconds(),
            reading={"fetch.wait.max.ms": 1},
            writing={
                # These records are signs of life, and their absence means death.
                "reconnect.backoff.max.ms": 1_000,
                # A record that is sent again must not follow a newer one.
                "max.in.flight.requests.per.connection": 1,
            },
        )
        self._entries: dict[bytes, Entry] = {}
        self._position = 0

    @abstractmethod
    def _entry(self, value: bytes, offset: int, written_ms: int, key: bytes) -> Entry | None:
        """Returns the entry of a record; None if the record is not Slackwater's."""

    def ensure(self) -> None:
        """Creates the topic if it does not exist, and prepares to write."""
        name, producer = self._topic.name, self._topic.producer

        def exists(seconds: float) -> bool:
            found = producer.list_topics(name, seconds).topics[name]
            if found.error is not None and found.error.code() not in ABSENT_CODES:
                raise KafkaException(found.error)
            return found.error is None

        if not self._topic.asked("look-up", exists):
            self._topic.create(self._replication_factor, _TOPIC_CONFIG)

    def read(self) -> list[Entry]:
        """Returns the entries that are readable now, oldest first; none if there is no topic.

        A second call reads only what is new.
        """
        self._read_to(0)
        return list(self._entries.values())

    def put(self, operation: str, values: Mapping[bytes, bytes | None]) -> int:
        """Writes records by key and returns the largest offset when all are acknowledged; None removes a key.

        :meth:`read` returns them afterwards.
        """
        offset = max(offset for offset, _ in self._topic.write(operation, [*values.items()]))
        self._read_to(offset + 1)
        return offset

    def send(self, key: bytes, value: bytes) -> None:
        """Queues a record to be written soon, without waiting; never raises.

        A record that cannot be written is lost. The first failure is logged, and so is the first success
        after it. May be called by one other thread.
        """
        self._topic.send(key, value)

    def close(self) -> None:
        """Waits two seconds at most for queued reports to be written, then frees connections."""
        self._topic.close(_CLOSING_SECONDS)

    def _read_to(self, least_end: int) -> None:
        """Reads new records up to the present end; waits for the end while it is below `least_end`."""
        low, high = self._topic.bounds(may_vanish=True)
        if high < self._position:  # the topic was recreated
            self._entries.clear()
            self._position = 0
        end, newest = max(high, least_end), dict[bytes, Message]()
        with self._topic.guarded("read"):
            try:
                for message in self._topic.reader.read({self._topic.place: (max(self._position, low), end)}):
                    newest.pop(key := message.key() or b"", None)  # the order is that of the newest records
                    newest[key] = message
            except KafkaException as error:
                if code_of(error) not in OUT_OF_RANGE_CODES or self._topic.bounds(may_vanish=True)[0] <= low:
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
            entry = self._entry(value, message.offset() or 0, message.timestamp()[1], key)
            if entry is not None:
                self._entries[key] = entry


class PipelineLog(CompactedTopic[PipelineEntry]):
    """The registration and the newest report of each run of each pipeline. Written by runs, read by all."""

    topic = PIPELINES_TOPIC

    def register(self, registration: PipelineRegistration) -> int:
        """Writes a registration, which :meth:`read` then returns; returns its acknowledged offset."""
        record = {pipeline_record_key(registration): encode_pipeline_record(registration)}
        return self.put("registration", record)

    def report(self, report: PipelineReport) -> None:
        """Queues a report to be written soon, like :meth:`send`."""
        self.send(pipeline_record_key(report), encode_pipeline_record(report))

    def forget(self, pipeline: str, run: str) -> None:
        """Removes registration and report of a run; returns when that is acknowledged."""
        keys = registration_key(pipeline, run), report_key(pipeline, run)
        self.put("removal", {key.encode(): None for key in keys})

    def _entry(self, value: bytes, offset: int, written_ms: int, key: bytes) -> PipelineEntry | None:
        return decoded_entry(value, offset, written_ms, key)


class LeaseLog(CompactedTopic[LeaseRecord]):
    """The leases of a cluster's readers and the holds of its pipelines. Written by both, read by all."""

    topic = LEASES_TOPIC

    def write(self, *records: LeaseRecord) -> None:
        """Writes records, each replacing an earlier one of its key; returns when they are acknowledged."""
        if records:
            self.put("write", {lease_record_key(each): encode_lease_record(each) for each in records})

    def remove(self, records: Iterable[LeaseRecord]) -> None:
        """Removes records; returns when that is acknowledged."""
        if keys := [lease_record_key(each) for each in records]:
            self.put("removal", dict.fromkeys(keys))

    def _entry(self, value: bytes, offset: int, written_ms: int, key: bytes) -> LeaseRecord | None:
        return _own_record(LEASES_TOPIC, decode_lease_record, lease_record_key, value, offset, key)


def decoded_entry(value: bytes, offset: int, written_ms: int, key: bytes) -> PipelineEntry | None:
    """Returns a record of a run with its place; None, after logging it, if it is not ours."""
    record = _own_record(PIPELINES_TOPIC, decode_pipeline_record, pipeline_record_key, value, offset, key)
    return None if record is None else PipelineEntry(record, offset, written_ms)


def _own_record(
    topic: str,
    decode: Callable[[bytes], Record],
    key_of: Callable[[Record], bytes],
    value: bytes,
    offset: int,
    key: bytes,
) -> Record | None:
    try:
        record = decode(value)
    except InputError as error:
        reason = str(error)
    else:
        if key_of(record) == key:
            return record
        reason = f"unknown key {key!r}"
    _log.warning("skipping the record at offset %d of %s: %s", offset, topic, reason)
    return None
