"""Values that records contain in another form than the database, although they match the declaration.

A connector writes some values as another value of the same type: a date BC as one AD, an array of several
dimensions as NULLs. Such a value is repaired if it can be recognised, otherwise refused by
name. A value that could also be a correct one is refused, too.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Final, get_args

import msgspec
from msgspec import Meta

from slackwater.sql.catalog import ColumnType, TypeKind

Check = Callable[[Any, bool], Any]
"""Returns the value that a wire value means, given whether it is in a row of a snapshot.

Raises:
    LostValueError: It cannot be known.
"""

_DAY_MS: Final = 86_400_000
_GREGORIAN_DAY: Final = -141_417
_GREGORIAN_TEXT: Final = "1582-10-25"
"""Java's calendar differs before 1582-10-15, and shows the ten days that it lacks as later ones."""

_FIRST_MS: Final = -211_000_000_000_000
"""PostgreSQL has no earlier timestamps: what seems earlier is later, and overflowed in the connector."""
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
_PART: Final = re.compile(r"(-?[0-9.]+)([YMDHS])")
_SHOWN_AS_NULL: Final = frozenset({"citext", "hstore"})
_SHOWN_AS_OBJECTS: Final = frozenset({TypeKind.TEXT, TypeKind.JSON, TypeKind.UUID})
_OF_DAY: Final = r"T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?Z"
_LATER_TEXT: Final = rf"\A(1[6-9]|[2-9][0-9])[0-9]{{2}}-[0-9]{{2}}-[0-9]{{2}}{_OF_DAY}\Z"
_USUAL_TEXT: Final = rf"\A(-?infinity|-?[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}{_OF_DAY})\Z"

_OTHER_DATES: Final = (
    f"from {_GREGORIAN_TEXT} on, because Debezium writes earlier dates as other dates, and years BC as "
    "years AD"
)
_BETWEEN_FORMS: Final = 10**14
"""In milliseconds the year 5138, in microseconds 1973: no current timestamp is this large in both forms."""
_BASE64_CHARACTERS: Final = 4
_HEXADECIMAL: Final = re.compile(r"([0-9a-f]{2})+\Z")
_URL_HINT: Final = (
    "Set connect.url, for the run or for the sidecar, or connect.properties, so that the connector's "
    "configuration is known, and start the pipeline again"
)
_FORM_HINT: Final = (
    "Correct the configuration (slackwater connector check says how), then take a new snapshot of the "
    "tables: records that are in the topics already keep their form"
)
_LAST_YEAR: Final = 294_246
_RANGE: Final = f"a timestamp up to the year {_LAST_YEAR}"
_ONE_DIMENSION: Final = (
    "an array of one dimension, because Debezium writes NULL or an address instead of inner arrays"
)
_DATE_HINT: Final = "Give the column the type timestamp, whose values are exact, or leave it out of the views"
_ARRAY_HINT: Final = "Keep such values in rows instead of an array, or leave the column out of the views"
_OVERFLOW_HINT: Final = "Correct the row, or leave the column out of the views"


class LostValueError(ValueError):
    """A connector does not write the value correctly.

    Attributes:
        expected: Which values it writes.
        hint: What to do.
    """

    def __init__(self, expected: str, hint: str) -> None:
        super().__init__(expected, hint)
        self.expected = expected
        self.hint = hint


def in_unknown_form(column_type: ColumnType) -> ColumnType:
    """Returns the type whose values have to prove their form, because the configuration is unknown."""
    element = column_type.element
    return replace(
        column_type, is_form_known=False, element=None if element is None else in_unknown_form(element)
    )


class _Schema(msgspec.Struct, gc=False):
    """A part of a Connect schema, as JSON."""

    type: Any = None
    name: str | None = None
    field: str | None = None
    fields: "list[_Schema]" = []
    items: "_Schema | None" = None


_decode_schema: Final = msgspec.json.Decoder(_Schema).decode


def forms_of(schema: bytes) -> Mapping[str, str]:
    """Returns the forms of a row's values by column: names of Connect's types, with [] for arrays.

    The schema is the Connect schema of a change event, as JSON. For any other schema, no forms are known.
    """
    try:
        event = _decode_schema(schema)
    except msgspec.DecodeError:
        return {}
    return {
        column.field: form
        for part in event.fields
        if part.field == "after"
        for column in part.fields
        if column.field is not None and (form := _form_of(column))
    }


def _form_of(schema: _Schema) -> str:
    if schema.items is not None:
        return f"{_form_of(schema.items)}[]"
    return schema.name or (schema.type if isinstance(schema.type, str) else "")


def in_form(column_type: ColumnType, form: str | None) -> ColumnType:
    """Returns the type with a known form if a record's schema confirms the form that is supported.

    Raises:
        LostValueError: The schema states another form.
    """
    wanted = _form_read(column_type)
    if not form or wanted is None or ("." in wanted and "." not in form):
        return column_type  # a converter may leave names out
    if form != wanted:
        raise LostValueError(f"{column_type} as {column_type.expected}", _FORM_HINT)
    element = column_type.element
    return replace(column_type, is_form_known=True, element=element and replace(element, is_form_known=True))


