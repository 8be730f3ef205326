"""Avro of documents: a view's schema, and the bytes of its documents and keys. Pure.

The types are those of the table in ``docs/outputs.md``.
Every value is a union with null, which is the default: so a column may be added and taken away, and schemas
stay compatible in both directions. The encoder is made of functions per column, since a general one tries a
union's branches for each value.
"""

import json
import re
import struct
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import msgspec
from duckdb import sqltype
from duckdb.sqltypes import DuckDBPyType

from slackwater.outputs.contract import UnfitValueError
from slackwater.sql.duckdb_sql import type_children, type_kind
from slackwater.sql.plan import OutputColumn

NAMESPACE: Final = "slackwater"
ORIGINAL_NAME: Final = "slackwater.name"
"""The property with the name of a column that cannot be a name in Avro."""
ORIGINAL_TYPE: Final = "slackwater.type"
"""The property with a DuckDB type, if the Avro type does not determine the form of the value in the
document."""

_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9_]")
_WIDEST_DECIMAL: Final = 38
_LARGEST: Final = 10**_WIDEST_DECIMAL - 1
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - without a time zone, which texts do not have either
_DATE: Final = re.compile(r"(-?\d+)-(\d\d)-(\d\d)(.*)", re.DOTALL)
_BEFORE_CHRIST: Final = " (BC)"
_FRACTION_DIGITS: Final = 6
_DAY_US: Final = 86_400_000_000
_DAYS_OF_ERA: Final = 146_097
"""The number of days in 400 years."""
_PLAIN_DATE: Final = len("2026-11-20")
_PLAIN_TIMESTAMP: Final = len("2026-11-20T10:11:12.123456")
_INFINITE_DAYS: Final = {"infinity": 2**31 - 1, "-infinity": -(2**31) + 1}
_INFINITE_MICROSECONDS: Final = {"infinity": 2**63 - 1, "-infinity": -(2**63) + 1}

_Write = Callable[[Any, bytearray], None]
"""Appends a value that is not null."""


@dataclass(frozen=True, slots=True)
class _AvroType:
    """The type of values that are not null."""

    schema: Any
    json: Any
    """The type that msgspec decodes them to."""
    write: _Write


class AvroEncoder:
    """Converts documents, or keys, to Avro, in their order; the same text gives the same bytes.

    Raises:
        UnfitValueError: Two names are the same in Avro.
    """

    def __init__(self, name: str, columns: Sequence[OutputColumn]) -> None:
        types = [(column.name, sqltype(column.type)) for column in columns]
        self._names = [column.name for column in columns]
        record = _record(name, types)
        self.schema = json.dumps(record.schema)
        """The Avro schema as JSON text."""
        self._decode = msgspec.json.Decoder(record.json).decode
        self._write = record.write

    def __call__(self, document: bytes) -> bytes:
        """Returns a document as Avro, without a header.

        Raises:
            UnfitValueError: The schema cannot represent a value.
        """
        out = bytearray()
        try:
            self._write(self._decode(document), out)
        except (msgspec.MsgspecError, ValueError, OverflowError, struct.error) as error:
            raise UnfitValueError(f"{error}") from error
        return bytes(out)


def _record(full_name: str, types: Iterable[tuple[str, DuckDBPyType]]) -> _AvroType:
    namespace, _, name = full_name.rpartition(".")
    names: dict[str, str] = {}
    fields, members, writes = [], [], []
    for number, (column, column_type) in enumerate(types):
        field = avro_name(column)
        other = names.setdefault(field, column)
        if other != column:
            raise UnfitValueError(
                f"columns {other!r} and {column!r} are both named {field!r} in Avro, where names contain "
                "only letters, digits and '_'"
            )
        of_column = _value(f"{full_name}.{field}", column_type)
        own = {} if field == column else {ORIGINAL_NAME: column}
        fields.append({"name": field, "type": of_column.schema, "default": None, **own})
        members.append((f"c{number}", of_column.json))
        writes.append(of_column.write)
    renamed = {f"c{number}": column for number, column in enumerate(names.values())}
    row = msgspec.defstruct(name, members, rename=renamed)
    values = msgspec.structs.astuple

    def write(value: Any, out: bytearray) -> None:
        for write_field, item in zip(writes, values(value), strict=True):
            write_field(item, out)

    schema = {"type": "record", "name": name, "namespace": namespace, "fields": fields}
    return _AvroType(schema, row, write)


