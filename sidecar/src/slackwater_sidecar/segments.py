"""Splits consumed messages into what the frontier takes: records of one partition and one connector run."""

from collections.abc import Iterator, Sequence
from typing import cast

from confluent_kafka import Message

RUN_HEADER = "__debezium.context.runId"

Pairs = Iterator[tuple[int, bytes | None]]


def by_partition(messages: Sequence[Message]) -> Iterator[tuple[str, int, Sequence[Message]]]:
    """Splits messages where topic or partition changes: (topic, partition, messages)."""
    topics = list(map(Message.topic, messages))
    numbers = list(map(Message.partition, messages))
    count, begin = len(messages), 0
    while begin < count:
        topic, number = topics[begin], numbers[begin]
        end = begin + 1
        while end < count and numbers[end] == number and topics[end] == topic:
            end += 1
        yield cast(str, topic), cast(int, number), messages[begin:end]
        begin = end


def by_run(messages: Sequence[Message]) -> Iterator[tuple[str, Sequence[Message]]]:
    """Splits messages of one partition where the connector run changes.

    Runs follow each other in a partition, so it is enough to look at the ends; more would cost too much.
    """
    first = run_of(messages[0])
    if len(messages) == 1 or run_of(messages[-1]) == first:
        yield first, messages
        return
    middle = len(messages) // 2
    for part in (messages[:middle], messages[middle:]):
        yield from by_run(part)


def run_of(message: Message) -> str:
    """Returns the connector run that wrote a message; empty when the message does not say."""
    for name, value in cast(Sequence[tuple[str, bytes | None]], message.headers() or ()):
        if name == RUN_HEADER and value is not None:
            return value.decode(errors="replace")
    return ""


def pairs(messages: Sequence[Message]) -> Pairs:
    """Returns offset and value of each message."""
    return cast(Pairs, zip(map(Message.offset, messages), map(Message.value, messages), strict=True))


def triples(messages: Sequence[Message]) -> Iterator[tuple[int, bytes | None, int]]:
    """Returns offset, value and timestamp in milliseconds of each message."""
    for message in messages:
        yield message.offset() or 0, message.value(), message.timestamp()[1]


def is_keyless(messages: Sequence[Message]) -> bool:
    """Says whether messages come from a table without a key; one without (a truncate) does not tell."""
    return messages[0].key() is None and messages[-1].key() is None