def _form_read(column_type: ColumnType) -> str | None:
    """Returns the supported form; None if all forms are the same or have another JSON type."""
    if column_type.element is not None:
        wanted = _form_read(column_type.element)
        return None if wanted is None else f"{wanted}[]"
    return _FORMS_READ.get((column_type.kind, column_type.is_millisecond)) or _FORMS_READ.get(
        (column_type.kind, False)
    )


def check_of(column_type: ColumnType) -> Check | None:
    """Returns the check of a column's values, except NULL; None if none is needed."""
    if column_type.element is not None:
        return _array_check(column_type.element)
    check = _check_of_known(column_type)
    return check if column_type.is_form_known else _check_of_unknown(column_type, check)


def _check_of_unknown(column_type: ColumnType, check: Check | None) -> Check | None:
    """Returns the check of values of unknown form: a value that another form may contain is refused."""
    has_other_form = _OTHER_FORMS.get(column_type.kind)
    if has_other_form is None:
        return check

    def checked(value: Any, is_snapshot: bool) -> Any:
        if has_other_form(column_type, value):
            raise LostValueError(
                f"{column_type} as {column_type.expected}, in no form but this one", _URL_HINT
            )
        return value if check is None else check(value, is_snapshot)

    return checked


def _check_of_known(column_type: ColumnType) -> Check | None:
    if column_type.kind is TypeKind.DATE:
        return lambda days, is_snapshot: (
            _date(days, "dates in snapshots", _DATE_HINT) if is_snapshot else days
        )
    if column_type.kind is TypeKind.TIMESTAMP:
        return lambda value, _: _timestamp(column_type, value)
    if column_type.kind is TypeKind.TIMESTAMPTZ:
        return lambda text, _: _zoned(text)
    if column_type.kind is TypeKind.BIT:
        return lambda value, _: _bits(column_type, value)
    return (lambda text, _: _duration(text)) if column_type.kind is TypeKind.INTERVAL else None


def _bits(column_type: ColumnType, value: bool | str) -> str:
    """Returns a bit string, which a connector writes without its length."""
    length = column_type.precision or 1
    number = int(value) if isinstance(value, bool) else int.from_bytes(b64decode(value), "little")
    if number >> length:
        raise LostValueError(f"{column_type} as {column_type.expected}", _FORM_HINT)
    return f"{number:0{length}b}"


def _duration(text: str) -> str:
    """Returns a duration as DuckDB reads it, in the three parts that it has in the database."""
    date, _, time = text.partition("T")
    parts = {letter: Decimal(number) for number, letter in _PART.findall(date)}
    of_day = {letter: Decimal(number) for number, letter in _PART.findall(time)}
    months = parts.get("Y", 0) * 12 + parts.get("M", 0)
    seconds = (of_day.get("H", 0) * 60 + of_day.get("M", 0)) * 60 + of_day.get("S", 0)
    return f"{months} months {parts.get('D', 0)} days {int(seconds * 1_000_000)} microseconds"


def _array_check(element: ColumnType) -> Check:
    is_shown = element.kind in _SHOWN_AS_OBJECTS and element.name not in _SHOWN_AS_NULL
    has_inner = _has_object if is_shown else _has_nulls
    check = _ELEMENT_CHECKS.get(element.kind)
    has_other_form = None if element.is_form_known else _OTHER_FORMS.get(element.kind)

    def checked(values: list[Any], _: bool) -> list[Any]:
        if has_inner(values):
            raise LostValueError(_ONE_DIMENSION, _ARRAY_HINT)
        if has_other_form and any(value is not None and has_other_form(element, value) for value in values):
            raise LostValueError(f"elements as {element.expected}, in no form but this one", _URL_HINT)
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
    raise LostValueError(_RANGE, _OVERFLOW_HINT)


def _zoned(text: str) -> str:
    if text.startswith("+") and int(text[1 : text.index("-")]) > _LAST_YEAR:
        raise LostValueError(_RANGE, _OVERFLOW_HINT)
    return text


def _timestamp_has_other_form(column_type: ColumnType, value: int) -> bool:
    """Milliseconds of today are microseconds of 1970; the reverse is the year 50,000."""
    if value in (column_type.infinities or ()):
        return False
    return abs(value) >= _BETWEEN_FORMS if column_type.is_millisecond else 0 < abs(value) < _BETWEEN_FORMS


def _timestamp_element(element: ColumnType, value: int) -> int:
    earliest = _GREGORIAN_DAY * _DAY_MS * (1 if element.is_millisecond else 1000)
    if value < earliest and value not in (element.infinities or ()):
        raise LostValueError(f"elements {_OTHER_DATES}", _ARRAY_HINT)
    return _timestamp(element, value)


def _zoned_element(_: ColumnType, text: str) -> str:
    is_early = text < _GREGORIAN_TEXT if text[0].isdigit() else text.startswith("-0")
    if is_early:
        raise LostValueError(f"elements {_OTHER_DATES}", _ARRAY_HINT)
    return _zoned(text)


