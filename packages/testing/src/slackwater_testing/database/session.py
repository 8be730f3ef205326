"""One writer's connection, which survives the database and executes each transaction exactly once."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import errors, sql

from slackwater_testing.database.statements import Connection, send
from slackwater_testing.errors import RunFailedError
from slackwater_testing.workloads.workload import (
    Delete,
    Insert,
    Operation,
    Plus,
    Read,
    Transaction,
    Undone,
    Update,
)

_LOW_BITS = 0xFFFFFFFF


def is_committed(connection: Connection, transaction: Transaction, xid: str) -> bool | None:
    """Asks whether a transaction was committed; None: the database still works on it.

    Args:
        connection: Not the one that executed it.
        transaction: What was to be committed.
        xid: Its id.

    Raises:
        psycopg.OperationalError: the database is away again.
    """
    try:
        row = connection.execute("SELECT pg_xact_status(%s::xid8)", [xid]).fetchone()
    except errors.InvalidParameterValue:  # an id the database does not remember
        connection.rollback()
        return False
    if row is not None and row[0] == "in progress":
        connection.rollback()
        return None
    witness = _witness(transaction)
    found = (row is not None and row[0] == "committed") if witness is None else None
    if witness is not None:
        found = _has_happened(connection, witness, int(xid) & _LOW_BITS)
    connection.rollback()
    return found


def _witness(transaction: Transaction) -> Insert | Update | Delete | None:
    """The last operation on a row that belongs to the writer."""
    return next((each for each in reversed(transaction.operations) if _is_own(each)), None)  # type: ignore[return-value]


def _is_own(operation: Operation) -> bool:
    match operation:
        case Update(_, _, changes):
            return not any(isinstance(value, Plus) for value in changes.values())
        case Read() | Undone():
            return False
    return True


def _has_happened(connection: Connection, witness: Insert | Update | Delete, xid: int) -> bool:
    match witness:
        case Insert(_, row):
            row_id = row["id"]
        case Update(_, old_id, changes):
            row_id = changes.get("id", old_id)  # type: ignore[assignment]
        case Delete(_, old_id):
            row_id = old_id
    query = sql.SQL("SELECT xmin::text FROM {} WHERE id = %s").format(
        sql.Identifier(*witness.table.split("."))
    )
    found = connection.execute(query, [row_id]).fetchone()
    if isinstance(witness, Delete):
        return found is None
    return found is not None and found[0] == str(xid)


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
            RunFailedError: it met too many conflicts.
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
                    raise RunFailedError(
                        "a transaction", f"was refused {conflicts} times, last with: {error}"
                    ) from error
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
        """Asks the database what became of a transaction; waits until that is decided.

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
