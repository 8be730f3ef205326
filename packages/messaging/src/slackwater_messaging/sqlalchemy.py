"""Combines sessions of SQLAlchemy 2 with all ways of sending, over psycopg, and with asyncio over asyncpg."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from slackwater.protocol import ConfigError
from slackwater_messaging.database import IDLE_FIRST, Database, bridge_of
from slackwater_messaging.message import ReceivedMessage
from slackwater_messaging.receiving.attempts import Handle
from slackwater_messaging.receiving.inbox import Receipt, TableInbox, as_key
from slackwater_messaging.receiving.loops import Connect
from slackwater_messaging.sender import Sender, SenderPool, SendingTransaction

AnySender = Sender | SenderPool[Any]


def connection_of(session: Session | Connection) -> Database:
    """Returns the psycopg connection of a session or connection, in its transaction.

    Raises:
        ConfigError: The engine uses another driver.
    """
    connection = session.connection() if isinstance(session, Session) else session
    found = connection.connection.driver_connection
    if not isinstance(found, psycopg.Connection):
        driver = type(found).__module__
        problem = f"the engine's driver is {driver}: its connection is a {driver}.{type(found).__name__}"
        raise ConfigError(problem, "create the engine with postgresql+psycopg://…")
    return found


@contextmanager
def session_transaction(sender: AnySender, session: Session) -> Iterator[SendingTransaction[Database]]:
    """Opens a sender's transaction together with a session; the changes of the session commit with it.

    The session must not have an open transaction. It is flushed at the end of the block, and commits with the
    sender; do not call its ``commit``. If the block raises, the session is rolled back.

    Raises:
        ConfigError: The session has an open transaction, or uses another driver.
        SlackwaterError: The same errors as the sender's ``transaction``.
    """
    _check_idle(session)
    try:
        with sender.transaction(connection_of(session)) as sending:
            yield sending
            session.flush()
    except BaseException:
        session.rollback()
        raise
    session.commit()  # The database has committed already; this only ends the session's transaction.


@contextmanager
def receive(inbox: TableInbox, session: Session | Connection, key: bytes | str) -> Iterator[Receipt]:
    """Returns whether a request was received before; see :meth:`TableInbox.receive`.

    The block is a savepoint in the session's transaction, which its owner commits. The session is flushed at
    the end of the block.

    Raises:
        ConfigError: The session does not use PostgreSQL with psycopg 3, or the key is not valid.
        psycopg.Error: The database rejects a statement of the inbox.
        sqlalchemy.exc.SQLAlchemyError: The database rejects a statement of the session.
    """
    with session.begin_nested():
        connection = connection_of(session)
        receipt = Receipt(as_key(key))
        inbox.mark(connection, [receipt])
        yield receipt
        inbox.store(connection, [receipt])


def with_sessions(
    engine: Engine, handle: Callable[[Session, ReceivedMessage], bytes | None]
) -> tuple[Connect, Handle]:
    """Returns ``connect`` and the function of a receiver whose messages are handled with a session.

    The session works in the transaction of the inbox, which commits with it: its own commit, at the end of
    the function at the latest, only ends a savepoint. Errors of the database are the driver's, and not
    SQLAlchemy's, because a receiver knows those after which another attempt may succeed.
    """
    opened: list[Connection] = []

    def connect() -> Database:
        connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        found = connection_of(connection)
        connection.detach()  # the receiver closes what its engine would keep
        connection.begin()
        opened[:] = [connection]
        return found

    def call(_: Database, message: ReceivedMessage) -> bytes | None:
        with _driver_s_errors(), Session(opened[0], join_transaction_mode="create_savepoint") as session:
            answer = handle(session, message)
            session.commit()
            return answer

    return connect, call


def with_async_sessions(
    engine: AsyncEngine, handle: Callable[[AsyncSession, ReceivedMessage], Coroutine[Any, Any, bytes | None]]
) -> tuple[Callable[[], Coroutine[Any, Any, Any]], Callable[..., Coroutine[Any, Any, bytes | None]]]:
    """Does what :func:`with_sessions` does for an ``AsyncReceiver``, over psycopg or asyncpg."""
    opened: list[AsyncConnection] = []

    async def connect() -> Any:
        connection = await (await engine.connect()).execution_options(isolation_level="AUTOCOMMIT")
        found = await _driver_connection(connection)
        await connection.run_sync(lambda each: each.detach())
        await connection.begin()
        opened[:] = [connection]
        return found

    async def call(_: object, message: ReceivedMessage) -> bytes | None:
        with _driver_s_errors():
            async with AsyncSession(opened[0], join_transaction_mode="create_savepoint") as session:
                answer = await handle(session, message)
                await session.commit()
                return answer

    return connect, call


@contextmanager
def _driver_s_errors() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        found: BaseException | None = error.orig
        if found is not None and type(found).__module__.startswith("sqlalchemy"):  # its adapter of asyncpg
            found = found.__cause__
        raise found or error from error


async def async_connection_of(session: AsyncSession | AsyncConnection) -> Any:
    """Returns the connection of psycopg or asyncpg of an asynchronous session, in its transaction.

    Use it with ``Outbox.send_async`` and ``TableInbox.receive_async``.

    Raises:
        ConfigError: The engine uses another driver.
    """
    await session.execute(text("SELECT 1"))  # asyncpg's transaction begins only with the first statement
    return await _driver_connection(session)


@asynccontextmanager
async def async_session_transaction(
    sender: AnySender, session: AsyncSession
) -> AsyncIterator[SendingTransaction[Any]]:
    """Does what :func:`session_transaction` does with an asynchronous session.

    Raises:
        ConfigError: The session has an open transaction, or uses another driver.
        SlackwaterError: The same errors as the sender's ``transaction_async``.
    """
    _check_idle(session)
    try:
        level = await _let_begin(session)
        async with sender.transaction_async(await _driver_connection(session)) as sending:
            if level is not None:
                await session.execute(text(f"SET TRANSACTION ISOLATION LEVEL {level}"))
            yield sending
            await session.flush()
    except BaseException:
        await session.rollback()
        raise
    await session.commit()  # The database has committed already; this only ends the session's transaction.


def _check_idle(session: Session | AsyncSession) -> None:
    if session.in_transaction():
        raise ConfigError("the session already has an open transaction", IDLE_FIRST)


async def _let_begin(session: AsyncSession) -> str | None:
    """Lets others begin the session's transaction; returns the isolation level that it should have.

    SQLAlchemy's adapter of asyncpg begins transactions by itself, unless it is in its autocommit mode, which
    replaces the isolation level. With psycopg, the sender switches to autocommit and keeps the level.
    """
    connection = await session.connection()
    if connection.dialect.driver != "asyncpg":
        return None
    level = await connection.get_isolation_level()
    await session.rollback()
    await session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
    return level


async def _driver_connection(session: AsyncSession | AsyncConnection) -> Any:
    connection = await session.connection() if isinstance(session, AsyncSession) else session
    found = (await connection.get_raw_connection()).driver_connection
    bridge_of(found)
    return found
