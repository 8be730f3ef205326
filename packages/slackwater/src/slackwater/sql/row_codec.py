"""Rows: from Debezium's JSON to typed tuples, to the compact bytes that stages keep, and to text.

Text can also represent values that no other type of Spark can.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import Any, Final

import msgspec

from slackwater.sql.catalog import FLOAT_KINDS, INTEGER_KINDS, TIME_KINDS, Column, ColumnType, Table, TypeKind
from slackwater.sql.errors import RowContradictsSchemaError
from slackwater.sql.value_forms import (
    Check,
    LostValueError,
    check_of,
    forms_of,
    in_form,
    in_unknown_form,
    regular_wire,
)

WireRow = tuple[Any, ...]
"""Wire values in the codec's column order: int, float, str, bool, list or None, as in the record's JSON."""

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""The placeholder that Debezium writes for an unchanged value that the database omitted from its log."""

_UNAVAILABLE_BASE64: Final = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
_UNAVAILABLE_HSTORE: Final = f'{{"{UNAVAILABLE}":"{UNAVAILABLE}"}}'
_UNAVAILABLE_UUID: Final = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
_SHOWN_CHARACTERS = 80
_MISSING_FIELD = re.compile(r"missing required field `(?P<name>.*)`\Z")
_PATH = re.compile(r"at `\$\.(?P<name>.*?)(\[[0-9.]*\])*`\Z", re.DOTALL)

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
"""The number of years after which the Gregorian calendar repeats."""


def placeholders_of(column_type: ColumnType) -> tuple[Any, ...]:
    """Returns the wire values that a record contains in place of a value of this type that it omits.

    A change omits a value that is stored out of line (TOAST) and that it does not change.
    """
    if not column_type.may_be_unavailable:
        return ()
    if column_type.kind is TypeKind.BYTEA:
        return (_UNAVAILABLE_BASE64,)
    if column_type.element is None:
        own = (_UNAVAILABLE_HSTORE,) if column_type.name == "hstore" else ()  # but not for a domain over it
        return (UNAVAILABLE, *own)
    if column_type.element.kind is TypeKind.BYTEA:
        return ([_UNAVAILABLE_BASE64],)
    if column_type.element.kind is TypeKind.UUID:
        return ([_UNAVAILABLE_UUID],)
    if column_type.element.kind in INTEGER_KINDS | TIME_KINDS:
        return (list(UNAVAILABLE.encode()),)
    return ([UNAVAILABLE],)


