"""A shop: customers, their orders, the lines of those.

A writer owns the orders of its share of the customers; customers never come or go.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import ClassVar

from slackwater_lab.workloads.orders import price
from slackwater_lab.workloads.workload import (
    BusinessTransaction,
    Delete,
    Insert,
    Operation,
    Update,
    Value,
    Workload,
    money,
    workload_pipeline,
)

CUSTOMERS = "shop.customers"
ORDERS = "shop.orders"
LINES = "shop.lines"

_ORDERS_PER_CUSTOMER = 4
FIRST_LINES = 3
MAX_LINES = 12

_STATUSES = ("open", "paid", "packed", "shipped")
_PRODUCTS = tuple(f"product-{number}" for number in range(499))


@dataclass(frozen=True, slots=True)
class ChainWorkload(Workload):
    """Orders come, change and go; now and then one is put to another customer, or a customer changes.

    ``size`` is the number of orders at the start; their number stays about the same.
    """

    name: ClassVar[str] = "chain"
    pipeline: Path = field(default=workload_pipeline("chain"), kw_only=True)

    @property
    def customers(self) -> int:
        return max(2, self.size // _ORDERS_PER_CUSTOMER)

    def first(self) -> Iterator[BusinessTransaction]:
        for customer in range(1, self.customers + 1):
            row: dict[str, Value] = {
                "id": customer,
                "name": f"customer-{customer}",
                "region": f"region-{customer % 17}",
                "note": None,
            }
            yield BusinessTransaction((Insert(CUSTOMERS, row),))
        for order in range(1, self.size + 1):
            first = FIRST_LINES * (order - 1) + 1
            lines = range(first, first + FIRST_LINES)
            customer = 1 + order % self.customers
            yield BusinessTransaction(
                (_order(order, customer), *(_line(line, order, self.seed) for line in lines))
            )

    def transactions(self, writer: int, writers: int) -> Iterator[BusinessTransaction]:
        return _Writer(self, writer, writers).transactions()


class _Writer:
    """One writer's stream and what it owns."""

    def __init__(self, workload: ChainWorkload, writer: int, writers: int) -> None:
        self._seed = workload.seed
        self._random = workload.new_random(writer, writers)
        self._customers = range(1 + writer, workload.customers + 1, writers)
        self._orders = list(range(1 + writer, workload.size + 1, writers))
        self._lines = {
            order: list(range(FIRST_LINES * (order - 1) + 1, FIRST_LINES * order + 1))
            for order in self._orders
        }
        self._order_ids = count(workload.size + 1 + writer, writers)
        self._line_ids = count(FIRST_LINES * workload.size + 1 + writer, writers)
        kinds: list[tuple[Callable[[], list[Operation]], int]] = [
            (self._change_lines, 46),
            (self._add_lines, 14),
            (self._remove_lines, 10),
            (self._set_status, 8),
            (self._insert_order, 10),
            (self._delete_order, 8),
            (self._give_away, 2),
            (partial(self._change_customer, "name"), 1),
            (partial(self._change_customer, "note"), 1),
        ]
        self._kinds = [kind for kind, weight in kinds for _ in range(weight)]

    def transactions(self) -> Iterator[BusinessTransaction]:
        kinds, rng = self._kinds, self._random.random
        while True:
            yield BusinessTransaction(tuple(kinds[int(rng() * len(kinds))]()))

    def _some_order(self) -> int:
        return self._orders[int(self._random.random() * len(self._orders))]

    def _some_customer(self) -> int:
        return self._customers[int(self._random.random() * len(self._customers))]

    def _change_lines(self) -> list[Operation]:
        rng = self._random.random
        lines = self._lines[self._some_order()][: 2 + int(rng() * 5)]
        if not lines:
            return self._add_lines()
        return [Update(LINES, line, {"quantity": 1 + int(rng() * 9)}) for line in lines]

    def _add_lines(self) -> list[Operation]:
        order = self._some_order()
        lines = self._lines[order]
        if len(lines) >= MAX_LINES:
            return [Delete(LINES, lines.pop())]
        added = [next(self._line_ids) for _ in range(1 + int(self._random.random() * 4))]
        lines += added
        return [_line(line, order, self._seed) for line in added]

    def _remove_lines(self) -> list[Operation]:
        lines = self._lines[self._some_order()]
        if not lines:
            return self._add_lines()
        return [
            Delete(LINES, lines.pop()) for _ in range(min(len(lines), 1 + int(self._random.random() * 3)))
        ]

    def _set_status(self) -> list[Operation]:
        status = _STATUSES[int(self._random.random() * len(_STATUSES))]
        return [Update(ORDERS, self._some_order(), {"status": status})]

    def _give_away(self) -> list[Operation]:
        return [Update(ORDERS, self._some_order(), {"customer_id": self._some_customer()})]

    def _insert_order(self) -> list[Operation]:
        order = next(self._order_ids)
        lines = [next(self._line_ids) for _ in range(3 + int(self._random.random() * 6))]
        self._orders.append(order)
        self._lines[order] = lines
        return [_order(order, self._some_customer()), *(_line(line, order, self._seed) for line in lines)]

    def _delete_order(self) -> list[Operation]:
        if len(self._orders) < 2:
            return self._insert_order()
        index = int(self._random.random() * len(self._orders))
        order, self._orders[index] = self._orders[index], self._orders[-1]
        self._orders.pop()
        return [*(Delete(LINES, line) for line in self._lines.pop(order)), Delete(ORDERS, order)]

    def _change_customer(self, column: str) -> list[Operation]:
        """No order shows a note."""
        customer = self._some_customer()
        return [Update(CUSTOMERS, customer, {column: f"{column}-{int(self._random.random() * 1e6)}"})]


def _order(order: int, customer: int) -> Insert:
    return Insert(ORDERS, {"id": order, "customer_id": customer, "status": "new"})


def _line(line: int, order: int, seed: int) -> Insert:
    row: dict[str, Value] = {
        "id": line,
        "order_id": order,
        "product": _PRODUCTS[line % 499],
        "quantity": 1,
        "price": money(price(line, seed)),
    }
    return Insert(LINES, row)
