"""docs/examples/fastapi_service.py, over a real database and a real broker."""

import uuid
from collections.abc import Callable

import psycopg
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.ext.asyncio import AsyncSession

from docs.examples import fastapi_service
from slackwater.dev import KafkaBroker, PostgresServer
from slackwater_lab.topics import make_topics, read_to_end
from slackwater_lab.watching import wait_until
from slackwater_messaging.receiving import ReceivedMessage

pytestmark = pytest.mark.integration
SECONDS = 120.0


@pytest.fixture
def name(kafka_broker: KafkaBroker) -> str:
    made = f"f{uuid.uuid4().hex[:10]}"
    make_topics(kafka_broker.bootstrap, [made], 1)
    return made


@pytest.fixture
def database(postgres_server: PostgresServer, name: str) -> str:
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return postgres_server.dsn(name)


@pytest.fixture
def make(kafka_broker: KafkaBroker, database: str, name: str) -> Callable[[], FastAPI]:
    return lambda: fastapi_service.make_app(kafka_broker.bootstrap, database, name, group=name)


def await_shipments(client: TestClient, *orders: int) -> None:
    assert wait_until(lambda: client.get("/shipments").json() == list(orders), SECONDS), client.get(
        "/health"
    ).text


def test_an_order_and_its_message_are_one_and_each_order_is_shipped_once(
    make: Callable[[], FastAPI], kafka_broker: KafkaBroker, name: str
) -> None:
    with TestClient(make()) as client:
        assert client.post("/orders/1?product=tea").status_code == 201
        assert client.post("/async-orders/2?product=tea").status_code == 201
        for path in ("/orders/2", "/async-orders/1"):
            assert client.post(f"{path}?product=coffee").status_code == 409
        await_shipments(client, 1, 2)
        assert client.get("/health").status_code == 200
    sent = [record.value() for record in read_to_end(kafka_broker.bootstrap, name)]
    assert sorted(value or b"" for value in sent) == [b"1", b"2"]


def test_the_service_stops_in_order_and_continues_where_it_was(
    make: Callable[[], FastAPI], database: str, name: str
) -> None:
    with TestClient(make()) as client:
        client.post("/orders/1?product=tea")
        await_shipments(client, 1)
    with psycopg.connect(database, autocommit=True) as connection:
        others = "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()"
        assert wait_until(lambda: connection.execute(others).fetchone() == (0,), SECONDS)
        connection.execute("INSERT INTO orders VALUES (7, 'tea')")
        fastapi_service.OUTBOX.send(connection, fastapi_service.ordered(7, name))
    with TestClient(make()) as client:
        await_shipments(client, 1, 7)


def test_an_order_that_cannot_be_shipped_holds_nothing_back(
    make: Callable[[], FastAPI], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of its attempts stays, because they are made in the transaction of the inbox."""
    ship = fastapi_service.ship

    async def fail(session: AsyncSession, message: ReceivedMessage) -> None:
        await ship(session, message)
        await session.flush()
        if message.value == b"2":
            raise ValueError(2)

    monkeypatch.setattr(fastapi_service, "ship", fail)
    with TestClient(make()) as client:
        for number in (1, 2, 3):
            client.post(f"/orders/{number}?product=tea")
        await_shipments(client, 1, 3)
        with psycopg.connect(database, autocommit=True) as connection:
            assert wait_until(lambda: len(fastapi_service.LETTERS.find(connection)) == 1, SECONDS)
            monkeypatch.undo()
            fastapi_service.LETTERS.retry(connection)
    with TestClient(make()) as client:
        await_shipments(client, 1, 2, 3)
