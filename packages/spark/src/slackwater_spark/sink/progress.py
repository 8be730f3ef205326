"""Reading a pipeline's progress, and whether it is this run's to continue."""

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from slackwater_markers.kafka_retry import KafkaRetry
from slackwater_protocol import (
    BatchHeader,
    ProgressRecord,
    decode_commit_record,
    decode_progress_record,
    format_lsn,
)
from slackwater_spark.sink.errors import (
    OutputTopicError,
    OutputUnavailableError,
    PipelineNameTakenError,
    ProgressMismatchError,
)
from slackwater_spark.sink.settings import KafkaSinkSettings

_FIRST_LOOK_BACK = 16
_END_OF_PARTITION = KafkaError._PARTITION_EOF  # noqa: SLF001 - librdkafka's own codes are spelled so
_ABSENT = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)  # noqa: SLF001


def read_progress(settings: KafkaSinkSettings, *, may_be_absent: bool = False) -> ProgressRecord | None:
    """The newest committed progress record; None when there is none.

    Offsets of transaction markers, aborted records and compacted records are skipped: the search goes back
    from the end until it meets a record. Only what is read after ``init_transactions()`` is final.

    Args:
        settings: where to look.
        may_be_absent: an unknown topic means that there is no progress; otherwise it is waited for.

    Raises:
        OutputUnavailableError: the broker does not answer.
        ProtocolError: the newest record is no progress record or is of a newer version.
    """
    value = _newest_value(settings, settings.progress_topic, may_be_absent=may_be_absent)
    return None if value is None else decode_progress_record(value)


def check_unused(settings: KafkaSinkSettings) -> None:
    """Whether a pipeline without progress, which starts at the beginning, may write to its outputs.

    Raises:
        OutputTopicError: an output has commit records: its readers would see LSNs go back.
        OutputUnavailableError: the broker does not answer.
        ProtocolError: the newest commit record is none or is of a newer version.
    """
    for output in settings.outputs:
        value = _newest_value(settings, output.commits)
        if value is not None:
            record = decode_commit_record(value)
            lsn = format_lsn(record.commit_lsn)
            found = f"what pipeline {record.pipeline!r} wrote up to {lsn}"
            raise OutputTopicError(output.name, "a topic that nobody has written to yet", found)


def _newest_value(settings: KafkaSinkSettings, topic: str, *, may_be_absent: bool = False) -> bytes | None:
    """Of the newest committed record in a topic of one partition."""
    consumer = Consumer(
        {
            "fetch.wait.max.ms": 10,
            **settings.client_config(),
            "group.id": settings.transactional_id,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }
    )
    what = f"reading {topic}"
    retry = KafkaRetry(what, settings.request_timeout.total_seconds(), also=_ABSENT)
    try:
        return retry.call(lambda seconds: _search(consumer, topic, seconds, may_be_absent=may_be_absent))
    except KafkaException as error:
        raise OutputUnavailableError(settings.pipeline, what, 1, str(error)) from error
    finally:
        consumer.close()


def _search(consumer: Consumer, topic: str, seconds: float, *, may_be_absent: bool) -> bytes | None:
    """The requests of one attempt, each of which may take so long."""
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


def _last_value_from(consumer: Consumer, start: TopicPartition, seconds: float) -> bytes | None:
    consumer.assign([start])
    last: bytes | None = None
    while True:
        message = consumer.poll(seconds)
        if message is None:
            raise TimeoutError
        error = message.error()
        if error is None:
            last = message.value()
        elif error.code() == _END_OF_PARTITION:
            return last
        else:
            raise KafkaException(error)


def check_owner(pipeline: str, progress: ProgressRecord | None, query_id: str | None) -> None:
    """Whether a run with this checkpoint (None: a new one) may continue the pipeline's progress.

    Raises:
        PipelineNameTakenError: the progress is of another query.
    """
    if progress is not None and progress.query_id != query_id:
        raise PipelineNameTakenError(pipeline, progress.query_id, query_id)


def is_covered(
    pipeline: str,
    batch_id: int,
    header: BatchHeader,
    progress: ProgressRecord | None,
    without_output: frozenset[int] = frozenset(),
) -> bool:
    """Whether the output already holds this batch.

    True for the repetition of the newest batch. False for the batch that continues where the newest one
    ended. LSNs alone do not tell: in scope ``aggregate`` they may stay while batches go on. Batches in
    `without_output` have no rows and are never written.

    Raises:
        ProgressMismatchError: it is neither. A checkpoint that is older than the output (a restored copy)
        would repeat
            records; one that is ahead of it (the progress topic or the broker was replaced) would leave some
            out.
    """
    reason = None
    if progress is None:
        if not without_output.issuperset(range(batch_id)):
            reason = "the progress topic has lost its records"
    elif (batch_id, header.timeline, header.to_lsn) == (
        progress.batch_id,
        progress.timeline,
        progress.commit_lsn,
    ):
        return True
    elif batch_id <= progress.batch_id or (header.timeline, header.from_lsn) < (
        progress.timeline,
        progress.commit_lsn,
    ):
        reason = "the checkpoint is older than the output"
    elif header.timeline == progress.timeline and (
        header.from_lsn > progress.commit_lsn
        or not without_output.issuperset(range(progress.batch_id + 1, batch_id))
    ):
        reason = "batches in between were never written"
    if reason is not None:
        raise ProgressMismatchError(pipeline, batch_id, header, progress, reason)
    return False
