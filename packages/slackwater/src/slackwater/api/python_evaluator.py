"""A user's function instead of SQL: evaluates the rows part of a stage, key by key.

It receives rows as Python values. Its documents become JSON, exactly as views write theirs:

| Spark type | Python value | JSON |
|---|---|---|
| BOOLEAN, integers, STRING | bool, int, str | as they are |
| FLOAT, DOUBLE | float or int | number; not-a-number and infinities as text |
| DECIMAL | Decimal or int | text with all decimals of its scale |
| DATE | date | ``"2026-11-20"`` |
| TIMESTAMP_NTZ | datetime without time zone | ``"2026-11-20T10:11:12.123456"`` |
| TIMESTAMP | datetime with time zone | ``"2026-11-20T10:11:12.123456Z"`` |
| BINARY | bytes | base64 text |
| ARRAY | list or tuple | array |
| STRUCT | mapping | object, fields in the order of the type |
| MAP with STRING keys | mapping | object, sorted by key |
"""

import json
import math
import traceback
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from operator import itemgetter
from typing import Any, Final

import msgspec
from pyspark import cloudpickle
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from slackwater.pipeline.source.typed_rows import converter, value_out_of_range
from slackwater.protocol import InputError
from slackwater.sql.catalog import Column, ColumnType, TypeKind
from slackwater.sql.limits import StatementLimits
from slackwater.sql.plan import EnginePlan, InputPlan, KeyColumn, StagePlan
from slackwater.sql.row_codec import time_text, wire_text
from slackwater.sql.stage_evaluation import (
    OPEN_LSN,
    Failures,
    ResultPoints,
    ResultRows,
    RowVersions,
    key_text,
)

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]
"""The rows of a key by table, ordered by primary key. It contains every table of the stage."""

Document = Mapping[str, Any]
KeyFunction = Callable[[Any, Rows], Document | None]
"""Receives a key (its value; a tuple if it has several columns) and its rows; returns the key's document."""

Encode = Callable[[Any], Any]
"""Converts a value to a JSON value; raises ValueFault."""

_KeyRows = list[list[tuple[tuple[Any, ...], int, int]]]
"""The rows of one key, by input, as ``(wire row, from LSN, to LSN)``."""

_BITS: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_SHOWN_CHARACTERS: Final = 80
_LIVE: Final = (0, OPEN_LSN)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_US: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_PYTHON_TYPES: Final[dict[TypeKind, type]] = {
    TypeKind.NUMERIC: Decimal,
    TypeKind.DATE: date,
    TypeKind.TIMESTAMP: datetime,
    TypeKind.TIMESTAMPTZ: datetime,
    TypeKind.TIME: time,
    TypeKind.BYTEA: bytes,
}
"""The Python types of values that have no JSON type, which are int, float, bool, str and list."""


@dataclass(frozen=True, slots=True)
class PickledFunction:
    """A function as it is sent to the workers; see :class:`slackwater.engine.settings.Evaluators`."""

    stage: str
    pickled: bytes
    """Pickled in the same way as Spark pickles functions."""
    schema: str
    as_text: tuple[tuple[str, ...], ...]

    def rows(self, plan: EnginePlan, stage: StagePlan, limits: StatementLimits) -> "_PythonEvaluator":
        """Returns the evaluator of a stage's rows part."""
        assert stage.rows is not None  # noqa: S101 - this plan's only stage has one
        return _PythonEvaluator(self, stage.key, stage.rows.inputs)


