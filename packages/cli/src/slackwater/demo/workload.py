"""Random business transactions, a pure function of seed and writer number.

Each writer owns the orders it creates and a few lines in the shared orders. It never reads the database: what
it owns, it knows. Headers are adjusted relative to their value, so writers can meet in a shared order in any
sequence of commits.

Invariant after each commit: ``line_count`` is the number of lines, ``total`` the sum of ``quantity * price``.
"""

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal

from slackwater.demo.statements import (
    AdjustOrder,
    BusinessTransaction,
    DeleteLines,
    DeleteOrders,
    InsertLines,
    InsertOrder,
    Line,
    MoveLine,
    RepriceLines,
    RollbackTo,
    RowChange,
    Savepoint,
    SetStatus,
    Statement,
    UpdateLine,
)

SHARED_ORDERS = 20
"""Orders 1..20: exist from the start, are never deleted, every writer puts lines into them."""
ID_STRIDE = 1_000_000_000
"""Ids of writer w lie in ``[(w + 1) * ID_STRIDE, (w + 2) * ID_STRIDE)``."""
MAX_OWNED_ORDERS = 1_500
"""From here on a writer deletes more than it creates."""

_PRODUCTS = ("anchor", "buoy", "chart", "compass", "flag", "lantern", "rope", "sail", "sextant", "tide table")
_CUSTOMERS = ("Ada", "Björn", "Chiara", "Dmitri", "Eun-ji", 'Flann "the Gull"', "Gudrun", "Hōkūle`a")
_STATUSES = ("new", "paid", "packed", "shipped")

GROWING = frozenset({"order", "add lines", "update lines", "move"})
"""Kinds that delete nothing."""

_MIX: tuple[tuple[str, float], ...] = (
    ("order", 24),
    ("update lines", 20),
    ("add lines", 12),
    ("delete lines", 10),
    ("move", 14),
    ("status", 6),
    ("delete order", 6),
    ("savepoint", 6),
    ("rollback", 4),
    ("bulk import", 0.12),
    ("bulk reprice", 0.08),
    ("bulk delete", 0.06),
)


@dataclass(slots=True)
class OwnedRows:
    """What a writer knows of the database: its lines by order. Line mappings are replaced, never changed."""

    orders: dict[int, dict[int, Line]] = field(default_factory=dict)

    def snapshot(self) -> "OwnedRows":
        """A copy that stays as it is; cheap."""
        return OwnedRows(dict(self.orders))

    def put(self, *lines: Line) -> None:
        """Adds or replaces lines."""
        by_order: dict[int, dict[int, Line]] = {}
        for line in lines:
            by_order.setdefault(line.order_id, {})[line.id] = line
        for order_id, added in by_order.items():
            self.orders[order_id] = self.orders[order_id] | added

    def remove(self, *lines: Line) -> None:
        """Forgets lines."""
        by_order: dict[int, set[int]] = {}
        for line in lines:
            by_order.setdefault(line.order_id, set()).add(line.id)
        for order_id, gone in by_order.items():
            self.orders[order_id] = {k: v for k, v in self.orders[order_id].items() if k not in gone}


@dataclass(slots=True)
class _Draft:
    """Statements of one transaction; header adjustments are gathered and flushed in id order."""

    statements: list[Statement] = field(default_factory=list)
    pending: dict[int, tuple[int, Decimal]] = field(default_factory=dict)

    def add(self, statement: RowChange) -> None:
        self.statements.append(statement)

    def adjust(self, order_id: int, line_count: int, total: Decimal) -> None:
        count, amount = self.pending.get(order_id, (0, Decimal(0)))
        self.pending[order_id] = (count + line_count, amount + total)

    def flush(self) -> None:
        for order_id in sorted(self.pending):
            count, total = self.pending[order_id]
            if count or total:
                self.statements.append(AdjustOrder(order_id, count, total))
        self.pending.clear()


