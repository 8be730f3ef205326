"""Reading topics while Kafka reports errors."""

import threading

import pytest
from confluent_kafka import KafkaError

from slackwater_markers.testing import FlakyConsumer
from slackwater_testing.topics import follow

VALUES = [b"a", b"b"]


@pytest.mark.parametrize("name", ["NOT_LEADER_FOR_PARTITION", "_TRANSPORT"])
def test_following_survives_transient_errors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = FlakyConsumer({("t", 0): VALUES}, [0, *[getattr(KafkaError, name)] * 3])
    monkeypatch.setattr("slackwater_testing.topics.Consumer", lambda *_, **__: consumer)
    stop, found = threading.Event(), list[bytes | None]()
    for messages in follow("nowhere:1", ["t"], stop, batch=1, wait_seconds=0):
        found += [message.value() for message in messages]
        if len(found) == len(VALUES):
            stop.set()
    assert found == VALUES
    assert consumer.is_closed
