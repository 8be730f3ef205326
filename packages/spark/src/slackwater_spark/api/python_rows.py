"""Rows of declared tables as dicts of Python's values."""

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from slackwater_spark.errors import PipelineInputError
from slackwater_spark.source.typed_rows import converter, value_out_of_range
from slackwater_sql.catalog import Column
from slackwater_sql.column_type import ColumnType, TypeKind
from slackwater_sql.value_text import time_text, wire_text

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_US: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

PYTHON_TYPES: Final[dict[TypeKind, type]] = {
    TypeKind.NUMERIC: Decimal,
    TypeKind.DATE: date,
    TypeKind.TIMESTAMP: datetime,
    TypeKind.TIMESTAMPTZ: datetime,
    TypeKind.TIME: time,
    TypeKind.BYTEA: bytes,
}
"""Python's types of values, where they are not those that JSON has: int, float, bool, str, list."""


class PythonRows:
    """Makes dicts of a table's wire rows.

    Args:
        table: The table's full name.
        columns: The columns of the rows, in order.
        as_text: Names of columns whose values are to be text.
    """

    def __init__(self, table: str, columns: Sequence[Column], as_text: Collection[str] = ()) -> None:
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
            PipelineInputError: Python's type cannot hold a value: an infinite time, a year above 9999.
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

    def _unheld(self, column: Column, value: str) -> PipelineInputError:
        kind = (column.type.element or column.type).kind
        python = PYTHON_TYPES.get(kind, str).__name__
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
