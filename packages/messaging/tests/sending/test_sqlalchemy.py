"""SQLAlchemy's sessions with the ways of sending."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from slackwater.protocol import ConfigError
from slackwater_lab.messaging.sending.world import World
from slackwater_messaging import ChainedSender, CommitOrder, PreparedSender, SavedSender
from slackwater_messaging.receiving import TableInbox
from slackwater_messaging.sqlalchemy import (
    async_connection_of,
    async_session_transaction,
    connection_of,
    session_transaction,
)

pytestmark = pytest.mark.integration


class Base(DeclarativeBase):
    pass


class Business(Base):
    __tablename__ = "business"
    number: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def session(world: World) -> Iterator[Session]:
    engine = sa.create_engine(world.dsn.replace("postgresql://", "postgresql+psycopg://"))
    renamed = engine.execution_options(schema_translate_map={None: "public"})
    world.connection.execute(b"CREATE TABLE IF NOT EXISTS business (number bigint PRIMARY KEY)")
    world.connection.execute(b"TRUNCATE business")
    with Session(renamed) as made:
        yield made
    engine.dispose()


def senders(world: World) -> dict[str, ChainedSender | SavedSender | PreparedSender]:
    return {
        "chained": ChainedSender(world.kafka, world.name, order=CommitOrder.DATABASE_FIRST),
        "saved": SavedSender(world.kafka, world.outbox, world.name),
        "prepared": PreparedSender(world.kafka, world.name),
    }


def numbers(world: World) -> list[int]:
    return [n for (n,) in world.connection.execute(b"SELECT number FROM business ORDER BY number")]


def test_an_outbox_writes_in_the_session_s_transaction(world: World, session: Session) -> None:
    with session.begin():
        session.add(Business(number=1))
        world.outbox.send(connection_of(session), world.message("1"))
        assert world.waiting == 0
    session.add(Business(number=2))
    world.outbox.send(connection_of(session), world.message("2"))
    session.rollback()
    assert (numbers(world), world.waiting) == ([1], 1)


@pytest.mark.parametrize("way", ["chained", "saved", "prepared"])
def test_a_sender_commits_what_the_session_has_changed(world: World, session: Session, way: str) -> None:
    sender = senders(world)[way]

    def do(number: int) -> None:
        with session_transaction(sender, session) as sending:
            session.add(Business(number=number))
            sending.send(world.message(str(number)))

    for number in (1, 2):
        do(number)
        assert not session.in_transaction()
    with pytest.raises(sa.exc.IntegrityError):
        do(2)
    do(3)
    assert (numbers(world), world.values()) == ([1, 2, 3], ["1", "2", "3"])


def test_a_session_in_a_transaction_is_refused(world: World, session: Session) -> None:
    session.begin()
    with (
        pytest.raises(ConfigError, match="already has an open transaction"),
        session_transaction(senders(world)["saved"], session),
    ):
        pass


def test_another_driver_is_refused() -> None:
    with (
        Session(sa.create_engine("sqlite://")) as session,
        pytest.raises(ConfigError, match=r"driver is sqlite3.*postgresql\+psycopg"),
    ):
        connection_of(session)


DRIVERS = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])


@asynccontextmanager
async def opened(world: World, driver: str) -> AsyncIterator[AsyncSession]:
    world.connection.execute(b"CREATE TABLE IF NOT EXISTS business (number bigint PRIMARY KEY)")
    world.connection.execute(b"TRUNCATE business")
    url = world.dsn.replace("postgresql://", f"postgresql+{driver}://")
    engine = create_async_engine(url, isolation_level="REPEATABLE READ")
    async with AsyncSession(engine) as session:
        yield session
    await engine.dispose()


@DRIVERS
def test_an_outbox_and_an_inbox_write_in_the_asynchronous_session_s_transaction(
    world: World, driver: str
) -> None:
    inbox = TableInbox(f"{world.name}_inbox")

    async def do(session: AsyncSession, number: int) -> bool:
        connection = await async_connection_of(session)
        async with inbox.receive_async(connection, str(number)) as receipt:
            if not receipt.is_repeat:
                await world.outbox.send_async(connection, world.message(str(number)))
                session.add(Business(number=number))
                await session.flush()
        return receipt.is_repeat

    async def work() -> None:
        async with opened(world, driver) as session:
            await inbox.create_async(await async_connection_of(session))
            await session.commit()
            assert not await do(session, 1)
            assert world.waiting == 0
            await session.commit()
            assert not await do(session, 2)
            await session.rollback()
            assert await do(session, 1)

    asyncio.run(work())
    assert (numbers(world), world.waiting) == ([1], 1)


@pytest.mark.full
@DRIVERS
@pytest.mark.parametrize("way", ["chained", "saved", "prepared"])
def test_a_sender_commits_what_the_asynchronous_session_has_changed(
    world: World, driver: str, way: str
) -> None:
    async def do(session: AsyncSession, number: int) -> str:
        async with async_session_transaction(sender, session) as sending:
            level = str(await session.scalar(sa.text("SHOW transaction_isolation")))
            session.add(Business(number=number))
            async with session.begin_nested():
                session.add(Business(number=10 + number))
            sending.send(world.message(str(number)))
        return level

    async def work() -> None:
        async with opened(world, driver) as session:
            for number in (1, 2):
                assert await do(session, number) == "repeatable read"
                assert not session.in_transaction()
            with pytest.raises(sa.exc.IntegrityError):
                await do(session, 2)
            await do(session, 3)

    sender = senders(world)[way]
    asyncio.run(work())
    assert (numbers(world), world.values()) == ([1, 2, 3, 11, 12, 13], ["1", "2", "3"])


def test_an_asynchronous_session_in_a_transaction_is_refused(world: World) -> None:
    async def work() -> None:
        async with opened(world, "asyncpg") as session:
            await session.execute(sa.text("SELECT 1"))
            with pytest.raises(ConfigError, match="already has an open transaction"):
                async with async_session_transaction(senders(world)["saved"], session):
                    pass

    asyncio.run(work())
