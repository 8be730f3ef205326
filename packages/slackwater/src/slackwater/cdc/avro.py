"""Avro in Confluent's wire format, converted to the JSON that Connect's JsonConverter would have written.

A value is a zero byte, the id of a schema in a registry (4 bytes, big endian), then Avro without a header.
After the conversion there is one format, whatever converter a connector uses. Values are those of Connect's
JSON, not dates and decimals.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import fastavro
import fastavro._read_py as read_in_python
import msgspec
from fastavro.schema import SchemaParseException

from slackwater.cdc.errors import UndecodableRecordError

MAGIC: Final = 0
HEADER_BYTES: Final = 5

SchemaOf = Callable[[int], str]
"""Returns the schema with an id, as JSON text. May block; raises its own errors for unknown ids."""

ToJson = Callable[[bytes | None], bytes | None]
"""Converts a record's key or value to JSON; None and everything that is not Avro is returned unchanged."""

_Fix = Callable[[Any], Any]
"""Converts a value that was read to the one that is written as JSON; may change it in place."""

_MEANINGFUL: Final = frozenset({"type", "name", "namespace", "items", "values", "symbols", "size"})
_MAP_ENTRY: Final = "io.confluent.connect.avro.MapEntry"
_INTERNAL_TYPE: Final = "connect.internal.type"
_FLOAT_DIGITS: Final = range(6, 10)
"""This many decimal digits identify a number of 32 bits."""

