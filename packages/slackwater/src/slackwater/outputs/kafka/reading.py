"""Reads a pipeline's topics: the newest progress and commit records, and records of other writers."""

from collections.abc import Mapping

from confluent_kafka import KafkaException

from slackwater.kafka.reader import TopicReader
from slackwater.kafka.retry import ABSENT_CODES, code_of
from slackwater.outputs.kafka.answers import answered
from slackwater.outputs.kafka.settings import KafkaSinkSettings
from slackwater.protocol import (
    CommitRecord,
    ProgressRecord,
    decode_commit_record,
    decode_progress_record,
    visible_progress,
)


def read_progress(settings: KafkaSinkSettings, *, may_be_absent: bool = False) -> ProgressRecord | None:
    """Returns the newest batch that the pipeline has made visible; None if there is none.

    The result is final only if it is read after ``init_transactions()``.

    Args:
        settings: The settings of the sink.
        may_be_absent: Whether an unknown topic means that there is no progress; otherwise it is waited for.

    Raises:
        UnavailableError: The broker does not answer.
        OutputRefusedError: The topic may not be read.
        InputError: The newest record is not a progress record, or has a newer version.
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
    with answered(settings, f"reading {topic}"), _reader(settings, topic) as reader:
        places = {(topic, partition): offset for partition, offset in positions.items()}
        spans = {place: (offset, reader.bounds(place)[1]) for place, offset in places.items()}
        record = next(reader.read(spans), None)
        return None if record is None else (record.partition() or 0, record.offset() or 0)


def _newest_value(settings: KafkaSinkSettings, topic: str, *, may_be_absent: bool = False) -> bytes | None:
    """Returns the newest committed record's value in a topic of one partition."""
    expected = () if may_be_absent else (topic,)
    with answered(settings, f"reading {topic}"), _reader(settings, *expected) as reader:
        try:
            reader.places(topic)
        except KafkaException as error:
            if may_be_absent and code_of(error) in ABSENT_CODES:
                return None
            raise
        found = reader.newest((topic, 0))
        return found[0].value() if found else None


def _reader(settings: KafkaSinkSettings, *expected: str) -> TopicReader:
    seconds = settings.request_timeout.total_seconds()
    return TopicReader(settings.kafka.client_config, seconds, expected=expected, pause=settings.pause)
