"""Reads a pipeline's topics: the newest progress and commit records, and records of other writers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from slackwater.kafka.retry import GROUP_REFUSED
from slackwater.outputs.batch import visible_progress
from slackwater.outputs.kafka.answers import until_answered
from slackwater.outputs.kafka.settings import KafkaSinkSettings
from slackwater.protocol import (
    CommitRecord,
    ProgressRecord,
    SystemClock,
    decode_commit_record,
    decode_progress_record,
)

_FIRST_LOOK_BACK = 16
_END_OF_PARTITION = KafkaError._PARTITION_EOF  # noqa: SLF001 - librdkafka's own codes are spelled so


def read_progress(settings: KafkaSinkSettings, *, may_be_absent: bool = False) -> ProgressRecord | None:
    """Returns the newest batch that the pipeline has made visible; None if there is none.

    The result is final only if it is read after ``init_transactions()``.

    Args:
        settings: The settings of the sink.
        may_be_absent: Whether an unknown topic means that there is no progress; otherwise it is waited for.

    Raises:
        PipelineUnavailableError: The broker does not answer.
        OutputRefusedError: The topic may not be read.
        ProtocolError: The newest record is not a progress record, or has a newer version.
    """
    record = newest_progress(settings, may_be_absent=may_be_absent)
    return visible_progress(record)


def newest_progress(settings: KafkaSinkSettings, *, may_be_absent: bool = False) -> ProgressRecord | None:
    """Returns the newest committed progress record, also of a run that has made nothing visible yet.

    Raises the same errors as :func:`read_progress`.
    """
    value = _newest_value(settings, settings.progress_topic, may_be_absent=may_be_absent)
    return None if value is None else decode_progress_record(value)


def newest_commit(settings: KafkaSinkSettings, topic: str) -> CommitRecord | None:
    """Returns the newest record of a commit topic; raises the same errors as :func:`read_progress`."""
    value = _newest_value(settings, topic)
    return None if value is None else decode_commit_record(value)


def first_visible(
    settings: KafkaSinkSettings, topic: str, positions: Mapping[int, int]
) -> tuple[int, int] | None:
    """Returns a record that a ``read_committed`` reader sees at or after these offsets.

    Returns its partition and offset; None if there is none. Raises the same errors as :func:`read_progress`.
    """
    if not positions:
        return None
    starts = [TopicPartition(topic, partition, offset) for partition, offset in positions.items()]
    with _reader(settings) as consumer:
        return until_answered(settings, f"reading {topic}", lambda seconds: _first(consumer, starts, seconds))


@contextmanager
def _reader(settings: KafkaSinkSettings) -> Iterator[Consumer]:
    """Opens a consumer of committed records that reports the ends of partitions."""
    consumer = Consumer(
        {
            "fetch.wait.max.ms": 10,
            **settings.kafka.client_config,
            "group.id": settings.transactional_id,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _newest_value(settings: KafkaSinkSettings, topic: str, *, may_be_absent: bool = False) -> bytes | None:
    """Returns the newest committed record's value in a topic of one partition.

    It skips the offsets of transaction markers, aborted records and compacted records, by searching backwards
    from the end until it finds a record.
    """
    with _reader(settings) as consumer:
        return until_answered(
            settings,
            f"reading {topic}",
            lambda seconds: _search(consumer, topic, seconds, may_be_absent=may_be_absent),
        )


def _search(consumer: Consumer, topic: str, seconds: float, *, may_be_absent: bool) -> bytes | None:
    error = consumer.list_topics(topic, timeout=seconds).topics[topic].error
    if error is not None:
        if may_be_absent and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise KafkaException(error)
    low, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=seconds)
    look_back = _FIRST_LOOK_BACK
    while end > low:
        start = max(low, end - look_back)
        value = _last_value_from(consumer, TopicPartition(topic, 0, start), seconds)
        if value is not None:
            return value
        if start == low:
            break
        look_back *= 8
    return None


def _next(consumer: Consumer, seconds: float) -> Message | None:
    """Returns the next record; None at the end of a partition."""
    clock = SystemClock()
    deadline = clock.monotonic() + seconds
    while True:
        message = consumer.poll(max(0.0, deadline - clock.monotonic()))
        if message is None:
            raise TimeoutError
        error = message.error()
        if error is None:
            return message
        if error.code() == _END_OF_PARTITION:
            return None
        if error.code() != GROUP_REFUSED:
            raise KafkaException(error)


def _last_value_from(consumer: Consumer, start: TopicPartition, seconds: float) -> bytes | None:
    consumer.assign([start])
    last: bytes | None = None
    while (record := _next(consumer, seconds)) is not None:
        last = record.value()
    return last


def _first(consumer: Consumer, starts: list[TopicPartition], seconds: float) -> tuple[int, int] | None:
    consumer.assign(starts)
    for _ in starts:
        record = _next(consumer, seconds)
        if record is not None:
            return record.partition() or 0, record.offset() or 0
    return None
