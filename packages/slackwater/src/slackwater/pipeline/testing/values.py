"""Converts plain values, as people and tests write them, to the values of Debezium's records."""

import json
import math
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

import msgspec

from slackwater.sql.column_type import FLOAT_KINDS, INTEGER_KINDS, ColumnType, TypeKind

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
    if kind is TypeKind.NUMERIC:
        return _numeric(column_type, value)
    if kind is TypeKind.JSON:
        return _json(column_type, value)
    if kind is TypeKind.BYTEA:
        return _bytes(column_type, value)
    if kind in (TypeKind.DATE, TypeKind.TIME, TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ):
        return _moment(column_type, value)
    if kind is TypeKind.UUID:
        try:
            return str(value if isinstance(value, UUID) else UUID(_text(column_type, value)))
        except ValueError:
            raise _no_value(column_type, value) from None
    return _text(column_type, value)


def _text(column_type: ColumnType, value: object) -> str:
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


def _json(column_type: ColumnType, value: object) -> str:
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
