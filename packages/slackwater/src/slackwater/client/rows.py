"""Encodes rows of Python values as JSON, in the format in which Debezium writes PostgreSQL's types."""

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from slackwater.protocol import ConfigError

Row = Mapping[str, Any]
"""Values by column."""

_encode = msgspec.json.Encoder().encode
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a timestamp without a time zone is counted from here
_EPOCH_DAY: Final = _EPOCH.toordinal()
_US: Final = timedelta(microseconds=1)
_PLAIN: Final = frozenset((type(None), bool, str))
_MAX_INTEGER: Final = 2**63


def encode_row(row: Row) -> bytes:
    """Returns a row as a JSON object.

    Numbers, strings, booleans and None keep their form. All other values are encoded as Debezium does it: a
    ``date`` as days since 1970; a ``time``, a ``timedelta`` and a ``datetime`` without time zone as
    microseconds; a ``datetime`` with time zone as a string in UTC; ``Decimal`` and ``UUID`` as strings;
    ``bytes`` as Base64; a ``dict`` as the string of a JSON column; a list or tuple as an array.

    Raises:
        ConfigError: A value cannot be encoded; the error names its column.
    """
    for value in row.values():
        if type(value) not in _PLAIN:
            row = {name: _wire(name, value) for name, value in row.items()}
            break
    try:
        return _encode(row)
    except (TypeError, OverflowError, UnicodeEncodeError, ValueError) as error:
        raise ConfigError(f"a row cannot be written: {error}", "") from error


def _wire(name: str, value: Any) -> Any:
    """Returns the value of a column as a JSON value."""
    kind = type(value)
    if kind in _PLAIN or (kind is int and -_MAX_INTEGER <= value < _MAX_INTEGER):
        return value
    if kind is list or kind is tuple:
        return [_wire(name, each) for each in value]
    convert = _FORMS.get(kind)
    if convert is None:
        known = ", ".join(each.__name__ for each in (int, *_FORMS))
        hint = f"use None, bool, str, list or {known}; use Decimal for integers of more than 64 bits"
        raise ConfigError(f"column {name!r} has the value {value!r}, which cannot be written", hint)
    return convert(value)


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _time(value: time) -> int:
    of_day = timedelta(
        hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond
    )
    return of_day // _US


def _datetime(value: datetime) -> int | str:
    if value.tzinfo is None:
        return (value - _EPOCH) // _US
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _decimal(value: Decimal) -> str:
    return format(value, "f")


_FORMS: Final[Mapping[type, Callable[[Any], Any]]] = {
    float: _float,
    Decimal: _decimal,
    datetime: _datetime,
    date: lambda value: value.toordinal() - _EPOCH_DAY,
    time: _time,
    timedelta: lambda value: value // _US,
    bytes: msgspec.to_builtins,
    dict: lambda value: _encode(value).decode(),
    UUID: str,
}
