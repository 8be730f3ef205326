"""Senders for a service that has many transactions at once: each transaction borrows one of a few senders."""

import asyncio
import logging
import re
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Final, Generic, TypeVar

from slackwater.protocol import Clock, ConfigError, SlackwaterError, SystemClock, UnavailableError
from slackwater.protocol.keys import slot_prefix
from slackwater_messaging.bridge import bridge, in_thread
from slackwater_messaging.database import Database, check_idle
from slackwater_messaging.running import Closing
from slackwater_messaging.sending.transaction import AnyDatabase, Sender, SendingTransaction

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
        name: The name of the pool.
        size: The number of slots. A transaction occupies one while its block runs.
        wait: How long a transaction waits for a free slot.
        retry_after: The time between a failed recovery and the next attempt.
        clock: Measures these times.

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