_UNREADABLE = (
    EOFError,
    LookupError,
    MemoryError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
_encode = msgspec.json.Encoder().encode


class AvroToJson:
    """A :data:`ToJson` for Confluent's wire format. Keeps every schema it has seen; for one thread.

    Writes what JsonConverter does with ``schemas.enable=false``: bytes and Connect's Decimal as base64 (only
    the schema contains the scale), dates and times as the integers that Debezium means, unions without their
    branch, maps as objects. A change event also contains Connect's schema of its rows, as ``schema``.
    """

    def __init__(self, schema_of: SchemaOf) -> None:
        self._schema_of = schema_of
        self._schemas: dict[int, _ReadableSchema] = {}

    def __call__(self, data: bytes | None) -> bytes | None:
        """See :data:`ToJson`.

        Raises:
            UndecodableRecordError: The bytes do not fit their schema, or the schema cannot be used.
        """
        if not data or data[0] != MAGIC:
            return data
        if len(data) < HEADER_BYTES:
            raise _unreadable(None, f"it has {len(data)} bytes, expected at least {HEADER_BYTES}", data)
        schema_id = int.from_bytes(data[1:HEADER_BYTES], "big")
        schema = self._schemas.get(schema_id) or self._learn(schema_id, data)
        stream = BytesIO(data)
        stream.seek(HEADER_BYTES)
        try:
            value = schema.read(stream, schema.parsed, None)
            result = _encode(value if schema.fix is None else schema.fix(value))
            result = result if schema.of_rows is None else result[:-1] + schema.of_rows
        except _UNREADABLE as error:
            raise _unreadable(schema_id, f"{type(error).__name__}: {error}", data) from None
        if stream.tell() != len(data):
            reason = f"{len(data) - stream.tell()} bytes follow its end"
            raise _unreadable(schema_id, reason, data)
        return result

    def _learn(self, schema_id: int, data: bytes) -> "_ReadableSchema":
        try:
            schema = _readable_schema(self._schema_of(schema_id))
        except ValueError as error:
            raise _unreadable(schema_id, str(error), data) from error
        self._schemas[schema_id] = schema
        return schema


def _unreadable(schema_id: int | None, reason: str, data: bytes) -> UndecodableRecordError:
    schema = "some schema" if schema_id is None else f"schema {schema_id}"
    return UndecodableRecordError("record", reason, data, schema)


@dataclass(frozen=True, slots=True)
class _ReadableSchema:
    """A schema prepared for reading values."""

    parsed: Any
    fix: _Fix | None
    """None: values need no fix."""
    read: Callable[[BytesIO, Any, None], Any]
    """Fastavro's reader: the one in Python if a type contains itself, since that in C has no depth limit."""
    of_rows: bytes | None = None
    """The end of a change event's JSON, with Connect's schema of its rows; None for anything else."""


def _readable_schema(text: str) -> _ReadableSchema:
    """Prepares a schema. Logical types are removed, so that dates, times and decimals stay as stored."""
    try:
        schema = json.loads(text)
        parsed = fastavro.parse_schema(_plain(schema))
        fixes = _Fixes()
        fix = fixes.find(parsed)
        reader = read_in_python.schemaless_reader if fixes.has_recursion else fastavro.schemaless_reader
        return _ReadableSchema(parsed, fix, reader, _schema_of_rows(schema))
    except (SchemaParseException, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not an Avro schema: {type(error).__name__}: {error}") from error


def _schema_of_rows(schema: Any) -> bytes | None:
    fields = schema.get("fields", ()) if isinstance(schema, dict) else ()
    types = {each["name"]: each["type"] for each in fields}
    row = next((each for each in _branches(types.get("before", ())) if isinstance(each, dict)), None)
    if row is None or not types.keys() >= {"before", "after", "op"}:
        return None
    columns = [{"field": each["name"], **_connect_type(each["type"])} for each in row.get("fields", ())]
    return b',"schema":' + _encode({"fields": [{"field": "after", "fields": columns}]}) + b"}"


def _connect_type(schema: Any) -> dict[str, Any]:
    """Returns type and name of a column or element as Connect's JSON states them; numbers without width."""
    (only, *others) = [each for each in _branches(schema) if each != "null"] or ["null"]
    if others:
        return {}
    found = only if isinstance(only, dict) else {"type": only}
    items = {"items": _connect_type(found["items"])} if "items" in found else {}
    return {"type": found["type"], "name": found.get("connect.name"), **items}


def _branches(schema: Any) -> Sequence[Any]:
    return schema if isinstance(schema, (list, tuple)) else [schema]


def _plain(schema: Any) -> Any:
    """Returns the schema without logical types, defaults and Connect's remarks."""
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {
        name: _plain(part) if name != "symbols" else part
        for name, part in schema.items()
        if name in _MEANINGFUL
    }
    if "fields" in schema:
        plain["fields"] = [{"name": f["name"], "type": _plain(f["type"])} for f in schema["fields"]]
    if _is_map_entry(schema):
        plain[_INTERNAL_TYPE] = "MapEntry"
    return plain


def _is_map_entry(schema: Mapping[str, Any]) -> bool:
    if schema.get("type") != "record":
        return False
    full_name = ".".join(filter(None, (schema.get("namespace"), schema.get("name"))))
    return full_name == _MAP_ENTRY or schema.get(_INTERNAL_TYPE) == "MapEntry"


class _Fixes:
    """Finds the fix for values of a parsed schema, where names are full and known before use."""

    def __init__(self) -> None:
        self._named: dict[str, _Fix | None] = {}
        self._open: set[str] = set()
        self.has_recursion = False
        """Whether a type contains itself."""
        self._empty: set[str] = set()
        """Names of types whose values take no bytes."""

    def find(self, schema: Any) -> _Fix | None:
        """Returns the fix for values of a schema; None if they need none."""
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return self._by_name(schema)
        kind = schema["type"]
        if kind == "record":
            return self._record(schema)
        if kind == "array":
            return self._array(schema["items"])
        if kind == "map":
            return _each_value(self.find(schema["values"]))
        if kind in ("enum", "fixed"):
            self._named[schema["name"]] = None
            self._note_empty(schema)
            return None
        return self.find(kind)

    def _note_empty(self, schema: Mapping[str, Any]) -> None:
        if self._takes_nothing(schema):
            self._empty.add(schema["name"])

    def _takes_nothing(self, schema: Any) -> bool:
        """Returns whether every value of a schema takes no bytes at all."""
        if isinstance(schema, str):
            return schema == "null" or schema in self._empty
        kind = schema["type"] if isinstance(schema, dict) else ""
        if kind == "record":
            return all(self._takes_nothing(field["type"]) for field in schema["fields"])
        return kind == "null" or (kind == "fixed" and not schema["size"])

    def _by_name(self, name: str) -> _Fix | None:
        if name in self._open:
            self.has_recursion = True
            return lambda value: self._again(name, value)
        return _PRIMITIVES[name] if name in _PRIMITIVES else self._named[name]

    def _again(self, name: str, value: Any) -> Any:
        fix = self._named[name]
        return value if fix is None else fix(value)

    def _union(self, branches: list[Any]) -> _Fix | None:
        fixes = [self.find(branch) for branch in branches if branch != "null"]
        if len(fixes) == 1 and (only := fixes[0]) is not None:
            return lambda value: None if value is None else only(value)
        if any(fixes):
            raise ValueError(
                "a union of several types that contain numbers or maps has no counterpart in Connect"
            )
        return None

    def _record(self, schema: Mapping[str, Any]) -> _Fix | None:
        self._open.add(schema["name"])
        fixes = [(field["name"], fix) for field in schema["fields"] if (fix := self.find(field["type"]))]
        self._open.discard(schema["name"])

        def fix_fields(record: dict[str, Any]) -> dict[str, Any]:
            for name, fix in fixes:
                record[name] = fix(record[name])
            return record

        self._note_empty(schema)
        self._named[schema["name"]] = fix_fields if fixes else None
        return self._named[schema["name"]]

    def _array(self, items: Any) -> _Fix | None:
        each = self.find(items)
        if self._takes_nothing(items):
            raise ValueError("an array whose elements take no bytes: nothing limits its length")
        if isinstance(items, dict) and _INTERNAL_TYPE in items:
            return _entries(items, each)
        if each is None:
            return None
        return lambda values: [each(value) for value in values]


def _each_value(fix: _Fix | None) -> _Fix | None:
    if fix is None:
        return None
    return lambda values: {key: fix(value) for key, value in values.items()}


def _entries(entry: Mapping[str, Any], each: _Fix | None) -> _Fix:
    """Fixes Connect maps whose keys are not plain strings: in Avro they are arrays of entries."""
    has_text_keys = entry["fields"][0]["type"] in ("string", ["null", "string"])

    def fix(entries: list[dict[str, Any]]) -> Any:
        pairs = [(e["key"], e["value"]) for e in (entries if each is None else map(each, entries))]
        return dict(pairs) if has_text_keys else pairs

    return fix


def _float(value: float) -> Any:
    """Returns the shortest number that names the same 32 bits."""
    if not math.isfinite(value):
        return _double(value)
    bits = struct.pack(">f", value)
    candidates = (float(f"{value:.{digits}g}") for digits in _FLOAT_DIGITS)
    return next((c for c in candidates if struct.pack(">f", c) == bits), value)


def _double(value: float) -> Any:
    """Replaces NaN and infinities, which JSON does not know, by their names, as JsonConverter does."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_PRIMITIVES: Final[Mapping[str, _Fix | None]] = {
    **dict.fromkeys(("null", "boolean", "int", "long", "bytes", "string")),
    "float": _float,
    "double": _double,
}
