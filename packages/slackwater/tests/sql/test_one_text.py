"""One text for equal values of lists, structs and floats."""

import duckdb
import pytest

from slackwater.sql.duckdb_sql import may_have_one_text, with_one_text
from slackwater.sql.limits import open_connection


@pytest.fixture(scope="module")
def connection() -> duckdb.DuckDBPyConnection:
    return open_connection()


@pytest.mark.parametrize(
    "value",
    [
        "'{0}'::DOUBLE",
        "'{0}'::FLOAT",
        "['{0}'::DOUBLE, 1.5, NULL]",
        "['{0}'::FLOAT, 'nan']::FLOAT[2]",
        "struct_pack(x := ['{0}'::FLOAT], \"it's\" := 1, d := 1.50)",
        "[struct_pack(x := [['{0}'::DOUBLE], NULL]), NULL]",
        "CASE WHEN '{0}' = '' THEN struct_pack(x := '{0}'::DOUBLE) END",
    ],
)
def test_equal_values_have_one_text_and_stay_what_they_are(
    value: str, connection: duckdb.DuckDBPyConnection
) -> None:
    texts = set()
    for zero in ("0.0", "-0.0"):
        there = f"(SELECT {value.format(zero)} AS v)"
        of_type = connection.sql(f"FROM {there}").types[0]
        sql = with_one_text("v", of_type)
        shown = f"CAST({sql} AS VARCHAR), typeof({sql}), ({sql}) IS NOT DISTINCT FROM v"
        (row,) = connection.execute(f"SELECT {shown} FROM {there}").fetchall()  # noqa: S608 - our own
        assert row[1:] == (str(of_type), True)
        texts.add(row[0])

    assert len(texts) == 1


@pytest.mark.parametrize(
    "value", ["{0}::DOUBLE", "{0}::FLOAT", "[{0}::DOUBLE]", "struct_pack(x := {0}::FLOAT)"]
)
def test_nan_has_one_text_whatever_its_sign(value: str, connection: duckdb.DuckDBPyConnection) -> None:
    texts = set()
    for nan in ("'nan'", "-('nan'::FLOAT)"):
        there = f"(SELECT {value.format(nan)} AS v)"
        sql = with_one_text("v", connection.sql(f"FROM {there}").types[0])
        texts |= set(connection.execute(f"SELECT CAST({sql} AS VARCHAR) FROM {there}").fetchall())  # noqa: S608

    assert len(texts) == 1


def test_what_has_one_text_stays_as_it_is_written(connection: duckdb.DuckDBPyConnection) -> None:
    of_type = connection.sql("SELECT {'a': [1]}").types[0]

    assert with_one_text("t.a", of_type) == "t.a"


@pytest.mark.parametrize(
    ("of_type", "has"),
    [
        ("FLOAT", True),
        ("STRUCT(a DOUBLE[], b TIMESTAMP WITH TIME ZONE)", True),
        ("MAP(INTEGER, DECIMAL(4,2))", True),
        ("INTERVAL", False),
        ("TIME WITH TIME ZONE", False),
        ("STRUCT(a INTEGER, b INTERVAL[])[]", False),
        ("MAP(INTEGER, INTERVAL)", False),
        ("MAP(INTEGER, DOUBLE)", False),
        ("STRUCT(a MAP(INTEGER, DOUBLE))", False),
        ("UNION(a INTEGER, b FLOAT)", False),
        ("UNION(a INTEGER, b VARCHAR)", False),
        ("STRUCT(u UNION(a INTEGER, b VARCHAR))", False),
        ("VARIANT", False),
        ("VARIANT[]", False),
    ],
)
def test_some_types_have_no_one_text_for_equal_values(
    of_type: str, has: bool, connection: duckdb.DuckDBPyConnection
) -> None:
    assert may_have_one_text(connection.sql(f"SELECT NULL::{of_type}").types[0]) is has
