# ruff: noqa: S608 - it is only read
"""Views that are too deep, long or costly to plan are refused with their place."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import pytest

import slackwater.sql.frontend.view
from slackwater.sql import logical
from slackwater.sql.catalog import Catalog
from slackwater.sql.errors import SqlTextError
from slackwater.sql.frontend import ViewText, planning
from slackwater.sql.limits import bounded
from slackwater.sql.planner.cutting import compile_pipeline

S = "SELECT TRANSACTIONALLY o.id"


def nested(opening: str, middle: str, closing: str) -> Callable[[int], str]:
    return lambda levels: f"{S}, {opening * levels}{middle}{closing * levels} AS x FROM orders o"


def chained(operator: str, part: str) -> Callable[[int], str]:
    return lambda levels: f"{S}, ({operator.join([part] * levels)}) AS x FROM orders o"


def conditions(count: int) -> str:
    return f"{S} FROM orders o WHERE " + " AND ".join(f"o.id <> {number}" for number in range(count))


def subqueries(levels: int) -> str:
    return f"{S} FROM {'(SELECT id FROM ' * levels}orders{') o' * levels}"


def exists(levels: int) -> str:
    condition = "true"
    for level in range(levels, 0, -1):
        inner = f"SELECT 1 FROM orders o{level} WHERE o{level}.id = o{level - 1}.id AND {condition}"
        condition = f"EXISTS ({inner})"
    return f"SELECT TRANSACTIONALLY o0.id FROM orders o0 WHERE {condition}"


def commons(levels: int) -> str:
    queries = ", ".join(f"q{n} AS (SELECT id FROM q{n - 1})" for n in range(1, levels))
    return f"WITH q0 AS (SELECT id FROM orders), {queries} SELECT TRANSACTIONALLY id FROM q{levels - 1}"


def doubled(levels: int) -> str:
    queries = ", ".join(
        f"q{n} AS (SELECT a.id FROM q{n - 1} a JOIN q{n - 1} b ON a.id = b.id)" for n in range(1, levels)
    )
    return f"WITH q0 AS (SELECT id FROM orders), {queries} SELECT TRANSACTIONALLY id FROM q{levels - 1}"


def computed(levels: int) -> str:
    query = "SELECT id, line_count AS x0 FROM orders"
    for level in range(levels):
        query = f"SELECT id, x{level} + 1 AS x{level + 1} FROM ({query}) q{level}"
    return query.replace("SELECT", "SELECT TRANSACTIONALLY", 1)


def full_joins(count: int) -> str:
    joins = " ".join(f"FULL JOIN orders o{number} USING (id)" for number in range(count))
    return f"SELECT TRANSACTIONALLY id FROM orders o {joins}"


def doubled_aliases(count: int) -> str:
    aliases = ", ".join(f"x{number} + x{number} AS x{number + 1}" for number in range(count))
    return f"{S}, o.line_count AS x0, {aliases} FROM orders o"


SHAPES = {
    "parentheses": nested("(", "o.id", ")"),
    "calls": nested("abs(", "o.id", ")"),
    "sums in parentheses": nested("(1 + ", "o.id", ")"),
    "CASE": nested("CASE WHEN o.id = 1 THEN 1 ELSE ", "0", " END"),
    "lists": nested("[", "o.id", "]"),
    "sums": chained(" + ", "o.id"),
    "OR of AND": lambda levels: (
        f"{S} FROM orders o WHERE " + "o.id = 1 AND (o.id = 2 OR (" * levels + "true" + "))" * levels
    ),
    "subqueries": subqueries,
    "EXISTS": exists,
    "WITH": commons,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_nested_too_deeply_is_refused_with_its_place(shape: str, catalog: Catalog) -> None:
    with pytest.raises(SqlTextError, match=r"nested too deeply|more than 300 queries") as raised:
        compile_pipeline([("v.sql", SHAPES[shape](1200))], catalog)
    assert raised.value.place.column > 1


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_nested_as_people_nest_is_not_refused(shape: str, catalog: Catalog) -> None:
    compile_pipeline([("v.sql", SHAPES[shape](20))], catalog)


def test_a_chain_of_ten_thousand_conditions_is_refused(catalog: Catalog) -> None:
    with pytest.raises(SqlTextError, match=r"20,000 expressions|100,000 characters"):
        compile_pipeline([("v.sql", conditions(10_000))], catalog)


def test_a_long_chain_of_conditions_is_refused_or_planned(catalog: Catalog) -> None:
    with pytest.raises(SqlTextError, match="too many queries, joins or conditions"):
        compile_pipeline([("v.sql", conditions(1_000))], catalog)


def test_a_long_text_is_refused_at_its_length(catalog: Catalog) -> None:
    sql = f"{S} FROM orders o WHERE o.id IN ({', '.join(map(str, range(20_000)))})"
    with pytest.raises(SqlTextError, match="longer than 100,000 characters") as raised:
        compile_pipeline([("v.sql", sql)], catalog)
    assert raised.value.place.column == 100_001


def test_many_values_of_in_are_no_nesting(catalog: Catalog) -> None:
    sql = f"{S} FROM orders o WHERE o.id IN ({', '.join(map(str, range(5_000)))})"
    compile_pipeline([("v.sql", sql)], catalog)


def test_queries_that_are_read_again_and_again_are_refused(catalog: Catalog) -> None:
    with pytest.raises(SqlTextError, match="more than 300 queries"):
        compile_pipeline([("v.sql", doubled(30))], catalog)


@pytest.mark.parametrize("sql", [computed(24), full_joins(24)], ids=["computed columns", "FULL JOIN"])
def test_planning_takes_few_steps_for_each_level(
    sql: str, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logical, "MAX_STEPS", 20_000)
    compile_pipeline([("v.sql", sql)], catalog)


def test_planning_that_takes_too_many_steps_is_refused_with_the_view(catalog: Catalog) -> None:
    with pytest.raises(SqlTextError, match=r"w\.sql:1:1: .* more than 500,000 steps"):
        compile_pipeline([("v.sql", f"{S} FROM orders o"), ("w.sql", doubled_aliases(40))], catalog)


def test_each_view_may_take_as_many_steps(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logical, "MAX_STEPS", 2_000)
    compile_pipeline([(f"v{number}.sql", computed(8)) for number in range(8)], catalog)


def test_planning_is_bounded_from_the_text_to_the_stages(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    @contextmanager
    def recorded(*arguments: Any) -> Iterator[None]:
        names.append(arguments[2])
        with bounded(*arguments):
            yield

    monkeypatch.setattr(slackwater.sql.frontend.view, "bounded", recorded)
    compile_pipeline([("v.sql", f"{S} FROM orders o")], catalog)
    assert names == ["v", "v"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (duckdb.InterruptException("Interrupted!"), "it took more than 120 s of CPU time"),
        (duckdb.OutOfMemoryException("no room"), "it needs more than the 512 MiB"),
        (MemoryError(), "it needs more than the 512 MiB"),
        (RecursionError(), "nested too deeply"),
    ],
)
def test_a_limit_that_planning_meets_is_an_error_of_the_view(error: Exception, said: str) -> None:
    text = ViewText("v.sql", f"{S} FROM orders o")
    with (
        duckdb.connect() as connection,
        pytest.raises(SqlTextError, match=said),
        planning(connection, text),
    ):
        raise error


def test_other_errors_of_planning_pass() -> None:
    text = ViewText("v.sql", f"{S} FROM orders o")
    with duckdb.connect() as connection, pytest.raises(duckdb.BinderException), planning(connection, text):
        raise duckdb.BinderException
