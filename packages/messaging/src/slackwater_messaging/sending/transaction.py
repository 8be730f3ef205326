"""What a service holds while it sends: a database transaction, and the messages that belong to it."""

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
    """An open database transaction with its messages. They go on their way when the ``with`` block ends.

    If the block raises, the transaction is rolled back, and nothing is sent.
    """

    def __init__(self, connection: AnyDatabase) -> None:
        self.connection = connection
        """The connection, in the transaction."""
        self.messages: list[Message] = []
        """What was sent, in order."""

    def send(self, *messages: Message) -> None:
        """Sends messages with the transaction. Does no I/O."""
        self.messages += messages


class HalfCommittedError(MessagingStateError):
    """One of database and Kafka has committed, and of the other it is not known or known that it has not."""

    def __init__(self, problem: str, committed: str, messages: tuple[Message, ...]) -> None:
        super().__init__(problem, f"{committed} has committed: mend the other by hand, or with an audit")
        self.args = problem, committed, messages
        self.committed = committed
        """The side that has: ``the database`` or ``Kafka``."""
        self.messages = messages
        """The messages in question."""


def check_name(name: str) -> str:
    """Returns the name of a sender.

    Raises:
        MessagingConfigError: It is none.
    """
    if not _NAME.fullmatch(name):
        hint = "expected up to 100 letters, digits, '.', '_' and '-'"
        raise MessagingConfigError(f"a sender is named {name!r}", hint)
    return name


def check_idle(connection: Database | AsyncDatabase) -> None:
    """Refuses a connection within a transaction: its commit would not be the sender's.

    Raises:
        MessagingConfigError: It is in one.
    """
    status = connection.info.transaction_status
    if status is not TransactionStatus.IDLE:
        hint = "commit or roll back first; what belongs to the transaction is done in the with block"
        raise MessagingConfigError(f"the connection is in a transaction already ({status.name})", hint)


def check_whole(connection: Database | AsyncDatabase) -> None:
    """Refuses a transaction in which a statement has failed, or that was ended: COMMIT would not say so.

    Raises:
        MessagingStateError: It is one.
    """
    status = connection.info.transaction_status
    if status is not TransactionStatus.INTRANS:
        hint = "nothing was sent; let errors of statements leave the with block, and do not commit within it"
        raise MessagingStateError(f"the database transaction is no longer whole ({status.name})", hint)


@contextmanager
def autocommit(connection: Database) -> Iterator[None]:
    """Lets an idle connection commit each statement by itself for the block."""
    before = connection.autocommit
    connection.autocommit = True
    try:
        yield
    finally:
        with suppress(psycopg.OperationalError):  # it is closed: nobody will use it
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

    Unlike that of psycopg it may be ended within the block, which is what SQLAlchemy does after an error, and
    what PREPARE TRANSACTION does.
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
