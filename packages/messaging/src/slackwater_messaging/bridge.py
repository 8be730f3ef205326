"""Lets the synchronous code of this package work over a connection of asyncio.

The code runs in a thread of its own, and each of its statements runs in the connection's event loop.
"""

import asyncio
import contextvars
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, TypeVar, cast

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from slackwater.client.finishing import finished
from slackwater.protocol import ConfigError

T = TypeVar("T")
Statement = str | bytes | sql.SQL | sql.Composed


class Rows:
    """The result of a statement: as much of psycopg's cursor as this package uses."""

    def __init__(self, rows: Sequence[Sequence[Any]], rowcount: int, statusmessage: str | None) -> None:
        self._rows, self.rowcount, self.statusmessage = rows, rowcount, statusmessage

    def __iter__(self) -> Iterator[Sequence[Any]]:
        """Returns an iterator over the rows."""
        return iter(self._rows)

    def fetchall(self) -> Sequence[Sequence[Any]]:
        """Returns all rows."""
        return self._rows

    def fetchone(self) -> Sequence[Any] | None:
        """Returns the first row; None if there is none."""
        return self._rows[0] if self._rows else None


class AsyncDriver(ABC):
    """What this package needs from an asynchronous connection. All methods raise psycopg's errors."""

    isolation_level: psycopg.IsolationLevel | None = None
    read_only: bool | None = None
    deferrable: bool | None = None
    autocommit = True
    """Whether a statement outside a transaction is committed by itself."""

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Whether the connection is closed."""

    def lost(self, error: Exception) -> psycopg.Error | None:
        """Returns psycopg's error for a failed statement of the service if a retry may succeed."""
        return None

    @abstractmethod
    async def status(self) -> TransactionStatus:
        """Returns the state of the connection's transaction."""

    @abstractmethod
    async def execute(self, query: Statement, parameters: Sequence[object] | None = None) -> Rows:
        """Runs a statement with psycopg's placeholders."""

    @abstractmethod
    async def set_autocommit(self, value: bool) -> None:
        """Changes :attr:`autocommit` if the driver has such a setting."""

    @abstractmethod
    async def commit(self) -> None:
        """Commits the open transaction, if there is one."""

    @abstractmethod
    async def rollback(self) -> None:
        """Rolls the open transaction back, if there is one."""

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[object]:
        """Returns a block that is a transaction, or a savepoint in the open one."""

    @abstractmethod
    async def close(self) -> None:
        """Closes the connection."""


