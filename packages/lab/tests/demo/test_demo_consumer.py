"""The demo's consumer: what it says of transactions, in a process that stays small."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slackwater.client import Commit, Transaction
from slackwater.client.transaction import LanePosition, Piece
from slackwater_lab.demo.consumer import Consumed, ConsumerReport, Service
from slackwater_lab.fakes.broker import memory_record

HEADER = {"id": 1, "customer": "Ada", "status": "new", "line_count": 1, "total": "2.00"}
HEADER |= {"created_at": "2026-01-01T00:00:00Z"}
LINE = {"id": 1, "order_id": 1, "product": "rope", "quantity": 1, "price": "2.00"}


def transaction(lsn: int, *values: dict[str, Any] | None, xid: int | None = None) -> Transaction:
    records = [
        memory_record(("t", 0), at, b"k", None if value is None else json.dumps(value).encode())
        for at, value in enumerate(values)
    ]
    commit = Commit(source="inv", timeline=1, lsn=lsn, xid=xid, commit_ts_ms=0)
    return Transaction(Piece(commit, list(records), True, (0,), 0, LanePosition(1), {}))


def row(table: str, after: dict[str, Any]) -> dict[str, Any]:
    return {"op": "c", "before": None, "after": after, "source": {"schema": "inventory", "table": table}}


def test_an_order_that_comes_with_its_lines_is_whole() -> None:
    service = Service()
    service.take_changes(transaction(10, row("orders", HEADER), row("order_lines", LINE)))
    seen = service.seen.changes
    assert (seen.transactions, seen.records, seen.broken, seen.disordered, seen.lsn) == (1, 2, 0, 0, 10)


def test_an_order_that_comes_without_its_lines_is_counted_once() -> None:
    service = Service()
    service.take_changes(transaction(10, row("orders", HEADER)))
    service.take_changes(transaction(20, row("order_lines", LINE)))
    assert (service.seen.changes.broken, service.seen.wrong) == (1, 1)


def test_a_document_is_whole_if_it_fits_its_lines_and_a_delete_always_is() -> None:
    service = Service()
    service.take_documents(transaction(10, {**HEADER, "lines": [LINE]}, None))
    assert (service.seen.output.records, service.seen.wrong) == (2, 0)
    service.take_documents(transaction(20, {**HEADER, "lines": [LINE]}, {**HEADER, "lines": []}))
    assert (service.seen.output.broken, service.seen.wrong) == (1, 1)


def test_the_initial_snapshot_is_read_but_is_no_transaction() -> None:
    service = Service()
    service.take_changes(transaction(10, row("orders", HEADER), row("order_lines", LINE), xid=0))
    seen = service.seen.changes
    assert (seen.transactions, seen.records, seen.lsn) == (0, 2, 10)


@pytest.mark.parametrize("lsn", [10, 9])
def test_a_commit_that_is_not_above_the_one_before_is_counted(lsn: int) -> None:
    service = Service()
    for each in (10, lsn):
        service.take_documents(transaction(each))
    assert (service.seen.output.disordered, service.seen.wrong) == (1, 1)


def test_the_report_says_how_far_both_inputs_are(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    assert ConsumerReport.read(file) == ConsumerReport(Consumed(), Consumed())
    service = Service()
    service.take_changes(transaction(20))
    service.take_documents(transaction(10))
    service.seen.write(file)
    assert ConsumerReport.read(file) == service.seen
    assert (service.seen.changes.lsn, service.seen.output.lsn) == (20, 10)


def test_the_process_does_without_spark() -> None:
    program = "import sys, slackwater_lab.demo.consumer; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
