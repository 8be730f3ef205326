"""SQL for names, literals, and values in the form that documents and comparisons need.

Documents contain values as JSON, exactly:

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

Where rows are matched by the texts of values, equal values need equal texts: `with_one_text`.
"""

from collections.abc import Callable
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
_NESTED: Final = _LISTS | {"struct", "map", "tuple", "union"}
_JSON: Final = frozenset({"json"})
_FLOATS: Final = frozenset({"float", "double"})
_WITHOUT_TEXT: Final = frozenset({"union", "variant", "type"})
"""DuckDB cannot read a value's text back: the text does not say which member of the union it is."""
_WITHOUT_ONE_TEXT: Final = _WITHOUT_TEXT | {"interval", "time with time zone"}
"""Equal values have several texts, or different values have the same text."""
_MAP_KEYS: Final = frozenset({"varchar", "enum", "tinyint", "smallint", "integer", "bigint"})


def identifier(name: str) -> str:
    """Returns the name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Returns the text as a SQL string."""
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the document: its name, the SQL expression and its DuckDB type."""

    name: str
    expression: str
    type: DuckDBPyType


def document_expression(fields: tuple[Field, ...]) -> str:
    """Returns SQL for a row's document: a BLOB of UTF-8 JSON, keys in the order of `fields`, no spaces."""
    return f"encode({document_text(fields)})"


def document_text(fields: tuple[Field, ...]) -> str:
    """Returns SQL for the same document as text."""
    if not fields:
        return literal("{}")
    if any(_holds(field.type, _JSON) for field in fields):
        return _object_text(fields)
    parts = ", ".join(
        f"{literal(field.name)}: {_json_ready(field.expression, field.type)}" for field in fields
    )
    return f"CAST(to_json({{{parts}}}) AS VARCHAR)"


def unwritable_type(column_type: DuckDBPyType) -> str:
    """Returns the type, or the part of it, whose values have no JSON form here; empty if all have one."""
    try:
        _json_ready("x", column_type)
    except TypeError as error:
        return str(error)
    return ""


def has_text(column_type: DuckDBPyType) -> bool:
    """Returns whether values of this type can be passed on as DuckDB's text."""
    return not _holds(column_type, _WITHOUT_TEXT)


def may_be_json_null(column_type: DuckDBPyType) -> bool:
    """Returns whether JSON ``null`` and NULL are different values, but the same in a document."""
    return _holds(column_type, _JSON)


def may_have_one_text(column_type: DuckDBPyType) -> bool:
    """Returns whether :func:`with_one_text` gives equal values of this type equal texts."""
    kind = type_kind(column_type)
    if kind in _LISTS | {"struct"}:
        return all(may_have_one_text(child) for _, child in type_children(column_type))
    return not _holds(column_type, _WITHOUT_ONE_TEXT if kind in _FLOATS else _WITHOUT_ONE_TEXT | _FLOATS)


def with_one_text(sql: str, column_type: DuckDBPyType) -> str:
    """Returns SQL for an equal value whose text is the same for all equal values.

    0.0 and -0.0 are equal, and NaN is equal to NaN, although DuckDB writes some of them as ``-nan``.
    """
    if type_kind(column_type) in _NESTED and _holds(column_type, _FLOATS):
        return f"CAST({_positive(sql, column_type, 0)} AS {column_type})"
    return _positive(sql, column_type, 0)


def _positive(sql: str, column_type: DuckDBPyType, depth: int) -> str:
    if not _holds(column_type, _FLOATS):
        return sql
    if type_kind(column_type) in _FLOATS:
        return f"CASE WHEN isnan({sql}) THEN 'nan' ELSE ({sql}) + 0.0 END"
    return _with_parts(sql, column_type, depth, _positive, null=f"({sql})")


def _with_parts(
    sql: str,
    column_type: DuckDBPyType,
    depth: int,
    part: Callable[[str, DuckDBPyType, int], str],
    *,
    null: str,
) -> str:
    """Returns SQL for a list or struct with each of its parts replaced; `null` is NULL if the whole is."""
    children = type_children(column_type)
    if type_kind(column_type) in _LISTS:
        element = f"e{depth}"
        return f"list_transform({sql}, lambda {element}: {part(element, children[0][1], depth + 1)})"
    fields = ", ".join(
        f"{literal(name)}: {part(f'struct_extract({sql}, {literal(name)})', child, depth)}"
        for name, child in children
    )
    return f"CASE WHEN {null} IS NULL THEN NULL ELSE {{{fields}}} END"


