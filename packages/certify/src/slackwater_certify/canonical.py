"""Converts values to the form in which they are compared, however they were written.

The type of a view's column decides. A document becomes a tuple of plain values, nested for structs and lists:

| type | canonical value | accepts |
|---|---|---|
| integers | int | numbers, numerals |
| DECIMAL(p, s) | int, scaled by 10^s | numbers, numerals; floating point noise below 1e-9 is dropped |
| FLOAT, DOUBLE | float, rounded to 6 or 12 significant digits | numbers, numerals |
| DATE | days since 1970 | ISO texts, numbers of days, infinities |
| TIME | microseconds | ISO texts, milli- or microseconds |
| TIMESTAMP, TIMESTAMPTZ | microseconds since 1970, UTC | ISO texts, numbers in s, ms, µs or ns, infinities |
| STRUCT | tuple in the order of the type | objects; missing members are null |
| LIST | tuple; sorted when its order does not count | arrays |
| MAP | sorted pairs | objects, arrays of key and value |
| the rest | text | texts |
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from typing import Any

from duckdb.sqltypes import DuckDBPyType

Canonical = Any
"""None, int, float, Decimal, str, or a tuple of these."""
Document = tuple[Canonical, ...]
"""The values of a view's columns."""
DocumentKey = tuple[Canonical, ...]
Read = Callable[[Any], Canonical]

_INTEGERS = frozenset({
    "tinyint", "smallint", "integer", "bigint", "hugeint",
    "utinyint", "usmallint", "uinteger", "ubigint", "uhugeint",
})  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NOISE = Decimal("1e-9")
_DAY_MICROSECONDS = 86_400_000_000

_LATEST_DAY, _LATEST = 2**31 - 1, 2**63 - 1
"""DuckDB's infinity, in days for dates and in microseconds for timestamps; -infinity is its negative."""
_INFINITE_DAYS = {
    "infinity": _LATEST_DAY,
    "-infinity": -_LATEST_DAY,
    2_146_033_979: _LATEST_DAY,
    -2_147_472_691: -_LATEST_DAY,
    -622_191_234: _LATEST_DAY,
    -625_821_272: -_LATEST_DAY,
}
"""The texts, then the days that Debezium writes in changes, then those in snapshots. PostgreSQL has no finite
dates as early as these."""
_INFINITE_TIMES = {
    "infinity": _LATEST,
    "-infinity": -_LATEST,
    _LATEST: _LATEST,
    -_LATEST - 1: -_LATEST,
    9_223_372_036_825_200_000: _LATEST,
    -9_223_372_036_832_400_000: -_LATEST,
}
"""The texts, then the values that Debezium writes in microseconds, then those in milliseconds."""


class UnreadableValueError(ValueError):
    """Raised for a value that cannot be read as the type of its column."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How values of a type are read, and where they contain numbers."""

    read: Read
    """Reads a value that is not null."""
    scale: int | None = None
    """The power of ten by which canonical numbers are scaled; None: the type is not a number."""
    is_integer: bool = False
    children: tuple[tuple[str, "Shape"], ...] = ()
    """The members of a struct, or the element of a list, which is named ``*``."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the output."""

    name: str
    type: DuckDBPyType
    shape: Shape


class DocumentReader:
    """Reads documents and keys of one view."""

    def __init__(self, columns: Sequence[Column], key: Sequence[str]) -> None:
        self.columns = tuple(columns)
        by_name = {column.name: column for column in columns}
        self.key = tuple(by_name[name] for name in key)
        self._reads = [(column.name, column.shape.read) for column in columns]
        self._key_positions = [self.columns.index(column) for column in self.key]

    def document(self, value: Mapping[str, Any]) -> Document:
        """Returns the canonical document, without columns that the view does not have.

        Raises:
            UnreadableValueError: a value does not fit its column, or a column of the key is missing.
        """
        get = value.get
        found = tuple([None if (part := get(name)) is None else read(part) for name, read in self._reads])
        for position in self._key_positions:
            if found[position] is None:
                raise UnreadableValueError(f"key column {self.columns[position].name} is missing")
        return found

    def key_of(self, document: Document) -> DocumentKey:
        """Returns the key of a canonical document."""
        return tuple([document[position] for position in self._key_positions])

    def read_key(self, value: object) -> DocumentKey:
        """Reads the key of a record: an object or an array of its columns, or the value of the only one.

        Raises:
            UnreadableValueError: it is none of these.
        """
        if isinstance(value, Mapping):
            if not all(column.name in value for column in self.key):
                raise UnreadableValueError(f"key without {', '.join(c.name for c in self.key)}: {value!r}")
            parts: list[object] = [value[column.name] for column in self.key]
        else:
            parts = list(value) if isinstance(value, (list, tuple)) else [value]
        if len(parts) != len(self.key) or any(part is None for part in parts):
            raise UnreadableValueError(f"not a key: {value!r}")
        return tuple(column.shape.read(part) for column, part in zip(self.key, parts, strict=True))

    def numbers(self, document: Document) -> dict[str, Decimal]:
        """Returns the numbers in a document by their path.

        Numbers in a list are added up; integers in lists are left out, because most of them are identifiers.
        """
        sums: dict[str, Decimal] = {}
        for column, value in zip(self.columns, document, strict=True):
            for path, number in _numbers(column.name, column.shape, value):
                sums[path] = sums.get(path, Decimal(0)) + number
        return sums