class Workload:
    """An endless stream of one writer's transactions. The same arguments give the same stream.

    Args:
        seed: of all writers.
        writer: this one's number.
        bulk_rows: how many rows a bulk import has at least.
        only: the kinds of transactions; None: all.
    """

    def __init__(
        self, seed: int, writer: int, *, bulk_rows: int = 2_500, only: Collection[str] | None = None
    ) -> None:
        self._random = random.Random(f"{seed}/{writer}")  # noqa: S311 - a reproducible workload, no secret
        self._next_id = (writer + 1) * ID_STRIDE
        self._bulk_rows = bulk_rows
        self._mix = [(kind, weight) for kind, weight in _MIX if only is None or kind in only]
        self._rows = OwnedRows({order_id: {} for order_id in range(1, SHARED_ORDERS + 1)})
        self._kinds: dict[str, Callable[[_Draft], None]] = {
            "order": self._insert_order,
            "update lines": self._update_lines,
            "add lines": self._add_lines,
            "delete lines": self._delete_lines,
            "move": self._move,
            "status": self._set_status,
            "delete order": self._delete_order,
            "savepoint": self._with_savepoint,
            "rollback": self._several,
            "bulk import": self._bulk_import,
            "bulk reprice": self._bulk_reprice,
            "bulk delete": self._bulk_delete,
        }

    @property
    def rows(self) -> OwnedRows:
        """What this writer owns after the transactions produced so far, if all of them were executed."""
        return self._rows

    def transactions(self) -> Iterator[BusinessTransaction]:
        """The stream. A transaction that is taken must be executed, in order."""
        names, weights = zip(*self._mix, strict=True)
        while True:
            kind = self._random.choices(names, weights)[0]
            if kind in ("order", "bulk import") and len(self._rows.orders) > MAX_OWNED_ORDERS:
                kind = "delete order" if kind == "order" else "bulk delete"
            transaction = self._transaction(kind)
            if transaction.statements:
                yield transaction

    def _transaction(self, kind: str) -> BusinessTransaction:
        draft, before = _Draft(), self._rows.snapshot()
        self._kinds[kind](draft)
        draft.flush()
        is_committed = kind != "rollback"
        if not is_committed:
            self._rows = before
        return BusinessTransaction(kind, tuple(draft.statements), is_committed)

    # Choices

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _new_line(self, order_id: int) -> Line:
        quantity, price = self._random.randint(1, 9), Decimal(self._random.randint(50, 99_99)) / 100
        return Line(self._new_id(), order_id, self._random.choice(_PRODUCTS), quantity, price)

    def _some_order(self) -> int:
        shared = self._random.random() < 0.15
        return (
            self._random.randint(1, SHARED_ORDERS) if shared else self._random.choice(list(self._rows.orders))
        )

    def _some_lines(self, limit: int) -> list[Line]:
        for _ in range(8):
            lines = list(self._rows.orders[self._some_order()].values())
            if lines:
                return self._random.sample(lines, min(len(lines), self._random.randint(1, limit)))
        return []

    def _owned_orders(self, count: int) -> list[int]:
        owned = [order_id for order_id in self._rows.orders if order_id > SHARED_ORDERS]
        return sorted(self._random.sample(owned, min(count, len(owned))))

    # Kinds of transactions

    def _insert_order(self, draft: _Draft) -> None:
        self._order_with_lines(draft, self._random.choice((1, 2, 3, 4, 5, 8)))

    def _order_with_lines(self, draft: _Draft, count: int) -> None:
        order_id = self._new_id()
        lines = tuple(self._new_line(order_id) for _ in range(count))
        total = sum((line.amount for line in lines), Decimal(0))
        draft.add(InsertOrder(order_id, self._random.choice(_CUSTOMERS), "new", count, total))
        draft.add(InsertLines(lines))
        self._rows.orders[order_id] = {line.id: line for line in lines}

    def _add_lines(self, draft: _Draft) -> None:
        order_id = self._some_order()
        lines = tuple(self._new_line(order_id) for _ in range(self._random.randint(1, 4)))
        draft.add(InsertLines(lines))
        draft.adjust(order_id, len(lines), sum((line.amount for line in lines), Decimal(0)))
        self._rows.put(*lines)

    def _update_lines(self, draft: _Draft) -> None:
        for line in self._some_lines(4):
            changed = replace(line, quantity=self._random.randint(1, 9), price=line.price + Decimal("0.01"))
            draft.add(UpdateLine(line.id, changed.quantity, changed.price))
            draft.adjust(line.order_id, 0, changed.amount - line.amount)
            self._rows.put(changed)

    def _delete_lines(self, draft: _Draft) -> None:
        lines = self._some_lines(3)
        if lines:
            self._delete(draft, lines)

    def _delete(self, draft: _Draft, lines: list[Line]) -> None:
        draft.add(DeleteLines(tuple(sorted(line.id for line in lines))))
        for line in lines:
            draft.adjust(line.order_id, -1, -line.amount)
        self._rows.remove(*lines)

    def _move(self, draft: _Draft) -> None:
        for line in self._some_lines(2):
            target = self._some_order()
            if target == line.order_id:
                continue
            draft.add(MoveLine(line.id, target))
            draft.adjust(line.order_id, -1, -line.amount)
            draft.adjust(target, 1, line.amount)
            self._rows.remove(line)
            self._rows.put(replace(line, order_id=target))

    def _set_status(self, draft: _Draft) -> None:
        draft.add(SetStatus(self._some_order(), self._random.choice(_STATUSES)))

    def _delete_order(self, draft: _Draft) -> None:
        self._delete_orders(draft, self._owned_orders(1))

    def _delete_orders(self, draft: _Draft, order_ids: list[int]) -> None:
        if not order_ids:
            return
        lines = [line_id for order_id in order_ids for line_id in self._rows.orders[order_id]]
        if lines:
            draft.add(DeleteLines(tuple(sorted(lines))))
        draft.add(DeleteOrders(tuple(order_ids)))
        for order_id in order_ids:
            del self._rows.orders[order_id]

    def _several(self, draft: _Draft) -> None:
        for step in (self._insert_order, self._update_lines, self._add_lines):
            step(draft)

    def _with_savepoint(self, draft: _Draft) -> None:
        self._update_lines(draft)
        draft.flush()
        before = self._rows.snapshot()
        draft.statements.append(Savepoint("undone"))
        self._several(draft)
        draft.flush()
        draft.statements.append(RollbackTo("undone"))
        self._rows = before
        draft.statements.append(Savepoint("kept"))
        self._add_lines(draft)

    def _bulk_import(self, draft: _Draft) -> None:
        rows = 0
        while rows < self._bulk_rows:
            count = self._random.choice((3, 5, 8, 60))
            self._order_with_lines(draft, count)
            rows += count + 1

    def _bulk_reprice(self, draft: _Draft) -> None:
        prices: list[tuple[int, Decimal]] = []
        for order_id in self._owned_orders(self._bulk_rows):
            for line in list(self._rows.orders[order_id].values()):
                changed = replace(line, price=line.price + Decimal("0.05"))
                prices.append((line.id, changed.price))
                draft.adjust(order_id, 0, changed.amount - line.amount)
                self._rows.put(changed)
            if len(prices) >= self._bulk_rows:
                break
        if prices:
            draft.add(RepriceLines(tuple(sorted(prices))))

    def _bulk_delete(self, draft: _Draft) -> None:
        self._delete_orders(draft, self._owned_orders(self._bulk_rows // 8))