def type_kind(column_type: DuckDBPyType) -> str:
    """Returns the name of a type without its parameters, as DuckDB names it; ``json`` for JSON."""
    return "json" if str(column_type) == "JSON" else column_type.id.strip('"')


def type_children(column_type: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    """Returns elements of a list, fields of a struct, key and value of a map, members of a union."""
    if type_kind(column_type) not in _NESTED:
        return []
    return [(name, child) for name, child in column_type.children if isinstance(child, DuckDBPyType)]


def _holds(column_type: DuckDBPyType, kinds: frozenset[str]) -> bool:
    return type_kind(column_type) in kinds or any(
        _holds(child, kinds) for _, child in type_children(column_type)
    )


def _json_ready(expression: str, column_type: DuckDBPyType, depth: int = 0) -> str:
    """Returns SQL for a value that `to_json` writes as the table above says."""
    kind = type_kind(column_type)
    if kind in _LISTS | {"struct"}:
        cast = _text_cast(column_type)
        if cast is not None:
            return expression if cast == str(column_type) else f"CAST({expression} AS {cast})"
        return _with_parts(expression, column_type, depth, _json_ready, null=expression)
    if kind == "map":
        (_, key), (_, value) = type_children(column_type)
        if type_kind(key) not in _MAP_KEYS or _text_cast(value) != str(value):
            raise TypeError(str(column_type))
        return expression
    if kind not in _SCALARS:
        raise TypeError(str(column_type))
    return _SCALARS[kind].format(expression)


def _text_cast(column_type: DuckDBPyType) -> str | None:
    """Returns the type to cast to so that every leaf is exact in JSON; None if no cast achieves that."""
    kind = type_kind(column_type)
    children = type_children(column_type)
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


_NAMED = (
    "WHEN {0} IS NOT NULL THEN to_json(CASE WHEN isnan({0}) THEN 'NaN' ELSE "
    "CASE WHEN {0} > 0 THEN 'Infinity' ELSE '-Infinity' END END) END"
)
_TIME: Final = "strftime(CAST({0} AS TIMESTAMP), '%Y-%m-%dT%H:%M:%S.%f')"
_SCALARS: Final = {
    **dict.fromkeys(_PLAIN | _JSON, "{0}"),
    **dict.fromkeys(_AS_TEXT, "CAST({0} AS VARCHAR)"),
    **dict.fromkeys(("timestamp", "timestamp_s", "timestamp_ms"), _TIME),
    "timestamp with time zone": "strftime({0}, '%Y-%m-%dT%H:%M:%S.%fZ')",
    "blob": "to_base64({0})",
    "double": "CASE WHEN isfinite({0}) THEN to_json({0}) " + _NAMED,
    # FLOAT is converted through its text, or 0.1 would become 0.10000000149011612.
    "float": "CASE WHEN isfinite({0}) THEN to_json(CAST(CAST({0} AS VARCHAR) AS DOUBLE)) " + _NAMED,
}
"""SQL for the value of each scalar type that `to_json` writes exactly."""


def _object_text(fields: tuple[Field, ...]) -> str:
    """Returns SQL for an object's text, built from texts: `to_json` would round numbers in JSON values."""
    parts = [
        f"'{',' if index else '{'}' || CAST(to_json({literal(field.name)}) AS VARCHAR) || ':', "
        f"{_text(field.expression, field.type)}"
        for index, field in enumerate(fields)
    ]
    return "concat(" + ", ".join(parts) + ", '}')"


def _text(expression: str, column_type: DuckDBPyType, depth: int = 0) -> str:
    """Returns SQL for a value's JSON text, never NULL."""
    if not _holds(column_type, _JSON):
        return f"coalesce(CAST(to_json({_json_ready(expression, column_type, depth)}) AS VARCHAR), 'null')"
    kind = type_kind(column_type)
    if kind == "json":
        return f"coalesce(CAST({expression} AS VARCHAR), 'null')"
    if kind in _LISTS:
        element = f"e{depth}"
        text = _text(element, type_children(column_type)[0][1], depth + 1)
        texts = f"array_to_string(list_transform({expression}, lambda {element}: {text}), ',')"
        return f"CASE WHEN {expression} IS NULL THEN 'null' ELSE concat('[', {texts}, ']') END"
    if kind == "struct":
        fields = tuple(
            Field(name, f"struct_extract({expression}, {literal(name)})", child)
            for name, child in type_children(column_type)
        )
        return f"CASE WHEN {expression} IS NULL THEN 'null' ELSE {_object_text(fields)} END"
    raise TypeError(str(column_type))
