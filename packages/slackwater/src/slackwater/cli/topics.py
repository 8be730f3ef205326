"""Reads whole topics for commands."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import KafkaException, Message

from slackwater.kafka.reader import TopicReader
from slackwater.kafka.retry import reason_of
from slackwater.protocol import KafkaSettings, UnavailableError
from slackwater.settings.errors import unreachable

_SECONDS = 10.0
_SILENCE_SECONDS = 120.0
"""How long the next record is waited for."""


def read_to_end(
    kafka: KafkaSettings, topics: Sequence[str], *, newest: int | None = None
) -> Iterator[Message]:
    """Yields every committed record that is in the topics now, in order within each partition.

    All topics have to exist. With `newest`, only this many of the last offsets of each partition are read.

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

    Raises:
        UnavailableError: Kafka does not answer, or refuses.
    """
    try:
        yield
    except KafkaException as error:
        raise unreachable(server, what, reason_of(error)) from error


def _unreadable(topic: str, reason: str) -> UnavailableError:
    hint = "check the address and the topic's name"
    return UnavailableError(f"topic {topic} cannot be read: {reason}", hint)
