"""Connections that execute a workload, each transaction exactly once, whatever happens to the database."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import astuple, dataclass
from typing import Any

import psycopg
from psycopg import errors, sql

from slackwater.protocol import Clock
from slackwater_lab.database.statements import Connection, send
from slackwater_lab.errors import RunFailedError
from slackwater_lab.workloads.workload import (
    NO_CHANGES,
    BusinessTransaction,
    Delete,
    Insert,
    Operation,
    Plus,
    Read,
    Undone,
    Update,
    Workload,
)

_LOW_BITS = 0xFFFFFFFF
_MAX_CONFLICTS = 50
_RECONNECT_SECONDS = 0.2
_CONNECT_TIMEOUT_SECONDS = 5
_CONFLICTS = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable)
_HOLD_SECONDS = 5.0
"""How long a transaction is held open at most, however few others commit."""


class Pace:
    """A steady number of row changes, or of transactions, per second; threads may share it.

    Work is due at its intended time whether or not what came before was done in time: what was late is done
    as fast as possible. So a measurement against intended times leaves out nothing.

    Args:
        per_second: How many; None: all is due at once.
        clock: The time. The first work is due now.
    """

    def __init__(self, per_second: float | None, clock: Clock) -> None:
        self._per_second = per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._next = clock.monotonic()

    def next_due(self, amount: int) -> float:
        """Takes the next turn; returns when its work is due, in seconds of the monotonic clock.

        Args:
            amount: The size of the work, in what is counted per second: the next turn comes so much later.
        """
        if self._per_second is None:
            return self._clock.monotonic()
        with self._lock:
            due = self._next
            self._next = due + amount / self._per_second
        return due


def is_committed(connection: Connection, transaction: BusinessTransaction, xid: str) -> bool | None:
    """Asks whether a transaction was committed; None: the database still works on it.

    The connection is not the one that executed it.

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


def _witness(transaction: BusinessTransaction) -> Insert | Update | Delete | None:
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


class _Session:
    """Executes transactions exactly once; used by one thread.

    When it is to stop, a transaction whose database is away is given up.
    """

    def __init__(self, dsn: str, stop: threading.Event) -> None:
        self._dsn = dsn
        self._stop = stop
        self._connection: psycopg.Connection[Any] | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def execute(self, transaction: BusinessTransaction, hold: Callable[[], None]) -> tuple[bool, int]:
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
                if conflicts >= _MAX_CONFLICTS:
                    raise RunFailedError(
                        "a transaction", f"was refused {conflicts} times, last with: {error}"
                    ) from error
            except psycopg.OperationalError:
                connection.close()
                failed += 1
                if transaction.is_rolled_back or self._is_committed(transaction, xid):
                    return True, failed
                self._stop.wait(_RECONNECT_SECONDS)
            else:
                return True, failed
        return False, failed

    def _connected(self) -> psycopg.Connection[Any] | None:
        """An open connection; waits for the database. None: it is away, and we are to stop."""
        while self._connection is None or self._connection.closed:
            try:
                self._connection = psycopg.connect(self._dsn, connect_timeout=_CONNECT_TIMEOUT_SECONDS)
            except psycopg.OperationalError:
                if self._stop.wait(_RECONNECT_SECONDS):
                    return None
        return self._connection

    def _is_committed(self, transaction: BusinessTransaction, xid: str | None) -> bool:
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
            if self._stop.wait(_RECONNECT_SECONDS):
                return False
        return False


@dataclass(frozen=True, slots=True)
class WriterCounts:
    """Counts of what writers have done so far."""

    committed: int = 0
    rolled_back: int = 0
    """Because the workload says so."""
    retried: int = 0
    """Attempts that were lost: deadlocks, serialisation failures, the database going away."""
    changes: int = 0
    """Row changes of committed transactions."""


class Writers:
    """Threads with one connection each that execute a workload's streams until stopped.

    A writer whose connection is lost connects again and asks the database what became of its transaction: a
    committed one is not repeated, another one is executed again. So each stream is executed exactly once and
    in order, however often the database is killed. Tables and first rows exist. Without
    ``changes_per_second`` they are as fast as possible.
    """

    def __init__(
        self,
        dsn: str,
        workload: Workload,
        *,
        count: int,
        changes_per_second: float | None,
        clock: Clock,
    ) -> None:
        self._dsn, self._clock = dsn, clock
        self._pace = Pace(changes_per_second, clock)
        self._stop = threading.Event()
        self._progress = threading.Condition()
        self._counts = [WriterCounts()] * count
        self._failures: list[Exception] = []
        self._threads = [
            threading.Thread(
                target=self._guard,
                args=(number, workload.transactions(number, count)),
                name=f"writer-{number}",
                daemon=True,
            )
            for number in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Lets every writer finish its transaction if the database lets it. Blocks; idempotent.

        Raises:
            Exception: the first failure of a writer.
        """
        self._stop.set()
        with self._progress:
            self._progress.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raises what ended a writer, if anything did."""
        if self._failures:
            raise self._failures[0]

    def counts(self) -> WriterCounts:
        return WriterCounts(*map(sum, zip(*map(astuple, self.counts_by_writer()), strict=True)))

    def counts_by_writer(self) -> list[WriterCounts]:
        """The counts of each writer: ``committed + rolled_back`` is how far its stream was executed."""
        return list(self._counts)

    def _guard(self, number: int, transactions: Iterator[BusinessTransaction]) -> None:
        try:
            with closing(_Session(self._dsn, self._stop)) as session:
                for transaction in transactions:
                    self._execute(number, session, transaction)
                    if self._stop.is_set():
                        return
        except Exception as error:  # noqa: BLE001 - reported by stop() and raise_failure()
            self._failures.append(error)

    def _execute(self, number: int, session: _Session, transaction: BusinessTransaction) -> None:
        changes = sum(not isinstance(operation, NO_CHANGES) for operation in transaction.operations)
        due = self._pace.next_due(changes)
        early = due - self._clock.monotonic()
        if early > 0:
            self._stop.wait(early)
        if self._stop.is_set():
            return
        held = transaction.held_open_for if len(self._threads) > 1 else 0
        done, retries = session.execute(transaction, lambda: self._hold(held))
        self._count(number, transaction, changes if done else None, retries)

    def _hold(self, others: int) -> None:
        """Waits until this many other transactions have been committed."""
        if not others:
            return
        with self._progress:
            enough = self.counts().committed + others
            self._progress.wait_for(
                lambda: self._stop.is_set() or self.counts().committed >= enough, _HOLD_SECONDS
            )

    def _count(
        self, number: int, transaction: BusinessTransaction, changes: int | None, retries: int
    ) -> None:
        old = self._counts[number]
        is_committed = changes is not None and not transaction.is_rolled_back
        with self._progress:
            self._counts[number] = WriterCounts(
                old.committed + is_committed,
                old.rolled_back + (changes is not None and transaction.is_rolled_back),
                old.retried + retries,
                old.changes + (changes or 0 if is_committed else 0),
            )
            self._progress.notify_all()
