"""Values of any column as text, also those that no other type of Spark holds."""

from datetime import date
from typing import Any, Final

import msgspec

from slackwater_sql.column_type import TIME_KINDS, ColumnType, TypeKind

_MINUS, _PLUS = "-infinity", "infinity"
INFINITE_DAYS: Final = {-2_147_472_691: _MINUS, 2_146_033_979: _PLUS}
"""What Debezium writes for infinite dates."""
INFINITE_TIMES: Final = {
    -9_223_372_036_832_400_000: _MINUS,
    9_223_372_036_825_200_000: _PLUS,
    -(2**63): _MINUS,
    2**63 - 1: _PLUS,
}
"""What Debezium writes for infinite timestamps, in milliseconds and in microseconds."""

_DAY_US: Final = 86_400_000_000
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_CYCLE_DAYS: Final = 146_097
_CYCLE_YEARS: Final = 400
"""The Gregorian calendar repeats after so many years."""


def value_text(column_type: ColumnType, raw: bytes) -> str | None:
    """A JSON value as text: strings as they are, dates and times as PostgreSQL writes them, else JSON."""
    value = msgspec.json.decode(raw)
    if isinstance(value, int) and column_type.kind in TIME_KINDS:
        return wire_text(column_type, value)
    return value if value is None or isinstance(value, str) else raw.decode()


def wire_text(column_type: ColumnType, value: Any) -> str:
    """A wire value as text, likewise."""
    if column_type.kind is TypeKind.DATE:
        return INFINITE_DAYS.get(value) or date_text(value)
    if column_type.kind in TIME_KINDS:
        microseconds = value * 1000 if column_type.is_millisecond else value
        if column_type.kind is TypeKind.TIME:
            return time_text(microseconds)
        return INFINITE_TIMES.get(value) or timestamp_text(microseconds)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def date_text(days: int) -> str:
    """A date so many days after 1970-01-01, in any year: ``2026-11-21``, ``0044-03-15 BC``."""
    cycles, day = divmod(days + _EPOCH_DAY - 1, _CYCLE_DAYS)
    of_cycle = date.fromordinal(day + 1)
    year = of_cycle.year + cycles * _CYCLE_YEARS
    era = "" if year > 0 else " BC"
    return f"{year if year > 0 else 1 - year:04d}-{of_cycle:%m-%d}{era}"


def timestamp_text(microseconds: int) -> str:
    """A time so long after 1970-01-01: ``2026-11-21 10:11:12.5``."""
    days, of_day = divmod(microseconds, _DAY_US)
    text, _, era = date_text(days).partition(" ")
    return f"{text} {time_text(of_day)}" + (f" {era}" if era else "")


def time_text(microseconds: int) -> str:
    """A time of day: ``10:11:12.5``, ``24:00:00``."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text + (f".{fraction:06d}".rstrip("0") if fraction else "")
