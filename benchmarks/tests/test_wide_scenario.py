"""The pipelines of the scenario `wide`, and the rows they are given."""

import json
from collections import Counter
from collections.abc import Iterator

import duckdb
import pytest

from slackwater.pipeline import load_pipeline
from slackwater.sql.catalog import Table
from slackwater.sql.postgres import parse_catalog
from slackwater_bench.scenarios.wide import (
    LINES,
    MEASURED,
    PIPELINES,
    REFERENCE,
    Shop,
    period_summary,
    wide_measured,
)
from slackwater_bench.traffic import RowChange

ORDERS = 100


@pytest.fixture
def shop() -> Shop:
    return Shop(ORDERS)


@pytest.fixture
def database(shop: Shop) -> Iterator[duckdb.DuckDBPyConnection]:
    """The shop's rows in tables."""
    with duckdb.connect() as connection:
        connection.execute("CREATE SCHEMA shop").fetchall()
        for table in declared(MEASURED).values():
            columns = ", ".join(f"{column.name} {column.type.name}" for column in table.columns)
            connection.execute(f"CREATE TABLE {table.full_name} ({columns})").fetchall()
        for change in (change for transaction in shop.inserts() for change in transaction):
            row = json.loads(change.after)
            marks = ", ".join("?" * len(row))
            insert = f"INSERT INTO {change.table} ({', '.join(row)}) VALUES ({marks})"  # noqa: S608 - our names
            connection.execute(insert, list(row.values())).fetchall()
        yield connection


def declared(pipeline: str) -> dict[str, Table]:
    path = PIPELINES / pipeline / "schema.sql"
    return {table.full_name: table for table in parse_catalog({str(path): path.read_text()}).tables}


def test_one_pipeline_has_many_stages_and_the_other_has_one() -> None:
    wide, narrow = (load_pipeline(PIPELINES / name) for name in (MEASURED, REFERENCE))

    assert (len(wide.outputs), len(wide.tables), len(wide.plan.stages)) == (6, 11, 20)
    assert (len(narrow.outputs), len(narrow.plan.stages)) == (1, 1)


def test_both_declare_the_same_tables(shop: Shop) -> None:
    wide, narrow = declared(MEASURED), declared(REFERENCE)

    assert set(wide) == set(shop.counts)
    assert all(table == wide[name] for name, table in narrow.items())


def test_rows_have_the_declared_columns(shop: Shop) -> None:
    tables = declared(MEASURED)
    changes = [change for transaction in shop.inserts() for change in transaction]

    assert Counter(change.table for change in changes) == shop.counts
    for change in changes:
        assert list(json.loads(change.after)) == [column.name for column in tables[change.table].columns]


@pytest.mark.parametrize(
    ("view", "documents"),
    [
        ("order_board", ORDERS),
        ("customer_overview", ORDERS // 5),
        ("product_sales", ORDERS // 10),
        ("stock_levels", ORDERS // 10),
        ("delivery_board", ORDERS),
        ("supplier_revenue", ORDERS // 10),
    ],
)
def test_every_row_finds_its_parents(view: str, documents: int, database: duckdb.DuckDBPyConnection) -> None:
    text = (PIPELINES / MEASURED / "views" / f"{view}.sql").read_text()

    assert len(database.execute(text.replace(" TRANSACTIONALLY", "")).fetchall()) == documents


def test_a_change_of_one_row_is_a_change_of_a_line(shop: Shop) -> None:
    changes = [shop.change(1) for _ in range(3)]

    assert [[change.table for change in each] for each in changes] == [[LINES]] * 3
    assert len({each[0].id for each in changes}) == 3


def test_a_large_change_is_of_all_tables_and_of_each_row_once(shop: Shop) -> None:
    rows = sum(shop.counts.values())
    for size in (rows // 2, rows):
        places = Counter((change.table, change.id) for change in shop.change(size))
        assert len(places) == size
        assert {table for table, _ in places} == set(shop.counts)


def test_a_row_was_before_what_the_change_before_made_it(shop: Shop) -> None:
    rows = sum(shop.counts.values())
    images = {place(change): change.after for transaction in shop.inserts() for change in transaction}
    for _ in range(3):
        for change in shop.change(rows):
            assert change.before == images[place(change)]
            assert change.after != change.before
            images[place(change)] = change.after


def place(change: RowChange) -> tuple[str, int]:
    return change.table, change.id


def test_more_rows_than_there_are_cannot_be_changed(shop: Shop) -> None:
    with pytest.raises(ValueError, match="the shop has"):
        shop.change(sum(shop.counts.values()) + 1)


def test_a_period_is_from_one_visible_batch_to_the_next() -> None:
    assert period_summary([10.0, 11.0, 14.0, 16.0]) == {"median": 2.0, "max": 3.0}


def test_the_ratio_is_of_both_medians() -> None:
    measured = wide_measured({MEASURED: {"median": 4.5, "max": 5.0}, REFERENCE: {"median": 0.5, "max": 1.0}})

    assert measured.value == 4.5
    assert measured.details["ratio"] == 9.0