class RowCodec:
    """Decodes and encodes the needed columns of one table's rows.

    An integer is not accepted as a number with a point, nor NULL as a value. Threads may share a codec, whose
    only state is the schemas it has seen. Methods raise only what they document.
    """

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        """Creates a codec for these declared columns of supported types, in this order."""
        self.table: Final = table
        self.columns: Final = tuple(_declared(table, name) for name in columns)
        self._by_schema: dict[bytes, RowCodec] = {}
        self._decode_json = msgspec.json.Decoder(row_struct(self.columns)).decode
        self._to_tuple = msgspec.structs.astuple
        self._pack = msgspec.msgpack.Encoder().encode
        self._unpack = msgspec.msgpack.Decoder(tuple).decode
        self._unpack_many = msgspec.msgpack.Decoder(list[tuple]).decode  # type: ignore[type-arg]
        self._float_positions = tuple(
            position
            for position, column in enumerate(self.columns)
            if (column.type.element or column.type).kind in FLOAT_KINDS
        )
        self._checks = tuple((n, check) for n, c in enumerate(self.columns) if (check := check_of(c.type)))
        self._placeholders = tuple(
            (position, placeholders)
            for position, column in enumerate(self.columns)
            if (placeholders := placeholders_of(column.type))
        )

    def of_schema(self, schema: bytes | None) -> "RowCodec":
        """Returns the codec for records with this Connect schema; this codec for None.

        Each schema is checked once.

        Raises:
            RowContradictsSchemaError: The schema gives a column's values an unsupported form.
        """
        if schema is None:
            return self
        codec = self._by_schema.get(schema)
        if codec is None:
            table = replace(self.table, columns=tuple(columns_in_forms(self.table, self.columns, schema)))
            codec = self._by_schema[schema] = RowCodec(table, [column.name for column in self.columns])
        return codec

    def decode(self, raw: bytes | memoryview, *, is_snapshot: bool = False) -> WireRow:
        """Returns the columns' values in `raw`, the JSON object of Debezium's `before` or `after`.

        In rows of snapshots, some values have another form.

        Raises:
            RowContradictsSchemaError: The row does not match the table's declaration.
        """
        try:
            row = self._to_tuple(self._decode_json(raw))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._contradiction(bytes(raw), error) from error
        row = self._checked(row, is_snapshot) if self._checks else row
        return self._with_real_floats(row) if self._float_positions else row

    def encode(self, row: WireRow) -> bytes:
        """Returns the row as compact bytes; equal rows of one codec give equal bytes."""
        return self._pack(row)

    def unpack(self, packed: bytes) -> WireRow:
        """Returns the row that was passed to `encode`."""
        return self._unpack(packed)

    def unpack_columns(self, packed: Sequence[bytes]) -> list[Sequence[Any]]:
        """Returns the rows' values as one list per column, as the evaluator expects them."""
        if not packed:
            return [[] for _ in self.columns]
        header = b"\xdd" + len(packed).to_bytes(4, "big")
        return list(zip(*self._unpack_many(header + b"".join(packed)), strict=True))

    def has_unavailable(self, row: WireRow) -> bool:
        """Whether the record omits a value because the change left it as it was."""
        return any(row[position] in placeholders for position, placeholders in self._placeholders)

    def unavailable(self, row: WireRow) -> tuple[str, ...]:
        """Returns the names of the columns whose values the record omits."""
        return tuple(self.columns[n].name for n, placeholders in self._placeholders if row[n] in placeholders)

    def merge(self, row: WireRow, previous: WireRow) -> WireRow:
        """Returns the row with its omitted values taken from the previous version of the row."""
        merged = list(row)
        for position, placeholders in self._placeholders:
            if row[position] in placeholders:
                merged[position] = previous[position]
        return tuple(merged)

    def _checked(self, row: WireRow, is_snapshot: bool) -> WireRow:
        """Repairs or refuses values that the connector writes as other values."""
        checked = list(row)
        for position, check in self._checks:
            if row[position] is not None:
                checked[position] = self._meant(position, check, row[position], is_snapshot)
        return tuple(checked)

    def _meant(self, position: int, check: Check, value: Any, is_snapshot: bool) -> Any:
        try:
            return check(value, is_snapshot)
        except LostValueError as error:
            got, name = _shown(msgspec.json.encode(value)), self.columns[position].name
            raise RowContradictsSchemaError(
                self.table.full_name, name, error.expected, got, error.hint
            ) from error

    def _with_real_floats(self, row: WireRow) -> WireRow:
        """Converts not-a-number and infinities, which are strings because JSON has no such numbers."""
        if not any(isinstance(row[position], (str, list)) for position in self._float_positions):
            return row
        return tuple(
            _real_float(value) if position in self._float_positions else value
            for position, value in enumerate(row)
        )

    def _contradiction(self, raw: bytes, error: Exception) -> RowContradictsSchemaError:
        table, message = self.table.full_name, str(error)
        if missing := _MISSING_FIELD.search(message):
            expected = self._expected(missing["name"])
            return RowContradictsSchemaError(table, missing["name"], expected, "no such field")
        path = _PATH.search(message)
        try:
            row = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return RowContradictsSchemaError(table, "", f"a JSON object ({message})", _shown(raw))
        if path is None or not isinstance(row, dict):
            return RowContradictsSchemaError(table, "", "a JSON object", _shown(raw))
        got = _shown(msgspec.json.encode(row.get(path["name"])))
        return RowContradictsSchemaError(table, path["name"], self._expected(path["name"]), got)

    def _expected(self, name: str) -> str:
        column = next(column for column in self.columns if column.name == name)
        null = " or null" if column.nullable else " (NOT NULL)"
        return f"{column.type} as {column.type.expected}{null}"