class _PythonEvaluator:
    """Calls a function for each key at each point. Use it from one thread."""

    def __init__(
        self, function: PickledFunction, key: Sequence[KeyColumn], inputs: Sequence[InputPlan]
    ) -> None:
        self._name = function.stage
        self._function: KeyFunction = cloudpickle.loads(function.pickled)
        self._encode = encoder(StructType.fromJson(json.loads(function.schema)))
        self._key_names = [column.name for column in key]
        self._tables = [each.table.full_name for each in inputs]
        self._rows = [
            _PythonRows(each.table.full_name, each.columns, as_text)
            for each, as_text in zip(inputs, function.as_text, strict=True)
        ]
        self._order = [itemgetter(*each.primary_key_positions) for each in inputs]

    def at_points(
        self, versions: Sequence[RowVersions], points: ResultPoints, keys: Sequence[bytes]
    ) -> ResultRows:
        """Returns ``(point, key as JSON, document)`` for each point that has a document.

        Raises:
            InputError: the function raised, or returned something else than its type says; names the
                key and the LSN.
        """
        groups = self._groups(versions, len(keys))
        cases = (
            (
                point,
                number,
                [[r for r, first, end in each if first <= lsn < end] for each in groups[number]],
                lsn,
            )
            for point, (number, lsn) in enumerate(zip(points.groups, points.lsns, strict=True))
        )
        return self._results(cases, keys)

    def latest(
        self,
        rows: Sequence[RowVersions],
        keys: Sequence[bytes],
        lsn_of: Callable[[int], int],
        failures: Failures | None = None,
    ) -> ResultRows:
        """Returns ``(number of the key, key as JSON, document)`` for each key with a document of these rows.

        Raises the same errors as :meth:`at_points`.
        """
        groups = self._groups(rows, len(keys))
        cases = (
            (number, number, [[row for row, _, _ in of_input] for of_input in group], lsn_of(number))
            for number, group in enumerate(groups)
        )
        return self._results(cases, keys)

    def _results(
        self, cases: Iterable[tuple[int, int, list[list[tuple[Any, ...]]], int]], keys: Sequence[bytes]
    ) -> ResultRows:
        """Returns the documents of cases: a number, the key's number, its rows by input, and the LSN."""
        results: list[tuple[Any, ...]] = []
        for case, number, live, lsn in cases:
            document = self._document(keys[number], live, lsn)
            if document is not None:
                results.append((case, key_text(self._key_names, keys[number]), document))
        return results

    def _groups(self, versions: Sequence[RowVersions], count: int) -> list[_KeyRows]:
        groups: list[_KeyRows] = [[[] for _ in self._tables] for _ in range(count)]
        for number, of_input in enumerate(versions):
            for group, row, first, end in _version_rows(of_input):
                groups[group][number].append((row, first, end))
        return groups

    def _document(self, key: bytes, live: Sequence[list[tuple[Any, ...]]], lsn: int) -> bytes | None:
        if not any(live):
            return None
        values = tuple(msgspec.msgpack.decode(key))
        try:
            rows = {
                table: [make.row(row) for row in sorted(of_input, key=order)]
                for table, make, order, of_input in zip(
                    self._tables, self._rows, self._order, live, strict=True
                )
            }
            document = self._function(values[0] if len(values) == 1 else values, rows)
        except Exception as error:
            raise self._failed(key, lsn, error) from error
        if document is None:
            return None
        try:
            return msgspec.json.encode(self._encode(document))
        except ValueFault as fault:
            name = key_text(self._key_names, key)
            path = ".".join(fault.path).replace(".[", "[")
            what = f"field {path!r} of the document" if path else "the document"
            problem = (
                f"{what} that the function of stage {self._name!r} returned for key {name} at commit LSN "
                f"{lsn} does not match its schema: {fault.problem}"
            )
            raise InputError(problem) from None

    def _failed(self, key: bytes, lsn: int, error: Exception) -> InputError:
        said = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        problem = (
            f"the function of stage {self._name!r} failed for key {key_text(self._key_names, key)} at commit "
            f"LSN {lsn}: {said}; {_place(error, self._function)}"
        )
        hint = (
            "nothing is lost: correct the function or the row, and start the query again; it continues with "
            "this batch"
        )
        return InputError(problem, hint)