_ELEMENT_CHECKS: Final[Mapping[TypeKind, Callable[[ColumnType, Any], Any]]] = {
    TypeKind.DATE: lambda _, days: _date(days, "elements", _ARRAY_HINT),
    TypeKind.TIMESTAMP: _timestamp_element,
    TypeKind.TIMESTAMPTZ: _zoned_element,
}


_OTHER_FORMS: Final[Mapping[TypeKind, Callable[[ColumnType, Any], bool]]] = {
    TypeKind.TIMESTAMP: _timestamp_has_other_form,
    # Milliseconds of any time of day are microseconds of the first 86 seconds of the day.
    TypeKind.TIME: lambda of, value: not of.is_millisecond and 0 < value <= _DAY_MS,
    # Texts in hexadecimal may also be base64.
    TypeKind.BYTEA: lambda _, text: _HEXADECIMAL.match(text) is not None,
    # Texts of digits may also be base64, which has four characters for three bytes.
    TypeKind.NUMERIC: lambda _, text: text.isdigit() and len(text) % _BASE64_CHARACTERS == 0,
}
_FORMS_READ: Final[Mapping[tuple[TypeKind, bool], str]] = {
    (TypeKind.NUMERIC, False): "string",
    (TypeKind.BYTEA, False): "bytes",
    (TypeKind.DATE, False): "io.debezium.time.Date",
    (TypeKind.TIME, False): "io.debezium.time.MicroTime",
    (TypeKind.TIME, True): "io.debezium.time.Time",
    (TypeKind.TIMESTAMP, False): "io.debezium.time.MicroTimestamp",
    (TypeKind.TIMESTAMP, True): "io.debezium.time.Timestamp",
    (TypeKind.TIMESTAMPTZ, False): "io.debezium.time.ZonedTimestamp",
}
"""The supported form, by type and whether its values are in milliseconds."""


@lru_cache(maxsize=1024)
def regular_wire(column_type: ColumnType) -> Any:
    """Returns the msgspec type of a column's values in streamed records that need no check."""
    if column_type.element is not None:
        return _regular_array(column_type.element)
    if column_type.kind in _OTHER_FORMS and not column_type.is_form_known:
        return _proven(column_type)
    if column_type.kind is TypeKind.TIMESTAMP:
        return _at_least(_FIRST_MS, column_type)
    if column_type.kind is TypeKind.TIMESTAMPTZ:
        return Annotated[str, Meta(pattern=_USUAL_TEXT)]
    if column_type.kind in {TypeKind.BIT, TypeKind.INTERVAL}:
        return Annotated[str, Meta(pattern=r"\A(?!)")]  # none: each is converted
    return column_type.wire


def _proven(column_type: ColumnType) -> Any:
    """Returns a type that most values in the expected form match; the others are checked one by one."""
    if column_type.kind is TypeKind.NUMERIC:
        (_, meta) = get_args(column_type.wire)
        return Annotated[str, Meta(pattern=rf"(?!([0-9]{{{_BASE64_CHARACTERS}}})+\Z){meta.pattern}")]
    if column_type.kind is TypeKind.BYTEA:
        return Annotated[str, Meta(pattern=r"\A(?![0-9a-f]+\Z)")]
    if column_type.kind is TypeKind.TIME:
        first = 0 if column_type.is_millisecond else _DAY_MS + 1
        return Annotated[int, Meta(ge=first, le=_DAY_MS if column_type.is_millisecond else _DAY_MS * 1000)]
    if column_type.is_millisecond:
        return Annotated[int, Meta(ge=0, lt=_BETWEEN_FORMS)]
    return Annotated[int, Meta(ge=_BETWEEN_FORMS, le=_LAST_MS * 1000)]


def _regular_array(element: ColumnType) -> Any:
    """Returns a type of arrays without NULLs, early dates and possible names of Java objects."""
    if element.kind in _OTHER_FORMS and not element.is_form_known:
        return list[_proven(element)]  # type: ignore[misc]
    if element.kind in _SHOWN_AS_OBJECTS - {TypeKind.UUID}:
        return list[Annotated[str, Meta(pattern=r"\A(?!\[)")]]
    if element.kind is TypeKind.TIMESTAMPTZ:
        return list[Annotated[str, Meta(pattern=_LATER_TEXT)]]
    if element.kind is TypeKind.DATE:
        return list[Annotated[int, Meta(ge=_GREGORIAN_DAY, le=2**31 - 1)]]
    if element.kind is TypeKind.TIMESTAMP:
        first = _GREGORIAN_DAY * _DAY_MS
        return list[_at_least(first, element)]  # type: ignore[misc]
    return list[element.wire]  # type: ignore[name-defined]


def _at_least(first_ms: int, column_type: ColumnType) -> Any:
    unit = 1 if column_type.is_millisecond else 1000
    return Annotated[int, Meta(ge=first_ms * unit, le=_LAST_MS * unit)]
