"""Reads topics for commands: whole topics, and a pipeline's commit records where they are asked for."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from confluent_kafka import KafkaException, Message

from slackwater.kafka.reader import TopicReader
from slackwater.kafka.retry import ABSENT_CODES, code_of, reason_of
from slackwater.protocol import (
    InputError,
    KafkaSettings,
    TopicState,
    UnavailableError,
    decode_commit_record,
    decode_progress_record,
)
from slackwater.protocol.commit_lookup import PlacedCommit
from slackwater.protocol.keys import commit_topic, progress_topic
from slackwater.settings.errors import unreachable

_SECONDS = 10.0
_SILENCE_SECONDS = 120.0
"""How long the next record is waited for."""


def read_to_end(
    kafka: KafkaSettings, topics: Sequence[str], *, newest: int | None = None
) -> Iterator[Message]:
    """Yields every committed record that is in the topics now, in order within each partition.

    Args:
        kafka: The brokers.
        topics: All of them have to exist.
        newest: Only this many of the last offsets of each partition; None for everything.

    Raises:
        UnavailableError: a topic is missing or cannot be read.
    """
    try:
        with TopicReader(kafka.client_config, _SECONDS, patience=_SILENCE_SECONDS) as reader:
            known, spans = reader.topics(), {}
            for topic in topics:
                if topic not in known:
                    raise _unreadable(topic, "it does not exist")
                for place in ((topic, number) for number in range(known[topic])):
                    low, end = reader.bounds(place)
                    spans[place] = low if newest is None else max(low, end - newest), end
            yield from reader.read(spans)
    except KafkaException as error:
        raise _unreadable(", ".join(topics), reason_of(error)) from error


def known_topics(kafka: KafkaSettings) -> frozenset[str]:
    """Returns the names of all topics that the brokers report.

    Raises:
        UnavailableError: they do not answer.
    """
    with (
        explained("which topics are there?", f"Kafka at {kafka.bootstrap}"),
        TopicReader(kafka.client_config, _SECONDS) as reader,
    ):
        return frozenset(reader.topics())


@contextmanager
def explained(what: str, server: str = "Kafka") -> Iterator[None]:
    """Turns errors of Kafka's client into a command's.

    Args:
        what: What Kafka was asked.
        server: Its name.

    Raises:
        UnavailableError: Kafka does not answer, or refuses.
    """
    try:
        yield
    except KafkaException as error:
        raise unreachable(server, what, reason_of(error)) from error


def record_line(message: Message) -> str:
    """Returns a record as one line of JSON; key and value as JSON if they are, else as text."""
    headers = {name: _readable(value) for name, value in _headers(message)}
    return json.dumps(
        {
            "partition": message.partition(),
            "offset": message.offset(),
            "headers": headers,
            "key": _readable(message.key()),
            "value": _readable(message.value()),
        },
        ensure_ascii=False,
    )


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    """Returns the record's headers; names may repeat."""
    found = message.headers() or []
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in _pairs(found)]


def _pairs(headers: object) -> list[tuple[str, Any]]:
    return list(headers.items()) if isinstance(headers, dict) else cast("list[tuple[str, Any]]", headers)


def _readable(data: bytes | None) -> object:
    if data is None:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode(errors="replace")


def _unreadable(topic: str, reason: str) -> UnavailableError:
    hint = "check the address and the topic's name"
    return UnavailableError(f"topic {topic} cannot be read: {reason}", hint)


_LOG_SECONDS = 30.0
_SUFFIX = commit_topic("")


class CommitLog:
    """The commit records of a pipeline. Use it with ``with``; not thread-safe.

    Every commit topic of a pipeline holds the same records: one of them is read.

    Args:
        kafka: Where the output is.
        pipeline: Its name in the output.

    Raises:
        InputError: nobody of that name has written to this Kafka.
        UnavailableError: Kafka does not answer.
    """

    def __init__(self, kafka: KafkaSettings, pipeline: str) -> None:
        self._reader = TopicReader(kafka.client_config, _LOG_SECONDS)
        self._pipeline = pipeline
        self.topic = ""
        try:
            with explained(f"where are the commits of {pipeline}"):
                self.topic = self._commit_topic()
        except BaseException:
            self._reader.close()
            raise

    def __enter__(self) -> "CommitLog":
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Frees the connection."""
        self._reader.close()

    def bounds(self) -> tuple[int, int]:
        """Returns the first offset of the commit topic, and the one behind the last."""
        with explained(f"where {self.topic} ends"):
            return self._reader.bounds((self.topic, 0))

    def record_from(self, start: int, end: int) -> PlacedCommit | None:
        """See :data:`slackwater.protocol.commit_lookup.RecordFrom`."""
        return next(self.records(start, end), None)

    def records(self, start: int, end: int | None = None) -> Iterator[PlacedCommit]:
        """Yields the records from an offset on; without an end it waits for new ones for ever."""
        place = self.topic, 0
        found = self._reader.follow(place, start) if end is None else self._reader.read({place: (start, end)})
        with explained(f"reading {self.topic}"):
            yield from map(_placed, found)

    def last(self, count: int) -> list[PlacedCommit]:
        """Returns the newest records, oldest first."""
        with explained(f"reading {self.topic}"):
            return [_placed(message) for message in self._reader.newest((self.topic, 0), count)]

    def _commit_topic(self) -> str:
        topics, known = _topics(self._reader, self._pipeline), self._reader.topics()
        names = sorted(t for t in topics if t.endswith(_SUFFIX) and t.removesuffix(_SUFFIX) in topics)
        for name in names:
            if name in known:
                return name
        hint = "start the pipeline once with this version, or see docs/runbooks.md#output-changed"
        reason = f"its progress record names {', '.join(names) or 'no commit topic'}, and none exists"
        raise InputError(f"the commits of pipeline {self._pipeline!r} cannot be found: {reason}", hint)


def written_topics(kafka: KafkaSettings, pipeline: str) -> list[str]:
    """Returns the topics that a pipeline writes: outputs, commit topics and its progress topic.

    Raises:
        InputError: nobody of that name has written to this Kafka.
        UnavailableError: Kafka does not answer.
    """
    with (
        explained(f"which topics {pipeline} writes"),
        TopicReader(kafka.client_config, _LOG_SECONDS) as reader,
    ):
        return [*sorted(_topics(reader, pipeline)), progress_topic(pipeline)]


def _topics(reader: TopicReader, pipeline: str) -> Mapping[str, TopicState]:
    """Returns what the newest progress record says of the outputs and their commit topics."""
    topic = progress_topic(pipeline)
    try:
        found = reader.newest((topic, 0))
    except KafkaException as error:
        if code_of(error) in ABSENT_CODES:
            raise _no_such(pipeline, f"topic {topic} does not exist") from error
        raise
    if not found:
        raise _no_such(pipeline, f"topic {topic} is empty")
    return decode_progress_record(found[0].value() or b"").topics


def _no_such(pipeline: str, reason: str) -> InputError:
    hint = "check the name (from revision 2 on it ends in .v<revision>) and the brokers"
    return InputError(f"no pipeline {pipeline!r} has written to this Kafka: {reason}", hint)


def _placed(message: Message) -> PlacedCommit:
    return PlacedCommit(message.offset() or 0, decode_commit_record(message.value() or b""))
