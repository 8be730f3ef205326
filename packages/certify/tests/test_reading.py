"""Reading topics while Kafka reports errors."""

import pytest
from confluent_kafka import KafkaError

from slackwater_certify.errors import CertifyUnavailableError
from slackwater_certify.kafka import read_topics
from slackwater_markers.testing import FlakyConsumer

VALUES = [b"a", b"b"]


def read(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[bytes | None]:
    consumer = FlakyConsumer({("t", 0): VALUES}, [getattr(KafkaError, name) for name in names])
    monkeypatch.setattr("slackwater_certify.kafka.Consumer", lambda *_, **__: consumer)
    return [message.value() for message in read_topics({}, ["t"], {("t", 0): 2})]


@pytest.mark.parametrize(
    "name",
    [
        "NOT_LEADER_FOR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "REPLICA_NOT_AVAILABLE",
        "REQUEST_TIMED_OUT",
        "_TRANSPORT",
        "_TIMED_OUT",
        "_ALL_BROKERS_DOWN",
    ],
)
def test_a_broker_that_restarts_is_waited_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Seen to fail while every error ended it."""
    assert read(monkeypatch, name, name) == VALUES


@pytest.mark.parametrize(
    "name", ["TOPIC_AUTHORIZATION_FAILED", "OFFSET_OUT_OF_RANGE", "UNKNOWN_TOPIC_OR_PART"]
)
def test_other_errors_end_it_at_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(CertifyUnavailableError, match="topic t"):
        read(monkeypatch, name)


def test_silence_is_limited_whatever_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CertifyUnavailableError, match="nothing comes below offset 2"):
        read(monkeypatch, *["NOT_LEADER_FOR_PARTITION"] * 1_000)