def _version_rows(of_input: RowVersions) -> Iterator[tuple[int, tuple[Any, ...], int, int]]:
    """Yields number of the key, row and the interval of LSNs in which it lives."""
    rows = zip(*of_input.columns, strict=True)
    if of_input.from_lsn is None or of_input.to_lsn is None:
        for group, row in zip(of_input.groups, rows, strict=True):
            yield group, row, *_LIVE
        return
    yield from zip(of_input.groups, rows, of_input.from_lsn, of_input.to_lsn, strict=True)


def _place(error: BaseException, function: KeyFunction) -> str:
    """Names the innermost line of the user's own file in the traceback, or otherwise the innermost line."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    code = getattr(function, "__code__", None)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    if not frames:
        return "before it was called"
    frame = (own or frames)[-1]
    text = f": {frame.line}" if frame.line else ""
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}{text}"


class _PythonRows:
    """Converts a table's wire rows to dicts. Columns in `as_text` become text."""

    def __init__(self, table: str, columns: Sequence[Column], as_text: Collection[str]) -> None:
        self._table = table
        self._columns = tuple(columns)
        self._names = tuple(column.name for column in columns)
        self._converters = [
            (n, convert)
            for n, column in enumerate(columns)
            if (convert := _text(column.type) if column.name in as_text else _converter(column.type))
        ]

    def row(self, wire: Sequence[Any]) -> dict[str, Any]:
        """Returns the row by column name."""
        values = list(wire)
        for position, convert in self._converters:
            value = values[position]
            if value is not None:
                try:
                    values[position] = convert(value)
                except ValueError as error:
                    column = self._columns[position]
                    python = _PYTHON_TYPES.get((column.type.element or column.type).kind, str)
                    holder = f"Python's {python.__name__}"
                    raise value_out_of_range(self._table, column, str(error), holder) from error
        return dict(zip(self._names, values, strict=True))


def _time(microseconds: int) -> time:
    if microseconds >= _DAY_US:
        raise ValueError(time_text(microseconds))
    return (_EPOCH + timedelta(microseconds=microseconds)).time()


_FROM_ARROW: Final[dict[TypeKind, Callable[[Any], Any]]] = {
    TypeKind.DATE: lambda days: date.fromordinal(days + _EPOCH_DAY),
    TypeKind.TIMESTAMP: lambda us: (_EPOCH + timedelta(microseconds=us)).replace(tzinfo=None),
    TypeKind.TIME: _time,
}


def _text(column_type: ColumnType) -> Callable[[Any], Any]:
    return lambda value: wire_text(column_type, value)


def _converter(column_type: ColumnType) -> Callable[[Any], Any] | None:
    if column_type.element is not None:
        of_element = _converter(column_type.element)
        if of_element is None:
            return None
        return lambda values: [None if value is None else of_element(value) for value in values]
    to_arrow, from_arrow = converter(column_type), _FROM_ARROW.get(column_type.kind)
    if to_arrow is None or from_arrow is None:
        return to_arrow or from_arrow
    return lambda value: from_arrow(to_arrow(value))


