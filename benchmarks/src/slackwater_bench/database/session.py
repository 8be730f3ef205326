"""One writer's connection, which survives the database."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import errors

from slackwater_bench.database.errors import RefusedTransactionError
from slackwater_bench.database.outcome import is_committed
from slackwater_bench.database.statements import send
from slackwater_bench.workloads.workload import Transaction

MAX_CONFLICTS = 50
RECONNECT_SECONDS = 0.2
CONNECT_TIMEOUT_SECONDS = 5
_CONFLICTS = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable)


class Session:
    """Executes transactions exactly once; used by one thread.

    Args:
        dsn: The database.
        stop: When set, a transaction whose database is away is given up.
    """

    def __init__(self, dsn: str, stop: threading.Event) -> None:
        self._dsn = dsn
        self._stop = stop
        self._connection: psycopg.Connection[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.close()

    def execute(self, transaction: Transaction, hold: Callable[[], None]) -> tuple[bool, int]:
        """Executes a transaction until the database has it, or has rolled it back if that is wanted.

        Args:
            transaction: What to execute.
            hold: Called between the last change and the commit.

        Returns:
            Whether it was done, and how many attempts failed. Not done: stopped while the database was away;
            then it may have been committed or not.

        Raises:
            RefusedTransactionError: it met too many conflicts.
            psycopg.Error: the database refuses it for another reason.
        """
        failed = conflicts = 0
        while (connection := self._connected()) is not None:
            xid: str | None = None
            try:
                xid = send(connection, transaction.operations)
                if transaction.is_rolled_back:
                    connection.rollback()
                else:
                    hold()
                    connection.commit()
            except _CONFLICTS as error:
                connection.rollback()
                failed, conflicts = failed + 1, conflicts + 1
                if conflicts >= MAX_CONFLICTS:
                    raise RefusedTransactionError(conflicts, str(error)) from error
            except psycopg.OperationalError:
                connection.close()
                failed += 1
                if transaction.is_rolled_back or self._is_committed(transaction, xid):
                    return True, failed
                self._stop.wait(RECONNECT_SECONDS)
            else:
                return True, failed
        return False, failed

    def _connected(self) -> psycopg.Connection[Any] | None:
        """An open connection; waits for the database. None: it is away, and we are to stop."""
        while self._connection is None or self._connection.closed:
            try:
                self._connection = psycopg.connect(self._dsn, connect_timeout=CONNECT_TIMEOUT_SECONDS)
            except psycopg.OperationalError:
                if self._stop.wait(RECONNECT_SECONDS):
                    return None
        return self._connection

    def _is_committed(self, transaction: Transaction, xid: str | None) -> bool:
        """What became of a transaction, from the database itself; waits until that is decided.

        Stopped while the database is away: False, which nobody may rely on.
        """
        while xid is not None and (connection := self._connected()) is not None:
            try:
                found = is_committed(connection, transaction, xid)
            except psycopg.OperationalError:
                connection.close()
                continue
            if found is not None:
                return found
            if self._stop.wait(RECONNECT_SECONDS):
                return False
        return False
