"""Column types with sample values, each as Debezium writes it and as DuckDB reads it.

Both forms are written here by hand or by the standard library, so that nothing of the judged code is used.
"""

import base64
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from enum import StrEnum
from typing import Any

_MICROSECOND = 1_000_000


class Family(StrEnum):
    """Types that queries treat alike."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    FLOAT = "float"
    INEXACT = "inexact"
    """Floating point results whose sum depends on the order of addition."""
    TEXT = "text"
    BOOLEAN = "boolean"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    TIME = "time"
    UUID = "uuid"
    JSON = "json"
    BYTEA = "bytea"
    ARRAY = "array"
    NESTED = "nested"
    """Lists and structs that a query makes."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a column.

    Attributes:
        wire: JSON text of the value in Debezium's row image.
        sql: The same value in DuckDB's SQL.
    """

    wire: str
    sql: str


@dataclass(frozen=True, slots=True)
class SqlType:
    """A type.

    Attributes:
        name: In a CREATE TABLE of PostgreSQL; empty for types that only results have.
        duckdb: DuckDB's type for it.
        family: How queries may use it.
        values: Samples.
    """

    name: str
    duckdb: str
    family: Family
    values: tuple[Value, ...] = ()

    @property
    def is_groupable(self) -> bool:
        """Has one notion of equality in every engine that is compared."""
        return self.family not in {Family.JSON, Family.NESTED, Family.ARRAY, Family.INEXACT}

    @property
    def is_ordered(self) -> bool:
        """MIN, MAX and ORDER BY make sense."""
        return self.is_groupable and self.family is not Family.BOOLEAN

    @property
    def is_summable(self) -> bool:
        """Sums are exact in any order."""
        return self.family in {Family.INTEGER, Family.DECIMAL, Family.FLOAT}

    @property
    def is_toastable(self) -> bool:
        """An update may omit an unchanged value, and Debezium's substitute can be recognised.

        PostgreSQL stores an enum as a number, never out of line.
        """
        is_textual = self.family in {Family.TEXT, Family.JSON, Family.BYTEA}
        return (is_textual and self.name != "mood") or (self.family is Family.ARRAY and self.name == "text[]")

    @property
    def unavailable(self) -> str:
        """JSON text of what Debezium writes for a value that was left out."""
        text = "__debezium_unavailable_value"
        if self.family is Family.BYTEA:
            text = base64.b64encode(text.encode()).decode()
        return json.dumps([text] if self.family is Family.ARRAY else text)


def integer(number: int) -> Value:
    """An integer."""
    return Value(str(number), str(number))


def text(characters: str) -> Value:
    """A text."""
    return Value(json.dumps(characters), "'" + characters.replace("'", "''") + "'")


def parsed(of: "SqlType", characters: str) -> Value:
    """The value of a type that these characters are in SQL.

    Raises:
        ValueError: They are none.
    """
    match of.family:
        case Family.INTEGER:
            return integer(int(characters))
        case Family.DECIMAL:
            scale = int(of.duckdb.rstrip(")").split(",")[1])
            return _decimal(of.duckdb, f"{float(characters):.{scale}f}")[0]
        case Family.DATE:
            return _date(characters)
        case Family.TIMESTAMP:
            return _timestamp(1000 if of.name.endswith("(3)") else 1, characters)[0]
    return text(characters)


def _quoted(wire: Any, duckdb: str, characters: str) -> Value:
    return Value(json.dumps(wire), f"CAST('{characters}' AS {duckdb})")


def _decimal(duckdb: str, *numbers: str) -> tuple[Value, ...]:
    return tuple(_quoted(number, duckdb, number) for number in numbers)


def _float(duckdb: str, *numbers: float) -> tuple[Value, ...]:
    return tuple(_quoted(number, duckdb, repr(number)) for number in numbers)


def _timestamp(unit: int, *moments: str) -> tuple[Value, ...]:
    values = []
    for moment in moments:
        since = datetime.fromisoformat(moment).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        microseconds = (since.days * 86_400 + since.seconds) * _MICROSECOND + since.microseconds
        values.append(_quoted(microseconds // unit, "TIMESTAMP", moment))
    return tuple(values)


def _time(moment: str) -> Value:
    of_day = time.fromisoformat(moment)
    seconds = of_day.hour * 3600 + of_day.minute * 60 + of_day.second
    return _quoted(seconds * _MICROSECOND + of_day.microsecond, "TIME", moment)


def _date(day: str) -> Value:
    return _quoted((date.fromisoformat(day) - date(1970, 1, 1)).days, "DATE", day)


def _array(duckdb: str, *elements: Value | None) -> Value:
    wires = ", ".join("null" if e is None else e.wire for e in elements)
    sqls = ", ".join("NULL" if e is None else e.sql for e in elements)
    return Value(f"[{wires}]", f"CAST([{sqls}] AS {duckdb})")


def _bytes(content: bytes) -> Value:
    return Value(json.dumps(base64.b64encode(content).decode()), f"from_hex('{content.hex()}')")


def _json(document: str) -> Value:
    return Value(json.dumps(document), "CAST('" + document.replace("'", "''") + "' AS JSON)")


_TEXTS = tuple(
    text(t)
    for t in ("a", "b", "c", "", "A", "ä", "日本", "it's", 'say "x"', "back\\slash", "new\nline", "NULL")
)
_MOMENTS = ("2024-01-01 10:00:00", "2024-01-01 10:00:00.5", "1969-12-31 23:59:59.123", "2024-02-29 00:00:00")
_ZONED = ("2024-01-01T10:00:00Z", "2024-01-01T10:00:00.5Z", "1969-12-31T23:59:59.123456Z")

SMALLINT = SqlType(
    "smallint", "SMALLINT", Family.INTEGER, tuple(integer(n) for n in (1, 2, 3, 0, -7, -32768, 32767))
)
INTEGER = SqlType(
    "integer", "INTEGER", Family.INTEGER, tuple(integer(n) for n in (1, 2, 3, 4, -1, 0, 2**31 - 1, -(2**31)))
)
BIGINT = SqlType(
    "bigint",
    "BIGINT",
    Family.INTEGER,
    tuple(integer(n) for n in (1, 2, 3, 0, 2**53 + 1, 2**63 - 1, 1 - 2**63)),
)
BOOLEAN = SqlType("boolean", "BOOLEAN", Family.BOOLEAN, (Value("true", "true"), Value("false", "false")))
REAL = SqlType("real", "FLOAT", Family.FLOAT, _float("FLOAT", 0.25, -1.5, 3.0, 1024.75))
DOUBLE = SqlType("double precision", "DOUBLE", Family.FLOAT, _float("DOUBLE", 0.25, -1.5, 3.0, 123456789.75))
NUMERIC = SqlType(
    "numeric(10,2)",
    "DECIMAL(10,2)",
    Family.DECIMAL,
    _decimal("DECIMAL(10,2)", "12.34", "0.10", "-5.00", "7.00", "99999999.99"),
)
UNCONSTRAINED = SqlType(
    "numeric",
    "DECIMAL(38,18)",
    Family.DECIMAL,
    _decimal("DECIMAL(38,18)", "1.5", "0.000000000000000001", "-1234567890.123456789", "7"),
)
TEXT = SqlType("text", "VARCHAR", Family.TEXT, (*_TEXTS, text("long " * 200)))
VARCHAR = SqlType("varchar(20)", "VARCHAR", Family.TEXT, _TEXTS)
MOOD = SqlType("mood", "VARCHAR", Family.TEXT, (text("low"), text("mid"), text("high")))
DATE = SqlType(
    "date", "DATE", Family.DATE, tuple(map(_date, ("2024-01-01", "2024-02-29", "1969-12-31", "2024-01-31")))
)
TIMESTAMP = SqlType("timestamp", "TIMESTAMP", Family.TIMESTAMP, _timestamp(1, *_MOMENTS))
TIMESTAMP_MS = SqlType("timestamp(3)", "TIMESTAMP", Family.TIMESTAMP, _timestamp(1000, *_MOMENTS))
TIMESTAMPTZ = SqlType(
    "timestamptz",
    "TIMESTAMPTZ",
    Family.TIMESTAMPTZ,
    tuple(_quoted(moment, "TIMESTAMPTZ", moment) for moment in _ZONED),
)
TIME = SqlType(
    "time", "TIME", Family.TIME, tuple(map(_time, ("00:00:00", "10:11:12.500000", "23:59:59.999999")))
)
UUID = SqlType(
    "uuid",
    "UUID",
    Family.UUID,
    tuple(_quoted(u, "UUID", u) for u in (f"{n:08x}-0000-4000-8000-00000000000{n}" for n in range(1, 5))),
)
JSON = SqlType(
    "json",
    "JSON",
    Family.JSON,
    tuple(map(_json, ('{"a":1,  "b":[1.50]}', "null", '"x"', '[{"n":12345678901234567890.12}]', "{}"))),
)
JSONB = SqlType(
    "jsonb", "JSON", Family.JSON, tuple(map(_json, ('{"a": 1, "b": [1.50]}', "null", '"x"', "true", "{}")))
)
BYTEA = SqlType("bytea", "BLOB", Family.BYTEA, tuple(map(_bytes, (b"", b"\x00\xff", b"abc", b"a\\x"))))
INTEGERS = SqlType(
    "integer[]",
    "INTEGER[]",
    Family.ARRAY,
    (
        _array("INTEGER[]"),
        _array("INTEGER[]", integer(1), None, integer(3)),
        _array("INTEGER[]", integer(2)),
    ),
)
TEXTS = SqlType(
    "text[]",
    "VARCHAR[]",
    Family.ARRAY,
    (_array("VARCHAR[]"), _array("VARCHAR[]", text("a"), None, text('x"y,')), _array("VARCHAR[]", text("b"))),
)
DATES = SqlType(
    "date[]",
    "DATE[]",
    Family.ARRAY,
    (_array("DATE[]", *DATE.values[:2]), _array("DATE[]", DATE.values[0], None)),
)
MOMENTS = SqlType(
    "timestamptz[]",
    "TIMESTAMPTZ[]",
    Family.ARRAY,
    (_array("TIMESTAMPTZ[]", *TIMESTAMPTZ.values[:2]), _array("TIMESTAMPTZ[]")),
)

COLUMN_TYPES = (
    SMALLINT, INTEGER, BIGINT, BOOLEAN, REAL, DOUBLE, NUMERIC, UNCONSTRAINED, TEXT, VARCHAR, MOOD, DATE,
    TIMESTAMP, TIMESTAMP_MS, TIMESTAMPTZ, TIME, UUID, JSON, JSONB, BYTEA, INTEGERS, TEXTS, DATES, MOMENTS,
)  # fmt: skip

ENUMS = "CREATE TYPE mood AS ENUM ('low', 'mid', 'high');"

_SMALL = tuple(integer(n) for n in (0, 1, 2, 5))
COUNT = SqlType("", "BIGINT", Family.INTEGER, _SMALL)
HUGEINT = SqlType("", "HUGEINT", Family.INTEGER, _SMALL)
AVERAGE = SqlType("", "DOUBLE", Family.INEXACT, _SMALL)
FLOAT_SUM = SqlType("", "DOUBLE", Family.FLOAT, _SMALL)


def decimal_sum(of: SqlType) -> SqlType:
    """The type of SUM over decimals."""
    scale = of.duckdb.rstrip(")").split(",")[1]
    return SqlType("", f"DECIMAL(38,{scale})", Family.DECIMAL, _SMALL)


def nested(duckdb: str = "") -> SqlType:
    """A list or struct."""
    return SqlType("", duckdb, Family.NESTED)
