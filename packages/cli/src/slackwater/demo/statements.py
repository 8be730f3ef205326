"""What the demo's writers do, as data: row changes, savepoints and how they join into one transaction.

Nothing here talks to a database. The executor turns a statement into SQL; tests apply it to dictionaries.
"""

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Line:
    """One row of ``inventory.order_lines``."""

    id: int
    order_id: int
    product: str
    quantity: int
    price: Decimal

    @property
    def amount(self) -> Decimal:
        """What the line adds to its order's total."""
        return self.quantity * self.price


@dataclass(frozen=True, slots=True)
class InsertOrder:
    """A new order whose line count and total are already those of the lines that follow."""

    id: int
    customer: str
    status: str
    line_count: int
    total: Decimal


@dataclass(frozen=True, slots=True)
class InsertLines:
    """New lines, all in one statement."""

    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class UpdateLine:
    """Another quantity and price for one line."""

    id: int
    quantity: int
    price: Decimal


@dataclass(frozen=True, slots=True)
class RepriceLines:
    """New prices for many lines, all in one statement."""

    prices: tuple[tuple[int, Decimal], ...]
    """``(line id, price)``."""


@dataclass(frozen=True, slots=True)
class MoveLine:
    """A line changes its parent."""

    id: int
    to_order: int


@dataclass(frozen=True, slots=True)
class DeleteLines:
    """Lines vanish, all in one statement."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeleteOrders:
    """Orders vanish; their lines were deleted before."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdjustOrder:
    """Brings an order's line count and total up to date, relative to what they are."""

    id: int
    line_count: int
    total: Decimal


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Another status for one order: a change that touches no line."""

    id: int
    status: str


@dataclass(frozen=True, slots=True)
class Savepoint:
    """``SAVEPOINT name``."""

    name: str


@dataclass(frozen=True, slots=True)
class RollbackTo:
    """``ROLLBACK TO SAVEPOINT name``."""

    name: str


RowChange = (
    InsertOrder
    | InsertLines
    | UpdateLine
    | RepriceLines
    | MoveLine
    | DeleteLines
    | DeleteOrders
    | AdjustOrder
    | SetStatus
)
Statement = RowChange | Savepoint | RollbackTo


@dataclass(frozen=True, slots=True)
class BusinessTransaction:
    """One database transaction. Between its statements the invariant may be broken, at its end never."""

    kind: str
    """What it stands for, for statistics: ``order``, ``move``, ``bulk import``..."""
    statements: tuple[Statement, ...]
    is_committed: bool = True
    """False: it ends with ROLLBACK."""

    @property
    def row_changes(self) -> int:
        """Rows its statements touch, also those undone later. For the rate limit."""
        return sum(row_count(statement) for statement in self.statements)


def row_count(statement: Statement) -> int:
    """How many rows a statement touches."""
    match statement:
        case InsertLines(lines):
            return len(lines)
        case RepriceLines(prices):
            return len(prices)
        case DeleteLines(ids) | DeleteOrders(ids):
            return len(ids)
        case Savepoint() | RollbackTo():
            return 0
        case _:
            return 1
