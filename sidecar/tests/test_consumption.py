"""What comes out of Kafka is handed over, whatever else goes wrong in the same moment."""

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from slackwater_sidecar import consumption
from slackwater_sidecar.consumption import Consumption, Failure
from slackwater_sidecar.errors import SchemasUnavailableError, SourceUnavailableError
from slackwater_sidecar.settings import SidecarSettings

AT_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - librdkafka's own codes have no other name


class Kafka:
    """Stands in for the consumer: gives out what it is told to."""

    def __init__(self, _config: object) -> None:
        self.waiting: list[Message] = []

    def poll(self, _timeout: float) -> Message | None:
        return self.waiting.pop(0) if self.waiting else None

    def consume(self, number: int, _timeout: float) -> list[Message]:
        given, self.waiting = self.waiting[:number], self.waiting[number:]
        return given


class Sink:
    """Notes what it is told; failures it raises, as the reader of a source does."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def take(self, topic: str, number: int, messages: Sequence[Message]) -> None:
        self.told.append((topic, number, [m.offset() for m in messages]))

    def take_end(self, topic: str, number: int, offset: int) -> None:
        self.told.append((topic, number, offset))

    def take_failure(self, failure: Failure) -> None:
        raise SourceUnavailableError(f"reading {failure.topic}", "h:1", failure.reason)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> list[Kafka]:
    """The consumers that were made."""
    made: list[Kafka] = []

    def make(config: object) -> Kafka:
        made.append(Kafka(config))
        return made[-1]

    monkeypatch.setattr(consumption, "Consumer", make)
    return made


def settings(**fields: Any) -> SidecarSettings:
    return SidecarSettings(source="s", bootstrap="h:1", **fields)


def record(offset: int, value: bytes = b"{}") -> Message:
    return Message(topic="t", partition=0, offset=offset, value=value)


def test_records_that_come_with_an_error_are_taken_before_it_is_told(kafka: list[Kafka]) -> None:
    sink = Sink()
    reading = Consumption(settings(), 1, sink)
    failure = Message(topic="u", partition=1, error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    end = Message(topic="t", partition=0, offset=9, error=KafkaError(AT_END))
    kafka[0].waiting = [record(4), failure, record(5), end]

    with pytest.raises(SourceUnavailableError, match="reading u"):
        reading.poll(0)

    assert sink.told == [("t", 0, [4, 5]), ("t", 0, 9)]


def test_records_wait_for_a_schema_registry_that_is_away(kafka: list[Kafka]) -> None:
    sink = Sink()
    reading = Consumption(settings(schema_registry="http://127.0.0.1:9"), 1, sink)
    kafka[0].waiting = [record(4), record(5, b"\0\0\0\0\x01x")]

    for _ in range(3):
        with pytest.raises(SchemasUnavailableError, match=r"http://127\.0\.0\.1:9"):
            reading.poll(0)

    assert sink.told == []
    assert kafka[0].waiting == []
