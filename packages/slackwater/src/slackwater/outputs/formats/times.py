"""Dates and times of documents as the integers that Avro uses for them. Pure.

DuckDB's dates and times have a range far beyond the years 1 to 9999, and include infinity. Each has its
integer, which is the one that DuckDB itself stores.
"""

import re
from datetime import UTC, date, datetime
from typing import Final

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - of timestamps without a time zone
_DATE: Final = re.compile(r"(-?\d+)-(\d\d)-(\d\d)(.*)", re.DOTALL)
_BEFORE_CHRIST: Final = " (BC)"
_FRACTION_DIGITS: Final = 6
_DAY_US: Final = 86_400_000_000
_DAYS_OF_ERA: Final = 146_097
"""The number of days in 400 years."""
_DAYS_BEFORE_EPOCH: Final = 719_468
"""The number of days from 1 March of the year 0 to 1 January 1970."""
_PLAIN_DATE: Final = len("2026-11-20")
_PLAIN_TIMESTAMP: Final = len("2026-11-20T10:11:12.123456")
_INFINITE_DAYS: Final = {"infinity": 2**31 - 1, "-infinity": -(2**31) + 1}
_INFINITE_MICROSECONDS: Final = {"infinity": 2**63 - 1, "-infinity": -(2**63) + 1}


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
    if len(text) == _PLAIN_TIMESTAMP and text[4] == "-":
        past = datetime.fromisoformat(text) - _NAIVE_EPOCH
        return (past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds
    if len(text) == _PLAIN_TIMESTAMP + 1 and text[-1] == "Z" and text[4] == "-":
        past = datetime.fromisoformat(text) - _EPOCH
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
    shifted = year - (month <= 2)
    era, year_of_era = divmod(shifted, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * _DAYS_OF_ERA + day_of_era - _DAYS_BEFORE_EPOCH
