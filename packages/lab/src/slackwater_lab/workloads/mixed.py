"""Everything that makes joining what has arrived go wrong, over orders and their lines.

All writers but the last one do what :mod:`slackwater_lab.workloads.orders` does; some transactions undo a
part of themselves with a savepoint. The last one also imports, changes and removes many orders at once, as
:mod:`slackwater_lab.workloads.huge` does; a single writer does without. The invariants are the same.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import ClassVar

from slackwater_lab.workloads.huge import HugeWorkload
from slackwater_lab.workloads.orders import Line, OrdersWorkload, insert_line
from slackwater_lab.workloads.workload import Transaction, Undone, Workload, repository_pipeline

_SMALLEST_HUGE = 1_500
_LARGEST_HUGE = 3_000
"""Changes of a transaction that imports or changes many orders."""
_UNDONE_SHARE = 0.06
"""Of the transactions, those that undo a part of themselves."""


@dataclass(frozen=True, slots=True)
class MixedWorkload(Workload):
    """Orders with savepoints; one writer of several does huge transactions.

    ``size`` is the number of orders at the start.
    """

    name: ClassVar[str] = "mixed"
    pipeline: Path = field(default=repository_pipeline("orders"), kw_only=True)

    @property
    def _orders(self) -> OrdersWorkload:
        return OrdersWorkload(self.seed, self.size)

    def first(self) -> Iterator[Transaction]:
        """Yields the orders, those that are shared without lines."""
        return self._orders.first()

    def transactions(self, writer: int, writers: int) -> Iterator[Transaction]:
        """Yields orders with savepoints; the last of several writers, huge transactions."""
        if writers > 1 and writer == writers - 1:
            huge = HugeWorkload(
                self.seed, self.size, _LARGEST_HUGE, smallest=_SMALLEST_HUGE, shared=self._orders.shared
            )
            return huge.transactions(writer, writers)
        rng = self.new_random(writer, writers)
        return _with_savepoints(self._orders.transactions(writer, writers), rng, -1 - writer, writers)


def _with_savepoints(
    transactions: Iterator[Transaction], rng: random.Random, first_line: int, writers: int
) -> Iterator[Transaction]:
    """Lines that are taken back have ids below 0, and no order contains them."""
    lines = count(first_line, -writers)
    for transaction in transactions:
        if rng.random() < _UNDONE_SHARE:
            added = tuple(insert_line(1, Line(next(lines), 1, 100)) for _ in range(rng.randint(1, 4)))
            yield replace(transaction, operations=(Undone(added), *transaction.operations))
        else:
            yield transaction
