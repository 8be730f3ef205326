"""The service's connection to its database: whether it is free, its transactions, and one that is kept."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, LiteralString

import psycopg
from psycopg.pq import TransactionStatus

from slackwater.protocol import ConfigError, StateError

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


IDLE_FIRST: Final = "commit or roll back first, and do all work of the new transaction inside the with block"


class KeptConnection:
    """A connection that is opened on demand, and again after it has broken. Its commits wait for the disk.

    Args:
        connect: A connection string of libpq, for a connection with autocommit; or a function that opens one.
    """

    def __init__(self, connect: str | Callable[[], Database]) -> None:
        self._connect = connect
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
                else self._connect()
            )
        return self._connection

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def make_durable(connection: Database) -> Database:
    """Returns a new connection whose commits wait for the disk, because Kafka learns of them afterwards."""
    try:
        with connection.transaction():
            connection.execute(f"SELECT {_DURABLE_SESSION}".encode())
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
