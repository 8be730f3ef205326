"""Plain values as the values of Debezium's records, and what is none of its type."""

import re
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from slackwater.pipeline.testing.table_rows import wire_value
from slackwater.sql.postgres.types import parse_type

SUMMER = timezone(timedelta(hours=2))

WIRE: list[tuple[str, Any, Any]] = [
    ("integer", 7, 7),
    ("boolean", True, True),
    ("double precision", 7, 7.0),
    ("double precision", Decimal("0.25"), 0.25),
    ("real", float("inf"), "Infinity"),
    ("double precision", float("nan"), "NaN"),
    ("double precision", "-Infinity", "-Infinity"),
    ("numeric(10,2)", 7, "7.00"),
    ("numeric(10,2)", "1.5", "1.50"),
    ("numeric(10,2)", Decimal("1.500"), "1.50"),
    ("numeric(10,2)", Decimal("1E+2"), "100.00"),
    ("numeric(10,2)", -0.1, "-0.10"),
    ("numeric(5,0)", Decimal("12.0"), "12"),
    ("numeric", Decimal("1.5"), "1.5"),
    ("numeric", 100, "100"),
    ("text", "it's", "it's"),
    ("uuid", UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ("uuid", "0000000000000000000000000000000A", "00000000-0000-0000-0000-00000000000a"),
    ("json", {"a": [1, Decimal("1.50"), None]}, '{"a":[1,1.50,null]}'),
    ("jsonb", '{"a":  1}', '{"a":  1}'),
    ("bytea", b"\x00\xff", "AP8="),
    ("bytea", "\\x00ff", "AP8="),
    ("date", date(1970, 1, 3), 2),
    ("date", "1969-12-31", -1),
    ("date", "infinity", 2_146_033_979),
    ("timestamp", datetime(1970, 1, 1, 0, 0, 1), 1_000_000),  # noqa: DTZ001
    ("timestamp", "1970-01-01 00:00:00.5", 500_000),
    ("timestamp(3)", "1970-01-01T00:00:00.5", 500),
    ("timestamp", "-infinity", -(2**63)),
    ("timestamptz", datetime(2026, 7, 1, 2, tzinfo=SUMMER), "2026-07-01T00:00:00.000000Z"),
    ("timestamptz", datetime(2026, 7, 1, tzinfo=UTC), "2026-07-01T00:00:00.000000Z"),
    ("timestamptz", "2026-07-01 02:00:00.25+02", "2026-07-01T00:00:00.250000Z"),
    ("timestamptz", "infinity", "infinity"),
    ("time", time(0, 0, 1, 5), 1_000_005),
    ("time(3)", "00:00:01.005", 1_005),
    ("time", "24:00:00", 86_400_000_000),
    ("integer[]", [1, None], [1, None]),
    ("numeric(10,2)[]", (1, "2.5"), ["1.00", "2.50"]),
]


@pytest.mark.parametrize(("name", "value", "wire"), WIRE)
def test_a_value_becomes_what_the_connector_writes(name: str, value: Any, wire: Any) -> None:
    got = wire_value(parse_type(name), value)
    assert (type(got), got) == (type(wire), wire)


NONE: list[tuple[str, Any, str]] = [
    ("integer", "7", "'7' is not a value of type integer"),
    ("integer", True, "True is not a value of type integer"),
    ("integer", 1.0, "1.0 is not a value of type integer"),
    ("smallint", 32768, "32768 is not a value of type smallint"),
    ("boolean", 1, "1 is not a value of type boolean"),
    ("double precision", "1", "'1' is not a value of type double precision"),
    (
        "numeric(10,2)",
        "1.005",
        "1.005' is not a value of type numeric(10,2): it has more than 2 digits after the point",
    ),
    ("numeric(4,2)", 100, "100 is not a value of type numeric(4,2)"),
    ("numeric(10,2)", "ten", "'ten' is not a value of type numeric(10,2)"),
    ("numeric(10,2)", Decimal("NaN"), "NaN is not a value of type numeric(10,2)"),
    ("numeric(10,2)", True, "True is not a value of type numeric(10,2)"),
    ("text", 7, "7 is not a value of type text: write text in quotes"),
    ("uuid", "7", "'7' is not a value of type uuid"),
    ("json", "ada", "'ada' is not a value of type json: text is taken as JSON"),
    ("json", {"a": object()}, "is not a value of type json"),
    ("bytea", "00ff", "is not a value of type bytea: write bytes"),
    ("bytea", "\\xzz", "is not a value of type bytea"),
    ("date", "1.2.2026", "'1.2.2026' is not a value of type date: write it like 2026-11-21"),
    ("date", datetime(2026, 1, 1), "is not a value of type date"),  # noqa: DTZ001
    ("timestamp", "2026-07-01T00:00:00Z", "without a time zone"),
    ("timestamptz", "2026-07-01T00:00:00", "with a time zone"),
    ("timestamp(3)", "1970-01-01 00:00:00.0005", "it has more than 3 digits of a second"),
    ("time", "25:00", "is not a value of type time without time zone"),
    ("time", "infinity", "is not a value of type time without time zone"),
    ("integer[]", 1, "1 is not a value of type integer[]: write a list"),
    ("integer[]", ["1"], "'1' is not a value of type integer"),
]


@pytest.mark.parametrize(("name", "value", "problem"), NONE)
def test_what_is_no_value_of_the_type_is_refused(name: str, value: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        wire_value(parse_type(name), value)
