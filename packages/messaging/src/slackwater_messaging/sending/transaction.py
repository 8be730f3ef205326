"""The transaction of a service that sends messages: a database transaction and its messages."""

import re
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from typing import Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from slackwater_messaging.bridge import bridge, in_threads
from slackwater_messaging.errors import MessagingConfigError, MessagingStateError
from slackwater_messaging.exclusive import Exclusive
from slackwater_messaging.message import Message
from slackwater_messaging.sending.closing import Closing
from slackwater_messaging.sending.outbox import Database

AnyDatabase = TypeVar("AnyDatabase")

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


class Sender(Closing):
    """What all senders have in common: a name, and one transaction at a time.

    Args:
        name: The name.

    Raises:
        MessagingConfigError: It is not valid.
    """

    def __init__(self, name: str) -> None:
        self.name = check_name(name)
        """The name."""
        hint = "give each thread and task its own sender, or let all requests share a SenderPool"
        self._use = Exclusive(f"sender {name}", hint)

    @abstractmethod
    def transaction(self, connection: Database) -> AbstractContextManager[SendingTransaction[Database]]:
        """Opens a transaction; it ends with the block."""

    @property
    def is_settled(self) -> bool:
        """False if something may wait for :meth:`recover`, which the next transaction tries."""
        return True

    def recover(self, connection: Database) -> object:
        """Completes what earlier processes with this name, or earlier failures, have left."""
        return None

    def waiting_senders(self, connection: Database) -> set[str]:
        """Returns the names of all senders of this kind that have left something to recover."""
        return set()

    @asynccontextmanager
    async def transaction_async(
        self, connection: AnyDatabase
    ) -> AsyncIterator[SendingTransaction[AnyDatabase]]:
        """Does what :meth:`transaction` does over a connection of asyncio, without blocking the event loop.

        If the task is cancelled while the block begins or ends, that takes effect when it has begun or ended.

        Args:
            connection: A ``psycopg.AsyncConnection``, or a connection of asyncpg or of its pool. The errors
                of the sender's own statements are psycopg's in either case.
        """
        sending = SendingTransaction(connection)
        async with in_threads(self.transaction(bridge(connection))) as opened:
            yield sending
            opened.messages = sending.messages


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


def check_idle(connection: Database) -> None:
    """Checks that a connection has no open transaction, which the sender would not commit itself.

    Raises:
        MessagingConfigError: It has an open transaction.
    """
    status = connection.info.transaction_status
    if status is not TransactionStatus.IDLE:
        hint = "commit or roll back first, and do all work of the new transaction inside the with block"
        raise MessagingConfigError(f"the connection already has an open transaction ({status.name})", hint)


def check_whole(connection: Database) -> None:
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
