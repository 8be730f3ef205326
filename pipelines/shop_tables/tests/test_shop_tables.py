"""The views as rows: changes in, lines of COPY out, no Spark and no servers."""

import json
from pathlib import Path
from typing import Any

import pytest

from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.outputs.contract import SinkKind
from slackwater.outputs.postgres.merge import RowReader
from slackwater.outputs.postgres.tables import stored_columns
from slackwater.pipeline import PipelineDefinition, load_pipeline
from slackwater_certify import load_specification
from slackwater_certify.view import load_view

FOLDER = Path(__file__).parents[1]
SHOP = FOLDER.parent / "shop"
PRODUCTS, ORDERS, LINES = "shop.products", "shop.orders", "shop.lines"

Row = dict[str, Any]

PEN = {"id": 3, "name": "pen", "category": "office"}
ORDER = {"id": 7, "customer_id": 1, "status": "new", "placed_at": "2026-01-02T03:04:05.000006Z"}
LINE = {"id": 9, "order_id": 7, "product_id": 3, "quantity": 2, "price": "1.50"}


@pytest.fixture(scope="module")
def definition() -> PipelineDefinition:
    return load_pipeline(FOLDER)


def rows(definition: PipelineDefinition, *changes: ChangeEvent) -> dict[str, list[dict[str, str] | None]]:
    """What each view's table is given, by column; None: a delete."""
    engine = LocalEngine(definition.plan, every_commit=True)
    found: dict[str, list[dict[str, str] | None]] = {view.name: [] for view in definition.plan.views}
    for number, documents in engine.run(list(changes)).items():
        view = definition.plan.views[number]
        columns = stored_columns(view.outputs)
        names = [column.name for column in columns]
        reader = RowReader(columns)
        found[view.name] += [
            None if document is None else dict(zip(names, reader.fields(document), strict=True))
            for _, _, document in documents
        ]
    return found


def change(table: str, lsn: int, row: Row | None, old: Row | None = None) -> ChangeEvent:
    op = "d" if row is None else "c" if old is None else "u"
    return table, op, lsn, packed(old), packed(row)


def packed(row: Row | None) -> bytes | None:
    return None if row is None else json.dumps(row).encode()


def test_a_transaction_over_three_tables_is_a_row_in_each_of_both_views(
    definition: PipelineDefinition,
) -> None:
    found = rows(definition, change(PRODUCTS, 10, PEN), change(ORDERS, 10, ORDER), change(LINES, 10, LINE))
    (order,), (product,) = found["order_details"], found["product_sales"]
    assert order is not None
    assert json.loads(order.pop("lines")) == [{"product_id": 3, "quantity": 2, "price": "1.50"}]
    assert order == {
        "id": "7",
        "customer_id": "1",
        "status": "new",
        "placed_at": "2026-01-02T03:04:05.000006Z",
        "line_count": "1",
        "total": "3.00",
    }
    assert product == {
        "id": "3", "name": "pen", "category": "office", "lines": "1", "sold": "2", "revenue": "3.00"
    }  # fmt: skip


def test_what_nobody_bought_is_a_row_of_zeros_and_what_is_gone_a_delete(
    definition: PipelineDefinition,
) -> None:
    found = rows(
        definition,
        change(PRODUCTS, 10, PEN),
        change(ORDERS, 10, ORDER),
        change(ORDERS, 20, None, ORDER),
        change(PRODUCTS, 30, None, PEN),
    )
    order, no_order = found["order_details"]
    product, no_product = found["product_sales"]
    assert order is not None
    assert product is not None
    assert (order["line_count"], order["lines"]) == ("0", "[]")
    assert (product["lines"], product["sold"]) == ("0", "0")
    assert (no_order, no_product) == (None, None)


def test_both_views_are_tables_with_the_columns_that_the_documentation_shows(
    definition: PipelineDefinition,
) -> None:
    assert {output.kind for output in definition.outputs} == {SinkKind.POSTGRES}
    types = {
        view.name: {c.name: c.type for c in stored_columns(view.outputs)} for view in definition.plan.views
    }
    assert types == {
        "order_details": {
            "id": "bigint",
            "customer_id": "bigint",
            "status": "text",
            "placed_at": "timestamp with time zone",
            "line_count": "bigint",
            "total": "numeric(38,2)",
            "lines": "jsonb",
        },
        "product_sales": {
            "id": "bigint",
            "name": "text",
            "category": "text",
            "lines": "bigint",
            "sold": "numeric(39,0)",
            "revenue": "numeric(38,2)",
        },
    }
    assert [view.key for view in definition.plan.views] == [("id",), ("id",)]


@pytest.mark.parametrize("name", ["schema.sql", "views/order_details.sql", "views/product_sales.sql"])
def test_the_views_are_those_of_the_shop_whose_meaning_is_tested_there(name: str) -> None:
    assert (FOLDER / name).read_text() == (SHOP / name).read_text()


def test_the_certifier_takes_the_output_it_is_said_to_judge(definition: PipelineDefinition) -> None:
    specification = load_specification(FOLDER)
    assert set(load_view(specification).tables) == {ORDERS, LINES}
    assert specification.output.name in {output.name for output in definition.outputs}
    assert specification.output.ledger == definition.name
    assert specification.source.name == definition.source
