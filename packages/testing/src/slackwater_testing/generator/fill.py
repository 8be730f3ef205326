"""Fills topics with what a connector would have written for a workload."""

import multiprocessing
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.connection import Connection

from slackwater_testing.generator.debezium_records import Connector
from slackwater_testing.generator.output import HoldBack, create_topics
from slackwater_testing.generator.share import (
    TRANSACTIONS,
    Filling,
    Progress,
    ShareError,
    ShareSettings,
    serve_share,
)
from slackwater_testing.workloads.pipelines import tables_of
from slackwater_testing.workloads.workload import NO_CHANGES, Workload

PROCESSES = 2
_SAMPLE = 2_000
"""So many transactions tell how busy each topic will be."""


@dataclass(frozen=True, slots=True)
class Filled:
    """The size of what one call wrote."""

    events: int
    transactions: int
    last_commit_lsn: int


class TopicFiller:
    """Simulates the database and writes its topics; goes on where the last call ended. A context manager.

    The topics are shared out among processes; each simulates everything and renders its topics, so what is
    written does not depend on their number.

    Args:
        bootstrap: The broker. The topics are created and must not exist.
        workload: What happens in the database; must be picklable.
        prefix: The connector's ``topic.prefix``.
        partitions: Of each data topic.
        processes: How many render.
    """

    def __init__(
        self, bootstrap: str, workload: Workload, *, prefix: str, partitions: int, processes: int = PROCESSES
    ) -> None:
        connector = Connector(prefix)
        names = [*tables_of(workload), TRANSACTIONS]
        create_topics(bootstrap, [f"{prefix}.{name}" for name in names], partitions)
        context = multiprocessing.get_context("spawn")
        self._progress = Progress(array("q"), array("q"))
        self._processes: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
        settings = ShareSettings(bootstrap, workload, connector, partitions, frozenset())
        for topics in shared_out(workload, names, processes):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve_share, args=(theirs, replace(settings, topics=topics)), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append((process, ours))

    def __enter__(self) -> "TopicFiller":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fill(self, events: int, *, hold_back: HoldBack | None = None) -> Filled:
        """Writes whole transactions with at least ``events`` change events; returns when Kafka has them.

        The first call writes the workload's first transactions before that, whatever their number.

        Args:
            events: How many at least.
            hold_back: A partition whose records of this call arrive late, however long the others take.

        Raises:
            ShareError: a process failed; the message has its error.
        """
        for _, connection in self._processes:
            connection.send((events, hold_back))
        fillings = [_answer(process, connection) for process, connection in self._processes]
        for filling in fillings:
            self._progress.lsns.extend(filling.progress.lsns)
            self._progress.events.extend(filling.progress.events)
        first = fillings[0]
        return Filled(first.events, first.transactions, first.last_commit_lsn)

    def events_at(self, lsn: int) -> int:
        """Change events in transactions up to ``lsn``."""
        found = bisect_right(self._progress.lsns, lsn)
        return self._progress.events[found - 1] if found else 0

    def lsn_at(self, events: int) -> int:
        """The commit LSN at which ``events`` change events were written; the last one if there were fewer."""
        lsns = self._progress.lsns
        return lsns[min(bisect_left(self._progress.events, events), len(lsns) - 1)] if lsns else 0

    def close(self) -> None:
        """Ends the processes; idempotent."""
        for process, connection in self._processes:
            connection.close()
            process.join()
        self._processes = []


def _answer(process: multiprocessing.process.BaseProcess, connection: Connection) -> Filling:
    try:
        answer = connection.recv()
    except EOFError:
        process.join()
        raise ShareError(f"it ended with exit code {process.exitcode}") from None
    if isinstance(answer, Filling):
        return answer
    raise ShareError(str(answer))


def shared_out(workload: Workload, names: Sequence[str], processes: int) -> list[Collection[str]]:
    """The topics in about equal shares, by what a sample of the workload writes to them."""
    records: Counter[str] = Counter(dict.fromkeys(names, 1))
    for transaction in islice(workload.transactions(0, 1), _SAMPLE):
        records[TRANSACTIONS] += 1  # two small records without headers: about the work of one row
        for operation in transaction.operations:
            if not isinstance(operation, NO_CHANGES):
                records[operation.table] += 1
    shares: list[tuple[int, list[str]]] = [(0, []) for _ in range(min(processes, len(names)))]
    for name, number in records.most_common():
        load, topics = min(shares, key=lambda share: share[0])
        shares.remove((load, topics))
        shares.append((load + number, [*topics, name]))
    return [frozenset(topics) for _, topics in shares]
