"""The JSON Schema of documents. Pure.

It is draft 7, which all registries support. Objects allow no further members, and no member is required, so
that a column may be added under the compatibility BACKWARD. Documents always contain all members.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from duckdb import sqltype
from duckdb.sqltypes import DuckDBPyType

from slackwater.outputs.contract import Column
from slackwater.sql.duckdb_sql import type_children, type_kind

_DRAFT: Final = "http://json-schema.org/draft-07/schema#"
_NULL: Final = {"type": "null"}
_NAMES_OF_NUMBERS: Final = {"enum": ["NaN", "Infinity", "-Infinity"]}
_INTEGER: Final = {"type": "integer"}
_NUMBER: Final = {"anyOf": [{"type": "number"}, _NAMES_OF_NUMBERS]}
_SCALARS: Final[dict[str, dict[str, Any]]] = {
    "boolean": {"type": "boolean"},
    **dict.fromkeys(
        (
            "tinyint", "utinyint", "smallint", "usmallint", "integer", "uinteger", "bigint", "ubigint",
            "hugeint", "uhugeint",
        ),
        _INTEGER,
    ),
    "float": _NUMBER,
    "double": _NUMBER,
    "uuid": {"type": "string", "format": "uuid"},
    "blob": {"type": "string", "contentEncoding": "base64"},
}  # fmt: skip
"""By DuckDB's name of the type; all other types are text. Dates and times have no format, because those of
DuckDB have a larger range than those of RFC 3339, including infinity."""


def json_schema(title: str, columns: Sequence[Column]) -> str:
    """Returns the JSON Schema of documents, or of keys, as JSON text."""
    schema = _object((column.name, sqltype(column.type)) for column in columns)
    return json.dumps({"$schema": _DRAFT, "title": title, **schema})


def _object(members: Iterable[tuple[str, DuckDBPyType]]) -> dict[str, Any]:
    properties = {name: _value(member) for name, member in members}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _value(column_type: DuckDBPyType) -> dict[str, Any]:
    """Returns the schema of values that may be null."""
    kind = type_kind(column_type)
    if kind == "json":
        return {}
    if kind == "null":
        return _NULL
    schema = _present(kind, column_type)
    if "anyOf" in schema:
        return {"anyOf": [*schema["anyOf"], _NULL]}
    return {**schema, "type": [schema["type"], "null"]}


def _present(kind: str, column_type: DuckDBPyType) -> dict[str, Any]:
    children = type_children(column_type)
    if kind in ("list", "array"):
        return {"type": "array", "items": _value(children[0][1])}
    if kind == "struct":
        return _object(children)
    if kind == "map":
        return {"type": "object", "additionalProperties": _value(children[1][1])}
    if kind == "decimal":
        _, scale = (value for _, value in column_type.children)
        fraction = rf"\.[0-9]{{{scale}}}" if scale else ""
        return {"type": "string", "pattern": f"^-?[0-9]*{fraction}$" if scale else "^-?[0-9]+$"}
    return _SCALARS.get(kind, {"type": "string"})
