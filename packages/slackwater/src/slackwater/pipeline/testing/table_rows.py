"""The rows of a table, and the change events that a connector would write for changes of them."""

import json
import math
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

import msgspec

from slackwater.protocol import InputError
from slackwater.settings.errors import did_you_mean
from slackwater.sql.catalog import FLOAT_KINDS, INTEGER_KINDS, Column, ColumnType, Table, TypeKind

PlainRow = Mapping[str, object]
"""Values by the name of their column, as people write them."""
WireRow = dict[str, Any]
"""Values of all columns of supported types, as a connector writes them."""
Event = tuple[str, bytes | None, bytes | None]
"""Debezium's operation, and the old and the new row in JSON."""

_SHOWN_NAMES = 12


class TableRows:
    """The rows of one table in the open transaction. Use it from one thread.

    Methods raise InputError, with the table, the column and the value, if a change is impossible.
    """

    def __init__(self, table: Table, read: Collection[str]) -> None:
        """Begins without rows; they need a value of each column that views read, unless NULL is allowed."""
        self.table = table
        self.columns = tuple(column for column in table.columns if column.type.is_supported)
        self._by_name = {column.name: column for column in table.columns}
        self._needed = frozenset(read) | frozenset(table.primary_key)
        self._empty: WireRow = dict.fromkeys(column.name for column in self.columns)
        self._rows: dict[object, WireRow] = {}
        self._added = 0

    @property
    def rows(self) -> Sequence[WireRow]:
        """All rows, in the order in which they were inserted."""
        return tuple(self._rows.values())

    def insert(self, row: PlainRow) -> list[Event]:
        """Adds a row."""
        wire = self._empty | self._wire(row)
        for column in self.columns:
            if wire[column.name] is None and not column.nullable and column.name in self._needed:
                problem = f"column {column.name} of {self._name} is NOT NULL and has no value"
                wanted = (c for c in self.columns if c.name in self._needed and not c.nullable)
                names = ", ".join(f"{each.name} {each.type.name}" for each in wanted)
                raise InputError(problem, f"a row needs {names}")
        key = self._new_key(wire)
        if key in self._rows:
            hint = "change it with an update, or delete it first"
            raise InputError(f"{self._name} already has a row with {self._shown_key(wire)}", hint)
        self._rows[key] = wire
        return [("c", None, _json(wire))]

    def update(self, row: PlainRow, where: PlainRow | None = None) -> list[Event]:
        """Changes the values of a row in the rows with those of `where`, or else with its primary key."""
        new = self._wire(row)
        found = self._found("update", new if where is None else self._wire(where), is_key=where is None)
        events: list[Event] = []
        for key, old in found:
            changed = {**old, **new}
            moved = self._key(changed) if self.table.primary_key else key
            if moved != key and moved in self._rows:
                raise InputError(f"{self._name} already has a row with {self._shown_key(changed)}")
            events += self._replaced(key, old, moved, changed)
        return events

    def delete(self, where: PlainRow) -> list[Event]:
        """Removes the rows that have these values."""
        found = self._found("delete", self._wire(where), is_key=False)
        for key, _ in found:
            del self._rows[key]
        return [("d", self._old(row), None) for _, row in found]

    def truncate(self) -> list[Event]:
        """Removes all rows."""
        self._rows.clear()
        return [("t", None, None)]

    def replace(self, rows: Sequence[PlainRow]) -> list[Event]:
        """Replaces all rows of the table, with as few changes as possible."""
        new: dict[object, WireRow] = {}
        for row in rows:
            wire = self._empty | self._wire(row)
            key = self._new_key(wire) if self.table.primary_key else self._same(wire, new)
            if key in new:
                raise InputError(f"{self._name} has two rows with {self._shown_key(wire)}")
            new[key] = wire
        gone = [(key, row) for key, row in self._rows.items() if key not in new]
        if gone:
            self._check_identity("delete")
        events: list[Event] = [("d", self._old(row), None) for _, row in gone]
        for key, row in new.items():
            old = self._rows.get(key)
            if old is None:
                events.append(("c", None, _json(row)))
            elif old != row:
                events.append(self._updated(old, row))
        self._rows = new
        return events

    def _same(self, wire: WireRow, taken: Mapping[object, WireRow]) -> object:
        """Returns the key of an equal row that is not taken yet, in a table without a primary key."""
        for key, row in self._rows.items():
            if row == wire and key not in taken:
                return key
        return self._new_key(wire)

    def _replaced(self, key: object, old: WireRow, moved: object, new: WireRow) -> list[Event]:
        if moved == key:
            self._rows[key] = new
            return [self._updated(old, new)]
        del self._rows[key]
        self._rows[moved] = new
        return [("d", self._old(old), None), ("c", None, _json(new))]

    def _updated(self, old: WireRow, new: WireRow) -> Event:
        return "u", self._old(old) if self.table.replica_identity_full else None, _json(new)

    def _found(self, what: str, where: WireRow, *, is_key: bool) -> list[tuple[object, WireRow]]:
        self._check_identity(what)
        if is_key:
            missing = [name for name in self.table.primary_key if where.get(name) is None]
            if missing or not self.table.primary_key:
                names = ", ".join(self.table.primary_key) or "no primary key"
                problem = f"it is not clear which row of {self._name} to {what}: its primary key is {names}"
                raise InputError(problem, "give the primary key, or say which rows with where=")
            key = self._key(where)
            found = [(key, self._rows[key])] if key in self._rows else []
        else:
            found = [
                (key, row)
                for key, row in self._rows.items()
                if all(self._equal(name, row[name], value) for name, value in where.items())
            ]
        if not found:
            shown = self._shown_key(where) if is_key else _shown(where)
            raise InputError(f"there is no row to {what} in {self._name} with {shown}", self._there())
        return found

    def _check_identity(self, what: str) -> None:
        if not self.table.primary_key and not self.table.replica_identity_full:
            raise InputError(
                f"{self._name} has neither a primary key nor REPLICA IDENTITY FULL: PostgreSQL refuses to "
                f"{what} rows of such a table while it is published",
                f"ALTER TABLE {self._name} REPLICA IDENTITY FULL, in the database and in the schema file",
            )

    def _there(self) -> str:
        keys = [self._shown_key(row) for row in self._rows.values()]
        if not keys:
            return "the table has no rows"
        more = f" and {len(keys) - _SHOWN_NAMES} more" if len(keys) > _SHOWN_NAMES else ""
        return f"it has {', '.join(keys[:_SHOWN_NAMES])}{more}"

    def _wire(self, row: PlainRow) -> WireRow:
        if not isinstance(row, Mapping):
            raise InputError(f"a row of {self._name} must be a mapping of columns to values, not {row!r}")
        wire: WireRow = {}
        for name, value in row.items():
            column = self._by_name.get(name)
            if column is None:
                names = [each.name for each in self.table.columns]
                hint = did_you_mean(name, names) or f"it has {', '.join(names)}"
                raise InputError(f"{self._name} has no column {name}", hint)
            if column.type.is_supported:
                wire[name] = self._value(column, value)
        return wire

    def _value(self, column: Column, value: object) -> Any:
        if value is None:
            if not column.nullable and column.name in self._needed:
                raise InputError(f"column {column.name} of {self._name} is NOT NULL")
            return None
        try:
            return wire_value(column.type, value)
        except ValueError as error:
            raise InputError(f"column {column.name} of {self._name}: {error}") from None

    def _new_key(self, row: WireRow) -> object:
        if self.table.primary_key:
            return self._key(row)
        self._added += 1
        return self._added

    def _key(self, row: WireRow) -> object:
        return tuple(self._comparable(name, row[name]) for name in self.table.primary_key)

    def _equal(self, name: str, one: Any, other: Any) -> bool:
        return bool(self._comparable(name, one) == self._comparable(name, other))

    def _comparable(self, name: str, value: Any) -> Any:
        """Returns a value that is equal if the values are equal in SQL."""
        is_numeric = self._by_name[name].type.kind is TypeKind.NUMERIC
        return Decimal(value) if is_numeric and value is not None else value

    def _old(self, row: WireRow) -> bytes:
        """Returns the old row as far as the table's replica identity writes it to the log."""
        if self.table.replica_identity_full:
            return _json(row)
        return _json({name: row[name] for name in self.table.primary_key})

    def _shown_key(self, row: WireRow) -> str:
        return _shown({name: row.get(name) for name in self.table.primary_key}) or _shown(row)

    @property
    def _name(self) -> str:
        return self.table.full_name


