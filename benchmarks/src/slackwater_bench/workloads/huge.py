"""Huge transactions between small ones, over orders and their lines.

Sizes come from the seed: one transaction in fifty is huge, its size equally likely in each order of magnitude
between 100 changes and ``largest``. It changes, imports or removes many orders at once, table by table, as a
nightly job would. Invariants as in :mod:`slackwater_bench.workloads.orders`; nothing is shared among writers.
"""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from slackwater_bench.workloads.order_rows import (
    FIRST_LINES,
    LINES,
    ORDERS,
    Line,
    adjust_order,
    delete_order,
    first_lines,
    first_orders,
    insert_order,
    price,
)
from slackwater_bench.workloads.places import team_pipeline
from slackwater_bench.workloads.workload import Operation, Transaction, Update

LARGEST = 1_000_000
SMALLEST_HUGE = 100
HUGE_SHARE = 0.02
ROWS = 1 + FIRST_LINES
"""Of an order."""
_TABLES = {LINES: 0, ORDERS: 1}
_QUANTITIES = tuple({"quantity": quantity} for quantity in range(10))


@dataclass(frozen=True, slots=True)
class HugeWorkload:
    """Small transactions of one order each, and huge ones of up to ``largest`` changes."""

    seed: int
    size: int
    """Orders at the start."""
    largest: int = LARGEST
    """Changes of a transaction."""
    name: str = "huge"

    @property
    def pipeline(self) -> Path:
        """See the protocol."""
        return team_pipeline("orders")

    def first(self) -> Iterator[Transaction]:
        """See the protocol."""
        return first_orders(self.size, self.seed)

    def transactions(self, writer: int, writers: int) -> Iterator[Transaction]:
        """See the protocol."""
        return _Writer(self, writer, writers).transactions()


class _Writer:
    def __init__(self, workload: HugeWorkload, writer: int, writers: int) -> None:
        self._seed, self._largest = workload.seed, max(workload.largest, SMALLEST_HUGE)
        self._random = random.Random(f"huge/{workload.seed}/{writer}/{writers}")
        self._order_ids = count(workload.size + 1 + writer, writers)
        self._line_ids = count(FIRST_LINES * workload.size + 1 + writer, writers)
        self._orders = deque(range(1 + writer, workload.size + 1, writers))
        self._lines: dict[int, list[Line]] = {}
        """Of the orders whose lines are not the first ones any more."""
        self._imported = 0

    def transactions(self) -> Iterator[Transaction]:
        rng = self._random.random
        while True:
            orders = 1
            if rng() < HUGE_SHARE:
                changes = SMALLEST_HUGE * (self._largest / SMALLEST_HUGE) ** rng()
                orders = max(1, int(changes) // ROWS)
            yield Transaction(tuple(self._job(orders)))

    def _job(self, orders: int) -> list[Operation]:
        choice = self._random.random()
        if not self._orders or choice < 0.1:
            return self._import(orders)
        if choice < 0.2 and self._imported:
            return self._remove(min(orders, self._imported))
        return self._change(orders)

    def _change(self, orders: int) -> list[Operation]:
        """Goes through the orders as often as it takes; each time lines first, then orders."""
        operations: list[Operation] = []
        while orders:
            once = min(orders, len(self._orders))
            orders -= once
            headers: list[Operation] = []
            for _ in range(once):
                order_id, lines = self._next()
                changed = [line._replace(quantity=line.quantity % 9 + 1) for line in lines]
                self._orders.append(order_id)
                self._lines[order_id] = changed
                operations += [Update(LINES, line.id, _QUANTITIES[line.quantity]) for line in changed]
                difference = sum(line.amount for line in changed) - sum(line.amount for line in lines)
                headers.append(adjust_order(order_id, 0, difference))
            operations += headers
        return operations

    def _next(self) -> tuple[int, list[Line]]:
        """Takes an order out."""
        order_id = self._orders.popleft()
        return order_id, self._lines.pop(order_id, None) or first_lines(order_id, self._seed)

    def _import(self, orders: int) -> list[Operation]:
        operations: list[Operation] = []
        for order_id in islice(self._order_ids, orders):
            lines = [Line(n, 1, price(n, self._seed)) for n in islice(self._line_ids, FIRST_LINES)]
            self._orders.append(order_id)
            self._lines[order_id] = lines
            operations += insert_order(order_id, lines)
        self._imported += orders
        return sorted(operations, key=_by_table)

    def _remove(self, orders: int) -> list[Operation]:
        """As many orders as were imported at most: the number of orders does not fall below the first."""
        operations: list[Operation] = []
        for _ in range(orders):
            order_id, lines = self._next()
            operations += delete_order(order_id, lines)
        self._imported -= orders
        return sorted(operations, key=_by_table)


def _by_table(operation: Operation) -> int:
    return _TABLES[operation.table]
