"""Reading topics while Kafka reports errors."""

import threading
from collections.abc import Sequence
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from slackwater_lab.fakes.topics import FlakyConsumer
from slackwater_lab.topics import follow, read_to_end

VALUES = [b"a", b"b"]
AT_END = KafkaError(KafkaError._PARTITION_EOF)  # noqa: SLF001 - has no other name


@pytest.mark.parametrize("name", ["NOT_LEADER_FOR_PARTITION", "_TRANSPORT"])
def test_following_survives_transient_errors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = FlakyConsumer({("t", 0): VALUES}, [getattr(KafkaError, name)] * 3)
    asked = FlakyConsumer({("t", 0): VALUES}, [getattr(KafkaError, name)])
    monkeypatch.setattr("slackwater.kafka.reader.Consumer", lambda *_, **__: asked)
    monkeypatch.setattr("slackwater_lab.topics.Consumer", lambda *_, **__: consumer)
    stop, found = threading.Event(), list[bytes | None]()
    for messages in follow("nowhere:1", ["t"], stop, batch=1, wait_seconds=0):
        found += [message.value() for message in messages]
        if len(found) == len(VALUES):
            stop.set()
    assert found == VALUES
    assert consumer.is_closed


def test_a_topic_that_grows_while_it_is_read_is_read_to_where_it_ended_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {("t", 0): list(VALUES), ("t", 1): list(VALUES), ("t", 2): list[bytes]()}

    class Growing(FlakyConsumer):
        def assign(self, partitions: Sequence[TopicPartition]) -> None:
            for name in values:
                values[name].append(b"later")
            super().assign(partitions)

        def consume(self, count: int, timeout: float = -1) -> list[Message]:
            assert len(values["t", 0]) < 100, "it never ends"
            for name in values:
                values[name].append(b"later still")
            return super().consume(count, timeout)

    consumer = Growing(values)
    monkeypatch.setattr("slackwater.kafka.reader.Consumer", lambda *_, **__: consumer)
    found = [(message.partition(), message.value()) for message in read_to_end("nowhere:1", "t")]
    assert sorted(found) == [(0, b"a"), (0, b"b"), (1, b"a"), (1, b"b")]
    assert consumer.is_closed


def test_a_topic_whose_end_came_twice_in_one_partition_is_read_in_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Hasty(FlakyConsumer):
        def consume(self, count: int, timeout: float = -1) -> list[Message]:
            if len(self.ends) < 2:
                self.ends.append(end := Message(topic="t", partition=1, offset=0, error=AT_END))
                return [end]
            return super().consume(count, timeout)

        ends: ClassVar[list[Message]] = []

    consumer = Hasty({("t", 0): VALUES, ("t", 1): []})
    monkeypatch.setattr("slackwater.kafka.reader.Consumer", lambda *_, **__: consumer)
    assert [message.value() for message in read_to_end("nowhere:1", "t")] == VALUES