def distance(one: Mapping[str, Decimal], other: Mapping[str, Decimal]) -> Decimal:
    """Returns the largest absolute difference of two documents' numbers; a missing one counts as zero."""
    zero = Decimal(0)
    gaps = [abs(one.get(path, zero) - other.get(path, zero)) for path in {**one, **other}]
    return max(gaps, default=zero)


def digest(document: Document) -> bytes:
    """Returns sixteen bytes that represent a canonical document."""
    return blake2b(repr(document).encode(), digest_size=16).digest()


def shape_of(column_type: DuckDBPyType, *, is_unordered: bool = False) -> Shape:
    """Returns how values of a DuckDB type are compared."""
    kind = kind_of(column_type)
    if kind in {"list", "array"}:
        element = shape_of(children_of(column_type)[0][1])
        return Shape(_list_reader(element.read, is_unordered), children=(("*", element),))
    if kind == "struct":
        members = tuple((name, shape_of(child)) for name, child in children_of(column_type))
        return Shape(_struct_reader([(name, shape.read) for name, shape in members]), children=members)
    if kind == "map":
        (_, key), (_, value) = children_of(column_type)
        return Shape(_map_reader(shape_of(key).read, shape_of(value).read))
    return _scalar_shape(kind, column_type)


def kind_of(column_type: DuckDBPyType) -> str:
    """Returns the name of a type in lower case, without its parameters."""
    return "json" if str(column_type) == "JSON" else column_type.id.strip('"').lower()


