"""`ViewTest` against DuckDB: after every transaction it says what the database would answer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import duckdb
import pytest

from slackwater.api import Pipeline, ViewTest
from slackwater.sql.errors import SqlTextError
from slackwater_lab.differential.case import NOT_QUERIES, Case, Feature
from slackwater_lab.differential.check import Reference, of_document
from slackwater_lab.differential.history import DrawnTable, Row, RowChange, play, schema_ddl
from slackwater_lab.differential.sql_types import Value
from slackwater_lab.differential.subject import Differential

SEEDS = 120
DEFAULT_SEEDS = 10
PORTION = 5
PORTIONS = [
    pytest.param(first, marks=() if first < DEFAULT_SEEDS else pytest.mark.slow)
    for first in range(0, SEEDS, PORTION)
]
FEATURES = tuple(f for f in Feature if f not in {Feature.PARTIAL_IDENTITY, Feature.OVERLAP})
"""A `ViewTest` refuses a second row of a key, also within a transaction."""


@cache
def database() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


@cache
def plain(value: Value) -> Any:
    """The value as DuckDB hands it to Python, times with a zone as text: nothing of the judged code."""
    sql = value.sql
    if "TIMESTAMPTZ[]" in sql:
        sql = f"CAST({sql} AS VARCHAR[])"
    elif "TIMESTAMPTZ" in sql:
        sql = f"CAST({sql} AS VARCHAR)"
    (found,) = database().execute(f"SELECT {sql}").fetchone() or (None,)
    return found


def plain_row(table: DrawnTable, row: Row | None, names: Sequence[str] = ()) -> dict[str, Any]:
    assert row is not None
    columns = (column for column in table.columns if not names or column.name in names)
    values = ((column.name, row[column.position]) for column in columns)
    return {name: None if value is None else plain(value) for name, value in values}


def make(test: ViewTest, change: RowChange) -> None:
    table = change.table
    name = f"public.{table.name}"
    match change.op:
        case "c" | "r":
            test.insert(name, plain_row(table, change.after))
        case "u":
            test.update(name, plain_row(table, change.after))
        case "d":
            test.delete(name, plain_row(table, change.before, table.primary_key))
        case "t":
            test.truncate(name)


def view_test(case: Case) -> ViewTest | None:
    try:
        pipeline = Pipeline(
            name="case",
            source="case",
            schema=schema_ddl(case.tables),
            views={view.name: view.sql() for view in case.views},
        )
    except SqlTextError:
        return None
    return ViewTest(pipeline.definition)


def shown(test: ViewTest, view: str) -> Mapping[str, int]:
    return Counter(map(of_document, test._documents[view].values()))  # noqa: SLF001


@pytest.mark.full
@pytest.mark.parametrize("first", PORTIONS)
def test_documents_are_what_duckdb_says_at_every_commit(first: int) -> None:
    states = 0
    for seed in range(first, first + PORTION):
        case = Differential().generate(seed, FEATURES)
        test = view_test(case)
        if test is None:
            continue
        with Reference(case.tables, case.views) as reference:
            for commit in play(case.tables, case.transactions):
                for change in commit.changes:
                    make(test, change)
                test.commit()
                reference.apply(commit)
                expected = reference.rows()
                for view, rows in zip(case.views, expected, strict=True):
                    assert shown(test, view.name) == rows, (seed, commit.lsn, view.name)
                    states += 1

    assert states > 5 * PORTION


def test_the_features_of_queries_are_all_tried() -> None:
    assert set(Feature) - set(FEATURES) <= NOT_QUERIES
