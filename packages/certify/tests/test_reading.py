"""Reading topics while Kafka reports errors."""

import json
from typing import cast

import pytest
from confluent_kafka import KafkaError, Message

from slackwater_certify.errors import CertifyError
from slackwater_certify.kafka import RecordDecoder, decode_output, read_topics
from slackwater_certify.output import OF_ANOTHER
from slackwater_certify.specification import Connections, Format, OutputKind, OutputSpecification
from slackwater_lab.fakes.topics import FlakyConsumer

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
    with pytest.raises(CertifyError, match="topic t"):
        read(monkeypatch, name)


class Event:
    """A record of an output."""

    def __init__(self, value: object, key: object = None) -> None:
        self._value, self._key = json.dumps(value).encode(), json.dumps(key).encode()

    def value(self) -> bytes:
        return self._value

    def key(self) -> bytes:
        return self._key

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0

    def headers(self) -> list[tuple[str, bytes]]:
        return []


DOCUMENT, GONE = {"id": 1}, None


@pytest.mark.parametrize(
    ("event", "document", "problem"),
    [
        ({"op": "c", "before": None, "after": {"id": 1}}, DOCUMENT, None),
        ({"op": "r", "after": {"id": 1}}, DOCUMENT, None),
        ({"schema": {}, "payload": {"op": "u", "before": {}, "after": {"id": 1}}}, DOCUMENT, None),
        ({"op": "d", "before": {"id": 1}, "after": None}, GONE, None),
        ({"op": "d", "after": {"id": 1}}, GONE, "a change event whose 'after' does not fit 'op' 'd'"),
        ({"op": "u", "after": None}, GONE, "a change event whose 'after' does not fit 'op' 'u'"),
        ({"id": 1}, GONE, "not a change event: 'op' is None"),
        ([1], GONE, "not a change event: 'op' is None"),
    ],
)
def test_of_a_change_event_the_document_is_what_it_leaves(
    event: object, document: object, problem: str | None
) -> None:
    output = OutputSpecification(OutputKind.TOPIC, "t", format=Format.DEBEZIUM)
    found = decode_output(
        cast(Message, Event(event, {"schema": {}, "payload": {"id": 1}})),
        output,
        0,
        RecordDecoder(Connections()),
    )
    assert (found.key, found.document, found.problem) == ({"id": 1}, document, problem)


class OfView(Event):
    """A record in a topic of several views."""

    def headers(self) -> list[tuple[str, bytes]]:
        return [("view", b"orders"), ("lsn", b"17")]


@pytest.mark.parametrize(("view", "problem"), [("orders", None), ("lines", OF_ANOTHER)])
def test_a_record_of_another_output_is_told_by_its_header(view: str, problem: str | None) -> None:
    output = OutputSpecification(OutputKind.TOPIC, "t", lsn_header="lsn", only={"view": view})
    found = decode_output(cast(Message, OfView({"id": 1})), output, 0, RecordDecoder(Connections()))
    assert (found.problem, found.lsn) == (problem, 17)


class Damaged(Event):
    """A record that names a schema, but not all of it."""

    def value(self) -> bytes:
        return b"\0\0"


def test_a_record_that_does_not_fit_its_schema_is_a_problem_of_the_output() -> None:
    output = OutputSpecification(OutputKind.TOPIC, "t")
    found = decode_output(cast(Message, Damaged({})), output, 0, RecordDecoder(Connections()))
    assert found.problem == "neither JSON nor Avro (it has 2 bytes, expected at least 5): \0\0"


def test_silence_is_limited_whatever_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CertifyError, match="no records arrive below offset 2"):
        read(monkeypatch, *["NOT_LEADER_FOR_PARTITION"] * 1_000)
