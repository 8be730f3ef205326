"""The view by itself: rows in, documents out, no Spark and no Kafka."""

import json
from pathlib import Path
from typing import Any

import pytest

from slackwater_engine.local import LocalEngine
from slackwater_spark.pipeline import load_pipeline
from slackwater_sql.plan import EnginePlan

FOLDER = Path(__file__).parents[1]

Row = dict[str, Any]


@pytest.fixture(scope="module")
def plan() -> EnginePlan:
    return load_pipeline(FOLDER).plan


def document(plan: EnginePlan, order: Row | None, lines: list[Row]) -> Any:
    """The view's document for one order; None if the view has none."""
    changes = [("inventory.order_lines", "c", 1, None, json.dumps(line).encode()) for line in lines]
    if order is not None:
        changes.append(("inventory.orders", "c", 1, None, json.dumps(order).encode()))
    documents = LocalEngine(plan).run(changes).get(0, [])
    return json.loads(documents[0][2] or b"null") if documents else None


def order_row(**changes: Any) -> Row:
    order = {"id": 1, "customer": "ada", "status": "new", "line_count": 2, "total": "30.50"}
    return {**order, "created_at": "2026-01-02T03:04:05.678900Z", **changes}


def line_row(line_id: int, **changes: Any) -> Row:
    return {"id": line_id, "order_id": 1, "product": "pen", "quantity": 1, "price": "1.50", **changes}


def test_an_order_has_its_lines_by_id(plan: EnginePlan) -> None:
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


def test_an_order_without_lines_has_an_empty_list(plan: EnginePlan) -> None:
    assert document(plan, order_row(line_count=0, total="0.00"), [])["lines"] == []


def test_lines_without_an_order_make_no_document(plan: EnginePlan) -> None:
    assert document(plan, None, [line_row(11)]) is None


def test_documents_are_keyed_by_the_order(plan: EnginePlan) -> None:
    assert plan.views[0].key == ("id",)
