"""Values that records do not contain as they are in the database, although they have the declared form.

A connector writes some values as another value of the same type: a date before Christ as one after Christ, an
array of several dimensions as NULLs. Such a value is repaired if it can be told apart, otherwise refused by
name. A value that an honest one has in common with a lost one is refused, too.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Final

from msgspec import Meta

from slackwater_sql.column_type import ColumnType, TypeKind

Check = Callable[[Any, bool], Any]
"""Returns the value that is meant by a wire value, given whether it is in a row of a snapshot.

Raises:
    LostValueError: It cannot be known.
"""

_DAY_MS: Final = 86_400_000
_GREGORIAN_DAY: Final = -141_417
_GREGORIAN_TEXT: Final = "1582-10-25"
"""Java's calendar has other dates before 1582-10-15, and shows the ten that it lacks as later ones."""

_FIRST_MS: Final = -211_000_000_000_000
"""PostgreSQL has no earlier timestamps: what seems earlier is late, and overflowed in the connector."""
_LAST_MS: Final = 9_223_372_036_854_775
"""The newest millisecond that microseconds in 64 bits can represent."""

_INFINITE_PAST: Final = -2_147_472_691
_JAVA_INFINITIES: Final = {
    _INFINITE_PAST: _INFINITE_PAST,
    -625_821_272: _INFINITE_PAST,
    -622_191_234: 2_146_033_979,
}
"""What snapshots and arrays contain for infinite dates; PostgreSQL has no finite date as early as these."""

_JAVA_OBJECT: Final = re.compile(r"\[+L?[\w.$]+;?@[0-9a-f]{1,8}\Z")
_SHOWN_AS_OBJECTS: Final = frozenset({TypeKind.TEXT, TypeKind.JSON, TypeKind.UUID})
_LATER_TEXT: Final = (
    r"\A(1[6-9]|[2-9][0-9])[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?Z\Z"
)

_OTHER_DATES: Final = (
    f"from {_GREGORIAN_TEXT} on, because Debezium writes earlier ones as others, years before Christ as "
    "years after Christ"
)
_ONE_DIMENSION: Final = (
    "an array of one dimension, because Debezium writes NULL or an address instead of inner arrays"
)
_DATE_HINT: Final = "Give the column the type timestamp, whose values are exact, or leave it out of the views"
_ARRAY_HINT: Final = "Keep such values in rows instead of an array, or leave the column out of the views"
_OVERFLOW_HINT: Final = "Correct the row, or leave the column out of the views"


class LostValueError(ValueError):
    """A connector does not write the value.

    Attributes:
        expected: Which values it writes.
        hint: What to do.
    """

    def __init__(self, expected: str, hint: str) -> None:
        super().__init__(expected, hint)
        self.expected = expected
        self.hint = hint


def check_of(column_type: ColumnType) -> Check | None:
    """Returns the check of a column's values that are not NULL; None if none is needed."""
    if column_type.element is not None:
        return _array_check(column_type.element)
    if column_type.kind is TypeKind.DATE:
        return lambda days, is_snapshot: (
            _date(days, "dates in snapshots", _DATE_HINT) if is_snapshot else days
        )
    if column_type.kind is TypeKind.TIMESTAMP:
        return lambda value, _: _timestamp(column_type, value)
    return None


def _array_check(element: ColumnType) -> Check:
    has_inner = _has_object if element.kind in _SHOWN_AS_OBJECTS and element.name != "citext" else _has_nulls
    check = _ELEMENT_CHECKS.get(element.kind)

    def checked(values: list[Any], _: bool) -> list[Any]:
        if has_inner(values):
            raise LostValueError(_ONE_DIMENSION, _ARRAY_HINT)
        if check is None:
            return values
        return [value if value is None else check(element, value) for value in values]

    return checked


def _has_nulls(values: list[Any]) -> bool:
    return bool(values) and all(value is None for value in values)


def _has_object(values: list[Any]) -> bool:
    return any(value is not None and _JAVA_OBJECT.match(value) for value in values)


def _date(days: int, what: str, hint: str) -> int:
    if days >= _GREGORIAN_DAY:
        return days
    if (infinite := _JAVA_INFINITIES.get(days)) is not None:
        return infinite
    raise LostValueError(f"{what} {_OTHER_DATES}", hint)


def _timestamp(column_type: ColumnType, value: int) -> int:
    unit = 1 if column_type.is_millisecond else 1000
    if _FIRST_MS * unit <= value <= _LAST_MS * unit or value in (column_type.infinities or ()):
        return value
    raise LostValueError("a timestamp from 4713 BC to 294246", _OVERFLOW_HINT)


def _date_element(_: ColumnType, days: int) -> int:
    return _date(days, "elements", _ARRAY_HINT)


def _timestamp_element(element: ColumnType, value: int) -> int:
    earliest = _GREGORIAN_DAY * _DAY_MS * (1 if element.is_millisecond else 1000)
    if value < earliest and value not in (element.infinities or ()):
        raise LostValueError(f"elements {_OTHER_DATES}", _ARRAY_HINT)
    return _timestamp(element, value)


def _zoned_element(_: ColumnType, text: str) -> str:
    is_early = text < _GREGORIAN_TEXT if text[0].isdigit() else text.startswith("-0")
    if is_early:
        raise LostValueError(f"elements {_OTHER_DATES}", _ARRAY_HINT)
    return text


_ELEMENT_CHECKS: Final[Mapping[TypeKind, Callable[[ColumnType, Any], Any]]] = {
    TypeKind.DATE: _date_element,
    TypeKind.TIMESTAMP: _timestamp_element,
    TypeKind.TIMESTAMPTZ: _zoned_element,
}


@lru_cache(maxsize=1024)
def regular_wire(column_type: ColumnType) -> Any:
    """Returns the msgspec type of a column's values in streamed records that need no check."""
    if column_type.element is not None:
        return _regular_array(column_type.element)
    if column_type.kind is TypeKind.TIMESTAMP:
        return _at_least(_FIRST_MS, column_type)
    return column_type.wire


def _regular_array(element: ColumnType) -> Any:
    """Arrays without NULLs, early dates and anything that may be Java's name of an object."""
    if element.kind in _SHOWN_AS_OBJECTS - {TypeKind.UUID}:
        return list[Annotated[str, Meta(pattern=r"\A(?!\[)")]]
    if element.kind is TypeKind.TIMESTAMPTZ:
        return list[Annotated[str, Meta(pattern=_LATER_TEXT)]]
    if element.kind is TypeKind.DATE:
        return list[Annotated[int, Meta(ge=_GREGORIAN_DAY, le=2**31 - 1)]]
    if element.kind is TypeKind.TIMESTAMP:
        return list[_at_least(_GREGORIAN_DAY * _DAY_MS, element)]  # type: ignore[misc]
    return list[element.wire]  # type: ignore[name-defined]


def _at_least(first_ms: int, column_type: ColumnType) -> Any:
    unit = 1 if column_type.is_millisecond else 1000
    return Annotated[int, Meta(ge=first_ms * unit, le=_LAST_MS * unit)]