def avro_name(name: str) -> str:
    """Returns the name in Avro: characters other than letters, digits and ``_`` become ``_``."""
    plain = _FORBIDDEN.sub("_", name)
    return f"_{plain}" if not plain or plain[0].isdigit() else plain


def _value(path: str, column_type: DuckDBPyType) -> _AvroType:
    """Returns the type of values that may be null."""
    kind = type_kind(column_type)
    if kind == "null":
        return _AvroType("null", None, lambda value, out: None)
    of_value = _present(path, kind, column_type)
    write_present = of_value.write

    def write(value: Any, out: bytearray) -> None:
        if value is None:
            out.append(0)
        else:
            out.append(2)
            write_present(value, out)

    def write_json(value: msgspec.Raw, out: bytearray) -> None:
        text = bytes(value)
        if text == b"null":
            out.append(0)
        else:
            out.append(2)
            _write_bytes(text, out)

    if kind == "json":
        return _AvroType(["null", of_value.schema], of_value.json, write_json)
    return _AvroType(["null", of_value.schema], of_value.json | None, write)


def _present(path: str, kind: str, column_type: DuckDBPyType) -> _AvroType:
    if kind in ("list", "array"):
        return _array(_value(path, type_children(column_type)[0][1]))
    if kind == "struct":
        return _record(path, type_children(column_type))
    if kind == "map":
        return _map(_value(path, type_children(column_type)[1][1]))
    if kind == "decimal":
        precision, scale = (value for _, value in column_type.children)
        schema = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        return _AvroType(schema, str, _write_decimal)
    if kind == "json":
        return _AvroType({"type": "string", ORIGINAL_TYPE: "JSON"}, msgspec.Raw, _write_text)
    return _TYPES.get(kind, _TEXT)


def _array(items: _AvroType) -> _AvroType:
    write_item = items.write

    def write(values: list[Any], out: bytearray) -> None:
        if values:
            _write_long(len(values), out)
            for value in values:
                write_item(value, out)
        out.append(0)

    return _AvroType({"type": "array", "items": items.schema}, list[items.json], write)  # type: ignore[name-defined]


def _map(values: _AvroType) -> _AvroType:
    write_value = values.write

    def write(entries: dict[str, Any], out: bytearray) -> None:
        if entries:
            _write_long(len(entries), out)
            for key, value in entries.items():
                _write_text(key, out)
                write_value(value, out)
        out.append(0)

    return _AvroType({"type": "map", "values": values.schema}, dict[str, values.json], write)  # type: ignore[name-defined]


def _write_long(value: int, out: bytearray) -> None:
    rest = value << 1 if value >= 0 else ~(value << 1)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _write_bytes(value: bytes, out: bytearray) -> None:
    _write_long(len(value), out)
    out += value


def _write_text(value: str, out: bytearray) -> None:
    encoded = value.encode()
    _write_long(len(encoded), out)
    out += encoded


def _write_unscaled(value: int, out: bytearray) -> None:
    size = (value if value >= 0 else ~value).bit_length() // 8 + 1
    out.append(2 * size)  # at most 17 bytes
    out += value.to_bytes(size, "big", signed=True)


def _write_decimal(value: str, out: bytearray) -> None:
    _write_unscaled(int(value.replace(".", "", 1)), out)


def _write_huge(value: int, out: bytearray) -> None:
    if not -_LARGEST <= value <= _LARGEST:
        raise ValueError(f"{value} has more digits than the {_WIDEST_DECIMAL} of the column's Avro type")
    _write_unscaled(value, out)


def _floating(name: str, form: str) -> _AvroType:
    def write(value: float | str, out: bytearray) -> None:
        out += struct.pack(form, float(value))

    return _AvroType(name, float | str, write)


def _huge(name: str, precision: int) -> _AvroType:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 0}
    return _AvroType({**schema, ORIGINAL_TYPE: name}, int, _write_huge)


