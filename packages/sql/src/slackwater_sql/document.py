"""SQL that writes a view's rows as JSON, exactly.

| DuckDB type | JSON |
|---|---|
| integers up to 128 bits | number with all digits |
| DECIMAL | string with all decimals of its scale, as Debezium's `decimal.handling.mode=string` |
| FLOAT, DOUBLE | shortest number that reads back as the same value; `"NaN"`, `"Infinity"`, `"-Infinity"` |
| VARCHAR, ENUM, UUID | string |
| DATE | `"2026-11-20"` |
| TIME | `"10:11:12.5"` |
| TIMESTAMP | `"2026-11-20T10:11:12.123456"`, always six decimals |
| TIMESTAMPTZ | `"2026-11-20T10:11:12.123456Z"`, always UTC |
| BLOB | base64 string |
| INTERVAL, BIT, TIMETZ | DuckDB's text as a string |
| JSON | the value itself, with its text as PostgreSQL writes it |
| LIST, ARRAY | array |
| STRUCT | object, keys in the order of the struct |
| MAP | object, if its keys are text or integers and its values need no conversion |
"""

from dataclasses import dataclass
from typing import Final

from duckdb.sqltypes import DuckDBPyType

_PLAIN: Final = frozenset(
    {
        "boolean", "tinyint", "smallint", "integer", "bigint", "hugeint", "utinyint", "usmallint", "uinteger",
        "ubigint", "uhugeint", "varchar", "enum", "uuid", "date", "time", "null",
    }
)  # fmt: skip
_AS_TEXT: Final = frozenset({"decimal", "interval", "bit", "time with time zone"})
_LISTS: Final = frozenset({"list", "array"})
_MAP_KEYS: Final = frozenset({"varchar", "enum", "tinyint", "smallint", "integer", "bigint"})


class UnsupportedOutputError(Exception):
    """A value of this type has no defined JSON form; turned into a ViewError with the column's place."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the document: its name, the SQL expression and its DuckDB type."""

    name: str
    expression: str
    type: DuckDBPyType


def document_expression(fields: tuple[Field, ...]) -> str:
    """SQL for the document of a row as a BLOB of UTF-8 JSON, keys in the order of `fields`, no spaces."""
    return f"encode({document_text(fields)})"


def document_text(fields: tuple[Field, ...]) -> str:
    """SQL for the same document as text."""
    if not fields:
        return literal("{}")
    if any(_holds(field.type, {"json"}) for field in fields):
        return _object_text(fields)
    parts = ", ".join(
        f"{literal(field.name)}: {_json_ready(field.expression, field.type)}" for field in fields
    )
    return f"CAST(to_json({{{parts}}}) AS VARCHAR)"


def check_output(column_type: DuckDBPyType) -> None:
    """Refuse types that have no JSON form here.

    Raises:
        UnsupportedOutputError: With the type's name.
    """
    _json_ready("x", column_type)


def literal(text: str) -> str:
    """The text as a SQL string."""
    return "'" + text.replace("'", "''") + "'"


def _kind(column_type: DuckDBPyType) -> str:
    return "json" if str(column_type) == "JSON" else column_type.id.strip('"')


