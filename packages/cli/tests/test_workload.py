"""The generator of business transactions, against a pure model of two tables."""

import random
from collections import Counter
from decimal import Decimal
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    Savepoint,
    SetStatus,
    Statement,
    UpdateLine,
)
from slackwater.demo.workload import GROWING, SHARED_ORDERS, Workload


class Tables:
    """orders and order_lines as dictionaries; refuses what PostgreSQL would refuse or ignore."""

    def __init__(self) -> None:
        self.orders: dict[int, list[Any]] = {i: ["new", 0, Decimal(0)] for i in range(1, SHARED_ORDERS + 1)}
        self.lines: dict[int, list[Any]] = {}

    def copy(self) -> "Tables":
        other = Tables()
        other.orders = {k: list(v) for k, v in self.orders.items()}
        other.lines = {k: list(v) for k, v in self.lines.items()}
        return other

    def run(self, transaction: BusinessTransaction) -> None:
        saved: dict[str, Tables] = {"": self.copy()}
        for statement in transaction.statements:
            match statement:
                case Savepoint(name):
                    saved[name] = self.copy()
                case RollbackTo(name):
                    self._restore(saved[name])
                case _:
                    self.apply(statement)
        if not transaction.is_committed:
            self._restore(saved[""])

    def apply(self, statement: Statement) -> None:
        match statement:
            case InsertOrder(order_id, _, status, line_count, total):
                assert order_id not in self.orders
                self.orders[order_id] = [status, line_count, total]
            case DeleteOrders(ids):
                for order_id in ids:
                    del self.orders[order_id]
            case AdjustOrder(order_id, line_count, total):
                self.orders[order_id][1] += line_count
                self.orders[order_id][2] += total
            case SetStatus(order_id, status):
                self.orders[order_id][0] = status
            case _:
                self._apply_lines(statement)

    def _apply_lines(self, statement: Statement) -> None:
        match statement:
            case InsertLines(lines):
                assert not self.lines.keys() & {line.id for line in lines}
                self.lines |= {line.id: [line.order_id, line.quantity, line.price] for line in lines}
            case UpdateLine(line_id, quantity, price):
                self.lines[line_id][1:] = [quantity, price]
            case RepriceLines(prices):
                for line_id, price in prices:
                    self.lines[line_id][2] = price
            case MoveLine(line_id, to_order):
                assert self.lines[line_id][0] != to_order
                self.lines[line_id][0] = to_order
            case DeleteLines(ids):
                for line_id in ids:
                    del self.lines[line_id]

    def broken(self) -> list[int]:
        counts: Counter[int] = Counter()
        totals: dict[int, Decimal] = dict.fromkeys(self.orders, Decimal(0))
        for order_id, quantity, price in self.lines.values():
            assert order_id in self.orders, f"line of a missing order {order_id}"
            counts[order_id] += 1
            totals[order_id] += quantity * price
        return [k for k, (_, n, total) in self.orders.items() if (n, total) != (counts[k], totals[k])]

    def _restore(self, saved: "Tables") -> None:
        again = saved.copy()
        self.orders, self.lines = again.orders, again.lines


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), writers=st.integers(1, 4))
def test_every_transaction_of_every_writer_keeps_the_invariant_in_any_interleaving(
    seed: int, writers: int
) -> None:
    tables, chance = Tables(), random.Random(seed)
    streams = [Workload(seed, w, bulk_rows=60).transactions() for w in range(writers)]
    for _ in range(150):
        tables.run(next(chance.choice(streams)))
        assert tables.broken() == []


@given(seed=st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_a_writer_knows_exactly_the_lines_it_has_committed(seed: int) -> None:
    tables, workload = Tables(), Workload(seed, 0, bulk_rows=60)
    for transaction in islice(workload.transactions(), 200):
        tables.run(transaction)
    known = {
        line.id: [line.order_id, line.quantity, line.price]
        for lines in workload.rows.orders.values()
        for line in lines.values()
    }
    assert known == tables.lines
    assert set(workload.rows.orders) == set(tables.orders)


def test_the_invariant_is_broken_inside_transactions_so_that_partial_reads_show() -> None:
    tables, broken_inside = Tables(), 0
    for transaction in islice(Workload(1, 0, bulk_rows=60).transactions(), 200):
        partial = tables.copy()
        for statement in transaction.statements[:-1]:
            if not isinstance(statement, Savepoint | RollbackTo):
                partial.apply(statement)
                broken_inside += bool(
                    not isinstance(statement, DeleteOrders | InsertOrder) and _is_broken(partial)
                )
        tables.run(transaction)
    assert broken_inside > 50


def _is_broken(tables: Tables) -> bool:
    try:
        return bool(tables.broken())
    except AssertionError:
        return True


def test_the_same_seed_and_writer_give_the_same_transactions() -> None:
    first, again = (list(islice(Workload(7, 2).transactions(), 300)) for _ in range(2))
    assert first == again
    assert first != list(islice(Workload(8, 2).transactions(), 300))


def test_writers_never_use_each_others_ids() -> None:
    def line_ids(writer: int) -> set[int]:
        return {
            line.id
            for transaction in islice(Workload(7, writer).transactions(), 300)
            for statement in transaction.statements
            if isinstance(statement, InsertLines)
            for line in statement.lines
        }

    assert not line_ids(0) & line_ids(1)


@pytest.mark.parametrize(
    "kind",
    ["order", "move", "savepoint", "rollback", "delete order", "bulk import", "bulk reprice", "bulk delete"],
)
def test_a_run_contains_every_kind(kind: str) -> None:
    kinds = {transaction.kind for transaction in islice(Workload(7, 0).transactions(), 3_000)}
    assert kind in kinds


@pytest.mark.parametrize("seed", range(5))
def test_the_first_rows_are_many_for_every_seed(seed: int) -> None:
    workload = Workload(seed, 90, only=GROWING)
    kinds = {transaction.kind for transaction in islice(workload.transactions(), 300)}
    assert kinds == GROWING
    assert len(workload.rows.orders) > SHARED_ORDERS + 50


def test_bulk_imports_have_thousands_of_rows() -> None:
    sizes = [
        transaction.row_changes
        for transaction in islice(Workload(7, 0).transactions(), 3_000)
        if transaction.kind == "bulk import"
    ]
    assert min(sizes) >= 2_000


def test_a_line_adds_its_quantity_times_its_price_exactly() -> None:
    assert Line(1, 1, "rope", 3, Decimal("0.10")).amount == Decimal("0.30")
