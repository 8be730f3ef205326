"""Executes workloads against PostgreSQL: several connections, one rate limit, retries when asked to."""

import threading
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import psycopg

from slackwater.demo.database import execute
from slackwater.demo.statements import BusinessTransaction
from slackwater.demo.workload import GROWING, Workload
from slackwater_protocol import Clock

MAX_ATTEMPTS = 20


class RateLimit:
    """Shares a number of row changes per second among threads. May run into debt for one big transaction."""

    def __init__(self, per_second: float, clock: Clock, stop: threading.Event) -> None:
        self._per_second = per_second
        self._clock = clock
        self._stop = stop
        self._lock = threading.Lock()
        self._next = clock.monotonic()

    def take(self, amount: int) -> None:
        """Blocks until the changes taken before are paid for, or until stopped."""
        with self._lock:
            now = self._clock.monotonic()
            start = max(self._next, now)
            self._next = start + amount / self._per_second
        if start > now:
            self._stop.wait(start - now)


class WriterStatistics:
    """What the writers have done so far. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, transaction: BusinessTransaction, retries: int) -> None:
        """Counts one finished transaction."""
        with self._lock:
            self._counts["committed" if transaction.is_committed else "rolled back"] += 1
            self._counts["row changes"] += transaction.row_changes if transaction.is_committed else 0
            self._counts["retries"] += retries
            self._counts[f"kind: {transaction.kind}"] += 1

    def counts(self) -> Counter[str]:
        """A copy: ``committed``, ``rolled back``, ``row changes``, ``retries`` and one ``kind: …`` each."""
        with self._lock:
            return self._counts.copy()


def run_transaction(
    connection: psycopg.Connection[tuple[object, ...]], transaction: BusinessTransaction
) -> int:
    """Executes a transaction; on deadlock or serialisation failure all of it again.

    Returns:
        How many attempts failed before.

    Raises:
        psycopg.Error: the database refuses it for another reason, or too often.
    """
    for attempt in range(MAX_ATTEMPTS):
        try:
            with connection.cursor() as cursor:
                for statement in transaction.statements:
                    execute(cursor, statement)
            if transaction.is_committed:
                connection.commit()
            else:
                connection.rollback()
            return attempt
        except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
            connection.rollback()
            if attempt == MAX_ATTEMPTS - 1:
                raise
    return MAX_ATTEMPTS


class Writers:
    """Threads that execute one workload each until stopped."""

    def __init__(self, dsn: str, *, seed: int, count: int, changes_per_second: float, clock: Clock) -> None:
        self.statistics = WriterStatistics()
        self._stop = threading.Event()
        self._limit = RateLimit(changes_per_second, clock, self._stop)
        self._dsn = dsn
        self._failures: list[Exception] = []
        self._threads = [
            threading.Thread(target=self._guard, args=(Workload(seed, writer),), name=f"writer-{writer}")
            for writer in range(count)
        ]

    def start(self) -> None:
        """Returns at once; each writer opens its own connection."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Lets every writer finish its transaction. Blocks; idempotent.

        Raises:
            psycopg.Error: the first failure of a writer.
        """
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raises what ended a writer, if anything did."""
        if self._failures:
            raise self._failures[0]

    def _guard(self, workload: Workload) -> None:
        try:
            self._write(workload.transactions())
        except Exception as error:  # noqa: BLE001 - reported by stop() and raise_failure() in the main thread
            self._failures.append(error)

    def _write(self, transactions: Iterator[BusinessTransaction]) -> None:
        with psycopg.connect(self._dsn) as connection:
            while not self._stop.is_set():
                transaction = next(transactions)
                self._limit.take(transaction.row_changes)
                self.statistics.add(transaction, run_transaction(connection, transaction))


def write_first_rows(dsn: str, *, seed: int, writer: int, transactions: int) -> None:
    """Executes the first transactions of a workload, one after the other: rows for the initial snapshot."""
    with psycopg.connect(dsn) as connection:
        for transaction in islice(Workload(seed, writer, only=GROWING).transactions(), transactions):
            run_transaction(connection, transaction)
