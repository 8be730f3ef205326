"""The reader without Slackwater."""

import json
from typing import Any

import pytest

from slackwater_lab.demo.naive import NaiveJoin, torn


def row(table: str, after: dict[str, Any]) -> bytes:
    source = {"schema": "inventory", "table": table, "lsn": 5}
    return json.dumps({"op": "c", "before": None, "after": after, "source": source}).encode()


def line(order_id: int, line_id: int = 1, price: str = "2.00") -> dict[str, Any]:
    return {"id": line_id, "order_id": order_id, "product": "rope", "quantity": 1, "price": price}


def header(order_id: int, line_count: int, total: str) -> dict[str, Any]:
    values = {"customer": "Ada", "status": "new", "created_at": "2026-01-01T00:00:00Z"}
    return {"id": order_id, "line_count": line_count, "total": total, **values}


def test_a_reader_without_slackwater_publishes_what_has_arrived() -> None:
    naive = NaiveJoin()
    naive.poll([row("orders", header(1, 1, "2.00"))])
    naive.poll([row("order_lines", line(1))])
    assert (naive.published, naive.torn) == (2, 1)


def test_a_reader_without_slackwater_is_right_when_a_poll_holds_whole_transactions() -> None:
    naive = NaiveJoin()
    naive.poll([row("orders", header(1, 1, "2.00")), row("order_lines", line(1))])
    assert (naive.published, naive.torn) == (1, 0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"line_count": 2}, "line_count is 2"),
        ({"total": "2.01"}, "total is 2.01"),
        ({"lines": None}, "not an order document"),
    ],
)
def test_a_document_is_torn_when_header_and_lines_disagree(
    changes: dict[str, Any], problem: str | None
) -> None:
    found = torn({**header(1, 1, "2.00"), "lines": [line(1)], **changes})
    assert (found is None) if problem is None else problem in str(found)
