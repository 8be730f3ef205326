"""Orders and their lines, changed in turn: row changes as a pure function of a running number.

For scenarios that append records at a given pace, in transactions of a given size, or over a given number of
keys. After each whole order the documents keep the invariant of the orders pipeline: ``line_count`` and
``total`` agree with the lines.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice

ORDERS = "inventory.orders"
LINES = "inventory.order_lines"
CENTS = 1_234
STRIDE = 1_000_003
"""A prime: neighbours in time are no neighbours by key."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """One change event: before and after as JSON, ``null`` where there is none."""

    table: str
    op: str
    id: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class SteadyOrders:
    """The first round inserts every order with its lines; every later round changes all those rows."""

    orders: int
    lines: int = 3
    """Of each order."""

    @property
    def rows_per_order(self) -> int:
        """Changes of one order's turn."""
        return 1 + self.lines

    def changes_of(self, number: int) -> list[RowChange]:
        """The changes of the order whose turn it is: one of the order, then one of each of its lines."""
        round_, index = divmod(number, self.orders)
        order, op = index * STRIDE % self.orders + 1, "u" if round_ else "c"
        first_line = (order - 1) * self.lines + 1
        return [
            self._change(ORDERS, op, order, self._order, round_),
            *(
                self._change(LINES, op, line, self._line, round_)
                for line in range(first_line, first_line + self.lines)
            ),
        ]

    def transactions(self, rows: int, first_order: int = 0) -> Iterator[list[RowChange]]:
        """The endless stream of changes, cut into transactions of this many rows.

        Args:
            rows: Of each transaction; a multiple of :attr:`rows_per_order` makes them whole orders.
            first_order: The running number of the first order whose turn it is.
        """
        changes = (change for number in count(first_order) for change in self.changes_of(number))
        while True:
            yield list(islice(changes, rows))

    @staticmethod
    def _change(table: str, op: str, row: int, render: Callable[[int, int], str], round_: int) -> RowChange:
        before = render(row, round_ - 1) if round_ else "null"
        return RowChange(table, op, row, before, render(row, round_))

    def _order(self, order: int, round_: int) -> str:
        total = self.lines * _quantity(round_) * CENTS
        return (
            f'{{"id":{order},"customer":"customer-{order % 997}","status":"open-{round_}",'
            f'"line_count":{self.lines},"total":"{total // 100}.{total % 100:02d}",'
            f'"created_at":"2026-01-02T03:04:05.678901Z"}}'
        )

    def _line(self, line: int, round_: int) -> str:
        return (
            f'{{"id":{line},"order_id":{(line - 1) // self.lines + 1},"product":"product-{line % 499}",'
            f'"quantity":{_quantity(round_)},"price":"{CENTS // 100}.{CENTS % 100:02d}"}}'
        )


def _quantity(round_: int) -> int:
    return 1 + round_ % 9
