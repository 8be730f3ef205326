"""Orders and their lines: their rows, for all workloads over these tables, and the workload ``orders``.

What an initial order looks like follows from its id and the seed, so nobody has to keep it.

Invariant in every committed state: ``line_count`` is the number of lines of the order and ``total`` the sum
of ``quantity * price``.

A writer owns its share of the initial orders, the orders it inserts, and the lines it puts anywhere. The
first orders are shared: every writer puts lines into them, and they are never deleted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import ClassVar, NamedTuple

from slackwater_lab.workloads.workload import (
    BusinessTransaction,
    Change,
    Delete,
    Insert,
    Plus,
    Update,
    Value,
    Workload,
    money,
    repository_pipeline,
)

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


def first_orders(size: int, seed: int, *, without_lines: int = 0) -> Iterator[BusinessTransaction]:
    """Orders ``1..size``, one transaction each; the first of them perhaps without lines."""
    for order_id in range(1, size + 1):
        lines = [] if order_id <= without_lines else first_lines(order_id, seed)
        yield BusinessTransaction(tuple(insert_order(order_id, lines)))


_MAX_SHARED = 20
MAX_LINES = 12
"""An order with this many lines gets no more."""
_SHARED_SHARE = 0.1
"""Of the orders that are picked."""

_QUANTITIES = tuple({"quantity": quantity} for quantity in range(10))
_STATUSES = tuple({"status": status} for status in ("open", "paid", "packed", "shipped"))


@dataclass(frozen=True, slots=True)
class OrdersWorkload(Workload):
    """Inserts, changes, moves and deletes of orders and lines; some transactions are rolled back.

    ``size`` is the number of orders at the start; their number stays about the same.
    """

    name: ClassVar[str] = "orders"
    pipeline: Path = field(default=repository_pipeline("orders"), kw_only=True)

    @property
    def shared(self) -> int:
        """Orders ``1..shared`` belong to all writers."""
        return min(_MAX_SHARED, self.size // 10)

    def first(self) -> Iterator[BusinessTransaction]:
        return first_orders(self.size, self.seed, without_lines=self.shared)

    def transactions(self, writer: int, writers: int) -> Iterator[BusinessTransaction]:
        return _Writer(self, writer, writers).transactions()


class _Writer:
    """One writer's stream and what it owns."""

    def __init__(self, workload: OrdersWorkload, writer: int, writers: int) -> None:
        self._seed, self._shared = workload.seed, workload.shared
        self._random = workload.new_random(writer, writers)
        self._orders = list(range(workload.shared + 1 + writer, workload.size + 1, writers))
        self._lines: dict[int, list[Line]] = {order_id: [] for order_id in range(1, workload.shared + 1)}
        self._order_ids = count(workload.size + 1 + writer, writers)
        self._line_ids = count(FIRST_LINES * workload.size + 1 + writer, writers)
        kinds: list[tuple[Callable[[], list[Change]], int]] = [
            (self._change_lines, 40),
            (self._add_lines, 14),
            (self._remove_lines, 10),
            (self._move_line, 12),
            (self._set_status, 4),
            (self._insert_order, 10),
            (self._delete_order, 10),
        ]
        self._kinds = [kind for kind, weight in kinds for _ in range(weight)]

    def transactions(self) -> Iterator[BusinessTransaction]:
        rng = self._random.random
        kinds, number = self._kinds, len(self._kinds)
        if not self._orders:
            yield BusinessTransaction(tuple(self._insert_order()))
        while True:
            kind = kinds[int(rng() * number)]
            if rng() < 0.04:
                yield self._rolled_back()
            else:
                yield BusinessTransaction(tuple(kind()))

    def _rolled_back(self) -> BusinessTransaction:
        """Inserts and changes that never were: the owner forgets them."""
        order_id = self._some_order()
        line = self._new_line()
        known = self._lines_of(order_id)
        changed: list[Change] = [Update(LINES, old.id, {"quantity": 99}) for old in known[:2]]
        operations = (*changed, insert_line(order_id, line), adjust_order(order_id, 1, line.amount))
        return BusinessTransaction(operations, is_rolled_back=True)

    def _lines_of(self, order_id: int) -> list[Line]:
        lines = self._lines.get(order_id)
        if lines is None:
            lines = self._lines[order_id] = first_lines(order_id, self._seed)
        return lines

    def _new_line(self) -> Line:
        line_id = next(self._line_ids)
        return Line(line_id, 1 + line_id % 5, price(line_id, self._seed))

    def _some_order(self) -> int:
        rng = self._random.random
        if self._shared and rng() < _SHARED_SHARE:
            return 1 + int(rng() * self._shared)
        return self._orders[int(rng() * len(self._orders))]

    def _change_lines(self) -> list[Change]:
        order_id = self._some_order()
        lines = self._lines_of(order_id)
        if not lines:
            return self._add_lines(order_id)
        operations: list[Change] = []
        cents, rng = 0, self._random.random
        for index in range(min(len(lines), 2 + int(rng() * 5))):
            old = lines[index]
            quantity = 1 + int(rng() * 9)
            lines[index] = Line(old.id, quantity, old.cents)
            cents += (quantity - old.quantity) * old.cents
            operations.append(Update(LINES, old.id, _QUANTITIES[quantity]))
        operations.append(adjust_order(order_id, 0, cents))
        return operations

    def _add_lines(self, order_id: int | None = None) -> list[Change]:
        order_id = self._some_order() if order_id is None else order_id
        lines = self._lines_of(order_id)
        if len(lines) >= MAX_LINES:
            return self._remove(order_id, lines)
        added = [self._new_line() for _ in range(1 + int(self._random.random() * 4))]
        lines += added
        cents = sum([line.amount for line in added])
        return [*[insert_line(order_id, line) for line in added], adjust_order(order_id, len(added), cents)]

    def _remove_lines(self) -> list[Change]:
        order_id = self._some_order()
        lines = self._lines_of(order_id)
        return self._remove(order_id, lines) if lines else self._add_lines(order_id)

    def _remove(self, order_id: int, lines: list[Line]) -> list[Change]:
        removed = [lines.pop() for _ in range(min(len(lines), 1 + int(self._random.random() * 3)))]
        cents = sum([line.amount for line in removed])
        return [*[Delete(LINES, line.id) for line in removed], adjust_order(order_id, -len(removed), -cents)]

    def _move_line(self) -> list[Change]:
        source, target = self._some_order(), self._some_order()
        lines, others = self._lines_of(source), self._lines_of(target)
        if source == target or not lines or len(others) >= MAX_LINES:
            return self._change_lines()
        line = lines.pop()
        others.append(line)
        moved: list[Change] = [Update(LINES, line.id, {"order_id": target})]
        change = {source: (-1, -line.amount), target: (1, line.amount)}
        return moved + [adjust_order(order_id, *change[order_id]) for order_id in sorted(change)]

    def _set_status(self) -> list[Change]:
        rng = self._random.random
        order_id = self._orders[int(rng() * len(self._orders))]
        return [Update(ORDERS, order_id, _STATUSES[int(rng() * len(_STATUSES))])]

    def _insert_order(self) -> list[Change]:
        order_id = next(self._order_ids)
        lines = [self._new_line() for _ in range(3 + int(self._random.random() * 6))]
        self._orders.append(order_id)
        self._lines[order_id] = lines
        return insert_order(order_id, lines)

    def _delete_order(self) -> list[Change]:
        if len(self._orders) < 2:
            return self._insert_order()
        orders = self._orders
        index = int(self._random.random() * len(orders))
        order_id = orders[index]
        orders[index] = orders[-1]
        orders.pop()
        lines = self._lines_of(order_id)
        del self._lines[order_id]
        return delete_order(order_id, lines)
