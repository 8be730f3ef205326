"""What the examples of docs/python.md compute, without Spark and servers."""

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.types import DateType, DecimalType, IntegerType, StringType, StructField, StructType

from slackwater.api import CommitBatch
from slackwater.api.stateful_views import FunctionStage
from slackwater.engine.local import LocalEngine
from slackwater.sql.postgres import parse_catalog

ORDERS, LINES = "inventory.orders", "inventory.order_lines"
SCHEMA = """
CREATE TABLE inventory.orders (
    id bigint PRIMARY KEY, customer text NOT NULL, total numeric(12,2) NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE TABLE inventory.order_lines (
    id bigint PRIMARY KEY, order_id bigint NOT NULL, product text NOT NULL, quantity int NOT NULL,
    price numeric(10,2) NOT NULL
);
ALTER TABLE inventory.order_lines REPLICA IDENTITY FULL;
"""
INVOICE = StructType(
    [
        StructField("customer", StringType(), nullable=False),
        StructField("ordered", DateType()),
        StructField("lines", IntegerType()),
        StructField("amount", DecimalType(12, 2)),
    ]
)

Example = Callable[[str], Any]


def inserted(lsn: int, table: str, **row: Any) -> Any:
    return (table, "c", lsn, None, json.dumps(row).encode())


def order(lsn: int, order_id: int, customer: str, *prices: str) -> list[Any]:
    row = {"customer": customer, "total": "0", "created_at": "2026-01-02T03:04:05Z"}
    lines = [
        inserted(lsn, LINES, id=order_id * 100 + n, order_id=order_id, product="p", quantity=1, price=price)
        for n, price in enumerate(prices)
    ]
    return [inserted(lsn, ORDERS, id=order_id, **row), *lines]


def documents(found: Mapping[int, Sequence[Any]]) -> dict[int, dict[str, Any]]:
    """By view and key."""
    return {view: {k.decode(): d and json.loads(d) for _, k, d in each} for view, each in found.items()}


def test_invoices_are_those_of_each_order(example: Example) -> None:
    catalog = parse_catalog({"schema.sql": SCHEMA})
    key = {ORDERS: "id", LINES: "order_id"}
    stage = FunctionStage(name="invoices", key=key, document=INVOICE)
    plan, pickled = stage.plan(example("function_per_key").invoice, catalog, (ORDERS, LINES))
    engine = LocalEngine(plan, evaluators=pickled)
    changes = [*order(10, 1, "ada", "60.00", "60.00"), *order(10, 2, "bob", "5"), *order(10, 3, "eve")]
    invoice = {"customer": "ada", "ordered": "2026-01-02", "lines": 2, "amount": "108.00"}
    assert documents(engine.run(changes))[0] == {
        '{"id":1}': invoice,
        '{"id":2}': {**invoice, "customer": "bob", "lines": 1, "amount": "5.00"},
    }


def test_values_of_customers_are_the_sums_of_their_orders(example: Example) -> None:
    pipeline = example("views_from_python").customers_pipeline(source="inv", schema=SCHEMA)
    assert [view.name for view in pipeline.definition.plan.views] == ["order_values", "customer_values"]
    engine = LocalEngine(pipeline.definition.plan)
    changes = [*order(10, 1, "ada", "1.10", "2.20"), *order(20, 2, "bob", "5"), *order(30, 3, "bob", "7")]
    found = documents(engine.run(changes))
    assert {d["id"]: d["amount"] for d in found[0].values()} == {1: "3.30", 2: "5.00", 3: "7.00"}
    assert {d["customer"]: (d["orders"], d["amount"]) for d in found[1].values()} == {
        "ada": (1, "3.30"),
        "bob": (2, "12.00"),
    }
    assert "customer_values" in pipeline.explain()
    assert repr(pipeline) == "Pipeline('customers', source='inv', views: order_values, customer_values)"


def test_a_batch_that_is_repeated_is_in_the_ledger_and_counts_once(example: Example, tmp_path: Path) -> None:
    """Fails when the ledger is not asked, or not written together with the effect."""
    warehouse = example("exactly_once_ledger").Warehouse(tmp_path / "db")
    first, second = (CommitBatch(n, "inv", 1, n * 100, (n + 1) * 100, tuple) for n in range(2))
    for batch in (first, first, second, second):
        warehouse.apply([("tea", 2)], batch)
    with sqlite3.connect(tmp_path / "db") as database:
        assert database.execute("SELECT * FROM sold").fetchall() == [("tea", 4)]
        assert database.execute("SELECT * FROM ledger").fetchall() == [("inv", 200)]
