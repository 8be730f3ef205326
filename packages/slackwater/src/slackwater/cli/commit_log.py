"""Reads a pipeline's commit records where they are asked for, instead of all of them."""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from slackwater.cli.pipeline_folders import pipeline_folder
from slackwater.cli.topics import open_consumer
from slackwater.kafka.retry import KafkaRetry, is_transient, reason_of, watermark_offsets
from slackwater.protocol import KafkaSettings, TopicState, decode_commit_record, decode_progress_record
from slackwater.protocol.commit_lookup import PlacedCommit
from slackwater.protocol.keys import commit_topic, progress_topic
from slackwater.settings.errors import (
    CommandConfigError,
    CommandInputError,
    CommandUnavailableError,
    unreachable,
)

_SECONDS = 30.0
_LOOK_BACK = 16
_AT_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - no public name
_SUFFIX = commit_topic("")

T = TypeVar("T")


class CommitLog:
    """The commit records of a pipeline. Use it with ``with``; not thread-safe.

    Every commit topic of a pipeline holds the same records: one of them is read.

    Args:
        kafka: Where the output is.
        pipeline: Its name, as it stands in the output.

    Raises:
        CommandInputError: nobody of that name has written to this Kafka.
        CommandUnavailableError: Kafka does not answer.
    """

    def __init__(self, kafka: KafkaSettings, pipeline: str) -> None:
        self._consumer = open_consumer(kafka.bootstrap, {**kafka.options, "enable.partition.eof": "true"})
        self._pipeline = pipeline
        self.topic = ""
        try:
            self.topic = self._commit_topic()
        except KafkaException as error:
            self._consumer.close()
            raise unreachable("Kafka", f"where are the commits of {pipeline}", reason_of(error)) from error
        except BaseException:
            self._consumer.close()
            raise

    def __enter__(self) -> "CommitLog":
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Frees the connection."""
        self._consumer.close()

    def bounds(self) -> tuple[int, int]:
        """Returns the first offset of the commit topic, and the one behind the last."""
        return _bounds(self._consumer, self.topic)

    def record_from(self, start: int, end: int) -> PlacedCommit | None:
        """See :data:`slackwater.protocol.commit_lookup.RecordFrom`."""
        return next(self.records(start, end), None)

    def records(self, start: int, end: int | None = None) -> Iterator[PlacedCommit]:
        """Yields the records from an offset on; without an end it waits for new ones for ever."""
        for message in _messages(self._consumer, self.topic, start, end):
            yield PlacedCommit(message.offset() or 0, decode_commit_record(message.value() or b""))

    def last(self, count: int) -> list[PlacedCommit]:
        """Returns the newest records, oldest first."""
        low, end = self.bounds()
        return _last(low, end, count, lambda start: list(self.records(start, end)))

    def _commit_topic(self) -> str:
        topics = _topics(self._consumer, self._pipeline)
        names = sorted(t for t in topics if t.endswith(_SUFFIX) and t.removesuffix(_SUFFIX) in topics)
        for name in names:
            if _exists(self._consumer, name):
                return name
        hint = "start the pipeline once with this version, or see docs/runbooks.md#output-changed"
        reason = f"its progress record names {', '.join(names) or 'no commit topic'}, and none exists"
        raise CommandInputError(f"the commits of pipeline {self._pipeline!r} cannot be found: {reason}", hint)


def pipeline_name(folder: Path | None, name: str | None) -> str:
    """Returns the name of a pipeline that a command was given by its folder or by its name.

    Raises:
        CommandConfigError: by neither, or by both.
        CommandInputError: there is neither such a folder nor such an installed pipeline.
        PipelineConfigError: the folder cannot be read.
    """
    if (folder is None) == (name is None):
        raise CommandConfigError("no pipeline was specified", "specify either its folder or --pipeline")
    if folder is None:
        return name or ""
    from slackwater.pipeline import load_pipeline  # Spark's libraries take a second to import

    return load_pipeline(pipeline_folder(str(folder))).name


def written_topics(kafka: KafkaSettings, pipeline: str) -> list[str]:
    """Returns the topics that a pipeline writes: outputs, commit topics and its progress topic.

    Raises:
        CommandInputError: nobody of that name has written to this Kafka.
        CommandUnavailableError: Kafka does not answer.
    """
    consumer = open_consumer(kafka.bootstrap, {**kafka.options, "enable.partition.eof": "true"})
    try:
        return [*sorted(_topics(consumer, pipeline)), progress_topic(pipeline)]
    except KafkaException as error:
        raise unreachable("Kafka", f"which topics {pipeline} writes", reason_of(error)) from error
    finally:
        consumer.close()


def _topics(consumer: Consumer, pipeline: str) -> Mapping[str, TopicState]:
    """Returns what the newest progress record says of the outputs and their commit topics."""
    topic = progress_topic(pipeline)
    if not _exists(consumer, topic):
        raise _no_such(pipeline, f"topic {topic} does not exist")
    low, end = _bounds(consumer, topic)
    found = _last(low, end, 1, lambda start: list(_messages(consumer, topic, start, end)))
    if not found:
        raise _no_such(pipeline, f"topic {topic} is empty")
    return decode_progress_record(found[0].value() or b"").topics


def _no_such(pipeline: str, reason: str) -> CommandInputError:
    hint = "check the name (from revision 2 on it ends in .v<revision>) and the brokers"
    return CommandInputError(f"no pipeline {pipeline!r} has written to this Kafka: {reason}", hint)


def _last(low: int, end: int, count: int, read: Callable[[int], list[T]]) -> list[T]:
    """Reads back from the end until enough is found: markers take offsets, too."""
    look_back = max(_LOOK_BACK, 2 * count)
    while True:
        start = max(low, end - look_back)
        found = read(start) if start < end else []
        if len(found) >= count or start == low:
            return found[-count:]
        look_back *= 8


def _exists(consumer: Consumer, topic: str) -> bool:
    retry = KafkaRetry("listing topics", _SECONDS)
    return topic in retry.call(lambda seconds: consumer.list_topics(timeout=seconds).topics)


def _bounds(consumer: Consumer, topic: str) -> tuple[int, int]:
    retry = KafkaRetry(f"asking where {topic} ends", _SECONDS)
    place = TopicPartition(topic, 0)
    return retry.call(partial(watermark_offsets, consumer, place))


def _messages(consumer: Consumer, topic: str, start: int, end: int | None) -> Iterator[Message]:
    consumer.assign([TopicPartition(topic, 0, start)])
    heard = time.monotonic()
    while True:
        message = consumer.poll(0.2)
        if message is None:
            if end is not None and time.monotonic() - heard > _SECONDS:
                hint = "an unfinished Kafka transaction may hide records; try again in a minute"
                raise CommandUnavailableError(f"topic {topic} cannot be read to its end", hint)
            continue
        heard = time.monotonic()
        error = message.error()
        if error is None:
            if end is not None and (message.offset() or 0) >= end:
                return
            yield message
        elif error.code() == _AT_END:
            if end is not None:
                return
        elif not is_transient(error):
            raise unreachable("Kafka", f"reading {topic}", error.str())
