"""Topics as this package makes and reads them: with its own errors, and without librdkafka's own lines."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater.kafka.reader import TopicReader
from slackwater.kafka.retry import ABSENT_CODES, KafkaRetry, create_topics, kafka_error
from slackwater.protocol import Clock, KafkaSettings, StateError, UnavailableError
from slackwater_messaging.errors import READING

_SECONDS: Final = 30.0
_ONLY_CRITICAL: Final = "2"


def quiet(kafka: KafkaSettings) -> KafkaSettings:
    """Returns settings with which librdkafka does not write a line for each of its own attempts.

    Otherwise it writes to standard error several times a second while no broker answers. ``log_level`` among
    the options has precedence.
    """
    return replace(kafka, options={"log_level": _ONLY_CRITICAL, **kafka.options})


@contextmanager
def topic_reader(
    kafka: KafkaSettings, patience: timedelta, clock: Clock | None = None
) -> Iterator[TopicReader]:
    """Provides a reader of committed records. Its errors become errors of this package in the block.

    Args:
        kafka: The brokers.
        patience: How long to wait for open transactions, and for records.
        clock: Measures deadlines.

    Raises:
        StateError: A topic does not exist.
        UnavailableError: Kafka rejects a request or does not answer, or a transaction stays open.
    """
    config, seconds = quiet(kafka).client_config, patience.total_seconds()
    with (
        explained(f"reading topics at {kafka.bootstrap}"),
        TopicReader(config, _SECONDS, patience=seconds, clock=clock) as reader,
    ):
        yield reader


def ensure_compacted_topic(kafka: KafkaSettings, topic: str) -> None:
    """Creates a compacted topic with one partition, unless it exists.

    Raises:
        UnavailableError: Kafka rejects the request or does not answer.
    """
    admin = AdminClient({**quiet(kafka).client_config})
    wanted = NewTopic(topic, 1, -1, config={"cleanup.policy": "compact"})

    what = f"creating topic {topic}"
    with explained(f"{what} at {kafka.bootstrap}"):
        KafkaRetry(what, _SECONDS).call(partial(create_topics, admin, [wanted]))


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Translates errors of Kafka's client into errors of this package."""
    try:
        yield
    except KafkaException as error:
        found = kafka_error(error)
        if found is not None and found.code() in ABSENT_CODES:
            raise StateError(
                f"{what} failed: the topic does not exist", "create it, or correct its name"
            ) from error
        known = found or KafkaError(KafkaError._FAIL, str(error))  # noqa: SLF001
        hint = READING.advice(known) or (
            "check that the brokers are up and reachable; a transaction that stays open is hanging: see "
            "docs/runbooks.md#readers-stand-still"
        )
        raise UnavailableError(f"{what} failed: {known.str()} ({known.name()})", hint) from error
