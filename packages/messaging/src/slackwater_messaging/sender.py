"""What all senders have in common, and pools of them for services with many transactions at once."""

import asyncio
import logging
import re
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from enum import StrEnum
from typing import Final, Generic, TypeVar

from slackwater.protocol import (
    Clock,
    ConfigError,
    KafkaSettings,
    SlackwaterError,
    StateError,
    SystemClock,
    UnavailableError,
)
from slackwater.protocol.keys import slot_prefix
from slackwater_messaging.database import Database, bridge, check_idle
from slackwater_messaging.kafka import SenderProducer, SenderSettings
from slackwater_messaging.message import Message
from slackwater_messaging.running import Closing, Exclusive, in_thread, in_threads
from slackwater_messaging.tracing import with_trace

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
        """Adds messages to the transaction, each with the current trace. Does no I/O."""
        self.messages += map(with_trace, messages)


class Sender(Closing):
    """What all senders have in common: a name, and one transaction at a time.

    Requests that run at once share a :class:`SenderPool`. Each process needs its own name, because the name
    is a transactional id.

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
        The connection is a ``psycopg.AsyncConnection``, or one of asyncpg or of its pool; the errors of the
        sender's own statements are psycopg's in either case.
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


logger = logging.getLogger(__name__)

AnySender = TypeVar("AnySender", bound=Sender)

_LOOK_AGAIN: Final = timedelta(minutes=1)
"""How often a pool looks for what a process with more slots has left that was still running at its start."""


class SenderPool(Closing, Generic[AnySender]):
    """Lets any number of threads and tasks send at once, with at most ``size`` connections to Kafka.

    Each slot has a sender of its own, with its own transactional id: ``<name>.slot-0``, ``<name>.slot-1``
    and so on. A transaction borrows a free sender, or waits for one. Slots with something left to recover are
    used first.

    Before its first transaction, a pool recovers what earlier processes have left under any slot of its name,
    also if their pool had more slots. A pool has the guarantee of its senders. Messages of transactions that
    run at once have no order; those of a transaction that begins after another one has ended follow that
    one's messages, unless Kafka did not answer meanwhile.

    Thread-safe. Each process needs its own name. Close the pool when all transactions have ended.

    Args:
        make: Makes a sender with a given name, which it must not change.
        size: The number of slots. A transaction occupies one while its block runs.
        wait: How long a transaction waits for a free slot.
        retry_after: The time between a failed recovery and the next attempt.

    Raises:
        ConfigError: The name or the size is not valid.
    """

    def __init__(
        self,
        make: Callable[[str], AnySender],
        name: str,
        *,
        size: int = 8,
        wait: timedelta = timedelta(seconds=30),
        retry_after: timedelta = timedelta(seconds=5),
        clock: Clock | None = None,
    ) -> None:
        if size < 1:
            raise ConfigError(f"the size of pool {name} is {size}", "expected at least 1")
        self.name = name
        """The name."""
        self._make, self._seconds = make, wait.total_seconds()
        self._retry_after, self._clock = retry_after, clock or SystemClock()
        names = [f"{slot_prefix(name)}{slot}" for slot in range(size)]
        self._senders = {each: make(each) for each in names}
        self._free = deque(self._senders.values())
        self._waiting: deque[Future[AnySender]] = deque()
        self._lock, self._recovering = threading.Lock(), threading.Lock()
        self._has_begun = False
        self._look_at = float("-inf")

    @contextmanager
    def transaction(self, connection: Database) -> Iterator[SendingTransaction[Database]]:
        """Opens a transaction of a free sender; see its ``transaction``.

        Raises:
            UnavailableError: All senders were in use for longer than ``wait``.
        """
        check_idle(connection)
        self._recover_if_due(connection)
        sender = self._taken(self._ask())
        try:
            with sender.transaction(connection) as sending:
                yield sending
        finally:
            self._give_back(sender)

    @asynccontextmanager
    async def transaction_async(
        self, connection: AnyDatabase
    ) -> AsyncIterator[SendingTransaction[AnyDatabase]]:
        """Does what :meth:`transaction` does, without blocking the event loop."""
        if self._is_due:
            await in_thread(self._recover_if_due, bridge(connection))
        sender = await self._taken_async(self._ask())
        try:
            async with sender.transaction_async(connection) as sending:
                yield sending
        finally:
            self._give_back(sender)

    def recover(self, connection: Database) -> set[str]:
        """Completes what earlier processes have left under the slots of this name; returns the slots.

        Slots of this pool that are in use are left out; each recovers by itself after a failure.

        Raises:
            SlackwaterError: Kafka failed or did not answer.
            psycopg.Error: The database failed or did not answer.
        """
        sender = next(iter(self._senders.values()))
        slots = re.compile(re.escape(slot_prefix(self.name)) + "[0-9]+")
        left = {name for name in sender.waiting_senders(connection) if slots.fullmatch(name)}
        for name in sorted(left):
            self._recover_slot(connection, name)
        return left

    def close(self) -> None:
        """Closes the connections to Kafka. Idempotent."""
        for sender in self._senders.values():
            sender.close()

    @property
    def _is_due(self) -> bool:
        return self._clock.monotonic() >= self._look_at

    def _recover_if_due(self, connection: Database) -> None:
        """Recovers before the first transaction, for which all others wait, and again from time to time."""
        if not self._is_due or not self._recovering.acquire(blocking=not self._has_begun):
            return
        try:
            if self._is_due:
                self.recover(connection)
                self._look_at = self._clock.monotonic() + _LOOK_AGAIN.total_seconds()
        except SlackwaterError as error:
            self._look_at = self._clock.monotonic() + self._retry_after.total_seconds()
            logger.warning("pool %s: what earlier processes have left waits: %s", self.name, error)
        finally:
            self._has_begun = True
            self._recovering.release()

    def _recover_slot(self, connection: Database, name: str) -> None:
        own = self._senders.get(name)
        if own is None:
            with self._make(name) as other:
                other.recover(connection)
        elif not (self._has_begun and own.is_settled) and self._reserve(own):
            try:
                own.recover(connection)
            finally:
                self._give_back(own)

    # --- slots

    def _ask(self) -> Future[AnySender]:
        """Asks for a sender, which the answer holds at once or later."""
        asked = Future[AnySender]()
        with self._lock:
            if self._free:
                sender = next((each for each in self._free if not each.is_settled), self._free[0])
                self._free.remove(sender)
                asked.set_result(sender)
            else:
                self._waiting.append(asked)
        return asked

    def _reserve(self, sender: AnySender) -> bool:
        with self._lock:
            if sender not in self._free:
                return False
            self._free.remove(sender)
            return True

    def _give_back(self, sender: AnySender) -> None:
        with self._lock:
            while self._waiting:
                asked = self._waiting.popleft()
                if asked.set_running_or_notify_cancel():
                    asked.set_result(sender)
                    return
            self._free.append(sender)

    def _taken(self, asked: Future[AnySender]) -> AnySender:
        try:
            return asked.result(self._seconds)
        except TimeoutError:
            if asked.cancel():
                raise self._exhausted() from None
            return asked.result()

    async def _taken_async(self, asked: Future[AnySender]) -> AnySender:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asked), self._seconds)
        except TimeoutError:
            if asked.cancel():
                raise self._exhausted() from None
            return asked.result()
        except asyncio.CancelledError:
            if not asked.cancel():
                self._give_back(asked.result())
            raise

    def _exhausted(self) -> UnavailableError:
        problem = f"all {len(self._senders)} senders of pool {self.name} were in use for {self._seconds:g} s"
        return UnavailableError(problem, "raise its size, or shorten the transactions")