class ValueFault(Exception):
    """A value that its type cannot represent: the problem, and the path to the value from the outside."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.path: tuple[str, ...] = ()
        self.problem = problem


def encoder(data_type: DataType) -> Encode:
    """Returns the function that converts values of this type to JSON values; equal values become equal.

    Raises:
        ValueError: Documents cannot contain values of this type.
    """
    if type(data_type) in _BITS:
        return _integer(_BITS[type(data_type)])
    if isinstance(data_type, DecimalType):
        return _decimal(data_type.precision, data_type.scale)
    if isinstance(data_type, ArrayType):
        return _array(encoder(data_type.elementType), can_be_null=data_type.containsNull)
    if isinstance(data_type, StructType):
        return _struct(data_type.fields)
    if isinstance(data_type, MapType) and isinstance(data_type.keyType, StringType):
        return _map(encoder(data_type.valueType), can_be_null=data_type.valueContainsNull)
    simple = _SIMPLE.get(type(data_type))
    if simple is None:
        msg = f"documents cannot contain values of type {data_type.simpleString()}"
        raise ValueError(msg)
    return simple


def _fault(expected: str, value: object) -> ValueFault:
    shown = repr(value)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = shown[: _SHOWN_CHARACTERS - 1] + "…"
    return ValueFault(f"expected {expected}, got {shown} ({type(value).__name__})")


def _valid(expected: str, is_valid: Callable[[Any], bool], convert: Encode = lambda value: value) -> Encode:
    def encode(value: Any) -> Any:
        if not is_valid(value):
            raise _fault(expected, value)
        return convert(value)

    return encode


def _exactly(expected: str, *types: type, convert: Encode = lambda value: value) -> Encode:
    return _valid(expected, lambda value: type(value) in types, convert)


def _integer(bits: int) -> Encode:
    values = range(-(2 ** (bits - 1)), 2 ** (bits - 1))
    return _valid(f"an integer of {bits} bits", lambda value: type(value) is int and value in values)


def _decimal(precision: int, scale: int) -> Encode:
    unit = Decimal(1).scaleb(-scale)
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])
    expected = f"a Decimal of at most {precision - scale} digits before and {scale} after the point"

    def encode(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (Decimal, int)):
            raise _fault(expected, value)
        try:
            exact = Decimal(value).quantize(unit, context=context)
        except (Inexact, InvalidOperation):
            raise _fault(expected, value) from None
        if not exact.is_finite():
            raise _fault(expected, value)
        return f"{exact:f}" if exact else f"{abs(exact):f}"

    return encode


def _array(element: Encode, *, can_be_null: bool) -> Encode:
    def encode(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise _fault("a list", value)
        return [_checked(element, each, can_be_null, f"[{n}]") for n, each in enumerate(value)]

    return encode


def _struct(fields: list[StructField]) -> Encode:
    encoders = [(field.name, encoder(field.dataType), field.nullable) for field in fields]
    names = frozenset(field.name for field in fields)

    def encode(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _fault("a dict", value)
        if value.keys() != names:
            missing, surplus = sorted(names - value.keys()), sorted(map(str, value.keys() - names))
            said = [f"missing fields: {', '.join(missing)}"] if missing else []
            said += [f"unknown fields: {', '.join(surplus)}"] if surplus else []
            raise ValueFault("; ".join(said))
        return {name: _checked(each, value[name], can_be_null, name) for name, each, can_be_null in encoders}

    return encode


def _map(of_value: Encode, *, can_be_null: bool) -> Encode:
    def encode(value: Any) -> Any:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _fault("a dict with text keys", value)
        return {key: _checked(of_value, value[key], can_be_null, key) for key in sorted(value)}

    return encode


def _checked(encode: Encode, value: Any, can_be_null: bool, name: str) -> Any:
    try:
        if value is None:
            if not can_be_null:
                raise _fault("a value (NOT NULL)", value)
            return None
        return encode(value)
    except ValueFault as fault:
        fault.path = (name, *fault.path)
        raise


def _number(value: Any) -> Any:
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _moment(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _is_moment(value: Any, *, has_zone: bool) -> bool:
    return isinstance(value, datetime) and (value.tzinfo is not None) == has_zone


_FLOAT: Final = _exactly("a float", int, float, convert=_number)
_SIMPLE: Final[dict[type[DataType], Encode]] = {
    BooleanType: _exactly("True or False", bool),
    StringType: _exactly("text", str),
    FloatType: _FLOAT,
    DoubleType: _FLOAT,
    DateType: _exactly("a date", date, convert=date.isoformat),
    TimestampNTZType: _valid("a datetime without time zone", partial(_is_moment, has_zone=False), _moment),
    TimestampType: _valid("a datetime with time zone", partial(_is_moment, has_zone=True), _moment),
    BinaryType: _valid(
        "bytes",
        lambda value: isinstance(value, (bytes, bytearray, memoryview)),
        lambda value: b64encode(value).decode(),
    ),
}
