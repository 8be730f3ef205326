"""Cost follows changes: a changed row of a large group reads as much of the state as one of a small group.

Entries read are counted, not time, so that the tests say the same on any machine.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from slackwater.engine.index import BucketIndex
from slackwater.engine.lmdb_index import LmdbIndex
from slackwater.engine.local import ChangeEvent, LocalEngine, MemoryIndex
from slackwater.engine.payloads import decode_events
from slackwater.sql.plan import EnginePlan, Reads
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater_lab.fakes.buckets import CountingIndex

MakeIndex = Callable[[], BucketIndex]
Row = dict[str, Any]


TABLES = """
CREATE TABLE shop.customers (id bigint PRIMARY KEY, name text, region text);
CREATE TABLE shop.orders (id bigint PRIMARY KEY, customer_id bigint, status text, total numeric(10,2));
CREATE TABLE shop.lines (id bigint PRIMARY KEY, order_id bigint, quantity integer, price numeric(10,2));
ALTER TABLE shop.customers REPLICA IDENTITY FULL;
ALTER TABLE shop.orders REPLICA IDENTITY FULL;
ALTER TABLE shop.lines REPLICA IDENTITY FULL;
"""

AMOUNT_OF_ORDER = """
SELECT TRANSACTIONALLY o.id, o.status, count(l.id) AS lines, sum(l.quantity * l.price) AS amount
FROM orders o LEFT JOIN lines l ON l.order_id = o.id GROUP BY o.id
"""
ALL_LINES = (
    "SELECT TRANSACTIONALLY count(*) AS lines, sum(quantity) AS pieces, max(price) AS dearest FROM lines"
)
BY_STATUS = """
SELECT TRANSACTIONALLY status, count(*) AS orders, avg(total) AS mean, min(total) AS least,
    count(DISTINCT customer_id) AS customers
