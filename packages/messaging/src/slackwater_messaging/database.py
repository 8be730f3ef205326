"""The service's connection to its database: whether it is free, its transactions, and one of asyncio.

The synchronous code of this package also works over a connection of asyncio: it runs in a thread of its own,
and each of its statements runs in the connection's event loop.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    contextmanager,
    suppress,
)
from typing import Any, Final, LiteralString, TypeVar, cast

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from slackwater.protocol import ConfigError, StateError
from slackwater_messaging.running import wait_in

Database = psycopg.Connection[Any]

LOST_CONNECTION: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.TransactionTimeout,
)
"""Errors that mean that the database cannot be reached or has ended the connection; a new connection may
succeed. psycopg does not classify time-outs that end a connection as operational errors."""

_DURABLE: Final = (
    "set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), {})"
)
DURABLE: Final[LiteralString] = _DURABLE.format("true")
"""The commit of its transaction waits for the disk: a crash must not take back what readers of Kafka know."""
_DURABLE_SESSION: Final[LiteralString] = _DURABLE.format("false")


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")
IDLE_FIRST: Final = "commit or roll back first, and do all work of the new transaction inside the with block"


class KeptConnection:
    """A connection that is opened on demand, and again after it has broken. Its commits wait for the disk.

    Args:
        connect: A connection string of libpq, for a connection with autocommit; or a function that opens one.
        check: Called with each new connection; it may refuse it.
    """

    def __init__(
        self, connect: str | Callable[[], Database], check: Callable[[Database], None] = lambda _: None
    ) -> None:
        self._connect, self._check = connect, check
        self._connection: Database | None = None

    def open(self) -> Database:
        """Returns the connection.

        Raises:
            psycopg.OperationalError: The database cannot be reached.
        """
        if self._connection is None or self._connection.closed:
            self._connection = make_durable(
                psycopg.Connection[Any].connect(self._connect, autocommit=True)
                if isinstance(self._connect, str)
                else self._connect(),
                self._check,
            )
        return self._connection

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def make_durable(connection: Database, check: Callable[[Database], None] = lambda _: None) -> Database:
    """Returns a new connection whose commits wait for the disk, because Kafka learns of them afterwards."""
    try:
        with connection.transaction():
            connection.execute(f"SELECT {_DURABLE_SESSION}".encode())
        check(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def check_idle(connection: Database) -> None:
    """Checks that a connection has no open transaction: the next one has to begin and end with the block.

    Raises:
        ConfigError: It has an open transaction.
    """
    status = connection.info.transaction_status
    if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        raise ConfigError(f"the connection already has an open transaction ({status.name})", IDLE_FIRST)


def check_whole(connection: Database) -> None:
    """Checks that a transaction has neither failed nor ended, which COMMIT would not report.

    Raises:
        StateError: A statement has failed, or the transaction has ended.
    """
    status = connection.info.transaction_status
    if status is not TransactionStatus.INTRANS:
        hint = "nothing was sent; let errors of statements leave the with block, and do not commit inside it"
        raise StateError(f"the database transaction has failed or was ended ({status.name})", hint)


@contextmanager
def autocommit(connection: Database) -> Iterator[None]:
    """Switches an idle connection to autocommit for the block."""
    before = connection.autocommit
    connection.autocommit = True
    try:
        yield
    finally:
        with suppress(psycopg.OperationalError):  # The connection is closed, and will not be used again.
            connection.autocommit = before


@contextmanager
def database_transaction(connection: Database) -> Iterator[None]:
    """Begins a transaction with the connection's properties, and commits or rolls back when the block ends.

    Unlike psycopg's transaction block, it allows the transaction to end inside the block, as SQLAlchemy does
    after an error, and as PREPARE TRANSACTION does.
    """
    with autocommit(connection):
        connection.execute(_begin(connection))
        try:
            yield
        except BaseException:
            with suppress(psycopg.OperationalError):
                connection.rollback()
            raise
        connection.commit()


def _begin(connection: Database) -> bytes:
    words = ["BEGIN"]
    if (level := connection.isolation_level) is not None:
        words.append(f"ISOLATION LEVEL {level.name.replace('_', ' ')}")
    if connection.read_only is not None:
        words.append("READ ONLY" if connection.read_only else "READ WRITE")
    if connection.deferrable is not None:
        words.append("DEFERRABLE" if connection.deferrable else "NOT DEFERRABLE")
    return " ".join(words).encode()


class Table:
    """A table that this package creates and uses.

    Args:
        table: The name, ``table`` or ``schema.table``. Records contain it, so it must identify one table.

    Raises:
        ConfigError: The name is not valid.
    """

    template: LiteralString
    """The SQL that creates the table, with ``{table}`` in place of its name, and as text ``{name}``."""
    suffix = ""
    """The end of the name of its trigger's function, ``{own}``."""

    def __init__(self, table: str) -> None:
        parts = table.split(".")
        if len(parts) > 2 or not all(_NAME.fullmatch(part) for part in parts):
            hint = "expected table or schema.table: letters, digits, '_' and '$'"
            raise ConfigError(f"the name of a table is {table!r}", hint)
        self.table = table
        self._names: dict[str, sql.Composable] = {
            "table": sql.Identifier(*parts),
            "own": sql.Identifier(*parts[:-1], f"{parts[-1][:56]}_{self.suffix}"),
        }
        self._names["name"] = sql.Literal(self.quoted)

    @property
    def quoted(self) -> str:
        """The name of the table as SQL."""
        return self._names["table"].as_string(None)

    @property
    def definition(self) -> str:
        """The SQL that creates the table, for migrations."""
        return self._sql(self.template).as_string(None)

    def create(self, connection: Database) -> None:
        """Creates the table unless it exists."""
        connection.execute(self._sql(self.template))

    def _sql(self, template: LiteralString, **names: sql.Composable) -> sql.Composed:
        return sql.SQL(template).format(**self._names, **names)


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
        return wait_in(self._loop, work)


def bridge_of(connection: object, loop: asyncio.AbstractEventLoop | None = None) -> Bridge:
    """Returns the bridge to an asynchronous connection.

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


def bridge(connection: object) -> Database:
    """Returns the stand-in for an asynchronous connection; call it in the connection's event loop.

    Raises:
        ConfigError: The connection is neither psycopg's nor asyncpg's.
    """
    return cast("Database", bridge_of(connection))
