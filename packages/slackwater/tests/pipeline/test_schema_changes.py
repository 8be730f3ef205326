"""Tables that are altered while a pipeline runs: what continues, and what stops with which words.

The records are Debezium's, as recorded while a table was altered step by step: an insert and an update after
each ALTER TABLE.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.pipeline import pipeline_definition
from slackwater.sql.errors import RowContradictsSchemaError
from slackwater.sql.postgres import parse_catalog

ITEMS = "inventory.items"
RECORDS = Path(__file__).with_name("schema_changes.jsonl")
DECLARED = """
CREATE TABLE inventory.items (
    id bigint PRIMARY KEY, name text NOT NULL, size int, price numeric(12, 2) NOT NULL, made_at timestamp(3)
);
ALTER TABLE inventory.items REPLICA IDENTITY FULL;
"""
NAMES = "SELECT TRANSACTIONALLY i.id, i.name FROM inventory.items i"
PRICES = "SELECT TRANSACTIONALLY i.id, i.name, i.price FROM inventory.items i"
SIZES = "SELECT TRANSACTIONALLY i.id, i.size FROM inventory.items i"
TIMES = "SELECT TRANSACTIONALLY i.id, i.made_at FROM inventory.items i"


def recorded(case: str) -> list[ChangeEvent]:
    """The insert and the update after one ALTER TABLE."""
    rows = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    found: list[ChangeEvent] = [
        (ITEMS, row["op"], row["lsn"], as_json(row["before"]), as_json(row["after"]))
        for row in rows
        if row["case"] == case
    ]
    assert [change[1] for change in found] == ["c", "u"]
    return found


def as_json(row: dict[str, Any] | None) -> bytes | None:
    return None if row is None else json.dumps(row).encode()


def engine(view: str) -> LocalEngine:
    catalog = parse_catalog({"schema.sql": DECLARED})
    return LocalEngine(pipeline_definition(name="p", source="inv", catalog=catalog, views={"v": view}).plan)


def documents(view: str, case: str) -> list[Any]:
    return [json.loads(found or b"null") for _, _, found in engine(view).run(recorded(case))[0]]


@pytest.mark.parametrize(
    "case",
    [
        "before",
        "added",
        "note renamed",
        "remark retyped",
        "remark dropped",
        "size bigint",
        "price numeric(14,4)",
        "size text",
        "made_at timestamptz",
        "made_at timestamp(6)",
    ],
)
def test_a_view_goes_on_when_columns_change_that_it_does_not_use(case: str) -> None:
    (document,) = documents(NAMES, case)
    assert document["name"] == f"item {document['id']}"


@pytest.mark.parametrize("case", ["name null", "name renamed", "title dropped"])
def test_another_view_of_the_table_goes_on_when_a_view_must_stop(case: str) -> None:
    catalog = parse_catalog({"schema.sql": DECLARED.replace("size int", "size text")})
    plan = pipeline_definition(name="p", source="inv", catalog=catalog, views={"v": SIZES}).plan
    ((_, _, document),) = LocalEngine(plan).run(recorded(case))[0]
    assert json.loads(document or b"null")["size"] == "3"


@pytest.mark.parametrize(
    ("view", "case", "column", "expected", "got"),
    [
        (PRICES, "price numeric(14,4)", "price", "2 after the point", '"10.1234"'),
        (NAMES, "name null", "name", "text as a string (NOT NULL)", "null"),
        (NAMES, "name renamed", "name", "text as a string", "no such field"),
        (NAMES, "title dropped", "name", "text as a string", "no such field"),
        (SIZES, "size bigint", "size", "an integer of 32 bits", "5000000000"),
        (SIZES, "size text", "size", "an integer of 32 bits", '"3"'),
        (TIMES, "made_at timestamptz", "made_at", "milliseconds as an integer", '"2026-01-02T03'),
    ],
)
def test_a_view_stops_when_a_column_it_uses_is_no_more_what_was_declared(
    view: str, case: str, column: str, expected: str, got: str
) -> None:
    with pytest.raises(RowContradictsSchemaError) as caught:
        engine(view).run(recorded(case))
    error = caught.value
    assert (error.table, error.column) == (ITEMS, column)
    assert expected in error.expected
    assert got in error.got
    assert "slackwater schema check" in str(error)
    assert "new revision" in str(error)


def test_a_type_with_the_same_form_in_json_is_not_noticed() -> None:
    """Milliseconds and microseconds are both integers: why `slackwater schema check` asks the database."""
    (document,) = documents(TIMES, "made_at timestamp(6)")
    assert not document["made_at"].startswith("2026")
