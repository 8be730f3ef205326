# ruff: noqa: E501, S608 - SQL on few lines
"""Views in PostgreSQL's dialect; `tests/system/test_from_postgres.py` compares with PostgreSQL itself."""

from typing import Any

import pytest

from slackwater.pipeline.definition import pipeline_definition
from slackwater.pipeline.testing.view_test import ViewTest
from slackwater.sql.errors import EvaluationError, SqlTextError
from slackwater.sql.meaning import Dialect
from slackwater.sql.postgres import parse_catalog

TABLES = """
CREATE TABLE public.t (id int PRIMARY KEY, g int NOT NULL, a int, b int, n numeric(10,2), f float8, x text, k boolean,
  ts timestamp, ia int[], jb jsonb);
"""


def evaluated(
    select: str, *rows: dict[str, Any], dialect: Dialect = Dialect.POSTGRES
) -> list[dict[str, Any]]:
    text = select if "TRANSACTIONALLY" in select else select.replace("SELECT", "SELECT TRANSACTIONALLY", 1)
    views = {"v": text}
    catalog = parse_catalog({"schema.sql": TABLES})
    test = ViewTest(pipeline_definition(name="p", source="s", catalog=catalog, views=views, dialect=dialect))
    given = ({"id": number, "g": 1, **row} for number, row in enumerate(rows, 1))
    return test.insert("t", *given).commit().documents("v")


@pytest.mark.parametrize(
    ("expression", "row", "wanted"),
    [
        ("(a + b) / 2", {"a": 7, "b": 2}, 4),
        ("-a / 2", {"a": 7}, -3),
        ("n / 3", {"n": "10.00"}, "3.333333333333333300000000"),
        ("n / b", {"n": "1.00", "b": 30000}, "0.000033333333333333333333"),
        ("round(f)", {"f": 2.5}, 2.0),
        ("f::numeric(10,2)", {"f": 1.005}, "1.01"),
        ("f::text", {"f": 1e15}, "1e+15"),
        ("jb ->> 'a'", {"jb": {"a": 1}}, "1"),
        ("jsonb_build_object('bb', n, 'a', x)::text", {"n": "1.10", "x": "z"}, '{"a": "z", "bb": 1.10}'),
        ("f::real = 0.1", {"f": 0.1}, False),
        ("1e3 / 3", {}, "333.333333333333333300000000"),
        ("x || k", {"x": "a", "k": True}, "atrue"),
        ("concat(x, k)", {"x": "a", "k": True}, "at"),
        ("ia::text", {"ia": [1, None]}, "{1,NULL}"),
        ("ia[-1]", {"ia": [1]}, None),
        ("array_length(ia, 1)", {"ia": []}, None),
        ("x LIKE 'a\\_b'", {"x": "a_b"}, True),
        ("x LIKE 'a\\_b'", {"x": "axb"}, False),
        ("x SIMILAR TO 'a.%'", {"x": "axb"}, False),
        ("x NOT SIMILAR TO 'a.%'", {"x": "axb"}, True),
        ("x !~ 'b'", {"x": "abc"}, False),
        ("(a, b) = (1, NULL)", {"a": 1, "b": 2}, None),
        ("substring(x, -1, 3)", {"x": "abc"}, "a"),
        ("extract(second FROM ts)", {"ts": "2024-01-01 00:00:01.5"}, "1.500000"),
        ("to_char(ts, 'YYYY-MM')", {"ts": "2024-01-01 00:00:01.5"}, "2024-01"),
        ("x::varchar(2)", {"x": "abc"}, "ab"),
        ("initcap(x)", {"x": "hello wORLD"}, "Hello World"),
        ("format('%s: %s', x, n)", {"x": "a", "n": "1.10"}, "a: 1.10"),
    ],
)
def test_an_expression_has_the_value_that_postgresql_gives_it(
    expression: str, row: dict[str, Any], wanted: object
) -> None:
    assert evaluated(f"SELECT id, {expression} AS v FROM t", row) == [{"id": 1, "v": wanted}]


def test_types_follow_from_subqueries_common_tables_and_other_columns() -> None:
    select = """WITH q(k, h) AS (SELECT id, a / 2 FROM t)
        SELECT TRANSACTIONALLY k, (SELECT max(a) / 2 FROM t) + h / 2 AS v FROM q"""
    assert evaluated(select, {"a": 7}) == [{"k": 1, "v": 4}]


def test_null_is_the_first_in_a_descending_order() -> None:
    rows = {"a": 1, "x": "one"}, {"a": None, "x": "none"}
    window = "SELECT id, row_number() OVER (PARTITION BY g ORDER BY a DESC) AS v FROM t"
    listed = "SELECT g, string_agg(x, ',' ORDER BY a DESC) AS v FROM t GROUP BY g"

    assert [each["v"] for each in evaluated(window, *rows)] == [2, 1]
    assert evaluated(listed, *rows) == [{"g": 1, "v": "none,one"}]
    assert [each["v"] for each in evaluated(window, *rows, dialect=Dialect.DUCKDB)] == [1, 2]


def test_sums_and_averages_are_of_postgresqls_types() -> None:
    select = "SELECT g, sum(a) / count(*) AS s, avg(a) AS m, sum(n) / count(*) AS n FROM t GROUP BY g"
    assert evaluated(select, {"a": 1, "n": "0.01"}, {"a": 2, "n": "0.02"}) == [
        {"g": 1, "s": 1, "m": "1.500000000000000000000000", "n": "0.015000000000000000000000"}
    ]


@pytest.mark.parametrize("expression", ["a / b", "n / b", "f / b"])
def test_division_by_zero_is_an_error(expression: str) -> None:
    with pytest.raises(EvaluationError, match=r"[Dd]ivision by zero"):
        evaluated(f"SELECT id, {expression} AS v FROM t", {"a": 1, "n": "1.00", "f": 1.0, "b": 0})


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("(n / 3)::text", "round"),
        ("coalesce(n, 0)::text", "numeric(p,s)"),
        ("n ^ 2", "float8"),
        ("x::char(3)", "varchar(n)"),
        ("x ~ '(.)\\1'", "constant"),
        ("round(f, 2)", "round(x::numeric, 2)"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_form_that_works(expression: str, hint: str) -> None:
    with pytest.raises(SqlTextError) as refused:
        evaluated(f"SELECT id,\n  {expression} AS v\nFROM t")
    assert (refused.value.place.line, refused.value.place.column) == (2, 3)
    assert hint in refused.value.hint


def test_places_after_a_translation_are_those_of_the_users_text() -> None:
    with pytest.raises(SqlTextError) as refused:
        evaluated("SELECT id, (a / b) / 2 AS v,\n  a / 2 + nothing AS w\nFROM t")
    assert (refused.value.place.line, refused.value.place.column) == (2, 11)


def test_columns_without_as_keep_their_names() -> None:
    assert evaluated("SELECT id, round(f), n::text FROM t", {"f": 2.5, "n": "1.00"}) == [
        {"id": 1, "round": 2.0, "n": "1.00"}
    ]
