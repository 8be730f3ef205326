"""Schemas are registered, each once, and the answers that mean something say it."""

import socket
from collections.abc import Iterator
from email.message import Message

import pytest

from slackwater.kafka.registry import (
    RegistryRefusedError,
    RegistryUnavailableError,
    Schema,
    SchemaKind,
    SchemaRegistry,
    SubjectStrategy,
    subject,
    wire_header,
)
from slackwater.protocol import ConfigError, RegistrySettings
from slackwater_lab.fakes.registry import RegistryServer

LONG = Schema(SchemaKind.AVRO, '"long"')
INT = Schema(SchemaKind.AVRO, '"int"')
OBJECT = Schema(SchemaKind.JSON, '{"type": "object"}')


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        yield running


def registry(server: RegistryServer) -> SchemaRegistry:
    return SchemaRegistry(RegistrySettings(url=server.url))


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (SubjectStrategy.TOPIC, ["shop.orders-value", "shop.orders-key"]),
        (SubjectStrategy.RECORD, ["slackwater.orders", "slackwater.orders"]),
        (SubjectStrategy.TOPIC_RECORD, ["shop.orders-slackwater.orders"] * 2),
    ],
)
def test_subjects_are_named_as_the_strategies_have_it(strategy: SubjectStrategy, expected: list[str]) -> None:
    found = [subject("shop.orders", "slackwater.orders", strategy, of_keys=key) for key in (False, True)]
    assert found == expected


def test_the_header_is_a_zero_byte_and_the_id() -> None:
    assert wire_header(70_000) == b"\x00\x00\x01\x11\x70"


def test_a_changed_schema_is_a_new_version_and_an_unchanged_one_is_not(server: RegistryServer) -> None:
    ids = [registry(server).register("t-value", schema) for schema in (LONG, LONG, INT, LONG)]

    assert ids[0] == ids[1] == ids[3] != ids[2]
    assert server.subjects == {"t-value": [ids[0], ids[2]]}
    assert SchemaRegistry(RegistrySettings(url=server.url)).schema(ids[0]) == LONG.text


def test_a_schema_that_is_there_is_only_read(server: RegistryServer) -> None:
    registry(server).register("t-value", LONG)
    server.requests.clear()

    registry(server).register("t-value", LONG)

    assert server.requests == ["/subjects/t-value"]


def test_a_json_schema_is_registered_as_one(server: RegistryServer) -> None:
    number = registry(server).register("a b/c-value", OBJECT)

    status, answer = server.answer("GET", f"/schemas/ids/{number}", Message(), b"")
    assert (status, answer) == (200, {"schema": OBJECT.text, "schemaType": "JSON"})
    assert list(server.subjects) == ["a b/c-value"]


def test_an_incompatible_schema_is_refused_with_what_differs(server: RegistryServer) -> None:
    server.incompatible["t-value"] = "READER_FIELD_MISSING_DEFAULT_VALUE at /fields/1"

    with pytest.raises(RegistryRefusedError, match=r"'t-value': .* not compatible .*409.*/fields/1"):
        registry(server).register("t-value", LONG)


def checked(server: RegistryServer) -> int:
    return registry(server).register("t-value", LONG, only_checks=True)


def test_a_check_registers_nothing_and_finds_what_is_there(server: RegistryServer) -> None:
    assert checked(server) == 0
    assert not server.subjects
    number = registry(server).register("t-value", LONG)
    assert checked(server) == number


@pytest.mark.parametrize("has_reasons", [False, True])
@pytest.mark.parametrize("told", ["READER_FIELD_MISSING_DEFAULT_VALUE at /fields/1", ""])
def test_a_check_refuses_what_would_be_refused(server: RegistryServer, told: str, has_reasons: bool) -> None:
    server.incompatible["t-value"], server.has_reasons = told, has_reasons

    with pytest.raises(
        RegistryRefusedError, match=rf"not compatible .*409\): {told or 'no reason is given'}"
    ):
        checked(server)
    assert not server.subjects


@pytest.mark.parametrize(
    ("status", "kind"), [(404, ConfigError), (403, ConfigError), (503, RegistryUnavailableError)]
)
def test_a_check_needs_an_answer(server: RegistryServer, status: int, kind: type[Exception]) -> None:
    server.failure = status

    with pytest.raises(kind, match=f"HTTP {status}"):
        checked(server)


@pytest.mark.parametrize("status", [401, 403])
def test_missing_rights_are_no_reason_to_ask_again(server: RegistryServer, status: int) -> None:
    server.failure = status

    with pytest.raises(ConfigError, match=rf"'t-value'.*HTTP {status}.*user and password"):
        registry(server).register("t-value", LONG)


def test_an_address_without_a_registry_is_a_mistake(server: RegistryServer) -> None:
    server.failure = 404

    with pytest.raises(ConfigError, match=r"it has no subjects.*check the address"):
        registry(server).register("t-value", LONG)


def test_a_schema_that_the_registry_cannot_read_is_refused(server: RegistryServer) -> None:
    server.failure = 422

    with pytest.raises(RegistryRefusedError, match=r"rejected \(HTTP 422\): told to fail"):
        registry(server).register("t-value", LONG)


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_registry_in_trouble_may_be_asked_again(server: RegistryServer, status: int) -> None:
    server.failure = status

    with pytest.raises(RegistryUnavailableError, match=f"HTTP {status}: told to fail"):
        registry(server).register("t-value", LONG)


def test_the_next_address_is_asked_when_one_does_not_answer(server: RegistryServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()[1]
    urls = f"http://127.0.0.1:{closed},{server.url}"

    assert SchemaRegistry(RegistrySettings(url=urls)).register("t-value", LONG) == 1
    with pytest.raises(RegistryUnavailableError, match="ConnectionRefusedError"):
        SchemaRegistry(RegistrySettings(url=urls.partition(",")[0])).register("t-value", LONG)
