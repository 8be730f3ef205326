"""What comes out of Kafka is reported, whatever else goes wrong in the same moment."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Message
from confluent_kafka.admin import AdminClient

from slackwater.cdc import Frontier
from slackwater.cdc.partition import ParsedRows
from slackwater.protocol import KafkaSettings, RegistrySettings, Servers
from slackwater_lab.simulator.kafka import Broker, SimulatedAdmin
from slackwater_sidecar import consumption
from slackwater_sidecar.consumption import (
    AvroValues,
    Consumption,
    Failure,
    Pairs,
    PartitionId,
    SchemasUnavailableError,
    consumer_config,
)
from slackwater_sidecar.reader import SourceReader
from slackwater_sidecar.settings import SidecarSettings

AT_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - librdkafka's own codes have no other name


class Kafka:
    """Stands in for the consumer: gives out what it is asked to."""

    def __init__(self, _config: object) -> None:
        self.waiting: list[Message] = []

    def poll(self, _timeout: float) -> Message | None:
        return self.waiting.pop(0) if self.waiting else None

    def consume(self, number: int, _timeout: float) -> list[Message]:
        given, self.waiting = self.waiting[:number], self.waiting[number:]
        return given


class Sink:
    """Notes its calls."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def take_rows(
        self, key: PartitionId, rows: Pairs | ParsedRows, run: str, timestamp_ms: int, *, is_keyless: bool
    ) -> None:
        assert not isinstance(rows, ParsedRows), "only workers have them"
        self.told.append((key, list(rows)))

    def take_others(self, key: PartitionId, records: Sequence[tuple[int, bytes | None, int]]) -> None:
        self.told.append((key, records))

    def take_end(self, key: PartitionId, offset: int) -> None:
        self.told.append((key, offset))

    def take_failure(self, failure: Failure) -> None:
        self.told.append(failure)


class Avro:
    """Stands in for what makes JSON of Avro: its registry is away at first."""

    is_away = True

    def convert(self, _messages: object) -> None:
        if self.is_away:
            raise SchemasUnavailableError("http://r", "down")


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> list[Kafka]:
    """The consumers that were made."""
    made: list[Kafka] = []

    def make(config: object) -> Kafka:
        made.append(Kafka(config))
        return made[-1]

    monkeypatch.setattr(consumption, "Consumer", make)
    return made


def settings(registry: RegistrySettings | None = None) -> SidecarSettings:
    return SidecarSettings(source="s", servers=Servers(KafkaSettings("h:1"), registry=registry))


def record(offset: int, value: bytes = b"{}") -> Message:
    return Message(topic="t", partition=0, offset=offset, value=value)


def other(offset: int) -> Message:
    return Message(topic="x", partition=0, offset=offset, value=b"v", timestamp=(1, 77))


@pytest.fixture
def sink() -> Sink:
    return Sink()


def test_records_that_come_with_an_error_are_taken_before_it_is_told(kafka: list[Kafka], sink: Sink) -> None:
    reading = Consumption(settings(), frozenset({"x"}), 1)
    failure = Message(topic="u", partition=1, error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    end = Message(topic="t", partition=0, offset=9, error=KafkaError(AT_END))
    kafka[0].waiting = [record(4), failure, record(5), end]

    reading.read(sink, 0)

    *taken, failed = sink.told
    assert taken == [(("t", 0), [(4, b"{}"), (5, b"{}")]), (("t", 0), 9)]
    assert isinstance(failed, Failure)
    assert (failed.topic, failed.number, failed.is_lost, failed.is_fatal) == ("u", 1, False, False)


def test_an_offset_that_does_not_exist_is_told_from_other_failures(kafka: list[Kafka], sink: Sink) -> None:
    reading = Consumption(settings(), frozenset(), 1)
    kafka[0].waiting = [
        Message(topic="u", partition=1, offset=7, error=KafkaError(KafkaError.OFFSET_OUT_OF_RANGE))
    ]
    reading.read(sink, 0)

    assert [(each.offset, each.is_lost) for each in sink.told] == [(7, True)]


def test_records_of_topics_without_rows_come_with_their_time(kafka: list[Kafka], sink: Sink) -> None:
    reading = Consumption(settings(), frozenset({"x"}), 1)
    kafka[0].waiting = [other(4)]
    reading.read(sink, 0)

    assert sink.told == [(("x", 0), [(4, b"v", 77)])]


def test_records_wait_for_a_schema_registry_that_is_away(kafka: list[Kafka], sink: Sink) -> None:
    reading = Consumption(settings(RegistrySettings(url="http://127.0.0.1:9")), frozenset(), 1)
    kafka[0].waiting = [record(4), record(5, b"\0\0\0\0\x01x")]

    for _ in range(3):
        with pytest.raises(SchemasUnavailableError, match=r"http://127\.0\.0\.1:9"):
            reading.read(sink, 0)

    assert sink.told == []
    assert kafka[0].waiting == []


def test_records_that_waited_are_taken_once(kafka: list[Kafka], sink: Sink) -> None:
    avro = Avro()
    reading = Consumption(settings(), frozenset({"x"}), 1, avro=cast(AvroValues, avro))
    kafka[0].waiting = [other(4)]
    with pytest.raises(SchemasUnavailableError):
        reading.read(sink, 0)
    avro.is_away = False
    for _ in range(2):
        reading.read(sink, 0)

    assert sink.told == [(("x", 0), [(4, b"v", 77)])]


@pytest.mark.parametrize(
    ("partitions", "least_bytes", "wait_ms"),
    [(1, 16_384, 10), (200, 16_384, 10), (201, 12_864, 10), (1_000, 64_000, 50), (10_000, 640_000, 100)],
)
def test_a_fetch_is_answered_when_it_is_worth_it_or_after_a_moment(
    partitions: int, least_bytes: int, wait_ms: int
) -> None:
    config = consumer_config(settings(), partitions)

    assert (config["fetch.min.bytes"], config["fetch.wait.max.ms"]) == (least_bytes, wait_ms)


def test_reading_continues_behind_the_end_of_each_partition_even_if_it_holds_no_record_there() -> None:
    rows, transactions = ("inv.s.a", 0), ("inv.transaction", 0)
    broker, assigned = Broker(), list[dict[PartitionId, int]]()
    for topic, _ in (rows, transactions):
        broker.add_topic(topic, 1)
    records = SimpleNamespace(pids=[], orphans=frozenset(), assign=assigned.append, hold=lambda *_: None)
    reader = SourceReader(
        SidecarSettings(source="inv", servers=Servers(KafkaSettings("h:1"))),
        lambda *_: None,
        Frontier("inv"),
        admin=cast(AdminClient, SimulatedAdmin(broker, lambda: False)),
        connect=lambda *_: cast(Consumption, records),
    )
    reader.discover()
    for end in (9, 7):
        reader.take_end(rows, end)
        reader.take_end(transactions, end - 1)
    records.orphans = frozenset({rows, transactions})
    reader.discover()

    assert assigned == [{rows: 0, transactions: 0}, {rows: 9, transactions: 8}]
