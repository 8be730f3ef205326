"""The transaction of a service that sends messages: a database transaction and its messages."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from slackwater_messaging.errors import MessagingConfigError, MessagingStateError
from slackwater_messaging.message import Message
from slackwater_messaging.sending.outbox import AsyncDatabase, Database

AnyDatabase = TypeVar("AnyDatabase", bound=Database | AsyncDatabase)

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


class SendingTransaction(Generic[AnyDatabase]):
    """An open database transaction with its messages, which are sent when the ``with`` block ends.

    If the block raises, the transaction is rolled back, and nothing is sent.
    """

    def __init__(self, connection: AnyDatabase) -> None:
        self.connection = connection
        """The connection, inside the transaction."""
        self.messages: list[Message] = []
        """The messages, in the order in which they were sent."""

    def send(self, *messages: Message) -> None:
        """Adds messages to the transaction. Does no I/O."""
        self.messages += messages


class HalfCommittedError(MessagingStateError):
    """Either the database or Kafka has committed; the other one has not, or its outcome is not known."""

    def __init__(self, problem: str, committed: str, messages: tuple[Message, ...]) -> None:
        super().__init__(
            problem, f"{committed} has committed; repair the other side, an audit shows the difference"
        )
        self.args = problem, committed, messages
        self.committed = committed
        """The side that has committed: ``the database`` or ``Kafka``."""
        self.messages = messages
        """The messages of the transaction."""


def check_name(name: str) -> str:
    """Returns the name of a sender.

    Raises:
        MessagingConfigError: The name is not valid.
    """
    if not _NAME.fullmatch(name):
        hint = "expected up to 100 letters, digits, '.', '_' and '-'"
        raise MessagingConfigError(f"the name of a sender is {name!r}", hint)
    return name


def check_idle(connection: Database | AsyncDatabase) -> None:
    """Checks that a connection has no open transaction, which the sender would not commit itself.

    Raises:
        MessagingConfigError: It has an open transaction.
    """
    status = connection.info.transaction_status
    if status is not TransactionStatus.IDLE:
        hint = "commit or roll back first, and do all work of the new transaction inside the with block"
        raise MessagingConfigError(f"the connection already has an open transaction ({status.name})", hint)


def check_whole(connection: Database | AsyncDatabase) -> None:
    """Checks that a transaction has neither failed nor ended, which COMMIT would not report.

    Raises:
        MessagingStateError: A statement has failed, or the transaction has ended.
    """
    status = connection.info.transaction_status
    if status is not TransactionStatus.INTRANS:
        hint = "nothing was sent; let errors of statements leave the with block, and do not commit inside it"
        raise MessagingStateError(f"the database transaction has failed or was ended ({status.name})", hint)


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


@asynccontextmanager
async def autocommit_async(connection: AsyncDatabase) -> AsyncIterator[None]:
    """Does what :func:`autocommit` does."""
    before = connection.autocommit
    await connection.set_autocommit(True)
    try:
        yield
    finally:
        with suppress(psycopg.OperationalError):
            await connection.set_autocommit(before)


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


@asynccontextmanager
async def database_transaction_async(connection: AsyncDatabase) -> AsyncIterator[None]:
    """Does what :func:`database_transaction` does."""
    async with autocommit_async(connection):
        await connection.execute(_begin(connection))
        try:
            yield
        except BaseException:
            with suppress(psycopg.OperationalError):
                await connection.rollback()
            raise
        await connection.commit()


def _begin(connection: Database | AsyncDatabase) -> bytes:
    words = ["BEGIN"]
    if (level := connection.isolation_level) is not None:
        words.append(f"ISOLATION LEVEL {level.name.replace('_', ' ')}")
    if connection.read_only is not None:
        words.append("READ ONLY" if connection.read_only else "READ WRITE")
    if connection.deferrable is not None:
        words.append("DEFERRABLE" if connection.deferrable else "NOT DEFERRABLE")
    return " ".join(words).encode()