def columns_in_forms(table: Table, columns: Iterable[Column], schema: bytes) -> Iterator[Column]:
    """Yields columns of a table. Those whose form a record's Connect schema confirms need no other proof.

    Raises:
        RowContradictsSchemaError: The schema gives a column's values an unsupported form.
    """
    forms = forms_of(schema)
    for column in columns:
        form = forms.get(column.name)
        try:
            yield replace(column, type=in_form(column.type, form))
        except LostValueError as error:
            got = f"values of the type {form}, as the record's schema says"
            raise RowContradictsSchemaError(
                table.full_name, column.name, error.expected, got, error.hint
            ) from error


def in_unknown_forms(table: Table) -> Table:
    """Returns a table whose values have to prove their form, because the configuration is unknown."""
    columns = tuple(replace(column, type=in_unknown_form(column.type)) for column in table.columns)
    return replace(table, columns=columns)


def _declared(table: Table, name: str) -> Column:
    column = table.column(name)
    if column is None or not column.type.is_supported:
        msg = f"{table.full_name} has no column {name} of a supported type"
        raise ValueError(msg)
    return column


def row_struct(columns: Iterable[Column], *, is_regular: bool = False) -> type[msgspec.Struct]:
    """Returns a struct with fields c0, c1, … for the columns, whatever characters their names have.

    Regular values need no check.
    """
    columns = tuple(columns)
    wires = [regular_wire(column.type) if is_regular else column.type.wire for column in columns]
    fields = [
        (
            f"c{index}",
            wire | None if column.nullable else wire,
            *([column.absent] if column.was_added else []),
        )
        for index, (column, wire) in enumerate(zip(columns, wires, strict=True))
    ]
    rename = {f"c{index}": column.name for index, column in enumerate(columns)}
    return msgspec.defstruct("Row", fields, rename=rename, kw_only=True, gc=False)


def _real_float(value: Any) -> Any:
    if isinstance(value, list):
        return [_real_float(element) for element in value]
    return float(value) if isinstance(value, str) else value


def _shown(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def value_text(column_type: ColumnType, raw: bytes, *, is_snapshot: bool = False) -> str | None:
    """Returns a JSON value as text: strings unchanged, dates and times as in PostgreSQL, the rest as JSON.

    Raises:
        LostValueError: The connector may have written it for another value.
    """
    value = msgspec.json.decode(raw)
    is_checked = isinstance(value, (int, list)) and column_type.kind is not TypeKind.INTERVAL
    if is_checked and (check := check_of(column_type)) is not None:
        value = check(value, is_snapshot)
    if isinstance(value, int) and column_type.kind in TIME_KINDS:
        return wire_text(column_type, value)
    return value if value is None or isinstance(value, str) else raw.decode()


def wire_text(column_type: ColumnType, value: Any) -> str:
    """Returns a wire value as text, in the same forms as `value_text`."""
    if column_type.kind is TypeKind.DATE:
        return INFINITE_DAYS.get(value) or date_text(value)
    if column_type.kind in TIME_KINDS:
        microseconds = value * 1000 if column_type.is_millisecond else value
        if column_type.kind is TypeKind.TIME:
            return time_text(microseconds)
        return INFINITE_TIMES.get(value) or timestamp_text(microseconds)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def date_text(days: int) -> str:
    """Returns the date that is this many days after 1970-01-01: ``2026-11-21``, ``0044-03-15 BC``."""
    cycles, day = divmod(days + _EPOCH_DAY - 1, _CYCLE_DAYS)
    of_cycle = date.fromordinal(day + 1)
    year = of_cycle.year + cycles * _CYCLE_YEARS
    era = "" if year > 0 else " BC"
    return f"{year if year > 0 else 1 - year:04d}-{of_cycle:%m-%d}{era}"


def timestamp_text(microseconds: int) -> str:
    """Returns the timestamp that is this long after 1970-01-01: ``2026-11-21 10:11:12.5``."""
    days, of_day = divmod(microseconds, _DAY_US)
    text, _, era = date_text(days).partition(" ")
    return f"{text} {time_text(of_day)}" + (f" {era}" if era else "")


def time_text(microseconds: int) -> str:
    """Returns a time of day: ``10:11:12.5``, ``24:00:00``."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text + (f".{fraction:06d}".rstrip("0") if fraction else "")
