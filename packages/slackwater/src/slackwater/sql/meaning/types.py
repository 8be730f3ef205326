"""Types of expressions, as DuckDB infers them."""

from functools import lru_cache
from typing import Final

import duckdb

from slackwater.sql.catalog import ColumnType
from slackwater.sql.limits import scratch_database

UNKNOWN: Final = "UNKNOWN"
"""The type of what cannot be bound, which the frontend refuses."""
LITERAL: Final = "LITERAL"
"""The type of a text that the user wrote, which takes the type that it is compared with."""
TEXT_JSON: Final = "TEXT JSON"
"""The type of json, as opposed to jsonb, of which DuckDB does not know."""
_KINDS: Final = {
    "TINYINT": "int", "SMALLINT": "int", "INTEGER": "int", "BIGINT": "bigint", "HUGEINT": "numeric",
    "FLOAT": "real", "DOUBLE": "float8", "VARCHAR": "text", LITERAL: "literal", '"NULL"': "null",
    "BOOLEAN": "bool", "DATE": "date", "TIME": "time", "TIMESTAMP": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "timestamptz", "INTERVAL": "interval", "BLOB": "bytea", "JSON": "jsonb",
    TEXT_JSON: "json", "UUID": "uuid", UNKNOWN: "unknown",
}  # fmt: skip
_STUBS: Final = {TEXT_JSON: "JSON", LITERAL: "VARCHAR"}
_GROUPS: Final = {
    "integer": {"int", "bigint"},
    "num": {"int", "bigint", "numeric"},
    "float": {"real", "float8"},
    "number": {"int", "bigint", "numeric", "real", "float8"},
    "str": {"text", "literal", "null"},
    "stamp": {"timestamp", "timestamptz"},
    "document": {"json", "jsonb"},
    "moment": {"date", "timestamp", "timestamptz"},
}


def kind(column_type: str) -> str:
    """Returns the kind of a type by which rules distinguish."""
    if column_type.endswith("]"):
        return "array"
    if column_type.startswith("DECIMAL"):
        return "numeric"
    return _KINDS.get(column_type, "other")


def fits(pattern: str, kinds: tuple[str, ...]) -> bool:
    """Returns whether kinds of arguments match a pattern; ``*`` after the last one repeats it.

    NULL matches everything, and a text that was written matches what is not text, too, if another argument
    says what it means.
    """
    wanted = pattern.split()
    if wanted and wanted[-1].endswith("*"):
        wanted[-1:] = [wanted[-1][:-1]] * max(len(kinds) - len(wanted) + 1, 0)
    return len(wanted) == len(kinds) and all(map(_fits, wanted, kinds))


def _fits(wanted: str, found: str) -> bool:
    return found == "null" or any(
        each in ("any", found) or found in _GROUPS.get(each, ()) for each in wanted.split("|")
    )


def declared(column_type: ColumnType) -> str:
    """Returns the type of a column of a declared table."""
    return TEXT_JSON if column_type.name == "json" else column_type.duckdb


def stub(column_type: str) -> str:
    """Returns SQL of a constant of a type."""
    if column_type in {UNKNOWN, '"NULL"'}:
        return "NULL"
    return f"CAST(NULL AS {_STUBS.get(column_type, column_type)})"


def decimals(column_type: str) -> int:
    """Returns the scale of a number that is exact."""
    return int(column_type[:-1].split(",")[1]) if column_type.startswith("DECIMAL") else 0


@lru_cache(maxsize=8192)
def inferred(sql: str) -> str:
    """Returns the type of an expression over constants; UNKNOWN if DuckDB refuses it."""
    with scratch_database() as connection:
        try:
            return str(connection.sql(f"SELECT {sql}").types[0])
        except duckdb.Error:
            return UNKNOWN
