"""Reads exact ranges of Kafka partitions, with a consumer that a Python worker keeps from task to task."""

import gc
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import NoReturn, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from slackwater.cdc.batch import OffsetSpan
from slackwater.cuts import RecordsGoneError
from slackwater.kafka.retry import (
    ABSENT_CODES,
    OUT_OF_RANGE_CODES,
    KafkaRetry,
    code_of,
    reason_of,
    watermark_offsets,
)
from slackwater.protocol import KafkaSettings, StateError, UnavailableError

Answer = TypeVar("Answer")

_librdkafka_log = logging.getLogger(f"{__name__}.librdkafka")

_CHUNK = 1_000
"""The number of records that are taken at once. More do not fit into a core's cache, and take half as long
again."""
_WAIT_SECONDS = 0.1
"""The maximum duration of one wait for the next record."""
_QUESTION_SECONDS = 10.0
_LONGEST_REQUEST_SECONDS = 5.0
"""The maximum duration of one request for topics, because a run can be stopped between two requests."""
_SUSPICIOUS_SECONDS = 2.0
"""After this time without a record, it is checked whether the partitions exist."""
_FIRST_OFFSETS = 100
"""How many offsets :func:`first_values` reads of a partition; the first ones may be tombstones or markers."""
_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - librdkafka's own codes have no other name
_SETTINGS: Mapping[str, str | int | bool] = {
    "group.id": "slackwater-source",  # never joined: partitions are assigned, offsets are Spark's
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
    "check.crcs": False,
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 2,
    "fetch.message.max.bytes": 1024 * 1024,
    "queued.min.messages": 5_000,
    "queued.max.messages.kbytes": 16 * 1024,
    "topic.metadata.propagation.max.ms": 5_000,
    "max.poll.interval.ms": 86_400_000,
}

_idle: dict[tuple[tuple[str, str], ...], Consumer] = {}
"""Unused consumers of this process, by settings, because a new one costs a connection per broker."""


def existing_topics(
    kafka: KafkaSettings, timeout: timedelta, pause: Callable[[float], None] = time.sleep
) -> frozenset[str]:
    """Returns the names of all topics that a cluster reports.

    It pauses at most five seconds at a time; an error that `pause` raises ends the wait.

    Raises:
        UnavailableError: The cluster does not answer within the time-out.
    """
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({**kafka.client_config})
    return _listed(
        kafka, timeout, pause, lambda seconds: frozenset(admin.list_topics(timeout=seconds).topics)
    )