FROM orders GROUP BY status
"""
OF_CUSTOMER = """
SELECT TRANSACTIONALLY c.id, count(o.id) AS orders, sum(l.quantity) AS pieces
FROM customers c JOIN orders o ON o.customer_id = c.id LEFT JOIN lines l ON l.order_id = o.id GROUP BY c.id
"""
NEWEST = """
SELECT TRANSACTIONALLY customer_id, arg_max(status, total) AS dearest, first(status ORDER BY id) AS oldest
FROM orders GROUP BY customer_id
"""
MEDIAN = """
SELECT TRANSACTIONALLY customer_id, median(total) AS middle, quantile_disc(total, 0.9) AS most
FROM orders GROUP BY customer_id
"""
COUNTED_TWICE = """
SELECT TRANSACTIONALLY customer_id, count(*) AS orders
FROM (SELECT customer_id FROM orders UNION ALL SELECT customer_id FROM orders) AS twice GROUP BY customer_id
"""

DEAREST = "SELECT TRANSACTIONALLY id, total FROM orders ORDER BY total DESC LIMIT 3 OFFSET 1"
DEAREST_OF_STATUS = """
SELECT TRANSACTIONALLY id, status, rank() OVER (PARTITION BY status ORDER BY total DESC) AS place
FROM orders QUALIFY place <= 3
"""


@dataclass
class Shop:
    """An engine, and the tables that it has read."""

    engine: LocalEngine
    indexes: list[CountingIndex]
    rows: dict[tuple[str, int], Row] = field(default_factory=dict)
    lsn: int = 0

    def put(self, table: str, *rows: Row) -> list[Any]:
        """Commits rows; gives the documents that this changes."""
        self.lsn += 100
        return self._documents([self._change(table, row) for row in rows])

    def reads(self) -> int:
        """Entries read so far."""
        return sum(index.reads for index in self.indexes)

    def _change(self, table: str, row: Row) -> ChangeEvent:
        before = self.rows.get((table, row["id"]))
        self.rows[table, row["id"]] = row
        old = None if before is None else json.dumps(before).encode()
        return f"shop.{table}", "c" if before is None else "u", self.lsn, old, json.dumps(row).encode()

    def _documents(self, changes: Sequence[ChangeEvent]) -> list[Any]:
        return [
            None if document is None else json.loads(document)
            for _, _, document in self.engine.run(changes)[0]
        ]


def compiled(view: str) -> EnginePlan:
    return compile_pipeline([("view.sql", view)], parse_catalog({"tables.sql": TABLES}))


def reading_whole_groups(plan: EnginePlan) -> EnginePlan:
    """The same plan without restricted reads."""
    stages = (
        stage
        if stage.rows is None
        else replace(
            stage,
            rows=replace(
                stage.rows, inputs=tuple(replace(each, reads=Reads.GROUP) for each in stage.rows.inputs)
            ),
        )
        for stage in plan.stages
    )
    return replace(plan, stages=tuple(stages))


def shop(plan: EnginePlan, make_index: MakeIndex) -> Shop:
    indexes: list[CountingIndex] = []

    def counting() -> BucketIndex:
        indexes.append(CountingIndex(make_index()))
        return indexes[-1]

    return Shop(LocalEngine(plan, counting, buckets=2), indexes)


def customer(number: int, region: str = "north") -> Row:
    return {"id": number, "name": f"customer {number}", "region": region}


def order(number: int, customer_id: int = 1, status: str = "open", total: str = "10.00") -> Row:
    return {"id": number, "customer_id": customer_id, "status": status, "total": total}


def line(number: int, order_id: int = 1, quantity: int = 1, price: str = "1.50") -> Row:
    return {"id": number, "order_id": order_id, "quantity": quantity, "price": price}


def one_line_of_an_order(
    size: int, make_index: MakeIndex, plan: EnginePlan | None = None
) -> tuple[Shop, Callable[[], None]]:
    tables = shop(plan or compiled(AMOUNT_OF_ORDER), make_index)
    tables.put("orders", order(1), order(2))
    tables.put("lines", *(line(number) for number in range(size)))

    def change() -> None:
        (document,) = tables.put("lines", line(3, quantity=3))
        assert (document["lines"], document["amount"]) == (size, f"{1.5 * (size + 2):.2f}")

    return tables, change


def a_line_more_in_a_global_total(size: int, make_index: MakeIndex) -> tuple[Shop, Callable[[], None]]:
    tables = shop(compiled(ALL_LINES), make_index)
    tables.put("lines", *(line(number, price=f"{number}.00") for number in range(size)))

    def change() -> None:
        assert tables.put("lines", line(size, price="0.50")) == [
            {"lines": size + 1, "pieces": size + 1, "dearest": f"{size - 1}.00"}
        ]

    return tables, change


def an_order_that_gets_another_status(size: int, make_index: MakeIndex) -> tuple[Shop, Callable[[], None]]:
    tables = shop(compiled(BY_STATUS), make_index)
    tables.put("orders", *(order(number, customer_id=number, total=f"{number}.00") for number in range(size)))
    tables.put("orders", *(order(size + number, status="done") for number in range(size)))

    def change() -> None:
        documents = tables.put("orders", order(0, status="done", total="0.00"))
        by_status = {document["status"]: document for document in documents}
        assert (by_status["open"]["orders"], by_status["open"]["least"]) == (size - 1, "1.00")
        assert (by_status["done"]["orders"], by_status["done"]["least"]) == (size + 1, "0.00")

    return tables, change


def a_customer_whose_change_does_not_reach_the_output(
    size: int, make_index: MakeIndex
) -> tuple[Shop, Callable[[], None]]:
    tables = shop(compiled(OF_CUSTOMER), make_index)
    tables.put("customers", customer(1))
    tables.put("orders", *(order(number) for number in range(size)))

    def change() -> None:
        assert tables.put("customers", customer(1, region="south")) == []

    return tables, change


def a_line_of_an_order_of_a_customer(size: int, make_index: MakeIndex) -> tuple[Shop, Callable[[], None]]:
    tables = shop(compiled(OF_CUSTOMER), make_index)
    tables.put("customers", customer(1))
    tables.put("orders", *(order(number) for number in range(size)))
    tables.put("lines", *(line(number, order_id=number) for number in range(size)))

    def change() -> None:
        assert tables.put("lines", line(5, order_id=5, quantity=4)) == [
            {"id": 1, "orders": size, "pieces": size + 3}
        ]

    return tables, change


def an_order_that_counts_twice_for_its_customer(
    size: int, make_index: MakeIndex
) -> tuple[Shop, Callable[[], None]]:
    tables = shop(compiled(COUNTED_TWICE), make_index)
    tables.put("orders", *(order(number) for number in range(size)))

    def change() -> None:
        assert tables.put("orders", order(size)) == [{"customer_id": 1, "orders": 2 * (size + 1)}]

    return tables, change


def an_order_that_leaves_the_top(size: int, make_index: MakeIndex) -> tuple[Shop, Callable[[], None]]:
    tables = shop(compiled(DEAREST), make_index)
    tables.put("orders", *(order(number, total=f"{number}.00") for number in range(size)))

    def change() -> None:
        documents = tables.put("orders", order(size - 2, total="0.00"))
        assert sorted(documents, key=str) == [None, {"id": size - 5, "total": f"{size - 5}.00"}]

    return tables, change


def an_order_that_comes_first_of_its_status(
    size: int, make_index: MakeIndex
) -> tuple[Shop, Callable[[], None]]:
    tables = shop(compiled(DEAREST_OF_STATUS), make_index)
    tables.put("orders", *(order(number, total=f"{number}.00") for number in range(size)))

    def change() -> None:
        documents = tables.put("orders", order(0, total=f"{size}.00"))
        places = {each["id"]: each["place"] for each in documents if each is not None}
        assert places == {0: 1, size - 1: 2, size - 2: 3}

    return tables, change


def the_dearest_order_of_a_customer(size: int, make_index: MakeIndex) -> tuple[Shop, Callable[[], None]]:
    tables = shop(compiled(NEWEST), make_index)
    tables.put("orders", *(order(number, total=f"{number}.00") for number in range(size)))

    def change() -> None:
        assert tables.put("orders", order(3, status="done", total=f"{size}.00")) == [
            {"customer_id": 1, "dearest": "done", "oldest": "open"}
        ]

    return tables, change


def an_order_beside_a_median(size: int, make_index: MakeIndex) -> tuple[Shop, Callable[[], None]]:
    tables = shop(compiled(MEDIAN), make_index)
    tables.put("orders", *(order(2 * number, total=f"{number}.00") for number in range(size)))

    def change() -> None:
        middle = tables.put("orders", order(size + 1, total="0.00"), order(size + 3, total=f"{size}.00"))
        assert middle == [] or middle[0]["most"] == f"{(9 * (size + 2) + 9) // 10 - 2}.00"

    return tables, change


Case = Callable[[int, MakeIndex], tuple[Shop, Callable[[], None]]]

CASES: tuple[Case, ...] = (
    one_line_of_an_order,
    a_line_more_in_a_global_total,
    an_order_that_gets_another_status,
    a_customer_whose_change_does_not_reach_the_output,
    a_line_of_an_order_of_a_customer,
    an_order_that_counts_twice_for_its_customer,
    the_dearest_order_of_a_customer,
)
TOPS: tuple[Case, ...] = (an_order_that_leaves_the_top, an_order_that_comes_first_of_its_status)


BY_RANGES: tuple[Case, ...] = (an_order_beside_a_median,)
"""Cases that read some ranges more if the group is larger."""

OF_RANGES = 1_000
"""More entries than the levels of ranges add for two changed values and the places of three others."""


def reads_of(case: Case, size: int, make_index: MakeIndex) -> int:
    """How many entries the change reads, beside a group of this many rows."""
    tables, change = case(size, make_index)
    before = tables.reads()
    change()
    return tables.reads() - before


@pytest.mark.parametrize("case", CASES)
def test_a_change_reads_as_much_beside_ten_rows_as_beside_five_hundred(case: Case) -> None:
    assert reads_of(case, 10, MemoryIndex) == reads_of(case, 500, MemoryIndex)


@pytest.mark.parametrize("case", TOPS)
def test_a_change_of_the_first_rows_reads_as_much_beside_five_hundred_rows_as_beside_five_thousand(
    case: Case,
) -> None:
    assert reads_of(case, 500, MemoryIndex) == reads_of(case, 5_000, MemoryIndex)


@pytest.mark.parametrize("case", BY_RANGES)
def test_a_change_reads_a_few_more_ranges_beside_ten_thousand_rows(case: Case) -> None:
    assert reads_of(case, 10_000, MemoryIndex) < reads_of(case, 10, MemoryIndex) + OF_RANGES


def test_without_restricted_reads_a_change_reads_its_whole_group() -> None:
    def case(size: int, make_index: MakeIndex) -> tuple[Shop, Callable[[], None]]:
        return one_line_of_an_order(size, make_index, reading_whole_groups(compiled(AMOUNT_OF_ORDER)))

    assert reads_of(case, 500, MemoryIndex) > reads_of(case, 10, MemoryIndex) + 400


@pytest.mark.parametrize("is_together", [False, True])
def test_a_batch_adds_to_a_hot_group_once_per_bucket_of_rows_or_once_in_all(
    monkeypatch: pytest.MonkeyPatch, is_together: bool
) -> None:
    monkeypatch.setattr("slackwater.engine.bucket.MAX_TOGETHER_BYTES", 1 << 20 if is_together else -1)
    buckets = 4
    engine = LocalEngine(
        compiled("SELECT TRANSACTIONALLY sum(quantity) AS pieces FROM lines"), buckets=buckets
    )
    changes: list[ChangeEvent] = [
        ("shop.lines", "c", 100 * number, None, json.dumps(line(number)).encode()) for number in range(1, 301)
    ]
    packed = [
        (*name, *payload)
        for name, payloads in engine.payloads(changes, 1, 100).items()
        for payload in payloads
        if name[0] == 1
    ]
    sent = engine.process_stages(packed, stages={1}).rows
    added = [event for _, bucket, _, payload in sent for event in decode_events(bucket, payload)]
    assert len(added) == (1 if is_together else buckets)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_change_reads_as_much_beside_ten_rows_as_beside_a_hundred_thousand(
    case: Case, lmdb_indexes: MakeIndex
) -> None:
    assert reads_of(case, 10, lmdb_indexes) == reads_of(case, 100_000, lmdb_indexes)


@pytest.mark.slow
@pytest.mark.parametrize("case", TOPS)
def test_a_change_of_the_first_rows_reads_as_much_beside_ten_thousand_rows_as_beside_a_hundred_thousand(
    case: Case, lmdb_indexes: MakeIndex
) -> None:
    assert reads_of(case, 10_000, lmdb_indexes) == reads_of(case, 100_000, lmdb_indexes)


@pytest.mark.slow
@pytest.mark.parametrize("case", BY_RANGES)
def test_a_change_reads_a_few_more_ranges_beside_a_hundred_thousand(
    case: Case, lmdb_indexes: MakeIndex
) -> None:
    assert reads_of(case, 100_000, lmdb_indexes) < reads_of(case, 10, lmdb_indexes) + OF_RANGES


@pytest.fixture
def lmdb_indexes(tmp_path: Path) -> Iterator[MakeIndex]:
    """Makes indexes on disk."""
    made: list[LmdbIndex] = []

    def make() -> BucketIndex:
        made.append(LmdbIndex(tmp_path / str(len(made))))
        return made[-1]

    yield make
    for index in made:
        index.close()
