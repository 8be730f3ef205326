"""The client against the test registry."""

import json
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from email.message import Message
from typing import Any

import pytest

from slackwater.kafka.registry import (
    MAX_ANSWER_BYTES,
    RegistryRefusedError,
    RegistryUnavailableError,
    SchemaRegistry,
    avro_to_json,
)
from slackwater.protocol import ConfigError, InputError, RegistrySettings
from slackwater_lab.fakes.registry import RegistryServer

LONG = '"long"'


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        yield running


def client(url: str, **fields: str) -> SchemaRegistry:
    return SchemaRegistry(RegistrySettings(url=url, timeout=timedelta(seconds=2), **fields))  # type: ignore[arg-type]


def test_a_schema_is_asked_for_once(server: RegistryServer) -> None:
    schema_id = server.register(LONG, schema_id=70_000)
    registry = client(server.url + "/")

    assert [registry.schema(schema_id) for _ in range(3)] == [LONG] * 3
    assert server.requests == ["/schemas/ids/70000"]


def test_avro_becomes_json_and_json_stays(server: RegistryServer) -> None:
    schema_id = server.register('["null", "string"]')
    convert = avro_to_json(RegistrySettings(url=server.url))

    assert convert(b"\0" + schema_id.to_bytes(4, "big") + b"\x02\x02a") == b'"a"'
    assert convert(b'{"id":1}') == b'{"id":1}'


def test_a_registry_below_a_path_is_found_there(server: RegistryServer) -> None:
    with pytest.raises(InputError):
        client(server.url + "/apis/ccompat/v7").schema(1)

    assert server.requests == ["/apis/ccompat/v7/schemas/ids/1"]


def test_an_unknown_schema_is_asked_for_again_later(server: RegistryServer) -> None:
    registry = client(server.url)
    with pytest.raises(InputError, match="there is no schema 1; check whether this is the registry"):
        registry.schema(1)
    server.register(LONG)

    assert registry.schema(1) == LONG


def test_credentials_are_sent_and_never_shown() -> None:
    with RegistryServer(user="u", password="geheim") as server:
        server.register(LONG)
        settings = RegistrySettings(url=server.url, user="u", password="geheim")
        assert SchemaRegistry(settings).schema(1) == LONG
        assert "geheim" not in repr(settings)
        with pytest.raises(ConfigError, match="HTTP 401"):
            client(server.url, user="u", password="other").schema(1)
        with pytest.raises(ConfigError):
            client(server.url).schema(1)


@pytest.mark.parametrize("status", [500, 503, 429, 301])
def test_an_answer_that_does_not_help_is_no_schema(server: RegistryServer, status: int) -> None:
    server.failure = status

    with pytest.raises(RegistryUnavailableError, match=f"HTTP {status}"):
        client(server.url).schema(1)


def test_the_next_address_is_asked_when_one_does_not_answer(server: RegistryServer) -> None:
    server.register(LONG)

    assert client(f"http://127.0.0.1:{closed_port()}, {server.url}").schema(1) == LONG


def test_nobody_listening_is_said_with_the_address() -> None:
    address = f"http://127.0.0.1:{closed_port()}"

    with pytest.raises(RegistryUnavailableError, match=f"{address}: schema 5 .*ConnectionRefusedError"):
        client(address).schema(5)


def test_a_registry_that_says_nothing_is_waited_for_no_longer_than_the_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        settings = RegistrySettings(
            url=f"http://127.0.0.1:{mute.getsockname()[1]}", timeout=timedelta(milliseconds=50)
        )
        with pytest.raises(RegistryUnavailableError, match="TimeoutError"):
            SchemaRegistry(settings).schema(1)


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        b"[]",
        b'{"schema',
        b"null",
        b"{}",
        b"NaN",
        b'{"schema":"\xff"}',
        b'{"schema":' + b"[" * 50_000,
    ],
)
def test_an_answer_that_is_no_schema_shows_its_beginning(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_once, args=(listener, answer))
        thread.start()
        with pytest.raises(RegistryUnavailableError, match="its answer has no schema"):
            client(f"http://127.0.0.1:{listener.getsockname()[1]}").schema(1)
        thread.join()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"schemaType": "PROTOBUF"}, "is PROTOBUF"),
        ({"references": [{"name": "x", "subject": "x", "version": 1}]}, "refers to other schemas"),
    ],
)
def test_what_is_no_self_contained_avro_is_refused(
    server: RegistryServer, fields: dict[str, Any], problem: str
) -> None:
    schema_id = server.register(LONG, **fields)

    with pytest.raises(InputError, match=problem):
        client(server.url).schema(schema_id)


def test_a_connector_registers_and_gets_the_same_id_for_the_same_schema(server: RegistryServer) -> None:
    ids = [post(server, subject, {"schema": LONG}) for subject in ("a-value", "b-value")]

    assert ids == [{"id": 1}, {"id": 1}]
    assert post(server, "a-value", {"schema": '"int"'}) == {"id": 2}
    assert server.schemas == {1: LONG, 2: '"int"'}


def test_errors_travel_between_processes() -> None:
    for error in (
        RegistryUnavailableError("http://a", "why"),
        RegistryRefusedError("http://a", "is incompatible"),
    ):
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        assert type(copy) is type(error)
        assert str(copy) == str(error)


def post(server: RegistryServer, subject: str, document: object) -> object:
    status, answer = server.answer(
        "POST", f"/subjects/{subject}/versions?normalize=false", Message(), json.dumps(document).encode()
    )
    assert status == 200
    return answer


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_an_answer_that_is_too_long_is_not_read_to_its_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_once, args=(listener, b" " * (MAX_ANSWER_BYTES + 1)))
        thread.start()
        with pytest.raises(RegistryUnavailableError, match="its answer is longer than 8,388,608 bytes"):
            client(f"http://127.0.0.1:{listener.getsockname()[1]}").schema(1)
        thread.join()


def test_an_answer_of_the_greatest_length_is_read() -> None:
    answer = json.dumps({"schema": LONG}).encode()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        padded = answer + b" " * (MAX_ANSWER_BYTES - len(answer))
        thread = threading.Thread(target=answer_once, args=(listener, padded))
        thread.start()
        assert client(f"http://127.0.0.1:{listener.getsockname()[1]}").schema(1) == LONG
        thread.join()


def test_an_answer_that_drips_without_end_is_given_up() -> None:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener, stop))
        thread.start()
        settings = RegistrySettings(
            url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=timedelta(milliseconds=200)
        )
        with pytest.raises(RegistryUnavailableError, match="its answer does not end"):
            SchemaRegistry(settings).schema(1)
        stop.set()
        thread.join()


def drip(listener: socket.socket, stop: threading.Event) -> None:
    """Sends a byte every now and then until told to stop."""
    connection, _ = listener.accept()
    with connection, suppress(OSError):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not stop.wait(0.02):
            connection.sendall(b" ")


def answer_once(listener: socket.socket, body: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(10_000)
        with suppress(OSError):  # the client may have heard enough
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
