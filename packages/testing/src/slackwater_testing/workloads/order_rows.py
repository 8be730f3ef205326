"""Rows of orders and their lines, for all workloads that use these tables.

What an initial order looks like follows from its id and the seed, so nobody has to keep it.
"""

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from slackwater_testing.workloads.workload import Change, Delete, Insert, Plus, Transaction, Update, Value

ORDERS = "inventory.orders"
LINES = "inventory.order_lines"
FIRST_LINES = 3
"""Lines of an initial order."""
_CUSTOMERS = tuple(f"customer-{number}" for number in range(997))
_PRODUCTS = tuple(f"product-{number}" for number in range(499))


class Line(NamedTuple):
    """A line of an order, as its owner knows it."""

    id: int
    quantity: int
    cents: int

    @property
    def amount(self) -> int:
        """The amount that it adds to its order's total, in cents."""
        return self.quantity * self.cents


@lru_cache(maxsize=1 << 16)
def money(cents: int) -> Decimal:
    """An amount with two digits after the point. Cached: rows share what they hold."""
    return Decimal(cents).scaleb(-2)


def price(line_id: int, seed: int) -> int:
    """The price of a new line, in cents."""
    return 100 + (line_id * 7_919 + seed * 104_729) % 9_900


def first_lines(order_id: int, seed: int) -> list[Line]:
    """The lines an initial order begins with."""
    start = FIRST_LINES * (order_id - 1) + 1
    return [Line(line_id, 1, price(line_id, seed)) for line_id in range(start, start + FIRST_LINES)]


def insert_order(order_id: int, lines: Sequence[Line]) -> list[Change]:
    """An order and its lines."""
    second, micros = order_id // 1_000 % 60, order_id % 1_000 * 1_000 + 1
    row: dict[str, Value] = {
        "id": order_id,
        "customer": _CUSTOMERS[order_id % 997],
        "status": "new",
        "line_count": len(lines),
        "total": money(sum(line.amount for line in lines)),
        "created_at": f"2026-01-02T03:04:{second:02d}.{micros:06d}Z",
    }
    return [Insert(ORDERS, row), *(insert_line(order_id, line) for line in lines)]


def insert_line(order_id: int, line: Line) -> Insert:
    """A line of an order that is accounted for elsewhere."""
    row: dict[str, Value] = {
        "id": line.id,
        "order_id": order_id,
        "product": _PRODUCTS[line.id % 499],
        "quantity": line.quantity,
        "price": money(line.cents),
    }
    return Insert(LINES, row)


def adjust_order(order_id: int, line_count: int, cents: int) -> Update:
    """Brings an order up to date with its lines, relative to what it is."""
    if not line_count:
        return Update(ORDERS, order_id, {"total": Plus(money(cents))})
    return Update(ORDERS, order_id, {"line_count": Plus(line_count), "total": Plus(money(cents))})


def delete_order(order_id: int, lines: Iterable[Line]) -> list[Change]:
    """An order with all its lines."""
    return [*(Delete(LINES, line.id) for line in lines), Delete(ORDERS, order_id)]


def first_orders(size: int, seed: int, *, without_lines: int = 0) -> Iterator[Transaction]:
    """Orders ``1..size``, one transaction each; the first of them perhaps without lines."""
    for order_id in range(1, size + 1):
        lines = [] if order_id <= without_lines else first_lines(order_id, seed)
        yield Transaction(tuple(insert_order(order_id, lines)))
