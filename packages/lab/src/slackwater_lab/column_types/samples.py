"""Types of PostgreSQL with values of each: ordinary ones, and those that connectors are known to change."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SCHEMA: Final = "ty"
PREPARATION: Final = """
CREATE EXTENSION IF NOT EXISTS citext;
CREATE EXTENSION IF NOT EXISTS hstore;
CREATE SCHEMA ty;
CREATE TYPE ty.mood AS ENUM ('sad', 'ok');
SET search_path = ty, public;
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """A type and its values.

    Attributes:
        type: The type, as in CREATE TABLE.
        values: SQL expressions; the first one is ordinary, and the column's DEFAULT in one column.
        large: A value that is stored out of line; empty if the type has none.
    """

    type: str
    values: tuple[str, ...]
    large: str = ""


_DATES = (
    "'2026-11-21'", "'1970-01-01'", "'1582-10-25'", "'1582-10-14'", "'1500-02-28'", "'0044-03-15 BC'",
    "'10000-01-01'", "'infinity'", "'-infinity'",
)  # fmt: skip
_TIMESTAMPS = (
    "'2026-11-21 10:11:12.123456'", "'1969-12-31 23:59:59.5'", "'1582-10-14'", "'0044-03-15 BC'",
    "'9999-12-31 23:59:59.5'", "'10000-01-01'", "'infinity'", "'-infinity'",
)  # fmt: skip
_TIMES = ("'10:11:12.123456'", "'00:00'", "'24:00'")
_FLOATS = ("1.5", "0.1", "'NaN'", "'Infinity'", "'-Infinity'", "'-0.0'")
_UUID = "'550e8400-e29b-41d4-a716-446655440000'"
_SCALARS: Final[Mapping[str, tuple[str, ...]]] = {
    "smallint": ("1", "'-32768'", "32767"),
    "integer": ("1", "'-2147483648'", "2147483647"),
    "bigint": ("1", "'-9223372036854775808'", "9223372036854775807"),
    "oid": ("1", "4294967295"),
    "boolean": ("true", "false"),
    "real": (*_FLOATS, "3.4028235e38"),
    "double precision": (*_FLOATS, "1.7976931348623157e308", "5e-324"),
    "numeric(10,2)": ("1.25", "-99999999.99", "0", "'NaN'"),
    "numeric": ("1.25", "1e-18", "12345678901234567890.5", "1e30", "'NaN'", "'Infinity'"),
    "numeric(40,2)": ("1.25",),
    "money": ("1.25",),
    "text": ("'a'", "''", "'NULL'", "E'\\u00e4\\U0001f30a\\n'"),
    "varchar(20000)": ("'a'",),
    "char(5)": ("'a    '", "'abcde'"),
    "citext": ("'aB'",),
    "name": ("'a'",),
    "xml": ("'<a/>'",),
    "mood": ("'ok'", "'sad'"),
    "inet": ("'10.0.0.1'", "'10.0.0.1/24'", "'::1'"),
    "cidr": ("'10.0.0.0/8'",),
    "macaddr": ("'08:00:2b:01:02:03'",),
    "date": _DATES,
    "time": _TIMES,
    "time(3)": ("'10:11:12.123'", "'24:00'"),
    "timetz": ("'10:11:12+02'",),
    "timestamp": _TIMESTAMPS,
    "timestamp(3)": _TIMESTAMPS,
    "timestamptz": _TIMESTAMPS,
    "interval": ("'1 mon 2 days'",),
    "uuid": (_UUID,),
    "json": ("'{\"a\": 1}'", "'null'"),
    "jsonb": ("'{\"a\": 1}'", "'null'", "'1.10'"),
    "bytea": ("'\\xdeadbeef'", "''"),
    "bit(4)": ("B'1010'",),
    "int4range": ("'[1,5)'",),
    "point": ("'(1,2)'",),
    "hstore": ("'a=>1'",),
    "tsvector": ("'a b'",),
}
_LARGE: Final[Mapping[str, str]] = {
    "text": "repeat('x', 9000)",
    "varchar(20000)": "repeat('x', 9000)",
    "citext": "repeat('x', 9000)",
    "xml": "('<a>' || repeat('x', 9000) || '</a>')::xml",
    "json": "('\"' || repeat('z', 9000) || '\"')::json",
    "jsonb": "('\"' || repeat('z', 9000) || '\"')::jsonb",
    "bytea": "repeat('q', 9000)::bytea",
}
_ELEMENTS: Final = (
    "smallint", "integer", "bigint", "oid", "boolean", "real", "double precision", "numeric(10,2)", "numeric",
    "text", "varchar(20000)", "char(5)", "citext", "xml", "mood", "inet", "cidr", "macaddr", "date", "time",
    "time(3)", "timestamp", "timestamp(3)", "timestamptz", "uuid", "json", "jsonb", "bytea",
)  # fmt: skip


def _array(of: str) -> Sample:
    values = _SCALARS[of]
    written = (
        *(f"ARRAY[{value}]::{of}[]" for value in values),
        f"'{{}}'::{of}[]",
        f"ARRAY[{values[0]}, NULL]::{of}[]",
        f"ARRAY[NULL]::{of}[]",
        f"ARRAY[[{values[0]}], [{values[0]}]]::{of}[]",
    )
    large = f"(SELECT array_agg({values[0]}::{of}) FROM generate_series(1, 3000))"
    return Sample(f"{of}[]", written, large)


SAMPLES: Final = (
    *(Sample(name, values, _LARGE.get(name, "")) for name, values in _SCALARS.items()),
    *map(_array, _ELEMENTS),
)
