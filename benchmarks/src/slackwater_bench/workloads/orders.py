"""Orders and their lines, as a generator of transactions without a database.

Every transaction keeps the invariant that the pipeline's documents are checked for: ``line_count`` is the
number of lines of the order and ``total`` the sum of ``quantity * price``. Amounts are in cents inside.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

ORDERS = "inventory.orders"
LINES = "inventory.order_lines"

FIRST_LSN = 22_270_008
FIRST_XID = 1_000
FIRST_TS_MS = 1_795_206_861_409


@dataclass(slots=True)
class Line:
    """A row of ``inventory.order_lines``."""

    id: int
    order_id: int
    product: str
    quantity: int
    cents: int

    def json(self) -> str:
        """The row as Debezium writes it."""
        return (
            f'{{"id":{self.id},"order_id":{self.order_id},"product":"{self.product}",'
            f'"quantity":{self.quantity},"price":"{self.cents // 100}.{self.cents % 100:02d}"}}'
        )


@dataclass(slots=True)
class Order:
    """A row of ``inventory.orders`` with the lines that belong to it."""

    id: int
    customer: str
    status: str
    lines: list[Line] = field(default_factory=list)

    def json(self) -> str:
        """The row as Debezium writes it."""
        total = sum(line.quantity * line.cents for line in self.lines)
        return (
            f'{{"id":{self.id},"customer":"{self.customer}","status":"{self.status}",'
            f'"line_count":{len(self.lines)},"total":"{total // 100}.{total % 100:02d}",'
            f'"created_at":"2026-01-02T03:04:05.678901Z"}}'
        )


@dataclass(frozen=True, slots=True)
class RowChange:
    """One change event: table, op, key column value, before and after as JSON text."""

    table: str
    op: str
    id: int
    before: str
    after: str


@dataclass(slots=True)
class OrdersWorkload:
    """An endless, seeded stream of transactions over ``orders`` orders.

    The first ``orders`` transactions insert one order with three lines each; later ones update an order and
    one to three of its lines, insert, delete, or move a line to another order.
    """

    orders: int
    seed: int = 0
    _live: list[Order] = field(default_factory=list)
    _next_line: int = 1

    def transactions(self) -> Iterator[list[RowChange]]:
        """The changes of one transaction after another."""
        rng = random.Random(self.seed)
        for order_id in range(1, self.orders + 1):
            yield self._insert(order_id, rng)
        actions = [self._change_lines, self._change_lines, self._add_line, self._remove_line, self._move_line]
        while True:
            order = self._live[int(rng.random() * self.orders)]
            yield actions[int(rng.random() * len(actions))](order, rng)

    def _insert(self, order_id: int, rng: random.Random) -> list[RowChange]:
        order = Order(order_id, f"customer-{order_id % 997}", "new")
        order.lines = [self._line(order_id, rng) for _ in range(3)]
        self._live.append(order)
        return [
            RowChange(ORDERS, "c", order_id, "null", order.json()),
            *(RowChange(LINES, "c", line.id, "null", line.json()) for line in order.lines),
        ]

    def _change_lines(self, order: Order, rng: random.Random) -> list[RowChange]:
        before, changes = order.json(), []
        for line in order.lines[:3]:
            old = line.json()
            line.quantity = 1 + int(rng.random() * 9)
            changes.append(RowChange(LINES, "u", line.id, old, line.json()))
        order.status = "open"
        return [*changes, RowChange(ORDERS, "u", order.id, before, order.json())]

    def _add_line(self, order: Order, rng: random.Random) -> list[RowChange]:
        before, line = order.json(), self._line(order.id, rng)
        order.lines.append(line)
        return [
            RowChange(LINES, "c", line.id, "null", line.json()),
            RowChange(ORDERS, "u", order.id, before, order.json()),
        ]

    def _remove_line(self, order: Order, rng: random.Random) -> list[RowChange]:
        if len(order.lines) < 2:
            return self._add_line(order, rng)
        before, line = order.json(), order.lines.pop(int(rng.random() * len(order.lines)))
        return [
            RowChange(LINES, "d", line.id, line.json(), "null"),
            RowChange(ORDERS, "u", order.id, before, order.json()),
        ]

    def _move_line(self, order: Order, rng: random.Random) -> list[RowChange]:
        other = self._live[int(rng.random() * self.orders)]
        if other is order or len(order.lines) < 2:
            return self._change_lines(order, rng)
        before, other_before, line = order.json(), other.json(), order.lines.pop()
        old = line.json()
        line.order_id = other.id
        other.lines.append(line)
        return [
            RowChange(LINES, "u", line.id, old, line.json()),
            RowChange(ORDERS, "u", order.id, before, order.json()),
            RowChange(ORDERS, "u", other.id, other_before, other.json()),
        ]

    def _line(self, order_id: int, rng: random.Random) -> Line:
        line = Line(
            self._next_line, order_id, f"product-{self._next_line % 499}", 1, 100 + int(rng.random() * 9900)
        )
        self._next_line += 1
        return line
