"""What senders, relays and listeners have in common: closing, and a kept connection."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg

from slackwater_client.finishing import finished
from slackwater_messaging.sending.outbox import Database

T = TypeVar("T")


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


async def in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Makes a call in a thread. A cancellation of the caller takes effect when the call has ended."""
    return await finished(asyncio.ensure_future(asyncio.to_thread(call, *arguments)))
