"""Lets the synchronous code of this package work over a connection of asyncio.

The code runs in a thread of its own, and each of its statements runs in the connection's event loop.
"""

import asyncio
import contextvars
import threading
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


class Bridge:
    """The part of ``psycopg.Connection`` that this package uses, for a ``psycopg.AsyncConnection``.

    Args:
        connection: The asynchronous connection.
        loop: The connection's event loop. The methods wait for it, and are called in another thread.
    """

    def __init__(self, connection: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.connection = connection
        """The asynchronous connection."""
        self._loop = loop
        # Connections of asyncpg do not have them: there they belong to each transaction.
        self.isolation_level: psycopg.IsolationLevel | None = getattr(connection, "isolation_level", None)
        self.read_only: bool | None = getattr(connection, "read_only", None)
        self.deferrable: bool | None = getattr(connection, "deferrable", None)

    @property
    def info(self) -> "Bridge":
        """Itself, because it has the transaction's status."""
        return self

    @property
    def transaction_status(self) -> TransactionStatus:
        """The state of the connection's transaction."""
        return self._run(self._status())

    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""
        return bool(self.connection.closed)

    @property
    def autocommit(self) -> bool:
        """Whether a statement outside a transaction is committed by itself."""
        return bool(self.connection.autocommit)

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        self._run(self.connection.set_autocommit(value))

    def execute(self, query: Statement, parameters: Sequence[object] | None = None) -> Rows:
        """Runs a statement."""
        return self._run(self.execute_async(query, parameters))

    async def execute_async(self, query: Statement, parameters: Sequence[object] | None = None) -> Rows:
        """Runs a statement; called in the event loop."""
        async with self.connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(query, parameters)
            rows = await cursor.fetchall() if cursor.description else []
            return Rows(rows, cursor.rowcount, cursor.statusmessage)

    def commit(self) -> None:
        """Commits the open transaction."""
        self._run(self.connection.commit())

    def rollback(self) -> None:
        """Rolls the open transaction back."""
        self._run(self.connection.rollback())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Opens a transaction, or a savepoint in the open one."""
        block = self._block()
        self._run(block.__aenter__())
        try:
            yield
        except BaseException as error:
            self._run(block.__aexit__(type(error), error, error.__traceback__))
            raise
        self._run(block.__aexit__(None, None, None))

    def close(self) -> None:
        """Closes the connection."""
        self._run(self.connection.close())

    def lost(self, error: Exception) -> psycopg.Error | None:
        """Returns psycopg's error for a failed statement of the service if a retry may succeed."""
        return None

    async def _status(self) -> TransactionStatus:
        status: TransactionStatus = self.connection.info.transaction_status
        return status

    def _block(self) -> AbstractAsyncContextManager[object]:
        block: AbstractAsyncContextManager[object] = self.connection.transaction()
        return block

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def bridge_of(connection: object, loop: asyncio.AbstractEventLoop | None = None) -> Bridge:
    """Returns the bridge to an asynchronous connection.

    Args:
        connection: The connection.
        loop: Its event loop; None: the running one.

    Raises:
        ConfigError: The connection is neither psycopg's nor asyncpg's.
    """
    loop = loop or asyncio.get_running_loop()
    if isinstance(connection, psycopg.AsyncConnection):
        return Bridge(connection, loop)
    module = type(connection).__module__
    if module.partition(".")[0] == "asyncpg":
        from slackwater_messaging.asyncpg_bridge import AsyncpgBridge

        return AsyncpgBridge(connection, loop)
    problem = f"the connection is a {module}.{type(connection).__name__}"
    raise ConfigError(problem, "expected a psycopg.AsyncConnection or a connection of asyncpg")


def bridge(connection: object) -> psycopg.Connection[Any]:
    """Returns the stand-in for an asynchronous connection; call it in the connection's event loop.

    Raises:
        ConfigError: The connection is neither psycopg's nor asyncpg's.
    """
    return cast("psycopg.Connection[Any]", bridge_of(connection))


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
