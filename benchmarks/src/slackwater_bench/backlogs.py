"""Backlogs to be caught up with: of steady orders, of one of the workloads."""

from itertools import islice
from typing import Protocol

from slackwater_bench.bed import SOURCE
from slackwater_bench.steady_orders import SteadyOrders
from slackwater_bench.traffic import TransactionAppender
from slackwater_protocol import Clock
from slackwater_testing.generator.fill import TopicFiller
from slackwater_testing.workloads.workload import Workload

INSERTED_TOGETHER = 100
"""Orders of one transaction of the initial state."""


class Backlog(Protocol):
    """Writes the topics of a run; used in this order by one thread."""

    def prepare(self) -> int:
        """Creates topics, writes what is there at the start; returns its commit LSN."""
        ...

    def append(self) -> tuple[int, int]:
        """Appends what is measured; returns its number of change events and its last commit LSN."""
        ...

    def close(self) -> None:
        """Ends what belongs to it."""
        ...


class SteadyBacklog:
    """Inserts the orders, then changes them in transactions of one size.

    Args:
        bootstrap: The broker.
        orders: What is written; their number is a multiple of a hundred.
        rows: Changes of a transaction of the backlog.
        events: Changes of the backlog; at least one transaction is written.
        clock: The time.
        partitions: Of each data topic.
    """

    def __init__(
        self,
        bootstrap: str,
        orders: SteadyOrders,
        *,
        rows: int,
        events: int,
        clock: Clock,
        partitions: int = 4,
    ) -> None:
        self._appender = TransactionAppender(bootstrap, SOURCE, partitions)
        self._orders, self._rows, self._events, self._clock = orders, rows, events, clock

    def prepare(self) -> int:
        """Inserts the orders."""
        inserts = self._orders.transactions(INSERTED_TOGETHER * self._orders.rows_per_order)
        return self._appender.append_all(
            islice(inserts, self._orders.orders // INSERTED_TOGETHER), self._clock
        )

    def append(self) -> tuple[int, int]:
        """Changes the orders."""
        count = max(1, self._events // self._rows)
        transactions = islice(self._orders.transactions(self._rows, self._orders.orders), count)
        return count * self._rows, self._appender.append_all(transactions, self._clock)

    def close(self) -> None:
        """Nothing is left: every call waits for its acknowledgements."""


SEED = 1


class WorkloadBacklog:
    """The rows a workload begins with, then its transactions.

    Args:
        bootstrap: The broker.
        workload: What happens; must be picklable.
        events: Change events of the backlog.
        partitions: Of each data topic.
    """

    def __init__(self, bootstrap: str, workload: Workload, *, events: int, partitions: int = 4) -> None:
        self._filler = TopicFiller(bootstrap, workload, prefix=SOURCE, partitions=partitions)
        self._events = events

    def prepare(self) -> int:
        """Writes the first rows."""
        return self._filler.fill(1).last_commit_lsn

    def append(self) -> tuple[int, int]:
        """Writes more."""
        filled = self._filler.fill(self._events)
        return filled.events, filled.last_commit_lsn

    def close(self) -> None:
        """Ends the processes that write."""
        self._filler.close()