def _logical(base: str, name: str, convert: Callable[[str], int]) -> _AvroType:
    def write(value: str, out: bytearray) -> None:
        _write_long(convert(value), out)

    return _AvroType({"type": base, "logicalType": name}, str, write)


def days(text: str) -> int:
    """Returns days since 1970-01-01; the largest and smallest integers of 32 bits for infinity.

    Raises:
        ValueError: The text is not a date.
    """
    if len(text) == _PLAIN_DATE:
        return date.fromisoformat(text).toordinal() - _EPOCH_DAY
    if text in _INFINITE_DAYS:
        return _INFINITE_DAYS[text]
    number, rest = _days_and_rest(text)
    if rest:
        raise ValueError(f"not a date: {text}")
    return number


def microseconds(text: str) -> int:
    """Returns microseconds since midnight.

    Raises:
        ValueError: The text is not a time.
    """
    hours, minutes, seconds = text.split(":")
    whole, _, fraction = seconds.partition(".")
    of_day = (int(hours) * 60 + int(minutes)) * 60 + int(whole)
    return of_day * 1_000_000 + int(fraction[:_FRACTION_DIGITS].ljust(_FRACTION_DIGITS, "0"))


def timestamp(text: str) -> int:
    """Returns microseconds since 1970; the largest and smallest integers of 64 bits for infinity.

    Args:
        text: A timestamp with a ``Z`` at its end, or without a time zone.

    Raises:
        ValueError: The text is not a timestamp.
    """
    plain = text.removesuffix("Z")
    if len(plain) == _PLAIN_TIMESTAMP and plain[4] == "-":
        past = datetime.fromisoformat(plain) - _EPOCH
        return (past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds
    if text in _INFINITE_MICROSECONDS:
        return _INFINITE_MICROSECONDS[text]
    day, rest = _days_and_rest(text)
    return day * _DAY_US + microseconds(rest.removeprefix("T").removesuffix("Z"))


def _days_and_rest(text: str) -> tuple[int, str]:
    is_before = text.endswith(_BEFORE_CHRIST)
    found = _DATE.fullmatch(text.removesuffix(_BEFORE_CHRIST))
    if found is None:
        raise ValueError(f"not a date: {text}")
    year = int(found[1])
    return _days_of(1 - year if is_before else year, int(found[2]), int(found[3])), found[4]


def _days_of(year: int, month: int, day: int) -> int:
    """Returns days since 1970-01-01 in the Gregorian calendar; year 0 precedes year 1."""
    era, year_of_era = divmod(year - 1, 400)
    return era * _DAYS_OF_ERA + date(year_of_era + 1, month, day).toordinal() - _EPOCH_DAY


_TEXT: Final = _AvroType("string", str, _write_text)
_INT: Final = _AvroType("int", int, _write_long)
_LONG: Final = _AvroType("long", int, _write_long)
_LOCAL: Final = _logical("long", "local-timestamp-micros", timestamp)
_TYPES: Final = {
    "boolean": _AvroType("boolean", bool, lambda value, out: out.append(value)),
    **dict.fromkeys(("tinyint", "utinyint", "smallint", "usmallint", "integer"), _INT),
    **dict.fromkeys(("uinteger", "bigint"), _LONG),
    "ubigint": _huge("UBIGINT", 20),
    "hugeint": _huge("HUGEINT", _WIDEST_DECIMAL),
    "uhugeint": _huge("UHUGEINT", _WIDEST_DECIMAL),
    "float": _floating("float", "<f"),
    "double": _floating("double", "<d"),
    "date": _logical("int", "date", days),
    "time": _logical("long", "time-micros", microseconds),
    **dict.fromkeys(("timestamp", "timestamp_s", "timestamp_ms"), _LOCAL),
    "timestamp with time zone": _logical("long", "timestamp-micros", timestamp),
    "uuid": _AvroType({"type": "string", "logicalType": "uuid"}, str, _write_text),
    "blob": _AvroType("bytes", str, lambda value, out: _write_bytes(b64decode(value, validate=True), out)),
}
"""By DuckDB's name of the type; all other types are text."""
