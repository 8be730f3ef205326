"""Values are compared by what they mean, not by how they are written."""

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import duckdb
import pytest

from slackwater_certify.canonical import Column, DocumentReader, UnreadableValueError, shape_of

SAME: dict[str, list[list[Any]]] = {
    "BIGINT": [[7, "7", "7.0", 7.0, Decimal("7.00")], [-7, "-7"]],
    "DECIMAL(12,2)": [
        ["30.50", "30.5", 30.5, Decimal("30.5"), "30.500", "3.05e1", "30.499999999999996"],
        ["-0.05", -0.05, "-.05"],
        [3, "3", "3.00", "3."],
    ],
    "DOUBLE": [[0.1, "0.1", "0.1000000000000001", Decimal("0.1")], [3, "3"]],
    "BOOLEAN": [[True, "true", "t", 1], [False, "false", "f", 0]],
    "DATE": [
        [date(2026, 1, 2), "2026-01-02", "2026-01-02T00:00:00Z", 20_455],
        ["infinity", 2_146_033_979, -622_191_234], ["-infinity", -2_147_472_691, -625_821_272],
    ],
    "TIME": [["10:11:12.5", "10:11:12.500000", 36_672_500, 36_672_500_000]],
    "TIMESTAMP WITH TIME ZONE": [
        [
            "2026-01-02T03:04:05.5Z", "2026-01-02 03:04:05.500+00", "2026-01-02T04:04:05.500000+01:00",
            1_767_323_045_500, 1_767_323_045_500_000, 1_767_323_045_500_000_000,
            datetime(2026, 1, 2, 4, 4, 5, 500_000, timezone(timedelta(hours=1))),
        ],
        ["2026-01-02T03:04:05Z", 1_767_323_045],
    ],
    "TIMESTAMP": [
        ["2026-01-02T03:04:05.5", "2026-01-02 03:04:05.500000", 1_767_323_045_500_000],
        ["infinity", 2**63 - 1, 9_223_372_036_825_200_000],
        ["-infinity", -(2**63), -9_223_372_036_832_400_000],
    ],
    "VARCHAR": [["1.0"], ["1.00"]],
    "JSON": [['{"a": 1, "b": [2]}', {"b": [2], "a": 1}]],
    "STRUCT(a INTEGER, b VARCHAR)": [[{"a": 1, "b": None}, {"a": "1"}, '{"a": 1}', {"a": 1, "c": 2}]],
    "INTEGER[]": [[[1, 2], ("1", "2"), "[1, 2]"], [[2, 1]], [[]]],
    "MAP(VARCHAR, INTEGER)": [[{"a": 1, "b": 2}, {"b": "2", "a": 1}, [["b", 2], ["a", 1]]]],
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_what_means_the_same_is_the_same_and_nothing_else_is(name: str) -> None:
    read = shape_of(duckdb.sqltype(name)).read
    values = [{repr(read(value)) for value in same} for same in SAME[name]]
    assert [len(found) for found in values] == [1] * len(values)
    assert len(set().union(*values)) == len(values)
    kind = duckdb.sqltype(name)
    assert DocumentReader([Column("x", kind, shape_of(kind))], ()).document({"x": None}) == (None,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BIGINT", "many"), ("BIGINT", "NaN"), ("DECIMAL(12,2)", [1]), ("DOUBLE", {}), ("BOOLEAN", "maybe"),
        ("DATE", "tomorrow"), ("TIME", "noon"), ("TIMESTAMP", "then"), ("INTEGER[]", 5), ("INTEGER[]", "x"),
        ("STRUCT(a INTEGER)", "x"), ("STRUCT(a INTEGER)", [1]), ("MAP(VARCHAR, INTEGER)", [1]),
    ],
)  # fmt: skip
def test_what_fits_no_reading_is_an_error(name: str, value: Any) -> None:
    with pytest.raises(UnreadableValueError):
        shape_of(duckdb.sqltype(name)).read(value)


def test_decimals_beyond_the_scale_make_a_difference_unless_they_are_noise() -> None:
    read = shape_of(duckdb.sqltype("DECIMAL(12,2)")).read
    assert read("30.505") != read("30.50")
    assert read("30.5000000000001") == read("30.50")


def test_the_order_of_a_list_counts_unless_it_is_declared_not_to() -> None:
    kind = duckdb.sqltype("STRUCT(a INTEGER)[]")
    one, other = [{"a": 1}, {"a": 2}, {"a": 1}], [{"a": 2}, {"a": 1}, {"a": 1}]
    assert shape_of(kind).read(one) != shape_of(kind).read(other)
    bag = shape_of(kind, is_unordered=True).read
    assert bag(one) == bag(other) != bag(one[:2])
