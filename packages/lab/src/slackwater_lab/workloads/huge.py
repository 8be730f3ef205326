"""Huge transactions between small ones, over orders and their lines.

Sizes come from the seed: one transaction in fifty is huge, its size equally likely in each order of magnitude
between ``smallest`` changes and ``largest``. It changes, imports or removes many orders at once, table by
table, as a nightly job would. Invariants as in :mod:`slackwater_lab.workloads.orders`; writers share
nothing.

:class:`MixedWorkload` is everything that makes joining what has arrived go wrong. All writers but the last
one do what :mod:`slackwater_lab.workloads.orders` does; some transactions undo a part of themselves with a
savepoint. The last one also imports, changes and removes many orders at once; a single writer does without.
"""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import ClassVar

from slackwater_lab.workloads.orders import (
    FIRST_LINES,
    LINES,
    ORDERS,
    Line,
    OrdersWorkload,
    adjust_order,
    delete_order,
    first_lines,
    first_orders,
    insert_line,
    insert_order,
    price,
)
from slackwater_lab.workloads.workload import (
    BusinessTransaction,
    Change,
    Undone,
    Update,
    Workload,
    repository_pipeline,
)

LARGEST = 1_000_000
_SMALLEST = 100
_HUGE_SHARE = 0.02
_ROWS = 1 + FIRST_LINES
"""Of an order."""
_TABLES = {LINES: 0, ORDERS: 1}
_QUANTITIES = tuple({"quantity": quantity} for quantity in range(10))
_SMALLEST_HUGE = 1_500
_LARGEST_HUGE = 3_000
"""Changes of a transaction that imports or changes many orders."""
_UNDONE_SHARE = 0.06
"""Of the transactions, those that undo a part of themselves."""


@dataclass(frozen=True, slots=True)
class HugeWorkload(Workload):
    """Small transactions of one order each, and huge ones of ``smallest`` to ``largest`` changes.

    ``size`` is the number of orders at the start.
    """

    name: ClassVar[str] = "huge"
    pipeline: Path = field(default=repository_pipeline("orders"), kw_only=True)
    largest: int = LARGEST
    """Changes of a huge transaction, at most."""
    smallest: int = _SMALLEST
    """Changes of a huge transaction, at least; one that removes orders has fewer when few were imported."""
    shared: int = 0
    """The number of first orders that are left alone."""

    def first(self) -> Iterator[BusinessTransaction]:
        return first_orders(self.size, self.seed)

    def transactions(self, writer: int, writers: int) -> Iterator[BusinessTransaction]:
        return _Writer(self, writer, writers).transactions()


class _Writer:
    def __init__(self, workload: HugeWorkload, writer: int, writers: int) -> None:
        self._seed, self._smallest = workload.seed, workload.smallest
        self._largest = max(workload.largest, workload.smallest)
        self._random = workload.new_random(writer, writers)
        self._order_ids = count(workload.size + 1 + writer, writers)
        self._line_ids = count(FIRST_LINES * workload.size + 1 + writer, writers)
        self._orders = deque(range(workload.shared + 1 + writer, workload.size + 1, writers))
        self._lines: dict[int, list[Line]] = {}
        """Of the orders whose lines are not the first ones any more."""
        self._imported = 0

    def transactions(self) -> Iterator[BusinessTransaction]:
        rng = self._random.random
        while True:
            orders = 1
            if rng() < _HUGE_SHARE:
                changes = self._smallest * (self._largest / self._smallest) ** rng()
                orders = max(1, int(changes) // _ROWS)
            yield BusinessTransaction(tuple(self._job(orders)))

    def _job(self, orders: int) -> list[Change]:
        choice = self._random.random()
        if not self._orders or choice < 0.1:
            return self._import(orders)
        if choice < 0.2 and self._imported:
            return self._remove(min(orders, self._imported))
        return self._change(orders)

    def _change(self, orders: int) -> list[Change]:
        """Goes through the orders as often as it takes; each time lines first, then orders."""
        operations: list[Change] = []
        while orders:
            once = min(orders, len(self._orders))
            orders -= once
            headers: list[Change] = []
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

    def _import(self, orders: int) -> list[Change]:
        operations: list[Change] = []
        for order_id in islice(self._order_ids, orders):
            lines = [Line(n, 1, price(n, self._seed)) for n in islice(self._line_ids, FIRST_LINES)]
            self._orders.append(order_id)
            self._lines[order_id] = lines
            operations += insert_order(order_id, lines)
        self._imported += orders
        return sorted(operations, key=_by_table)

    def _remove(self, orders: int) -> list[Change]:
        """As many orders as were imported at most: the number of orders does not fall below the first."""
        operations: list[Change] = []
        for _ in range(orders):
            order_id, lines = self._next()
            operations += delete_order(order_id, lines)
        self._imported -= orders
        return sorted(operations, key=_by_table)


def _by_table(operation: Change) -> int:
    return _TABLES[operation.table]


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

    def first(self) -> Iterator[BusinessTransaction]:
        return self._orders.first()

    def transactions(self, writer: int, writers: int) -> Iterator[BusinessTransaction]:
        if writers > 1 and writer == writers - 1:
            huge = HugeWorkload(
                self.seed, self.size, _LARGEST_HUGE, smallest=_SMALLEST_HUGE, shared=self._orders.shared
            )
            return huge.transactions(writer, writers)
        rng = self.new_random(writer, writers)
        return _with_savepoints(self._orders.transactions(writer, writers), rng, -1 - writer, writers)


def _with_savepoints(
    transactions: Iterator[BusinessTransaction], rng: random.Random, first_line: int, writers: int
) -> Iterator[BusinessTransaction]:
    """Lines that are taken back have ids below 0, and no order contains them."""
    lines = count(first_line, -writers)
    for transaction in transactions:
        if rng.random() < _UNDONE_SHARE:
            added = tuple(insert_line(1, Line(next(lines), 1, 100)) for _ in range(rng.randint(1, 4)))
            yield replace(transaction, operations=(Undone(added), *transaction.operations))
        else:
            yield transaction
