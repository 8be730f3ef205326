"""Avro topics: a real broker, values that a real connector's converter wrote, the test registry."""

import base64
import json
import pickle
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from slackwater.cdc import Frontier, UndecodableRecordError
from slackwater.dev import KafkaBroker
from slackwater.kafka.registry import RegistryUnavailableError
from slackwater.protocol import KafkaSettings, RegistrySettings, Servers
from slackwater_lab.debezium.records import RUN_HEADER
from slackwater_lab.fakes.registry import RegistryServer
from slackwater_lab.topics import make_topics
from slackwater_sidecar.consumption import (
    AvroValues,
    SchemasUnavailableError,
    SidecarUnavailableError,
    avro_values,
    run_of,
)
from slackwater_sidecar.reader import SourceReader
from slackwater_sidecar.settings import SidecarSettings

RECORDINGS = Path(__file__).parents[2] / "packages/slackwater/tests/cdc/recordings/avro"
PREFIX = "av."
AVRO = b"\0\0\0\0\x01x"


class MovableClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> Any:
        raise NotImplementedError


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


def message(value: bytes | None) -> Message:
    return Message(topic="t", partition=0, offset=7, value=value)


def test_without_a_registry_nothing_is_converted(clock: MovableClock) -> None:
    assert avro_values(SidecarSettings(source="a", servers=Servers(KafkaSettings("h:1"))), clock) is None


def test_values_in_avro_are_replaced_and_others_stay(clock: MovableClock) -> None:
    messages = [message(AVRO), message(b"{}"), message(None), message(b"")]
    AvroValues(lambda _: b"1", "r", clock).convert(messages)

    assert [m.value() for m in messages] == [b"1", b"{}", None, b""]


def test_a_value_that_cannot_be_read_stays_for_the_frontier_to_name(
    clock: MovableClock, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(value: bytes | None) -> bytes:
        raise UndecodableRecordError("record", "odd", value or b"", "schema 1")

    messages = [message(AVRO)]
    AvroValues(refuse, "r", clock).convert(messages)

    assert messages[0].value() == AVRO
    assert "t/0, offset 7" in caplog.text


def test_a_registry_that_is_away_is_left_alone_for_a_while_and_then_asked_again(clock: MovableClock) -> None:
    calls: list[float] = []

    def away(value: bytes | None) -> bytes:
        calls.append(clock.seconds)
        if clock.seconds < 1:
            raise RegistryUnavailableError("http://r", "down")
        return b"1"

    values, messages = AvroValues(away, "http://r", clock), [message(b"{}"), message(AVRO)]
    for clock.seconds in (0.0, 0.1, 0.4, 0.6):
        with pytest.raises(
            SchemasUnavailableError,
            match=(
                r"registry at http://r is needed to "
                r"continue reading"
            ),
        ):
            values.convert(messages)
    clock.seconds = 1.2
    values.convert(messages)

    assert calls == [0.0, 0.6, 1.2]
    assert [m.value() for m in messages] == [b"{}", b"1"]


def test_its_error_travels_between_processes() -> None:
    error = SchemasUnavailableError("http://r", "down")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert isinstance(copy, SchemasUnavailableError)
    assert (str(copy), copy.address, copy.reason) == (str(error), "http://r", "down")


def written(broker: KafkaBroker, source: str) -> None:
    """Puts what a real connector wrote into topics of this source."""
    records = [json.loads(line) for line in (RECORDINGS / "avro.jsonl").read_text().splitlines()]
    topics = sorted({r["topic"] for r in records if r["topic"].startswith(PREFIX)})
    make_topics(broker.bootstrap, [topic.replace("av", source, 1) for topic in topics], 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for record in records:
        if record["topic"] in topics:
            key, value = (record[p] and base64.b64decode(record[p]) for p in ("key", "value"))
            producer.produce(
                record["topic"].replace("av", source, 1),
                value,
                key=key,
                timestamp=record["timestamp_ms"],
                headers=[(RUN_HEADER, record["run"])],
            )
    producer.flush(30)


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.parametrize("workers", [1, 2])
def test_a_source_in_avro_is_followed_also_when_its_registry_comes_later(
    kafka_broker: KafkaBroker, wait_until: Callable[[Callable[[], object]], None], workers: int
) -> None:
    source = f"av-{uuid.uuid4().hex[:10]}"
    written(kafka_broker, source)
    with RegistryServer(user="u", password="p") as registry:
        for schema_id, schema in json.loads((RECORDINGS / "schemas.json").read_text()).items():
            registry.register(json.dumps(schema), schema_id=int(schema_id))
        registry.failure = 503
        settings = SidecarSettings(
            source=source,
            servers=Servers(
                KafkaSettings(kafka_broker.bootstrap),
                registry=RegistrySettings(url=registry.url, user="u", password="p"),
            ),
            workers=workers,
        )
        frontier = Frontier(source)
        reader = SourceReader(settings, lambda _topic, _number: None, frontier)
        refused: list[str] = []

        def has_read_all() -> bool:
            reader.discover()
            try:
                reader.poll(0.05)
            except SidecarUnavailableError as error:
                refused.append(str(error))
                registry.failure = None
            frontier.advance()
            if frontier.end_offsets_wanted:
                frontier.end_offsets(reader.end_offsets())
                frontier.advance()
            return frontier.lsn == 26644928

        wait_until(has_read_all)
        reader.close()

    assert "HTTP 503" in refused[0]
    cuts = frontier.cuts()
    assert cuts[-1].event_count == 18
    assert [t.commit_lsn for cut in cuts for t in cut.transactions] == [
        26636352,
        26637632,
        26638640,
        26638824,
        26644928,
    ]
    assert (frontier.open_transactions(), list(frontier.obstacles)) == ([], [])


def test_a_run_that_is_no_text_is_a_run() -> None:
    assert run_of(Message(topic="t", partition=0, offset=0, headers=[(RUN_HEADER, b"\xff1")])) == "\ufffd1"
