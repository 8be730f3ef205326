"""Reads topics with plain ``read_committed`` consumers: no groups, nothing committed."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition

from slackwater.kafka.retry import GROUP_REFUSED, KafkaRetry, reason_of, watermark_offsets
from slackwater.protocol import KafkaSettings
from slackwater.settings.errors import CommandUnavailableError, unreachable

_log = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
_SILENCE_SECONDS = 120.0
"""Records that are there may be waited for so long; an unfinished Kafka transaction holds them back, too."""


def open_consumer(bootstrap: str, kafka: Mapping[str, str] | None = None) -> Consumer:
    """Returns a consumer of committed records; ``kafka`` are more librdkafka settings."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "slackwater-cli",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "allow.auto.create.topics": False,
            "fetch.wait.max.ms": 20,
            **(kafka or {}),
        },
        logger=_log,
    )


def read_to_end(
    bootstrap: str,
    topics: Sequence[str],
    kafka: Mapping[str, str] | None = None,
    *,
    newest: int | None = None,
) -> Iterator[Message]:
    """Yields every committed record that is in the topics now, in order within each partition.

    Args:
        bootstrap: The brokers.
        topics: All of them have to exist.
        kafka: More settings of librdkafka.
        newest: Only what lies at the last so many offsets of each partition; None: everything.

    Raises:
        CommandUnavailableError: a topic is missing or cannot be read.
    """
    consumer = open_consumer(bootstrap, kafka)
    try:
        ends = _ends(consumer, topics)
        if ends:
            consumer.assign(_starts(consumer, ends, newest))
        retry = _wait_for(topics)
        while ends:
            if records := _records(consumer.consume(10_000, 0.1), retry):
                yield from records
                retry = _wait_for(topics)
            elif retry.is_over:
                raise _unreadable(", ".join(topics), retry.outcome)
            for place in consumer.position([TopicPartition(t, p) for t, p in ends]):
                if place.offset >= ends[place.topic, place.partition]:
                    del ends[place.topic, place.partition]
    except KafkaException as error:
        raise _unreadable(", ".join(topics), reason_of(error)) from error
    finally:
        consumer.close()


def known_topics(kafka: KafkaSettings) -> frozenset[str]:
    """Returns the names of all topics that the brokers tell of.

    Raises:
        CommandUnavailableError: they do not answer.
    """
    consumer = open_consumer(kafka.bootstrap, kafka.options)
    try:
        retry = KafkaRetry("listing the topics", REQUEST_SECONDS)
        return frozenset(retry.call(lambda seconds: consumer.list_topics(timeout=seconds).topics))
    except KafkaException as error:
        raise unreachable(
            f"Kafka at {kafka.bootstrap}", "which topics are there?", reason_of(error)
        ) from error
    finally:
        consumer.close()


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


def _ends(consumer: Consumer, topics: Sequence[str]) -> dict[tuple[str, int], int]:
    ends = {}
    for place in _partitions(consumer, topics):
        low, high = _bounds(consumer, place)
        if high > low:
            ends[place.topic, place.partition] = high
    return ends


def _starts(
    consumer: Consumer, ends: Mapping[tuple[str, int], int], newest: int | None
) -> list[TopicPartition]:
    places = [TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in ends]
    if newest is not None:
        for place in places:
            low, high = _bounds(consumer, place)
            place.offset = max(low, high - newest)
    return places


def _bounds(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    retry = KafkaRetry(f"asking where {place.topic}/{place.partition} ends", REQUEST_SECONDS)
    return retry.call(partial(watermark_offsets, consumer, place))


def _partitions(consumer: Consumer, topics: Sequence[str]) -> list[TopicPartition]:
    retry = KafkaRetry("listing topics", REQUEST_SECONDS)
    known = retry.call(lambda seconds: consumer.list_topics(timeout=seconds).topics)
    missing = [topic for topic in topics if topic not in known]
    if missing:
        raise _unreadable(missing[0], "it does not exist")
    return [TopicPartition(t, p, OFFSET_BEGINNING) for t in topics for p in sorted(known[t].partitions)]


def _unreadable(topic: str, reason: str) -> CommandUnavailableError:
    hint = "check the address and the topic's name"
    return CommandUnavailableError(f"topic {topic} cannot be read: {reason}", hint)


def _wait_for(topics: Sequence[str]) -> KafkaRetry:
    return KafkaRetry(f"reading {', '.join(topics)}", _SILENCE_SECONDS)


def _records(messages: list[Message], retry: KafkaRetry) -> list[Message]:
    """Returns the messages without errors that pass: librdkafka repeats by itself what failed."""
    records = []
    for message in messages:
        error = message.error()
        if error is None:
            records.append(message)
        elif retry.is_transient(error):
            retry.note(error)
        elif error.code() != GROUP_REFUSED:
            raise _unreadable(message.topic() or "?", error.str())
    return records
