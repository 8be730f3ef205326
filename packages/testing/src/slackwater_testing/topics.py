"""Plain ``read_committed`` consumers for tests and measurements: whole topics, no groups, no commits."""

import logging
import threading
from collections.abc import Iterator, Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from slackwater_testing.errors import RunFailedError

_log = logging.getLogger(__name__)

_AT_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - has no other name
_CHUNK = 1_000
_ASK_SECONDS = 10.0
_SILENCE_SECONDS = 20.0
"""Nothing for so long means that nothing will come."""
_LOOK_AGAIN_SECONDS = 0.2


def open_consumer(bootstrap: str, **settings: object) -> Consumer:
    """Opens a consumer of committed records; more settings are librdkafka's, with ``_`` for ``.``."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "slackwater-testing",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "allow.auto.create.topics": False,
            "fetch.wait.max.ms": 20,
            "topic.metadata.refresh.interval.ms": 500,
            **{name.replace("_", "."): value for name, value in settings.items()},
        },
        logger=_log,
    )


def read_to_end(bootstrap: str, topic: str) -> Iterator[Message]:
    """Yields every committed record that is in a topic now; in order within each partition.

    Raises:
        RunFailedError: the topic cannot be read to its end.
    """
    consumer = open_consumer(bootstrap, enable_partition_eof=True)
    try:
        places = _places(consumer, [topic])
        consumer.assign(places)
        left = len(places)
        while left:
            messages = consumer.consume(_CHUNK, 0.1) or consumer.consume(1, _SILENCE_SECONDS)
            if not messages:
                raise RunFailedError(topic, f"delivered nothing for {_SILENCE_SECONDS:g} s")
            for message in messages:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == _AT_END:
                    left -= 1
                else:
                    raise RunFailedError(topic, str(error))
    finally:
        consumer.close()


def follow(
    bootstrap: str, topics: Sequence[str], stop: threading.Event, *, batch: int, wait_seconds: float
) -> Iterator[list[Message]]:
    """Yields what each poll returns, from the beginning until stopped. Waits for topics and brokers."""
    consumer = open_consumer(bootstrap)
    try:
        while not stop.is_set() and not (places := _known_places(consumer, topics)):
            stop.wait(_LOOK_AGAIN_SECONDS)
        if not stop.is_set():
            consumer.assign(places)
        while not stop.is_set():
            messages = consumer.consume(batch, wait_seconds)
            if found := [message for message in messages if message.error() is None]:
                yield found  # librdkafka repeats by itself what failed
    finally:
        consumer.close()


def _known_places(consumer: Consumer, topics: Sequence[str]) -> list[TopicPartition]:
    try:
        return _places(consumer, topics)
    except (RunFailedError, KafkaException):
        return []


def _places(consumer: Consumer, topics: Sequence[str]) -> list[TopicPartition]:
    known = consumer.list_topics(timeout=_ASK_SECONDS).topics
    missing = [topic for topic in topics if topic not in known]
    if missing:
        raise RunFailedError(missing[0], "there is no such topic")
    return [TopicPartition(t, p, OFFSET_BEGINNING) for t in topics for p in sorted(known[t].partitions)]
