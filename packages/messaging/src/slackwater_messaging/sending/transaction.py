"""What all senders have in common: transactions with messages, and steps for probes."""

import re
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from enum import StrEnum
from typing import Generic, TypeVar

from slackwater.protocol import ConfigError, KafkaSettings, StateError
from slackwater_messaging.bridge import bridge, in_threads
from slackwater_messaging.database import Database, check_idle
from slackwater_messaging.message import Message
from slackwater_messaging.running import Closing, Exclusive
from slackwater_messaging.sending.kafka import SenderProducer, SenderSettings

AnyDatabase = TypeVar("AnyDatabase")

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


class SendStep(StrEnum):
    """The step that was just completed. Each way reports only the steps that it has, in its own order."""

    SAVED = "saved"
    """The messages are rows of the open database transaction."""
    TAKEN = "taken"
    """A relay has locked the rows or read the transactions that it will send next."""
    PRODUCED = "produced"
    """Kafka has all records; those of a Kafka transaction are not visible."""
    PREPARED = "prepared"
    """The database has prepared the transaction, which now survives a crash, but is not committed."""
    DATABASE_COMMITTED = "database_committed"
    KAFKA_COMMITTED = "kafka_committed"
    REMOVED = "removed"
    """The rows were removed; by a relay in a transaction that is not committed yet."""


SendProbe = Callable[[SendStep], None]
"""Lets a test stop or kill a sender. Called after each step in the sending thread; may block or raise."""


def no_probe(_: SendStep) -> None:
    """Does nothing."""


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

    Requests that run at once share a :class:`SenderPool`. Each process needs its own name, because the name
    is a transactional id.

    Args:
        kafka: The brokers.
        name: The name of the sender.
        settings: Time limits.
        probe: Called after each step.

    Raises:
        ConfigError: The name cannot be used.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        name: str,
        *,
        settings: SenderSettings | None = None,
        probe: SendProbe = no_probe,
    ) -> None:
        self.name = check_name(name)
        """The name."""
        self._settings, self._probe = settings or SenderSettings(), probe
        self._producer = SenderProducer(kafka, name, self._settings)
        self._is_settled = False
        hint = "give each thread and task its own sender, or let all requests share a SenderPool"
        self._use = Exclusive(f"sender {name}", hint)

    @contextmanager
    def transaction(self, connection: Database) -> Iterator[SendingTransaction[Database]]:
        """Opens a transaction. When the block ends, it is committed with its messages, as the class says.

        Raises:
            ConfigError: The connection has an open transaction, the sender is in use by another thread or
                task, or Kafka rejects the messages.
            SlackwaterError: Another error of Kafka, or an error that was hidden in the block. Unless the
                class says otherwise, both sides are rolled back.
            psycopg.Error: The database rejects the transaction, or the connection broke.
        """
        with self._use.held():
            check_idle(connection)
            with self._transaction(connection) as sending:
                yield sending

    @abstractmethod
    def _transaction(self, connection: Database) -> AbstractContextManager[SendingTransaction[Database]]:
        """Does what :meth:`transaction` does, for the only caller."""

    def close(self) -> None:
        """Closes the connection to Kafka. Idempotent."""
        with self._use.held():
            self._producer.close()
            self._is_settled = False

    @property
    def is_settled(self) -> bool:
        """False if something may wait for :meth:`recover`, which the next transaction tries."""
        return self._is_settled

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


class HalfCommittedError(StateError):
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
        ConfigError: The name is not valid.
    """
    if not _NAME.fullmatch(name):
        hint = "expected up to 100 letters, digits, '.', '_' and '-'"
        raise ConfigError(f"the name of a sender is {name!r}", hint)
    return name
