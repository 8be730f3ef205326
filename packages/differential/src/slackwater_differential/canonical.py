"""One text for each value that a document can hold, from DuckDB's values and from documents.

Written without the code that writes documents: numbers are compared by value with all digits, everything else
by text.
"""

import base64
import json
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from duckdb.sqltypes import DuckDBPyType

_NUMBERS = frozenset(
    {
        "tinyint",
        "smallint",
        "integer",
        "bigint",
        "hugeint",
        "utinyint",
        "usmallint",
        "uinteger",
        "ubigint",
        "uhugeint",
    }
)


def of_document(document: bytes) -> str:
    """The canonical text of a document."""
    return _of_json(document.decode())


def of_row(names: list[str], values: tuple[Any, ...], types: list[DuckDBPyType]) -> str:
    """The canonical text of the document of a row that DuckDB gave."""
    fields = zip(names, values, types, strict=True)
    return _object([(name, _of_value(value, of_type)) for name, value, of_type in fields])


def _of_json(text: str) -> str:
    return _canonical(json.loads(text, object_pairs_hook=_Pairs, parse_float=Decimal, parse_int=Decimal))


class _Pairs(list[tuple[str, Any]]):
    """An object with its keys in their order."""


def _canonical(value: Any) -> str:
    if isinstance(value, _Pairs):
        return _object([(name, _canonical(item)) for name, item in value])
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, Decimal):
        return _number(value)
    return json.dumps(value, ensure_ascii=False)


def _object(fields: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{value}" for name, value in fields) + "}"


def _number(value: Decimal) -> str:
    if value == 0:
        return "0"
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _text(characters: str) -> str:
    return json.dumps(characters, ensure_ascii=False)


def _of_value(value: Any, of_type: DuckDBPyType) -> str:
    if value is None:
        return "null"
    if str(of_type) == "JSON":
        return _of_json(value)
    kind = of_type.id.strip('"')
    if kind in _NUMBERS:
        return str(value)
    if kind in {"list", "array"}:
        element = of_type.children[0][1]
        return "[" + ",".join(_of_value(each, element) for each in value) + "]"  # type: ignore[arg-type]
    if kind == "struct":
        return _object([(n, _of_value(value[n], t)) for n, t in of_type.children])  # type: ignore[arg-type]
    return _of_scalar(value)


def _of_scalar(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return _of_float(value)
        case Decimal():
            return _text(format(value, "f"))
        case bytes():
            return _text(base64.b64encode(value).decode())
        case datetime():
            suffix = "" if value.tzinfo is None else "Z"
            moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            return _text(moment.isoformat(timespec="microseconds") + suffix)
        case time():
            text = value.isoformat()
            return _text(text.rstrip("0") if "." in text else text)
        case date():
            return _text(value.isoformat())
    return _text(str(value))


def _of_float(value: float) -> str:
    if math.isnan(value):
        return _text("NaN")
    if math.isinf(value):
        return _text("Infinity" if value > 0 else "-Infinity")
    return _number(Decimal(repr(value)))
