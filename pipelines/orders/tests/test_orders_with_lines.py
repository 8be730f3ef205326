"""The view by itself: rows in, documents out, no Spark and no Kafka."""

import json
from pathlib import Path
from typing import Any

import pytest

from slackwater_sql.ddl import parse_catalog
from slackwater_sql.evaluation import Evaluator, InputVersions, Points
from slackwater_sql.plan import ViewPlan
from slackwater_sql.row_codec import RowCodec
from slackwater_sql.view import compile_view

FOLDER = Path(__file__).parents[1]
VIEW = FOLDER / "views" / "orders_with_lines.sql"

Row = dict[str, Any]


@pytest.fixture(scope="module")
def plan() -> ViewPlan:
    schema = FOLDER / "schema.sql"
    return compile_view(VIEW.read_text(), parse_catalog({str(schema): schema.read_text()}), path=str(VIEW))


def document(plan: ViewPlan, order: Row | None, lines: list[Row]) -> Any:
    """The view's document for one order; None if the view has none."""
    rows = {"o": [] if order is None else [order], "l": lines}
    versions = {item.alias: input_versions(plan, item.alias, rows[item.alias]) for item in plan.inputs}
    with Evaluator(plan) as evaluator:
        (found,) = evaluator.evaluate(versions, Points(keys=[1]))
    return None if found is None else json.loads(found)


def input_versions(plan: ViewPlan, alias: str, rows: list[Row]) -> InputVersions:
    item = plan.input(alias)
    codec = RowCodec(item.table, item.column_names)
    packed = [codec.encode(codec.decode(json.dumps(row).encode())) for row in rows]
    return InputVersions(groups=[0] * len(rows), columns=codec.unpack_columns(packed))


def order_row(**changes: Any) -> Row:
    order = {"id": 1, "customer": "ada", "status": "new", "line_count": 2, "total": "30.50"}
    return {**order, "created_at": "2026-01-02T03:04:05.678900Z", **changes}


def line_row(line_id: int, **changes: Any) -> Row:
    return {"id": line_id, "order_id": 1, "product": "pen", "quantity": 1, "price": "1.50", **changes}


def test_an_order_has_its_lines_by_id(plan: ViewPlan) -> None:
    lines = [line_row(12, quantity=2, price="10.25"), line_row(11, price="10.00")]
    assert document(plan, order_row(), lines) == {
        "id": 1,
        "customer": "ada",
        "status": "new",
        "line_count": 2,
        "total": "30.50",
        "created_at": "2026-01-02T03:04:05.678900Z",
        "lines": [
            {"id": 11, "product": "pen", "quantity": 1, "price": "10.00"},
            {"id": 12, "product": "pen", "quantity": 2, "price": "10.25"},
        ],
    }


def test_an_order_without_lines_has_an_empty_list(plan: ViewPlan) -> None:
    assert document(plan, order_row(line_count=0, total="0.00"), [])["lines"] == []


def test_lines_without_an_order_make_no_document(plan: ViewPlan) -> None:
    assert document(plan, None, [line_row(11)]) is None


def test_documents_are_keyed_by_the_order(plan: ViewPlan) -> None:
    assert [column.name for column in plan.key] == ["id"]
