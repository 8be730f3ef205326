"""Which aggregates are kept without the rows of their groups, and what changed rows add to them."""

import json
from typing import Any

import duckdb
import pytest

from slackwater.sql.logical import Aggregate, AggregateCall, Expression, Leaf, Span
from slackwater.sql.plan import LSN, POINT, STEPS_TABLE, WEIGHT
from slackwater.sql.planner.accumulating import (
    Accumulation,
    accumulated_relation,
    accumulation,
    partials_statement,
)
from slackwater.sql.rendering import AT

NOWHERE = Span(0, 0)
GROUP = (("g", Expression('"g"', ("g",), NOWHERE)),)


def call(function: str, column: str = "", *, is_distinct: bool = False, condition: str = "") -> AggregateCall:
    arguments = (Expression(f'"{column}"', (column,), NOWHERE),) if column else ()
    filtered = Expression(condition, (), NOWHERE) if condition else None
    text = f"{function}({column})"
    return AggregateCall(text, function, arguments, is_distinct, filtered, (), NOWHERE, text)


def kept(*calls: AggregateCall, of_type: str = "DECIMAL(10,2)") -> Accumulation | None:
    named = tuple((f"r{number}", each) for number, each in enumerate(calls))
    child = Leaf(0, ("g", "v"), ("g",))
    return accumulation(Aggregate(child, GROUP, named, ("g",), NOWHERE), lambda _: of_type)


@pytest.mark.parametrize("of_type", ["BIGINT", "UTINYINT", "DECIMAL(38,4)"])
def test_sums_of_exact_numbers_are_kept(of_type: str) -> None:
    assert kept(call("sum", "v"), of_type=of_type) is not None
    assert kept(call("avg", "v"), of_type=of_type) is not None


@pytest.mark.parametrize("of_type", ["DOUBLE", "FLOAT"])
def test_sums_of_floats_are_not(of_type: str) -> None:
    assert kept(call("sum", "v"), of_type=of_type) is None


def test_sums_of_different_values_are_not() -> None:
    assert kept(call("sum", "v", is_distinct=True)) is None
    assert kept(call("count", "v", is_distinct=True)) is not None


@pytest.mark.parametrize("of_type", ["INTERVAL", "TIME WITH TIME ZONE", "JSON[]", "STRUCT(a JSON)"])
def test_extremes_of_types_without_an_order_or_a_text_are_not(of_type: str) -> None:
    assert kept(call("min", "v"), of_type=of_type) is None
    assert kept(call("min", "v"), of_type="VARCHAR") is not None


@pytest.mark.parametrize("of_type", ["INTERVAL", "TIME WITH TIME ZONE"])
def test_different_values_of_types_without_an_order_are_not_counted(of_type: str) -> None:
    assert kept(call("count", "v", is_distinct=True), of_type=of_type) is None


def test_aggregates_of_other_functions_need_the_rows() -> None:
    assert kept(call("list", "v")) is None
    assert kept(call("count"), call("list", "v")) is None


def test_negative_zero_is_kept_as_zero() -> None:
    found = kept(call("min", "v"), of_type="DOUBLE")
    assert found is not None
    assert found.kept[0].value == '("v") + 0.0'


def test_equal_aggregates_are_kept_once_those_with_other_conditions_apart() -> None:
    found = kept(call("count", "v"), call("count", "v"), call("count", "v", condition="v > 1"))
    assert found is not None
    assert [sql for _, sql in found.results] == ["a0", "a0", "a1"]


def test_extremes_of_one_value_share_a_multiset() -> None:
    found = kept(call("min", "v"), call("max", "v"), call("min", "v", condition="v > 1"))
    assert found is not None
    assert [each.accumulator.multiset for each in found.kept] == [0, 0, 2]


def test_a_group_without_rows_has_a_result_only_if_it_is_the_only_group() -> None:
    found = kept(call("count"))
    assert found is not None
    assert accumulated_relation([], found, ["r0"], is_global=False).endswith(" WHERE n > 0")
    assert "WHERE" not in accumulated_relation([], found, ["r0"], is_global=True)


def added(found: Accumulation | None, *rows: tuple[int, Any]) -> list[tuple[int, list[Any]]]:
    """Number and wire row of the partials of rows (weight, v) of one group and commit."""
    assert found is not None
    with duckdb.connect() as db:
        db.execute(f"CREATE TABLE {STEPS_TABLE} ({POINT} INT, {LSN} BIGINT, {WEIGHT} INT)")
        db.execute(f"INSERT INTO {STEPS_TABLE} VALUES (0, 7, -1), (1, 7, 1)")  # noqa: S608 - own names
        db.execute(f"CREATE TABLE rows ({AT} INT, g VARCHAR, v DECIMAL(10,2))")
        for weight, value in rows:
            db.execute("INSERT INTO rows VALUES (?, 'x', ?)", [0 if weight < 0 else 1, value])
        sql = partials_statement("SELECT * FROM rows", ["g"], found.kept, ['"g"'])
        partials = db.execute(sql).fetchall()
    assert all(lsn == 7 for lsn, _, _ in partials)
    return sorted((number, json.loads(row)) for _, number, row in partials)


def test_nulls_are_neither_counted_nor_summed() -> None:
    found = kept(call("count", "v"), call("sum", "v"))
    assert added(found, (1, None), (1, 2.5)) == [(-1, ["x", 2, 1, 1, "2.50"])]


def test_what_goes_is_taken_from_a_sum_and_what_comes_is_added() -> None:
    found = kept(call("sum", "v"))
    assert added(found, (-1, 1.25), (1, 2.5)) == [(-1, ["x", 0, 0, "1.25"])]
    assert added(found, (-1, 2.5), (1, 2.5)) == []


def test_a_condition_decides_what_counts() -> None:
    found = kept(call("count", "v", condition="v > 1"), call("count"))
    assert added(found, (1, 1), (1, 2)) == [(-1, ["x", 2, 1, 2])]


def test_values_of_a_multiset_come_and_go_by_themselves() -> None:
    found = kept(call("min", "v"))
    partials = added(found, (-1, 1), (1, 2), (1, 2), (1, None))
    assert [(row[-2], row[-1]) for number, row in partials if number == 0] == [("1.00", -1), ("2.00", 2)]
    assert [row for number, row in partials if number == -1] == [["x", 2]]
    assert added(found, (-1, 1), (1, 1)) == []


@pytest.mark.parametrize("function", ["sum", "avg"])
def test_a_sum_of_no_values_is_null(function: str) -> None:
    found = kept(call(function, "v"))
    assert found is not None
    ((_, sql),) = found.results
    with duckdb.connect() as db:
        shown = [
            db.execute(f"SELECT {sql} FROM (SELECT {n} AS a0_n, {a} AS a0)").fetchone()  # noqa: S608
            for n, a in ((0, 0), (2, 3))
        ]
    assert shown[0] == (None,)
    assert shown[1] != (None,)
