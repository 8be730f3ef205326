"""Several connections that execute a workload, whatever happens to the database."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from slackwater_protocol import Clock
from slackwater_testing.database.session import Session
from slackwater_testing.pace import Pace
from slackwater_testing.workloads.workload import NO_CHANGES, Transaction, Workload

HOLD_SECONDS = 5.0
"""So long a transaction is held open at most, however few others commit."""


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
    in order, however often the database is killed.

    Args:
        dsn: The database; tables and first rows exist.
        workload: What to execute.
        count: Writers.
        changes_per_second: Of all of them; None: as fast as possible.
        clock: The time.
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
        """Returns at once."""
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
        """Adds up the counts of all writers."""
        counts = self.counts_by_writer()
        return WriterCounts(
            sum(each.committed for each in counts),
            sum(each.rolled_back for each in counts),
            sum(each.retried for each in counts),
            sum(each.changes for each in counts),
        )

    def counts_by_writer(self) -> list[WriterCounts]:
        """The counts of each writer: ``committed + rolled_back`` is how far its stream was executed."""
        return list(self._counts)

    def _guard(self, number: int, transactions: Iterator[Transaction]) -> None:
        try:
            with Session(self._dsn, self._stop) as session:
                for transaction in transactions:
                    self._execute(number, session, transaction)
                    if self._stop.is_set():
                        return
        except Exception as error:  # noqa: BLE001 - reported by stop() and raise_failure()
            self._failures.append(error)

    def _execute(self, number: int, session: Session, transaction: Transaction) -> None:
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
        """Waits until so many other transactions have been committed."""
        if not others:
            return
        with self._progress:
            enough = self.counts().committed + others
            self._progress.wait_for(
                lambda: self._stop.is_set() or self.counts().committed >= enough, HOLD_SECONDS
            )

    def _count(self, number: int, transaction: Transaction, changes: int | None, retries: int) -> None:
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