def first_values(
    kafka: KafkaSettings,
    topics: Collection[str],
    timeout: timedelta,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[bytes]:
    """Yields the values of the first records of each partition of those topics that exist, in any order.

    Raises:
        StateError: A topic is gone. UnavailableError: The cluster does not answer within the time-out.
    """
    for _, values in read_beginnings(kafka, topics, timeout, pause):
        yield from values


def read_beginnings(
    kafka: KafkaSettings,
    topics: Collection[str],
    timeout: timedelta,
    pause: Callable[[float], None] = time.sleep,
    *,
    up_to: Callable[[str, int], int] | None = None,
) -> Iterator[tuple[OffsetSpan, list[bytes]]]:
    """Yields each partition of those topics that exist, then the values of its first records, in portions.

    They are the records below the offset that `up_to` returns for a topic and a partition, if that is given.
    Raises the same errors as :func:`first_values`.
    """
    beginnings = [
        replace(
            span,
            to_offset=min(
                span.to_offset,
                span.from_offset + _FIRST_OFFSETS if up_to is None else up_to(span.topic, span.partition),
            ),
        )
        for span in partition_spans(kafka, topics, timeout, pause)
    ]
    with closing(Consumer({**_SETTINGS, **kafka.client_config}, logger=_librdkafka_log)) as consumer:
        yield from ((span, []) for span in beginnings)
        reader = SpanReader(consumer, timeout_seconds=timeout.total_seconds(), may_start_late=True)
        for span, messages in reader.read(beginnings):
            yield span, list(filter(None, map(Message.value, messages)))


def partition_spans(
    kafka: KafkaSettings,
    topics: Collection[str],
    timeout: timedelta,
    pause: Callable[[float], None] = time.sleep,
) -> list[OffsetSpan]:
    """Returns from where to where each partition of those topics that exist has records.

    Raises:
        UnavailableError: The cluster does not answer within the time-out.
    """

    def spans(seconds: float) -> list[OffsetSpan]:
        known = consumer.list_topics(timeout=seconds).topics
        places = [TopicPartition(t, p) for t in sorted(topics) if t in known for p in known[t].partitions]
        bounds = [watermark_offsets(consumer, place, seconds) for place in places]
        return [
            OffsetSpan(place.topic, place.partition, first, end, number)
            for number, (place, (first, end)) in enumerate(zip(places, bounds, strict=True))
        ]

    with closing(Consumer({**_SETTINGS, **kafka.client_config}, logger=_librdkafka_log)) as consumer:
        return _listed(kafka, timeout, pause, spans)


def _listed(
    kafka: KafkaSettings, timeout: timedelta, pause: Callable[[float], None], ask: Callable[[float], Answer]
) -> Answer:
    retry = KafkaRetry("listing the topics", timeout.total_seconds(), pause=pause)
    try:
        return retry.call(lambda seconds: ask(min(seconds, _LONGEST_REQUEST_SECONDS)))
    except KafkaException as error:
        problem = f"the topics of Kafka at {kafka.bootstrap} could not be listed: {reason_of(error)}"
        raise UnavailableError(problem, "start the pipeline again when the broker is back") from error


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses cyclic collection within the block, for code that creates many objects and no cycles.

    With hundreds of thousands of live objects, the search for cycles takes two thirds of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def kept_consumer(settings: Mapping[str, str]) -> Iterator[Consumer]:
    """Provides a consumer with these settings, and keeps it for the next task unless the block fails."""
    key = tuple(sorted(settings.items()))
    consumer = _idle.pop(key, None) or Consumer({**_SETTINGS, **settings}, logger=_librdkafka_log)
    try:
        yield consumer
        consumer.unassign()
    except BaseException:
        consumer.close()
        raise
    _idle[key] = consumer


class SpanReader:
    """Reads the spans of one task in parallel, with a consumer that nobody else uses in the meantime.

    Kafka may deliver nothing for the time-out, whatever transient errors it reports. On request, it starts at
    the beginning of a partition if the wanted records are gone.
    """

    def __init__(self, consumer: Consumer, *, timeout_seconds: float, may_start_late: bool = False) -> None:
        self._consumer = consumer
        self._timeout = timeout_seconds
        self._may_start_late = may_start_late
        self._open: dict[tuple[str, int], OffsetSpan] = {}
        self._position: dict[tuple[str, int], int] = {}
        self._progress_at, self._is_checked = 0.0, False
        self._waiting: KafkaRetry | None = None
        """The errors since the last record arrived."""

    def read(self, spans: Sequence[OffsetSpan]) -> Iterator[tuple[OffsetSpan, list[Message]]]:
        """Yields every committed record of the spans once; those of a span in order of offsets, in portions.

        It uses positions: offsets without a record (transaction markers, aborted records, compaction) are
        passed, also at the end of a span. Spans must be of different partitions.

        Raises:
            RecordsGoneError: Records are gone.
            StateError: A whole topic or partition is gone.
            UnavailableError: Kafka delivers nothing for the time-out, or reports an error that is not
                transient.
        """
        self._open = {(s.topic, s.partition): s for s in spans if s.size > 0}
        self._position = {key: span.from_offset for key, span in self._open.items()}
        self._assign()
        self._note_progress()
        while self._open:
            if messages := self._next_messages():
                yield from self._sorted(messages)
            silence = time.monotonic() - self._progress_at
            if silence > self._timeout and self._open:
                why = "" if self._waiting is None else f" ({self._waiting.outcome})"
                self._fail(next(iter(self._open)), f"no records arrived for {self._timeout:g} s{why}")
            if silence > _SUSPICIOUS_SECONDS and not self._is_checked:
                self._is_checked = True
                self._check_that_partitions_exist()

    def _assign(self) -> None:
        if self._may_start_late:
            for key in [key for key, span in self._open.items() if span.after_lsn == 0]:
                self._skip_what_is_gone(key)
        starts = [TopicPartition(*key, self._position[key]) for key in self._open]
        try:
            self._consumer.assign(starts)
        except KafkaException as error:
            self._fail(next(iter(self._open)), str(error))

    def _check_that_partitions_exist(self) -> None:
        """Raises if a partition does not exist, because librdkafka silently waits for an assigned one."""
        for key in self._open:
            try:
                topic = self._consumer.list_topics(key[0], _QUESTION_SECONDS).topics[key[0]]
            except KafkaException:
                return
            is_gone = key[1] not in topic.partitions
            if topic.error is not None:  # without a leader, for example: then it may list no partition
                is_gone = topic.error.code() in ABSENT_CODES
            if is_gone:
                raise _no_partition(*key, self._position[key])

    def _skip_what_is_gone(self, key: tuple[str, int]) -> None:
        earliest, _ = self._bounds(key)
        self._position[key] = max(self._position[key], earliest)
        if self._position[key] >= self._open[key].to_offset:
            del self._open[key]

    def _next_messages(self) -> list[Message]:
        """Returns the records that arrived. Waits only for the first; ``consume`` would wait for the last."""
        remaining = sum(span.to_offset - self._position[key] for key, span in self._open.items())
        try:
            messages = self._consumer.consume(min(remaining, _CHUNK), 0)
            if not messages and (first := self._consumer.poll(_WAIT_SECONDS)) is not None:
                messages = [first]
        except KafkaException as error:
            self._fail(next(iter(self._open)), str(error))
        return messages

    def _sorted(self, messages: list[Message]) -> Iterator[tuple[OffsetSpan, list[Message]]]:
        """Yields records by span; closes spans whose end has been seen."""
        if any(map(Message.error, messages)):
            for message in messages:
                self._look_at_error(_place(message), message)
            messages = [message for message in messages if message.error() is None]
        portions: dict[tuple[str, int], list[Message]] = {}
        start = 0
        places = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        for key, run in groupby(places):
            end = start + len(list(run))
            portions.setdefault((key[0] or "", key[1] or 0), []).extend(messages[start:end])
            start = end
        for key, portion in portions.items():
            if (span := self._open.get(key)) is None:
                continue
            last = portion[-1].offset() or 0
            if last >= span.to_offset:
                portion = [m for m in portion if (m.offset() or 0) < span.to_offset]
            self._advance(key, last + 1)
            if portion:
                yield span, portion
                self._note_progress()  # what our reader did meanwhile is not Kafka's silence
        for key in [k for k, s in self._open.items() if self._position[k] >= s.to_offset]:
            self._close(key)

    def _look_at_error(self, key: tuple[str, int], message: Message) -> None:
        """Returns if reading may continue, because librdkafka repeats failed requests itself."""
        error = message.error()
        if error is None:
            return
        if key not in self._open:
            if not key[0]:  # of the connection, not of a partition
                self._retry(key).note(error)
            return
        code = error.code()
        if code == _END:
            self._advance(key, message.offset() or 0)
        elif code in OUT_OF_RANGE_CODES:
            raise _records_gone(*key, self._position[key], *self._bounds(key))
        elif code in ABSENT_CODES:
            self._check_that_partitions_exist()
            self._retry(key).note(error)
        elif self._retry(key).is_transient(error):
            self._retry(key).note(error)
        else:
            self._fail(key, str(error))

    def _retry(self, key: tuple[str, int]) -> KafkaRetry:
        """Returns the retry of the current wait for records."""
        if self._waiting is None:
            self._waiting = KafkaRetry(f"reading {key[0]}/{key[1]}" if key[0] else "reading", self._timeout)
        return self._waiting

    def _note_progress(self) -> None:
        self._progress_at, self._is_checked, self._waiting = time.monotonic(), False, None

    def _advance(self, key: tuple[str, int], position: int) -> None:
        if position > self._position[key]:
            self._position[key] = position
            self._note_progress()

    def _close(self, key: tuple[str, int]) -> None:
        """Stops fetching after the end of a span while others are still being read."""
        del self._open[key]
        if self._open:
            self._consumer.incremental_unassign([TopicPartition(*key)])

    def _bounds(self, key: tuple[str, int]) -> tuple[int, int]:
        retry = KafkaRetry(f"asking where {key[0]}/{key[1]} begins", _QUESTION_SECONDS)
        try:
            return retry.call(partial(watermark_offsets, self._consumer, TopicPartition(*key)))
        except KafkaException as error:
            if code_of(error) in ABSENT_CODES:
                raise _no_partition(*key, self._position[key]) from error
            self._fail(key, str(error))

    def _fail(self, key: tuple[str, int], reason: str) -> NoReturn:
        raise UnavailableError(
            f"topic {key[0]}, partition {key[1]}: reading stopped at offset {self._position[key]} instead of "
            f"{self._open[key].to_offset}: {reason}",
            "check that the brokers are up and that no unfinished Kafka transaction holds back "
            "read_committed readers, then start the query again",
        )


def _place(message: Message) -> tuple[str, int]:
    return message.topic() or "", message.partition() or 0


def _records_gone(topic: str, partition: int, wanted: int, earliest: int, end: int) -> RecordsGoneError:
    where = f"topic {topic}, partition {partition}"
    if wanted > end:
        return RecordsGoneError(
            f"{where} ends at offset {end}, but according to a cut it has records at {wanted}: the topic was "
            "deleted and recreated",
            "start over with the source, the cut log and the checkpoints",
        )
    return RecordsGoneError(
        f"{where}: offset {wanted} is needed, but the topic starts at {earliest}: {earliest - wanted} "
        "offsets are gone (by retention, or deleted by hand)",
        "start again with a new checkpoint, after a new snapshot of the database or with "
        'option("allow_truncated_start", "true")',
    )


def _no_partition(topic: str, partition: int, wanted: int) -> StateError:
    return StateError(
        f"topic {topic} has no partition {partition}, or does not exist, but according to a cut it has "
        f"records (offset {wanted} is needed)",
        "check that the topic was not deleted, and that the sidecar uses the same Kafka",
    )
