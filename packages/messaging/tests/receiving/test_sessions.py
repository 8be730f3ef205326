"""Receivers whose messages are handled with sessions of SQLAlchemy, in the transaction of the inbox."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater.protocol import ConfigError
from slackwater_lab.messaging.sending.world import World
from slackwater_messaging import PollingRelay
from slackwater_messaging.receiving import AsyncReceiver, ReceivedMessage, Receiver, TableInbox
from slackwater_messaging.sqlalchemy import with_async_sessions, with_sessions

pytestmark = pytest.mark.integration


@pytest.fixture
def world(postgres_server: PostgresServer, kafka_broker: KafkaBroker) -> Iterator[World]:
    made = World(postgres_server.dsn(), kafka_broker.bootstrap)
    TableInbox(f"{made.name}_inbox").create(made.connection)
    made.outbox.send(made.connection, *(made.message(str(number)) for number in (1, 2, 3)))
    with PollingRelay(made.dsn, made.kafka, made.outbox) as relay:
        relay.run_once()
    yield made
    made.connection.close()


def url(world: World, driver: str) -> str:
    return world.dsn.replace("postgresql://", f"postgresql+{driver}://")


def insert(world: World, message: ReceivedMessage) -> Any:
    return text(f"INSERT INTO {world.table} VALUES (:number)").bindparams(number=int(message.value or b""))  # noqa: S608


def inbox_rows(world: World) -> int:
    found = world.connection.execute(f"SELECT count(*) FROM {world.name}_inbox".encode()).fetchone()  # noqa: S608
    return int(found[0]) if found else 0


class Trouble:
    """Each of these happens once, at the second message."""

    def __init__(self) -> None:
        self.left = ["raise", "break", "roll back"]

    def next(self, message: ReceivedMessage) -> str | None:
        return self.left.pop(0) if message.value == b"2" and self.left else None


@pytest.fixture
def engine(world: World) -> Iterator[Engine]:
    made = create_engine(url(world, "psycopg"), pool_size=1, max_overflow=0)
    yield made
    made.dispose()


def test_a_session_s_changes_and_the_inbox_s_key_are_one_transaction(world: World, engine: Engine) -> None:
    trouble = Trouble()

    def handle(session: Session, message: ReceivedMessage) -> None:
        session.execute(insert(world, message))
        match trouble.next(message):
            case "raise":
                raise ValueError(message.value)
            case "break":
                session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
            case "roll back":  # what the service takes back is only its own
                session.rollback()
                session.execute(insert(world, message))
                session.commit()

    connect, call = with_sessions(engine, handle)
    inbox = TableInbox(f"{world.name}_inbox")
    with Receiver(world.kafka, [world.topic], group=world.name, inbox=inbox, connect=connect) as receiver:
        done = 0
        while done < 3:
            try:
                done += receiver.poll(call)
            except ValueError:
                assert (world.numbers, inbox_rows(world)) == ([], 0)
    assert (world.numbers, inbox_rows(world), trouble.left) == ([1, 2, 3], 3, [])
    with engine.connect() as free:  # its only place is free again, although a connection was lost
        assert free.scalar(text("SELECT 1")) == 1


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_an_asynchronous_session_s_changes_and_the_inbox_s_key_are_one_transaction(
    world: World, driver: str
) -> None:
    trouble = Trouble()
    inbox = TableInbox(f"{world.name}_inbox")

    async def work() -> None:
        engine = create_async_engine(url(world, driver), pool_size=1, max_overflow=0)

        async def handle(session: AsyncSession, message: ReceivedMessage) -> None:
            await session.execute(insert(world, message))
            match trouble.next(message):
                case "raise":
                    raise ValueError(message.value)
                case "break":
                    await session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
                case "roll back":
                    await session.rollback()
                    await session.execute(insert(world, message))
                    await session.commit()
            if message.value == b"3":
                receiver.stop()

        connect, call = with_async_sessions(engine, handle)
        async with AsyncReceiver(
            world.kafka, [world.topic], group=world.name, inbox=inbox, connect=connect
        ) as receiver:
            with pytest.raises(ValueError, match="2"):
                await receiver.run(call)
            assert (world.numbers, inbox_rows(world)) == ([], 0)
            await receiver.run(call)
        async with engine.connect() as free:
            assert await free.scalar(text("SELECT 1")) == 1
        await engine.dispose()

    asyncio.run(work())
    assert (world.numbers, inbox_rows(world), trouble.left) == ([1, 2, 3], 3, [])


def test_another_driver_is_refused(world: World) -> None:
    engine = create_engine("sqlite://")
    connect, call = with_sessions(engine, lambda session, message: None)
    inbox = TableInbox(f"{world.name}_inbox")
    with (
        Receiver(world.kafka, [world.topic], group=world.name, inbox=inbox, connect=connect) as receiver,
        pytest.raises(ConfigError, match=r"create the engine with postgresql\+psycopg"),
    ):
        receiver.poll(call)
    engine.dispose()
