"""A catch-up load of steady orders."""

from itertools import islice

from slackwater_bench.backlog.steady_orders import SteadyOrders
from slackwater_bench.backlog.traffic import TransactionAppender
from slackwater_bench.runs.bed import SOURCE
from slackwater_protocol import Clock

INSERTED_TOGETHER = 100
"""Orders of one transaction of the initial state."""


class SteadyLoad:
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

    def backlog(self) -> tuple[int, int]:
        """Changes the orders."""
        count = max(1, self._events // self._rows)
        transactions = islice(self._orders.transactions(self._rows, self._orders.orders), count)
        return count * self._rows, self._appender.append_all(transactions, self._clock)

    def close(self) -> None:
        """Nothing is left: every call waits for its acknowledgements."""
