# ruff: noqa: S608 - the SQL is from files of this repository
"""Each pipeline's view by the engine's own evaluation, beside plain DuckDB."""

import json
import re
from decimal import Decimal
from typing import Any

import duckdb
import pytest

from slackwater.engine.local import LocalEngine
from slackwater.pipeline import load_pipeline
from slackwater.sql.plan import EnginePlan
from slackwater_lab.generator.debezium_records import ConnectorIdentity
from slackwater_lab.generator.share import Share
from slackwater_lab.workloads import WORKLOADS
from slackwater_lab.workloads.huge import HugeWorkload
from slackwater_lab.workloads.workload import Workload

SIZE = 30


def rows_after(workload: Workload, events: int) -> dict[str, list[dict[str, Any]]]:
    """The rows a generator holds, as Debezium's JSON has them."""
    share = Share(workload, ConnectorIdentity("inv"), lambda *_: None)
    share.begin()
    share.advance(events)
    return {
        name: [json.loads(table.json(row_id)) for row_id in table.rows]
        for name, table in share.tables.items()
    }


def documents(plan: EnginePlan, rows: dict[str, list[dict[str, Any]]]) -> dict[int, Any]:
    changes = [
        (name, "c", 1, None, json.dumps(row).encode()) for name, of_table in rows.items() for row in of_table
    ]
    found = LocalEngine(plan).run(changes)
    return {json.loads(key)["id"]: json.loads(text) for _, key, text in found[0] if text is not None}


def by_duckdb(workload: Workload, rows: dict[str, list[dict[str, Any]]]) -> dict[int, Any]:
    """The view over the same rows by DuckDB alone."""
    (path,) = (workload.pipeline / "views").glob("*.sql")
    sql = re.sub(r"GROUP BY .*", "GROUP BY ALL", path.read_text()).replace("TRANSACTIONALLY", "")
    connection = duckdb.connect()
    for name, table in workload.tables.items():
        columns = ", ".join(f"{column.name} {column.type.name}" for column in table.columns)
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {table.schema}")
        connection.execute(f"CREATE TABLE {name} ({columns})")
        marks = ", ".join("?" for _ in table.columns)
        values = [[row[column.name] for column in table.columns] for row in rows[name]]
        if values:
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", values)
    shown = connection.execute(f"SELECT to_json(v) FROM ({sql}) v").fetchall()
    return {document["id"]: document for document in (json.loads(text) for (text,) in shown)}


def comparable(value: Any) -> Any:
    """Numbers as decimals: the engine writes them as texts, DuckDB as numbers. Times are left out."""
    if isinstance(value, dict):
        return {name: comparable(child) for name, child in value.items() if name != "created_at"}
    if isinstance(value, list):
        return [comparable(child) for child in value]
    try:
        return Decimal(str(value)).normalize()
    except ArithmeticError:
        return value


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_the_engine_and_duckdb_alone_agree_on_every_document(name: str) -> None:
    workload = HugeWorkload(2, SIZE, 500) if name == "huge" else WORKLOADS[name](2, SIZE)
    rows = rows_after(workload, 800)
    plan = load_pipeline(workload.pipeline).plan
    found, wanted = documents(plan, rows), by_duckdb(workload, rows)
    assert len(wanted) > 0
    assert comparable(found) == comparable(wanted)
