"""The mapping of a view's index: types of fields for DuckDB's types. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from duckdb import sqltype
from duckdb.sqltypes import DuckDBPyType

from slackwater.protocol import ConfigError
from slackwater.sql.duckdb_sql import type_children, type_kind
from slackwater.sql.plan import OutputColumn

OWN: Final = "slackwater"
"""The field of every document with its key and its tokens; in the mapping's ``_meta``, the pipeline."""
_LONG: Final = {"type": "long"}
_KEYWORD: Final = {"type": "keyword", "ignore_above": 8191}
_DATE: Final = {"type": "date", "format": "strict_date_optional_time_nanos"}
_OWN_FIELD: Final = {"properties": {"key": {"type": "keyword"}, "from": _LONG, "to": _LONG}}
_KINDS: Final = {
    "boolean": "boolean",
    "tinyint": "byte",
    **dict.fromkeys(("utinyint", "smallint"), "short"),
    **dict.fromkeys(("usmallint", "integer"), "integer"),
    **dict.fromkeys(("uinteger", "bigint", "ubigint", "hugeint", "uhugeint"), "long"),
    "float": "float",
    **dict.fromkeys(("double", "decimal"), "double"),
    "blob": "binary",
}
_TYPES: Final[dict[str, Any]] = {
    **{kind: {"type": name} for kind, name in _KINDS.items()},
    "varchar": {"type": "text", "fields": {"keyword": _KEYWORD}},
    **dict.fromkeys(("date", "timestamp", "timestamp_s", "timestamp_ms", "timestamp with time zone"), _DATE),
    **dict.fromkeys(("json", "map", "union"), {"type": "object", "enabled": False}),  # noqa: RUF024 - constant
}
"""By DuckDB's name of the type; all other types are keywords."""


def check_names(view: str, columns: Iterable[OutputColumn]) -> None:
    """Refuses columns whose names cannot be those of fields.

    Raises:
        ConfigError: There is one; the error names it.
    """
    for name in (column.name for column in columns):
        if name == OWN or name.startswith("_") or "." in name or not name.strip():
            problem = f"names must not contain a dot, begin with '_', or be {OWN!r}"
            raise ConfigError(
                f"view {view!r}: an index cannot have a field {name!r}: {problem}",
                "give the column another name with AS",
            )


def mapping_of(pipeline: str, columns: Sequence[OutputColumn]) -> dict[str, Any]:
    """Returns the mapping of a view's index, which names its pipeline."""
    fields = {column.name: _field(sqltype(column.type)) for column in columns}
    return {"dynamic": "strict", "_meta": {OWN: pipeline}, "properties": {OWN: _OWN_FIELD, **fields}}


def changed_fields(wanted: dict[str, Any], there: dict[str, Any]) -> Iterator[str]:
    """Yields the fields of a mapping that have another type in the one that exists, with both types."""
    for name, field in wanted.get("properties", {}).items():
        found = there.get("properties", {}).get(name, field)
        types = [each.get("type", "object") for each in (found, field)]
        if types[0] != types[1]:
            yield f"{name} has type {types[0]}, and the view needs {types[1]}"
        else:
            yield from (f"{name}.{each}" for each in changed_fields(field, found))


def _field(duckdb_type: DuckDBPyType) -> dict[str, Any]:
    kind, children = type_kind(duckdb_type), type_children(duckdb_type)
    if kind in ("list", "array"):
        inner = _field(children[0][1])
        return {**inner, "type": "nested"} if "properties" in inner else inner
    if kind == "struct":
        return {"properties": {name: _field(child) for name, child in children}}
    return dict(_TYPES.get(kind, _KEYWORD))
