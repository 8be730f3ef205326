"""A user's function instead of SQL: evaluates the rows part of a stage, key by key."""

import json
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from operator import itemgetter
from typing import Any, Final

import msgspec
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from slackwater.api.document_encoder import DocumentEncoder, ValueFault
from slackwater.engine.evaluate.evaluators import ResultRows
from slackwater.pipeline.source.typed_rows import converter, value_out_of_range
from slackwater.protocol import InputError
from slackwater.sql.catalog import Column, ColumnType, TypeKind
from slackwater.sql.limits import StatementLimits
from slackwater.sql.plan import EnginePlan, InputPlan, KeyColumn, StagePlan
from slackwater.sql.row_codec import time_text, wire_text
from slackwater.sql.stage_evaluation import OPEN_LSN, PointColumns, RowVersions, StepColumns, key_text

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]
"""The rows of a key by table, ordered by primary key. It contains every table of the stage."""

Document = Mapping[str, Any]
KeyFunction = Callable[[Any, Rows], Document | None]
"""Receives a key (its value; a tuple if it has several columns) and its rows; returns the key's document."""

_KeyRows = list[list[tuple[tuple[Any, ...], int, int]]]
"""The rows of one key, by input, as ``(wire row, from LSN, to LSN)``."""

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
    """A function as it is sent to the workers; see :class:`slackwater.engine.evaluate.Evaluators`.

    Attributes:
        stage: The name of the stage.
        pickled: The function, pickled by cloudpickle.
        schema: The type of the documents, as Spark's JSON.
        as_text: For each input, the names of columns whose values are to be text.
    """

    stage: str
    pickled: bytes
    schema: str
    as_text: tuple[tuple[str, ...], ...]

    @classmethod
    def pickle(
        cls, function: KeyFunction, stage: str, schema: str, as_text: tuple[tuple[str, ...], ...]
    ) -> "PickledFunction":
        """Pickles a function in the same way as Spark pickles functions."""
        pickled: bytes = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]  # has no types
        return cls(stage, pickled, schema, as_text)

    def rows(self, plan: EnginePlan, stage: StagePlan, limits: StatementLimits) -> "_PythonEvaluator":
        """Returns the evaluator of a stage's rows part."""
        assert stage.rows is not None  # noqa: S101 - this plan's only stage has one
        return _PythonEvaluator(self, stage.key, stage.rows.inputs)


class _PythonEvaluator:
    """Calls a function for each key at each point. Use it from one thread.

    Args:
        function: The function.
        key: The key of the stage.
        inputs: The inputs of its rows part.
    """

    def __init__(
        self, function: PickledFunction, key: Sequence[KeyColumn], inputs: Sequence[InputPlan]
    ) -> None:
        self._name = function.stage
        self._function: KeyFunction = cloudpickle.loads(function.pickled)
        self._encode = DocumentEncoder(StructType.fromJson(json.loads(function.schema)))
        self._key_names = [column.name for column in key]
        self._tables = [each.table.full_name for each in inputs]
        self._rows = [
            _PythonRows(each.table.full_name, each.columns, as_text)
            for each, as_text in zip(inputs, function.as_text, strict=True)
        ]
        self._order = [itemgetter(*each.primary_key_positions) for each in inputs]

    def close(self) -> None:
        """Does nothing, because there is nothing to release."""

    def at_points(
        self,
        versions: Sequence[RowVersions],
        points: PointColumns,
        steps: StepColumns | None,
        keys: Sequence[bytes],
    ) -> ResultRows:
        """Returns ``(point, key as JSON, document)`` for each point that has a document.

        Raises:
            InputError: the function raised, or returned something else than its type says; names the
                key and the LSN.
        """
        groups = self._groups(versions, len(keys))
        results: list[tuple[Any, ...]] = []
        for point, (number, lsn) in enumerate(zip(points.groups, points.lsns, strict=True)):
            live = [
                [row for row, first, end in of_input if first <= lsn < end] for of_input in groups[number]
            ]
            document = self._document(keys[number], live, lsn)
            if document is not None:
                results.append((point, key_text(self._key_names, keys[number]), document))
        return results

    def latest(self, rows: Sequence[RowVersions], keys: Sequence[bytes], lsns: Sequence[int]) -> ResultRows:
        """Returns ``(number of the key, key as JSON, document)`` for each key with a document of these rows.

        Raises:
            InputError: the function raised, or returned something else than its type says; names the
                key and the LSN.
        """
        results: list[tuple[Any, ...]] = []
        for number, group in enumerate(self._groups(rows, len(keys))):
            live = [[row for row, _, _ in of_input] for of_input in group]
            document = self._document(keys[number], live, lsns[number])
            if document is not None:
                results.append((number, key_text(self._key_names, keys[number]), document))
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
        values = _key_values(key)
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
            return self._encode(document)
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


def _key_values(key: bytes) -> tuple[Any, ...]:
    return tuple(msgspec.msgpack.decode(key))


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
        """Returns the row by column name.

        Raises:
            InputError: A Python type cannot represent a value: an infinite time, a year above 9999.
        """
        values = list(wire)
        for position, convert in self._converters:
            value = values[position]
            if value is not None:
                try:
                    values[position] = convert(value)
                except ValueError as error:
                    raise self._unheld(self._columns[position], str(error)) from error
        return dict(zip(self._names, values, strict=True))

    def _unheld(self, column: Column, value: str) -> InputError:
        kind = (column.type.element or column.type).kind
        python = _PYTHON_TYPES.get(kind, str).__name__
        return value_out_of_range(self._table, column, value, f"Python's {python}")


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
