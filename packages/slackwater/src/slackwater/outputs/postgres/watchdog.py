"""Ends connections to a server that hangs.

If a process is stopped, or waits for a disk forever, its machine still acknowledges what it is sent. No TCP
time-out therefore occurs, and the server's own ``statement_timeout`` hangs with it. But such a server does
not answer a new connection either, while a server that is only slow does.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import psycopg

from slackwater.outputs.postgres.ledger import Database
from slackwater.protocol import Clock

_LOOK_SECONDS = 0.5

_log = logging.getLogger(__name__)


class Watchdog:
    """Watches one connection at a time, in a separate thread.

    Args:
        patience: How long an answer may take before the server is checked.
        is_alive: Checks the server of a connection; blocks for a limited time.
        is_over: Returns True when the run is to stop; the server is then checked immediately.
        clock: The time.
    """

    def __init__(
        self,
        patience: timedelta,
        is_alive: Callable[[Database], bool],
        is_over: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._patience = patience.total_seconds()
        self._is_alive = is_alive
        self._is_over = is_over
        self._clock = clock
        self._watched: tuple[Database, float] | None = None
        self._end: threading.Event | None = None

    @contextmanager
    def watching(self, database: Database) -> Iterator[None]:
        """Ends the connection within the block if its server hangs; a waiting caller then gets an error."""
        if self._end is None:
            self._end = threading.Event()
            threading.Thread(
                target=self._watch, args=(self._end,), name="postgres-watchdog", daemon=True
            ).start()
        self._watched = database, self._clock.monotonic()
        try:
            yield
        finally:
            self._watched = None

    def close(self) -> None:
        """Ends the thread; the next block starts another one."""
        end, self._end = self._end, None
        if end is not None:
            end.set()

    def _watch(self, end: threading.Event) -> None:
        asked_at = 0.0
        while not end.wait(_LOOK_SECONDS):
            watched, now = self._watched, self._clock.monotonic()
            if watched is None:
                continue
            database, since = watched
            waited = now - max(since, asked_at)
            if waited < (_LOOK_SECONDS if self._is_over() else self._patience):
                continue
            asked_at = now
            if self._is_alive(database):
                _log.info(
                    "PostgreSQL has been working on one statement, or waiting for a lock, for %.0f s",
                    now - since,
                )
            elif self._watched is watched:
                text = "PostgreSQL does not respond: closing its connection after %.0f s"
                _log.warning(text, now - since)
                _shut(database)


def _shut(database: Database) -> None:
    """Makes libpq see the end of its connection, because the connection itself is used by another thread."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(database.fileno())) as connection:
        connection.shutdown(socket.SHUT_RDWR)