def children_of(column_type: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    """Returns the element of a list, the members of a struct, or the key and value of a map."""
    return [(name, child) for name, child in column_type.children if isinstance(child, DuckDBPyType)]


def _scalar_shape(kind: str, column_type: DuckDBPyType) -> Shape:
    if kind in _INTEGERS:
        return Shape(_read_integer, scale=0, is_integer=True)
    if kind == "decimal":
        scale = int(str(dict(column_type.children)["scale"]))
        return Shape(_decimal_reader(scale), scale=scale)
    if kind in {"double", "float"}:
        return Shape(_float_reader(12 if kind == "double" else 6), scale=0)
    readers: dict[str, Read] = {"boolean": _read_boolean, "date": _read_date, "time": _read_time}
    if kind.startswith("timestamp"):
        return Shape(_read_timestamp)
    return Shape(readers.get(kind, _read_json if kind == "json" else _read_text))


def _numbers(path: str, shape: Shape, value: Canonical) -> Iterator[tuple[str, Decimal]]:
    if value is None:
        return
    if shape.scale is not None:
        if shape.is_integer and "*" in path:
            return
        number = Decimal(str(value))
        if number.is_finite():
            yield path, number.scaleb(-shape.scale)
    elif shape.children and shape.children[0][0] == "*":
        for element in value:
            yield from _numbers(f"{path}.*", shape.children[0][1], element)
    else:
        for (name, child), member in zip(shape.children, value if shape.children else (), strict=True):
            yield from _numbers(f"{path}.{name}", child, member)


def _read_integer(value: Any) -> Canonical:
    if type(value) is int:
        return value
    number = _number(value)
    return int(number) if number == number.to_integral_value() else number


def _number(value: Any) -> Decimal:
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise UnreadableValueError(f"not a number: {value!r}") from None
    if not number.is_finite():
        raise UnreadableValueError(f"not a finite number: {value!r}")
    return number


def _decimal_reader(scale: int) -> Read:
    def read(value: Any) -> Canonical:
        if type(value) is str:
            whole, _, fraction = value.partition(".")
            if len(fraction) <= scale and fraction.isascii() and (fraction.isdigit() or not fraction):
                try:
                    return int(whole + fraction.ljust(scale, "0"))
                except ValueError:
                    pass  # an unusual notation, which the general method below reads
        number = _number(value).scaleb(scale)
        rounded = number.to_integral_value()
        return int(rounded) if abs(number - rounded) <= _NOISE * max(Decimal(1), abs(number)) else number

    return read


def _float_reader(digits: int) -> Read:
    def read(value: Any) -> Canonical:
        try:
            return float(f"{float(value):.{digits}g}") + 0.0
        except (TypeError, ValueError):
            raise UnreadableValueError(f"not a number: {value!r}") from None

    return read


_BOOLEANS = {
    "true": True, "t": True, "1": True, "false": False, "f": False, "0": False,
}  # fmt: skip


def _read_boolean(value: Any) -> Canonical:
    if isinstance(value, bool):
        return value
    try:
        return _BOOLEANS[str(value).lower()]
    except KeyError:
        raise UnreadableValueError(f"not a boolean: {value!r}") from None


def _read_date(value: Any) -> Canonical:
    if isinstance(value, (int, str)) and value in _INFINITE_DAYS:
        return _INFINITE_DAYS[value]
    if type(value) is int:
        return value
    try:
        day = value if isinstance(value, date) else date.fromisoformat(str(value)[:10])
    except ValueError:
        raise UnreadableValueError(f"not a date: {value!r}") from None
    return day.toordinal() - _EPOCH.toordinal()


def _read_time(value: Any) -> Canonical:
    if type(value) is int:
        return value * 1000 if value < _DAY_MICROSECONDS // 1000 else value
    try:
        found = value if isinstance(value, time) else time.fromisoformat(str(value))
    except ValueError:
        raise UnreadableValueError(f"not a time: {value!r}") from None
    return ((found.hour * 60 + found.minute) * 60 + found.second) * 1_000_000 + found.microsecond


def _read_timestamp(value: Any) -> Canonical:
    if isinstance(value, (int, str)) and value in _INFINITE_TIMES:
        return _INFINITE_TIMES[value]
    if type(value) is int:
        return _microseconds(value)
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise UnreadableValueError(f"not a timestamp: {value!r}") from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    return (found - _EPOCH) // _MICROSECOND


def _microseconds(value: int) -> int:
    """Infers the unit of a number from its size, which is right for times up to the year 5138."""
    size = abs(value)
    if size < 10**11:
        return value * 1_000_000
    if size < 10**14:
        return value * 1_000
    return value if size < 10**17 else value // 1_000


def _read_text(value: Any) -> Canonical:
    return json.dumps(value, sort_keys=True) if isinstance(value, (dict, list)) else str(value)


def _read_json(value: Any) -> Canonical:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return value
    return None if value is None else json.dumps(value, sort_keys=True)


def _nested(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise UnreadableValueError(f"neither a list nor a struct: {value!r}") from None
    return value


def _list_reader(read: Read, is_unordered: bool) -> Read:
    def read_list(value: Any) -> Canonical:
        value = _nested(value)
        if not isinstance(value, (list, tuple)):
            raise UnreadableValueError(f"not a list: {value!r}")
        found = [None if each is None else read(each) for each in value]
        return tuple(sorted(found, key=repr) if is_unordered else found)

    return read_list


def _struct_reader(members: Sequence[tuple[str, Read]]) -> Read:
    def read_struct(value: Any) -> Canonical:
        if type(value) is not dict:
            value = _nested(value)
            if not isinstance(value, Mapping):
                raise UnreadableValueError(f"not a struct: {value!r}")
        return tuple([None if (part := value.get(name)) is None else read(part) for name, read in members])

    return read_struct


def _map_reader(read_key: Read, read_value: Read) -> Read:
    def read_map(value: Any) -> Canonical:
        value = _nested(value)
        try:
            pairs = value.items() if isinstance(value, Mapping) else [_pair(each) for each in value]
        except (TypeError, KeyError, ValueError):
            raise UnreadableValueError(f"not a map: {value!r}") from None
        found = [(read_key(k), None if v is None else read_value(v)) for k, v in pairs]
        return tuple(sorted(found, key=repr))

    return read_map


def _pair(each: Any) -> tuple[Any, Any]:
    if isinstance(each, Mapping):
        return each["key"], each["value"]
    key, value = each
    return key, value
