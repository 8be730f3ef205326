"""Typed rows out of JSON rows, without Spark."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from slackwater.cdc import BadInputError
from slackwater.pipeline.source.typed_rows import TypedTable, row_typer
from slackwater.sql.postgres import parse_catalog

[TABLE] = parse_catalog(
    {"s": "CREATE TABLE s.t (id bigint PRIMARY KEY, at timestamptz, n numeric(5,2));"}
).tables
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    defaults = {
        "source": "inv", "table": "s.t", "op": "c", "before": None, "after": None, "xid": 1, "commit_lsn": 5,
        "commit_ts": NOW, "order_in_transaction": 1, "partition": 3, "offset": 9,
    }  # fmt: skip
    types = {"xid": pa.int64(), "commit_lsn": pa.int64(), "commit_ts": pa.timestamp("us", "UTC")}
    types |= {"order_in_transaction": pa.int64(), "partition": pa.int32(), "offset": pa.int64()}
    full = [{**defaults, **row} for row in rows]
    return pa.RecordBatch.from_arrays(
        [pa.array([row[name] for row in full], types.get(name, pa.string())) for name in defaults],
        names=list(defaults),
    )


def test_rows_become_structs_and_keep_where_they_come_from() -> None:
    rows = batch(
        {"after": '{"id":1,"at":"2026-01-02T03:04:05.000001Z","n":"1.5"}'},
        {"op": "d", "before": '{"id":2,"at":null,"n":null}'},
        {"op": "t"},
    )
    [found] = row_typer(TypedTable(TABLE), "inv.s.t")([rows])
    created, deleted, truncated = found.to_pylist()
    at = datetime(2026, 1, 2, 3, 4, 5, 1, UTC)
    assert created["after"] == {"id": 1, "at": at, "n": Decimal("1.50")}
    assert (created["key"], created["partition"], created["offset"]) == ({"id": 1}, 3, 9)
    assert (deleted["key"], deleted["after"]) == ({"id": 2}, None)
    assert (truncated["key"], truncated["before"], truncated["commit_lsn"]) == (None, None, 5)


def test_an_empty_batch_stays_one() -> None:
    [found] = row_typer(TypedTable(TABLE), "inv.s.t")([batch({}).slice(0, 0)])
    assert found.num_rows == 0


def test_a_row_that_contradicts_the_declaration_is_named_by_its_place() -> None:
    rows = batch({"after": '{"id":1,"at":null,"n":"1000.5"}'})
    with pytest.raises(BadInputError, match=r"topic inv\.s\.t, partition 3, offset 9: column n of s\.t"):
        list(row_typer(TypedTable(TABLE), "inv.s.t")([rows]))