def _children(column_type: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    """Elements of a list, fields of a struct, key and value of a map."""
    if _kind(column_type) not in _LISTS | {"struct", "map"}:
        return []
    return [(name, child) for name, child in column_type.children if isinstance(child, DuckDBPyType)]


def _holds(column_type: DuckDBPyType, kinds: set[str]) -> bool:
    return _kind(column_type) in kinds or any(_holds(child, kinds) for _, child in _children(column_type))


def _json_ready(expression: str, column_type: DuckDBPyType, depth: int = 0) -> str:
    """SQL for a value that `to_json` writes as the table above says."""
    kind = _kind(column_type)
    if kind in _LISTS | {"struct"}:
        cast = _text_cast(column_type)
        if cast is not None:
            return expression if cast == str(column_type) else f"CAST({expression} AS {cast})"
        return _nested(expression, column_type, depth)
    if kind == "map":
        (_, key), (_, value) = _children(column_type)
        if _kind(key) not in _MAP_KEYS or _text_cast(value) != str(value):
            raise UnsupportedOutputError(str(column_type))
        return expression
    return _scalar(expression, column_type)


def _nested(expression: str, column_type: DuckDBPyType, depth: int) -> str:
    children = _children(column_type)
    if _kind(column_type) in _LISTS:
        element = f"e{depth}"
        ready = _json_ready(element, children[0][1], depth + 1)
        return f"list_transform({expression}, lambda {element}: {ready})"
    parts = ", ".join(
        f"{literal(name)}: {_json_ready(f'struct_extract({expression}, {literal(name)})', child, depth)}"
        for name, child in children
    )
    return f"CASE WHEN {expression} IS NULL THEN NULL ELSE {{{parts}}} END"


def _text_cast(column_type: DuckDBPyType) -> str | None:
    """The type to cast to so that every leaf is exact in JSON; None if a cast does not do it."""
    kind = _kind(column_type)
    children = _children(column_type)
    if kind in _PLAIN:
        return "INTEGER" if kind == "null" else str(column_type)
    if kind in _AS_TEXT:
        return "VARCHAR"
    if kind == "list":
        element = _text_cast(children[0][1])
        return None if element is None else f"{element}[]"
    if kind == "struct":
        fields = [(name, _text_cast(child)) for name, child in children]
        if all(cast is not None for _, cast in fields):
            return "STRUCT(" + ", ".join(f"{identifier(name)} {cast}" for name, cast in fields) + ")"
    return None


def _scalar(expression: str, column_type: DuckDBPyType) -> str:
    kind = _kind(column_type)
    if kind in _PLAIN | {"json"}:
        return expression
    if kind in _AS_TEXT:
        return f"CAST({expression} AS VARCHAR)"
    if kind == "blob":
        return f"to_base64({expression})"
    if kind in {"float", "double"}:
        # FLOAT goes through its text, or 0.1 would become 0.10000000149011612.
        exact = expression if kind == "double" else f"CAST(CAST({expression} AS VARCHAR) AS DOUBLE)"
        infinite = f"CASE WHEN {expression} > 0 THEN 'Infinity' ELSE '-Infinity' END"
        name = f"CASE WHEN isnan({expression}) THEN 'NaN' ELSE {infinite} END"
        named = f"WHEN {expression} IS NOT NULL THEN to_json({name})"
        return f"CASE WHEN isfinite({expression}) THEN to_json({exact}) {named} END"
    if kind == "timestamp with time zone":
        return f"strftime({expression}, '%Y-%m-%dT%H:%M:%S.%fZ')"
    if kind in {"timestamp", "timestamp_s", "timestamp_ms"}:
        return f"strftime(CAST({expression} AS TIMESTAMP), '%Y-%m-%dT%H:%M:%S.%f')"
    raise UnsupportedOutputError(str(column_type))


def _object_text(fields: tuple[Field, ...]) -> str:
    """SQL for the text of an object made of texts: `to_json` would round numbers in JSON values."""
    parts = [
        f"{_key_text(field.name, first=index == 0)}, {_text(field.expression, field.type)}"
        for index, field in enumerate(fields)
    ]
    return "concat(" + ", ".join(parts) + ", '}')"


def _key_text(name: str, *, first: bool) -> str:
    return f"'{'{' if first else ','}' || CAST(to_json({literal(name)}) AS VARCHAR) || ':'"


def _text(expression: str, column_type: DuckDBPyType, depth: int = 0) -> str:
    """SQL for a value's JSON text, never NULL."""
    if not _holds(column_type, {"json"}):
        return f"coalesce(CAST(to_json({_json_ready(expression, column_type, depth)}) AS VARCHAR), 'null')"
    kind = _kind(column_type)
    if kind == "json":
        return f"coalesce(CAST({expression} AS VARCHAR), 'null')"
    if kind in _LISTS:
        element = f"e{depth}"
        text = _text(element, _children(column_type)[0][1], depth + 1)
        texts = f"array_to_string(list_transform({expression}, lambda {element}: {text}), ',')"
        return f"CASE WHEN {expression} IS NULL THEN 'null' ELSE concat('[', {texts}, ']') END"
    if kind == "struct":
        fields = tuple(
            Field(name, f"struct_extract({expression}, {literal(name)})", child)
            for name, child in _children(column_type)
        )
        return f"CASE WHEN {expression} IS NULL THEN 'null' ELSE {_object_text(fields)} END"
    raise UnsupportedOutputError(str(column_type))


def identifier(name: str) -> str:
    """The name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
