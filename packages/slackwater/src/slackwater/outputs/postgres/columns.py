"""The columns of a view's table: PostgreSQL's types for DuckDB's, and documents as lines of a COPY. Pure."""

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from slackwater.outputs.contract import UnfitValueError
from slackwater.protocol import ConfigError
from slackwater.sql.plan import OutputColumn

LONGEST_NAME: Final = 63
"""PostgreSQL's limit for names, in bytes."""

_TYPES: Final = {
    "BOOLEAN": "boolean",
    "TINYINT": "smallint",
    "UTINYINT": "smallint",
    "SMALLINT": "smallint",
    "USMALLINT": "integer",
    "INTEGER": "integer",
    "UINTEGER": "bigint",
    "BIGINT": "bigint",
    "UBIGINT": "numeric(20,0)",
    "HUGEINT": "numeric(39,0)",
    "UHUGEINT": "numeric(39,0)",
    "FLOAT": "real",
    "DOUBLE": "double precision",
    "VARCHAR": "text",
    "UUID": "uuid",
    "DATE": "date",
    "TIME": "time without time zone",
    "TIMESTAMP": "timestamp without time zone",
    "TIMESTAMP_S": "timestamp without time zone",
    "TIMESTAMP_MS": "timestamp without time zone",
    "TIMESTAMP WITH TIME ZONE": "timestamp with time zone",
    "TIMESTAMPTZ": "timestamp with time zone",
    "TIME WITH TIME ZONE": "time with time zone",
    "INTERVAL": "interval",
    "BIT": "bit varying",
    "BLOB": "bytea",
    "JSON": "jsonb",
}
"""By DuckDB type; the names are those of PostgreSQL's ``format_type``."""
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")
_ESCAPED: Final = re.compile(r"[\\\t\n\r]")
_ESCAPES: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
NULL: Final = "\\N"
"""The field for NULL."""
_LOOSE: Final = frozenset({"real", "double precision"})
"""Types whose JSON is a number or a string."""
_VERBATIM: Final = frozenset(
    {"boolean", "smallint", "integer", "bigint", "numeric(20,0)", "numeric(39,0)", "jsonb"}
)
"""Types whose JSON PostgreSQL can read without conversion."""


def postgres_type(duckdb_type: str) -> str:
    """Returns the PostgreSQL type that can contain every value of a DuckDB type as documents write it."""
    decimal = _DECIMAL.fullmatch(duckdb_type)
    if decimal is not None:
        return f"numeric({decimal[1]},{decimal[2]})"
    if duckdb_type.endswith("]") or duckdb_type.startswith(("STRUCT(", "MAP(", "UNION(")):
        return "jsonb"
    return _TYPES.get(duckdb_type, "text")


def stored_columns(columns: Iterable[OutputColumn]) -> tuple[OutputColumn, ...]:
    """Returns columns with the types that PostgreSQL has for them."""
    return tuple(OutputColumn(column.name, postgres_type(column.type)) for column in columns)


def check_names(view: str, columns: Iterable[OutputColumn]) -> None:
    """Refuses columns whose names PostgreSQL would change.

    Raises:
        ConfigError: There is one; the error names it.
    """
    for column in columns:
        if len(column.name.encode()) > LONGEST_NAME or "\x00" in column.name:
            raise ConfigError(
                f"view {view!r}: column name {column.name!r} has more than {LONGEST_NAME} bytes, the "
                "maximum in PostgreSQL",
                "give the column a shorter name with AS",
            )


class RowReader:
    """Converts documents or keys to the fields of a line of COPY, in its text format.

    Args:
        columns: The columns, in the order of the fields; with PostgreSQL's types.
    """

    def __init__(self, columns: Sequence[OutputColumn]) -> None:
        names = [f"c{number}" for number in range(len(columns))]
        fields: list[tuple[str, Any]] = [
            (name, _json_type(column.type)) for name, column in zip(names, columns, strict=True)
        ]
        renamed = {name: column.name for name, column in zip(names, columns, strict=True)}
        row = msgspec.defstruct("Row", fields, rename=renamed, array_like=False)
        self._decode = msgspec.json.Decoder(row).decode
        self._fields = [
            (name, column.name, _field_of(column.type)) for name, column in zip(names, columns, strict=True)
        ]

    def fields(self, data: bytes) -> list[str]:
        """Returns the fields of a line, escaped.

        Raises:
            UnfitValueError: A value does not fit its column; the error names it.
        """
        try:
            row = self._decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnfitValueError(f"the document does not match the view's columns: {error}") from error
        found = []
        for name, column, convert in self._fields:
            value = getattr(row, name)
            try:
                found.append(NULL if value is None else convert(value))
            except ValueError as error:
                raise UnfitValueError(f"column {column!r}: {error}") from error
        return found


def _json_type(column_type: str) -> Any:
    return msgspec.Raw if column_type in _LOOSE | _VERBATIM else str | None


def _field_of(column_type: str) -> Callable[[Any], str]:
    if column_type == "jsonb":
        return _json
    if column_type in _LOOSE:
        return _number
    if column_type in _VERBATIM:
        return _verbatim
    return _bytes if column_type == "bytea" else _text


def _text(value: str) -> str:
    if "\x00" in value:
        raise ValueError("the text contains a NUL character, which PostgreSQL does not accept")
    return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], value)


def _bytes(value: str) -> str:
    try:
        return "\\\\x" + b64decode(value, validate=True).hex()
    except Base64Error as error:
        raise ValueError(f"not base64: {error}") from error


def _verbatim(value: msgspec.Raw) -> str:
    text = bytes(value).decode()
    return NULL if text == "null" else text


def _number(value: msgspec.Raw) -> str:
    return _verbatim(value).strip('"')


def _json(value: msgspec.Raw) -> str:
    text = _verbatim(value)
    return text if text == NULL else _text(text)
