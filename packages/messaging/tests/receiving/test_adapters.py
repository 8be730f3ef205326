"""The inbox table in services with asyncio, and with SQLAlchemy."""

import asyncio
import uuid
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import Connection, Engine, create_engine, func, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from slackwater.dev import PostgresServer
from slackwater.protocol import ConfigError
from slackwater_messaging.receiving import TableInbox
from slackwater_messaging.sqlalchemy import receive

pytestmark = pytest.mark.integration


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effect"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


@pytest.fixture
def options(postgres_server: PostgresServer) -> str:
    """Makes a schema of this test's own; psycopg's options for it."""
    schema = f"a{uuid.uuid4().hex[:10]}"
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    return f"-c search_path={schema}"


@pytest.fixture
def engine(postgres_server: PostgresServer, options: str) -> Iterator[Engine]:
    url = postgres_server.dsn().replace("postgresql://", "postgresql+psycopg://")
    made = create_engine(url, connect_args={"options": options})
    Base.metadata.create_all(made)
    with psycopg.connect(postgres_server.dsn(), options=options) as connection:
        TableInbox("inbox").create(connection)
    yield made
    made.dispose()


def effects(engine: Engine) -> int:
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(Effect)) or 0


def pay(engine: Engine, key: str) -> tuple[bool, bytes | None]:
    with Session(engine) as session, session.begin():
        with receive(TableInbox("inbox"), session, key) as receipt:
            if not receipt.is_repeat:
                session.add(Effect(item=key))
                receipt.answer = b"paid"
        return receipt.is_repeat, receipt.answer


def test_a_session_s_effect_and_the_key_are_one_transaction(engine: Engine) -> None:
    assert pay(engine, "a") == (False, b"paid")
    assert pay(engine, "a") == (True, b"paid")
    assert effects(engine) == 1


def test_a_session_that_is_rolled_back_takes_the_key_with_it(engine: Engine) -> None:
    """Fails if the block commits by itself."""
    with Session(engine) as session:
        with receive(TableInbox("inbox"), session, "a"):
            session.add(Effect(item="a"))
        session.rollback()
    assert effects(engine) == 0
    assert pay(engine, "a") == (False, b"paid")


def test_what_a_session_has_not_written_yet_is_written_before_its_key_counts(engine: Engine) -> None:
    """Fails without the flush: an effect that the database refuses would leave its key."""
    with Session(engine) as session:
        with pytest.raises(Exception, match="null value"), receive(TableInbox("inbox"), session, "a"):
            session.add(Effect())
        session.commit()
    assert pay(engine, "a") == (False, b"paid")


def test_a_plain_connection_will_do(engine: Engine) -> None:
    for is_repeat in (False, True):
        with engine.begin() as connection, receive(TableInbox("inbox"), connection, "a") as receipt:
            assert receipt.is_repeat is is_repeat
            if not is_repeat:
                connection.execute(text("INSERT INTO effect (item) VALUES ('a')"))
    assert effects(engine) == 1


def test_another_driver_is_refused() -> None:
    def use(connection: Connection) -> None:
        with receive(TableInbox("inbox"), connection, "a"):
            pass

    engine = create_engine("sqlite://")
    with engine.begin() as connection, pytest.raises(ConfigError, match=r"is a sqlite3\.Connection"):
        use(connection)
    engine.dispose()


def test_concurrent_requests_with_one_key_have_one_effect_and_one_answer(
    postgres_server: PostgresServer, options: str
) -> None:
    inbox = TableInbox("inbox")
    answers: list[bytes | None] = []

    async def request(n: int) -> None:
        async with await psycopg.AsyncConnection.connect(
            postgres_server.dsn(), options=options
        ) as connection:
            async with inbox.receive_async(connection, "same") as receipt:
                if not receipt.is_repeat:
                    await connection.execute("INSERT INTO effect (item) VALUES (%s)", [str(n)])
                    receipt.answer = str(n).encode()
            answers.append(receipt.answer)

    async def run() -> list[tuple[str]]:
        async with await psycopg.AsyncConnection.connect(
            postgres_server.dsn(), options=options
        ) as connection:
            await connection.execute("CREATE TABLE effect (item text)")
            await inbox.create_async(connection)
            await connection.commit()
            await asyncio.gather(*(request(n) for n in range(10)))
            found = await connection.execute("SELECT item FROM effect")
            return await found.fetchall()

    effects = asyncio.run(run())
    assert len(effects) == 1
    assert answers == [effects[0][0].encode()] * 10


def test_old_keys_are_deleted_by_an_asynchronous_service_too(
    postgres_server: PostgresServer, options: str
) -> None:
    inbox = TableInbox("inbox", remember=timedelta(microseconds=1))

    async def run() -> list[int]:
        async with await psycopg.AsyncConnection.connect(
            postgres_server.dsn(), options=options
        ) as connection:
            await inbox.create_async(connection)
            for key in "abc":
                async with inbox.receive_async(connection, key):
                    pass
            return [await inbox.clean_async(connection, at_most=2) for _ in range(3)]

    assert asyncio.run(run()) == [2, 1, 0]


def test_an_asynchronous_service_takes_the_key_back_after_an_error(
    postgres_server: PostgresServer, options: str
) -> None:
    inbox = TableInbox("inbox")

    async def run() -> bool:
        async with await psycopg.AsyncConnection.connect(
            postgres_server.dsn(), options=options
        ) as connection:
            await inbox.create_async(connection)
            try:
                async with inbox.receive_async(connection, "a"):
                    raise ZeroDivisionError
            except ZeroDivisionError:
                await connection.commit()
            async with inbox.receive_async(connection, "a") as receipt:
                return receipt.is_repeat

    assert asyncio.run(run()) is False
