"""What senders, relays and listeners have in common: closing, and a kept connection."""

import threading
from abc import ABC, abstractmethod
from functools import partial
from types import TracebackType
from typing import Any, Self

import psycopg

from slackwater_messaging.bridge import run_in_thread
from slackwater_messaging.exclusive import Exclusive
from slackwater_messaging.sending.outbox import Database


class Closing(ABC):
    """Is closed at the end of a ``with`` block."""

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Closes the connections to the servers. Idempotent."""


class Runner(Closing):
    """Works until it is stopped.

    Args:
        what: What it is, for messages.
    """

    def __init__(self, what: str) -> None:
        self._use = Exclusive(what, "give each thread and task its own")

    @abstractmethod
    def run(self, stop: threading.Event) -> None:
        """Works until it is told to stop. Waits for servers that do not answer."""

    async def run_async(self) -> None:
        """Does what :meth:`run` does in a thread, until the task is cancelled and a step has ended."""
        stop = threading.Event()
        await run_in_thread(partial(self.run, stop), stop.set)


class KeptConnection:
    """A connection with autocommit that is opened on demand, and again after it has broken.

    Args:
        database: A connection string of libpq.
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._connection: Database | None = None

    def open(self) -> Database:
        """Returns the connection.

        Raises:
            psycopg.OperationalError: The database cannot be reached.
        """
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.Connection[Any].connect(self._database, autocommit=True)
        return self._connection

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