def _shown(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {'NULL' if each is None else each}" for name, each in row.items())


def _json(row: WireRow) -> bytes:
    return msgspec.json.encode(row)


_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY: Final = 86_400
_SECOND_US: Final = 1_000_000
_SECOND_DIGITS: Final = 6
_END_OF_DAY: Final = "24:00:00"
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_ENCODE_JSON: Final = msgspec.json.Encoder(decimal_format="number").encode


def wire_value(column_type: ColumnType, value: object) -> Any:
    """Returns the value as a connector writes it.

    Args:
        column_type: A supported type.
        value: An int, Decimal, float, str, bool, date, datetime, time, UUID, bytes or list. For JSON also a
            dict; a text is then JSON. Decimals, dates, times and UUIDs may be text, as in SQL. Not None.

    Raises:
        ValueError: The type does not have this value; the message contains the reason.
    """
    if column_type.element is not None:
        element = column_type.element
        if not isinstance(value, list | tuple):
            raise _no_value(column_type, value, "write a list")
        return [None if each is None else wire_value(element, each) for each in value]
    wire = _scalar(column_type, value)
    try:
        msgspec.convert(wire, column_type.wire)
    except msgspec.ValidationError:
        raise _no_value(column_type, value) from None
    return wire


def _scalar(column_type: ColumnType, value: object) -> Any:
    kind = column_type.kind
    if kind in INTEGER_KINDS or kind is TypeKind.BOOLEAN:
        is_right = isinstance(value, int) and isinstance(value, bool) == (kind is TypeKind.BOOLEAN)
        if not is_right:
            raise _no_value(column_type, value)
        return value
    if kind in FLOAT_KINDS:
        return _float(column_type, value)
    if kind in _WRITTEN:
        return _WRITTEN[kind](column_type, value)
    if kind in (TypeKind.DATE, TypeKind.TIME, TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ):
        return _moment(column_type, value)
    if kind is TypeKind.UUID:
        try:
            return str(value if isinstance(value, UUID) else UUID(_checked_text(column_type, value)))
        except ValueError:
            raise _no_value(column_type, value) from None
    return _checked_text(column_type, value)


def _checked_text(column_type: ColumnType, value: object) -> str:
    if not isinstance(value, str):
        raise _no_value(
            column_type, value, "write text in quotes" if column_type.kind is TypeKind.TEXT else ""
        )
    return value


def _float(column_type: ColumnType, value: object) -> float | str:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        if value in _NOT_FINITE:
            return str(value)
        raise _no_value(column_type, value)
    number = float(value)
    if math.isnan(number):
        return "NaN"
    return number if math.isfinite(number) else "Infinity" if number > 0 else "-Infinity"


def _numeric(column_type: ColumnType, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise _no_value(column_type, value)
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise _no_value(column_type, value) from None
    if not number.is_finite():
        raise _no_value(column_type, value)
    exponent = number.as_tuple().exponent
    places = max(0, -exponent) if isinstance(exponent, int) else 0
    text = format(number, "f")
    if places > column_type.decimals:
        text = text.rstrip("0")
        places = len(text.partition(".")[2])
    if places > column_type.decimals:
        raise _no_value(column_type, value, f"it has more than {column_type.decimals} digits after the point")
    if column_type.precision is not None and places < column_type.decimals:
        text = text.rstrip(".") + ("." if places == 0 else "") + "0" * (column_type.decimals - places)
    return text.rstrip(".")


def _json_text(column_type: ColumnType, value: object) -> str:
    if not isinstance(value, str):
        try:
            return _ENCODE_JSON(value).decode()
        except TypeError:
            raise _no_value(column_type, value) from None
    try:
        json.loads(value)
    except ValueError:
        raise _no_value(
            column_type, value, "text is taken as JSON: a JSON string has quotes of its own"
        ) from None
    return value


def _bytes(column_type: ColumnType, value: object) -> str:
    if isinstance(value, str) and value.startswith("\\x"):
        try:
            value = bytes.fromhex(value.removeprefix("\\x"))
        except ValueError:
            raise _no_value(column_type, value) from None
    if not isinstance(value, bytes | bytearray):
        raise _no_value(column_type, value, r"write bytes, or text like \x00ff")
    return b64encode(value).decode()


def _bits(column_type: ColumnType, value: object) -> bool | str:
    text = _checked_text(column_type, value)
    if len(text) != column_type.precision or not set(text) <= {"0", "1"}:
        raise _no_value(column_type, text, f"write {column_type.precision} characters 0 or 1")
    number = int(text, 2)
    if column_type.precision == 1:
        return bool(number)
    return b64encode(number.to_bytes((number.bit_length() + 7) // 8, "little")).decode()


_WRITTEN: Final[Mapping[TypeKind, Callable[[ColumnType, object], Any]]] = {
    TypeKind.NUMERIC: _numeric,
    TypeKind.JSON: _json_text,
    TypeKind.BYTEA: _bytes,
    TypeKind.BIT: _bits,
}


def _moment(column_type: ColumnType, value: object) -> Any:
    kind = column_type.kind
    if kind is TypeKind.TIME:
        return _time(column_type, value)
    if value in ("infinity", "-infinity"):
        if column_type.infinities is None:
            return value
        minus, plus = column_type.infinities
        return plus if value == "infinity" else minus
    if kind is TypeKind.DATE:
        day = _parsed(column_type, value, date.fromisoformat)
        if not isinstance(day, date) or isinstance(day, datetime):
            raise _no_value(column_type, value, _FORMS[kind])
        return day.toordinal() - _EPOCH_DAY
    moment = _parsed(column_type, value, datetime.fromisoformat)
    has_zone = kind is TypeKind.TIMESTAMPTZ
    if not isinstance(moment, datetime) or (moment.tzinfo is not None) != has_zone:
        raise _no_value(column_type, value, _FORMS[kind])
    since = (moment if has_zone else moment.replace(tzinfo=UTC)) - _EPOCH
    microseconds = (since.days * _DAY + since.seconds) * _SECOND_US + since.microseconds
    in_unit = _in_unit(column_type, value, microseconds)
    if not has_zone:
        return in_unit
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _time(column_type: ColumnType, value: object) -> int:
    if value == _END_OF_DAY:
        return _in_unit(column_type, value, _DAY * _SECOND_US)
    of_day = _parsed(column_type, value, time.fromisoformat)
    if not isinstance(of_day, time) or of_day.tzinfo is not None:
        raise _no_value(column_type, value, _FORMS[TypeKind.TIME])
    seconds = of_day.hour * 3600 + of_day.minute * 60 + of_day.second
    return _in_unit(column_type, value, seconds * _SECOND_US + of_day.microsecond)


def _parsed(column_type: ColumnType, value: object, parse: Callable[[str], object]) -> object:
    """Returns the parsed text; other values stay the same."""
    if not isinstance(value, str):
        return value
    try:
        return parse(value)
    except ValueError:
        raise _no_value(column_type, value, _FORMS[column_type.kind]) from None


_FORMS: Final = {
    TypeKind.DATE: "write it like 2026-11-21",
    TypeKind.TIME: "write it like 10:11:12.5",
    TypeKind.TIMESTAMP: "write it like 2026-11-21 10:11:12.5, without a time zone",
    TypeKind.TIMESTAMPTZ: "write it like 2026-11-21T10:11:12.5Z, with a time zone",
}


def _in_unit(column_type: ColumnType, value: object, microseconds: int) -> int:
    """Converts microseconds to the unit in which a connector writes them."""
    digits = _SECOND_DIGITS if column_type.precision is None else column_type.precision
    if microseconds % 10 ** (_SECOND_DIGITS - digits):
        raise _no_value(column_type, value, f"it has more than {digits} digits of a second")
    return microseconds // 1000 if column_type.is_millisecond else microseconds


def _no_value(column_type: ColumnType, value: object, reason: str = "") -> ValueError:
    shown = str(value) if isinstance(value, Decimal | date | time | UUID) else repr(value)
    return ValueError(
        f"{shown} is not a value of type {column_type.name}" + (f": {reason}" if reason else "")
    )
