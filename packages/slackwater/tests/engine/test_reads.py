"""A change reads the rows that it can affect, however many others its key has."""

import json
from dataclasses import replace

import pytest

from slackwater.engine.local import ChangeEvent, LocalEngine, MemoryIndex
from slackwater.engine.payloads import Document
from slackwater.sql.plan import EnginePlan, Reads
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater_lab.fakes.buckets import CountingIndex

TABLES = """
CREATE TABLE s.customers (id bigint PRIMARY KEY, name text NOT NULL, note text);
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer_id bigint, total bigint);
ALTER TABLE s.orders REPLICA IDENTITY FULL;
"""
ORDERS_WITH_NAMES = """SELECT TRANSACTIONALLY o.id, c.name, o.total
    FROM s.orders o JOIN s.customers c ON c.id = o.customer_id"""
CUSTOMERS_THAT_ORDER = """SELECT TRANSACTIONALLY c.id, c.name FROM s.customers c
    WHERE EXISTS (SELECT 1 FROM s.orders o WHERE o.customer_id = c.id)"""
SIZE = 200


class Engine:
    """One customer with many orders; counts what a bucket reads."""

    def __init__(self, plan: EnginePlan, *, every_commit: bool) -> None:
        self.engine = LocalEngine(
            plan, lambda: CountingIndex(MemoryIndex()), buckets=1, every_commit=every_commit
        )
        self.run(customer(10, "a"), *(order(10, number) for number in range(SIZE)))

    def run(self, *changes: ChangeEvent) -> list[Document]:
        (documents,) = self.engine.run(changes).values()
        return documents

    def reads(self, *changes: ChangeEvent) -> int:
        """How many entries a batch reads."""
        before = self._total
        self.run(*changes)
        return self._total - before

    @property
    def _total(self) -> int:
        return sum(i.reads for i in self.engine.indexes.values() if isinstance(i, CountingIndex))


def customer(lsn: int, name: str, note: str = "") -> ChangeEvent:
    row = json.dumps({"id": 1, "name": name, "note": note}).encode()
    return "s.customers", "u", lsn, None, row


def order(lsn: int, number: int, total: int | None = 0, before: int | None = None) -> ChangeEvent:
    old = {"id": number, "customer_id": 1, "total": before}
    new = None if total is None else json.dumps(old | {"total": total}).encode()
    op = "c" if before is None else "d" if total is None else "u"
    return "s.orders", op, lsn, None if before is None else json.dumps(old).encode(), new


def compiled(sql: str) -> EnginePlan:
    return compile_pipeline([("v.sql", sql)], parse_catalog({"t.sql": TABLES}))


def reading(plan: EnginePlan, mode: Reads) -> EnginePlan:
    """The plan with all inputs in this mode."""
    stages = tuple(
        stage
        if stage.rows is None
        else replace(
            stage,
            rows=replace(stage.rows, inputs=tuple(replace(each, reads=mode) for each in stage.rows.inputs)),
        )
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


every_commit_or_batch = pytest.mark.parametrize("every_commit", [False, True])


@every_commit_or_batch
@pytest.mark.parametrize("sql", [ORDERS_WITH_NAMES, CUSTOMERS_THAT_ORDER])
def test_one_order_of_many_reads_no_other_order(sql: str, every_commit: bool) -> None:
    engine = Engine(compiled(sql), every_commit=every_commit)
    assert engine.reads(order(20, 7, total=1, before=0)) <= 6
    assert engine.reads(order(30, SIZE)) <= 6
    assert engine.reads(order(40, 7, total=None, before=1)) <= 6


@every_commit_or_batch
def test_it_would_read_them_all_if_the_whole_group_counted(every_commit: bool) -> None:
    """Shows that the test above can fail."""
    engine = Engine(reading(compiled(ORDERS_WITH_NAMES), Reads.GROUP), every_commit=every_commit)
    assert engine.reads(order(20, 7, total=1, before=0)) >= SIZE


@every_commit_or_batch
def test_a_customer_whose_used_columns_stay_reads_no_order(every_commit: bool) -> None:
    engine = Engine(compiled(ORDERS_WITH_NAMES), every_commit=every_commit)
    assert engine.reads(customer(20, "a", note="of no use here")) <= 3


@every_commit_or_batch
def test_a_customer_with_a_new_name_reads_the_orders_that_show_it(every_commit: bool) -> None:
    engine = Engine(compiled(ORDERS_WITH_NAMES), every_commit=every_commit)
    documents = engine.run(customer(20, "b"))
    assert len(documents) == SIZE
    assert all(json.loads(document or b"")["name"] == "b" for _, _, document in documents)


@every_commit_or_batch
def test_a_semi_join_needs_a_witness(every_commit: bool) -> None:
    """Another order is there. When only the changed rows are read, the customer vanishes."""
    plan = compiled(CUSTOMERS_THAT_ORDER)
    assert plan.stages[-1].rows is not None
    assert Reads.CHANGED_AND_WITNESS in plan.stages[-1].rows.reads
    gone = order(20, 7, total=None, before=0)
    assert Engine(plan, every_commit=every_commit).run(gone) == []
    without = Engine(reading(plan, Reads.CHANGED), every_commit=every_commit)
    assert [document for _, _, document in without.run(gone)] == [None]


@every_commit_or_batch
def test_the_last_order_that_goes_takes_the_customer_along(every_commit: bool) -> None:
    engine = Engine(compiled(CUSTOMERS_THAT_ORDER), every_commit=every_commit)
    assert engine.run(*(order(20, number, total=None, before=0) for number in range(1, SIZE))) == []
    assert engine.run(order(30, 0, total=None, before=0)) == [(30, b'{"id":1}', None)]
