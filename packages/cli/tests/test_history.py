"""Debezium's records, put together to transactions; and the reader without Slackwater."""

import json
from typing import Any

from slackwater.demo.history import SourceHistory
from slackwater.demo.naive import NaiveJoin


def row(
    table: str, op: str, after: dict[str, Any] | None, before: dict[str, Any] | None, xid: int | None
) -> bytes:
    transaction = {"id": f"{xid}:5", "total_order": 1, "data_collection_order": 1} if xid else None
    source = {"schema": "inventory", "table": table, "lsn": 5}
    event = {"op": op, "before": before, "after": after, "source": source, "transaction": transaction}
    return json.dumps(event).encode()


def end(xid: int, lsn: int, ts_ms: int = 0) -> bytes:
    return json.dumps({"status": "END", "id": f"{xid}:{lsn}", "ts_ms": ts_ms}).encode()


def line(order_id: int, line_id: int = 1, price: str = "2.00") -> dict[str, Any]:
    return {"id": line_id, "order_id": order_id, "product": "rope", "quantity": 1, "price": price}


def header(order_id: int, line_count: int, total: str) -> dict[str, Any]:
    values = {"customer": "Ada", "status": "new", "created_at": "2026-01-01T00:00:00Z"}
    return {"id": order_id, "line_count": line_count, "total": total, **values}


def test_transactions_come_in_commit_order_with_the_last_state_of_each_row() -> None:
    history = SourceHistory()
    history.add_row(row("order_lines", "c", line(1), None, 8))
    history.add_row(row("order_lines", "u", line(2), line(1), 8))
    history.add_row(row("order_lines", "d", None, line(2), 7))
    history.add_transaction_record(end(7, 300))
    history.add_transaction_record(end(8, 200, 44))
    first, second = history.transactions()
    assert (first.commit_lsn, first.commit_ts_ms) == (200, 44)
    assert [change.after for change in first.changes] == [line(2)]
    assert [change.after for change in second.changes] == [None]


def test_a_transaction_without_end_is_named() -> None:
    history = SourceHistory()
    history.add_row(row("orders", "c", header(1, 0, "0"), None, 8))
    assert history.unfinished() == [8]
    assert list(history.transactions()) == []


def test_the_first_of_repeated_ends_counts() -> None:
    history = SourceHistory()
    history.add_row(row("orders", "c", header(1, 0, "0"), None, 8))
    history.add_transaction_record(end(8, 200, 1))
    history.add_transaction_record(end(8, 999, 2))
    assert [t.commit_lsn for t in history.transactions()] == [200]


def test_snapshot_rows_belong_to_no_transaction() -> None:
    history = SourceHistory()
    history.add_row(row("orders", "r", header(1, 0, "0"), None, None))
    assert [change.key for change in history.snapshot()] == [1]
    assert history.unfinished() == []


def test_a_reader_without_slackwater_publishes_what_has_arrived() -> None:
    naive = NaiveJoin()
    naive.poll([row("orders", "c", header(1, 1, "2.00"), None, 8)])
    naive.poll([row("order_lines", "c", line(1), None, 8)])
    assert (naive.published, naive.torn) == (2, 1)


def test_a_reader_without_slackwater_is_right_when_a_poll_holds_whole_transactions() -> None:
    naive = NaiveJoin()
    naive.poll([row("orders", "c", header(1, 1, "2.00"), None, 8), row("order_lines", "c", line(1), None, 8)])
    assert (naive.published, naive.torn) == (1, 0)