class PsycopgDriver(AsyncDriver):
    """Uses a ``psycopg.AsyncConnection``."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self.isolation_level, self.read_only = connection.isolation_level, connection.read_only
        self.deferrable, self.autocommit = connection.deferrable, connection.autocommit

    @property
    def is_closed(self) -> bool:
        """See the base class."""
        return self._connection.closed

    async def status(self) -> TransactionStatus:
        """See the base class."""
        return self._connection.info.transaction_status

    async def execute(self, query: Statement, parameters: Sequence[object] | None = None) -> Rows:
        """See the base class."""
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(query, parameters)
            rows = await cursor.fetchall() if cursor.description else []
            return Rows(rows, cursor.rowcount, cursor.statusmessage)

    async def set_autocommit(self, value: bool) -> None:
        """See the base class."""
        await self._connection.set_autocommit(value)
        self.autocommit = value

    async def commit(self) -> None:
        """See the base class."""
        await self._connection.commit()

    async def rollback(self) -> None:
        """See the base class."""
        await self._connection.rollback()

    def transaction(self) -> AbstractAsyncContextManager[object]:
        """See the base class."""
        return self._connection.transaction()

    async def close(self) -> None:
        """See the base class."""
        await self._connection.close()


def driver_of(connection: object) -> AsyncDriver:
    """Returns the driver of an asynchronous connection.

    Raises:
        ConfigError: It is neither psycopg's nor asyncpg's.
    """
    if isinstance(connection, psycopg.AsyncConnection):
        return PsycopgDriver(connection)
    module = type(connection).__module__
    if module.partition(".")[0] == "asyncpg":
        from slackwater_messaging.asyncpg_driver import AsyncpgDriver

        return AsyncpgDriver(connection)
    problem = f"the connection is a {module}.{type(connection).__name__}"
    raise ConfigError(problem, "expected a psycopg.AsyncConnection or a connection of asyncpg")


class Bridge:
    """The part of ``psycopg.Connection`` that this package uses, for a connection in another thread.

    Args:
        driver: The driver of the asynchronous connection.
        loop: The connection's event loop.
    """

    def __init__(self, driver: AsyncDriver, loop: asyncio.AbstractEventLoop) -> None:
        self._driver, self._loop = driver, loop
        self.isolation_level, self.read_only = driver.isolation_level, driver.read_only
        self.deferrable = driver.deferrable

    @property
    def info(self) -> "Bridge":
        """Itself, because it has the transaction's status."""
        return self

    @property
    def transaction_status(self) -> TransactionStatus:
        """The state of the connection's transaction."""
        return self._run(self._driver.status())

    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""
        return self._driver.is_closed

    @property
    def autocommit(self) -> bool:
        """Whether a statement outside a transaction is committed by itself."""
        return self._driver.autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        self._run(self._driver.set_autocommit(value))

    def execute(self, query: Statement, parameters: Sequence[object] | None = None) -> Rows:
        """Runs a statement."""
        return self._run(self._driver.execute(query, parameters))

    def commit(self) -> None:
        """Commits the open transaction."""
        self._run(self._driver.commit())

    def rollback(self) -> None:
        """Rolls the open transaction back."""
        self._run(self._driver.rollback())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Opens a transaction, or a savepoint in the open one."""
        block = self._driver.transaction()
        self._run(block.__aenter__())
        try:
            yield
        except BaseException as error:
            self._run(block.__aexit__(type(error), error, error.__traceback__))
            raise
        self._run(block.__aexit__(None, None, None))

    def close(self) -> None:
        """Closes the connection."""
        self._run(self._driver.close())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def bridge(connection: object) -> psycopg.Connection[Any]:
    """Returns the stand-in for an asynchronous connection; call it in the connection's event loop.

    Raises:
        ConfigError: The connection is neither psycopg's nor asyncpg's.
    """
    return cast("psycopg.Connection[Any]", Bridge(driver_of(connection), asyncio.get_running_loop()))


async def in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Makes a call in a new thread. A cancellation of the caller takes effect when the call has ended.

    The threads of the event loop's executor are not used: calls wait for each other, for example for locks of
    the database, and a call that waits for a free thread could be the one for which all others wait.
    """
    return await finished(asyncio.wrap_future(_started(call, *arguments)))


@asynccontextmanager
async def in_threads(block: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enters and leaves a synchronous block in other threads.

    A cancellation takes effect when the block was entered, or left, and a block that was entered is always
    left.
    """
    entering = _started(block.__enter__)
    try:
        found = await finished(asyncio.wrap_future(entering))
    except asyncio.CancelledError as error:
        if entering.exception() is None:
            await in_thread(block.__exit__, type(error), error, error.__traceback__)
        raise
    try:
        yield found
    except BaseException as error:
        if not await in_thread(block.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await in_thread(block.__exit__, None, None, None)


async def run_in_thread(run: Callable[[], None], stop: Callable[[], None]) -> None:
    """Runs something in a thread until it ends. A cancellation calls ``stop``, and waits for the end."""
    running = asyncio.wrap_future(_started(run))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        stop()
        await finished(running)
        raise


def _started(call: Callable[..., T], *arguments: object) -> Future[T]:
    answer, context = Future[T](), contextvars.copy_context()

    def work() -> None:
        try:
            answer.set_result(context.run(call, *arguments))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            answer.set_exception(error)

    threading.Thread(target=work, name="slackwater messaging", daemon=True).start()
    return answer
