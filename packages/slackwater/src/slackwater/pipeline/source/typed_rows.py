"""Changes of one declared table as rows with exact types, from records or from rows with JSON."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from slackwater.cdc import BadInputError
from slackwater.cdc.batch import Record, bad_input
from slackwater.cdc.changes import BatchChanges
from slackwater.cdc.connector import foreign_change
from slackwater.cdc.envelope import Change
from slackwater.pipeline.source.task import NULL, RowWriter, arrow_array
from slackwater.protocol import InputError
from slackwater.sql.catalog import Column, ColumnType, Table, TypeKind
from slackwater.sql.errors import RowContradictsSchemaError
from slackwater.sql.row_codec import (
    INFINITE_DAYS,
    INFINITE_TIMES,
    UNAVAILABLE,
    RowCodec,
    WireRow,
    columns_in_forms,
    value_text,
)
from slackwater.sql.value_forms import LostValueError

Convert = Callable[[Any], Any]
"""Converts a wire value for Arrow; raises ValueError with a description of the value."""

Values = tuple[Any, ...]
_TypedImages = tuple[Values | None, Values | None, Values | None, list[str] | None]
"""The key, the old row, the new row, and the names of the columns that the new row omits."""

_JSON_COLUMNS = (
    "source", "table", "op", "before", "after", "xid", "commit_lsn", "commit_ts", "order_in_transaction",
    "partition", "offset",
)  # fmt: skip
"""The columns of ``ROW_SCHEMA`` from which typed rows are made."""

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_US: Final = 86_400_000_000
_FIRST_US: Final = (1 - _EPOCH_DAY) * _DAY_US
_LAST_US: Final = (date.max.toordinal() + 1 - _EPOCH_DAY) * _DAY_US - 1

_SPARK: Final[dict[TypeKind, DataType]] = {
    TypeKind.SMALLINT: ShortType(),
    TypeKind.INTEGER: IntegerType(),
    TypeKind.BIGINT: LongType(),
    TypeKind.BOOLEAN: BooleanType(),
    TypeKind.REAL: FloatType(),
    TypeKind.DOUBLE: DoubleType(),
    TypeKind.BYTEA: BinaryType(),
    TypeKind.DATE: DateType(),
    TypeKind.TIMESTAMP: TimestampNTZType(),
    TypeKind.TIMESTAMPTZ: TimestampType(),
    # Spark's TIME is off by default, and does not hold 24:00:00.
    TypeKind.TIME: DayTimeIntervalType(DayTimeIntervalType.HOUR, DayTimeIntervalType.SECOND),
}


@dataclass(frozen=True, slots=True)
class TypedTable:
    """A declared table whose rows a frame shows with types.

    Attributes:
        table: The table.
        as_text: The names of columns shown as text, because Spark's types cannot represent them.
        takes_only_own: Whether changes that neither a pipeline nor a service wrote are refused.
    """

    table: Table
    as_text: tuple[str, ...] = ()
    takes_only_own: bool = False

    @property
    def row_type(self) -> StructType:
        """The type of ``before`` and ``after``; any field may be null, because a record may omit values."""
        return StructType([self._field(column) for column in self.table.columns])

    @property
    def key_type(self) -> StructType:
        """The type of the primary key."""
        names = self.table.primary_key
        return StructType([self.row_type[name] for name in names])

    def to_json(self) -> str:
        """Returns the text form, which the option ``typing`` of the source accepts."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> "TypedTable":
        """Decodes what :meth:`to_json` returned."""
        return msgspec.json.decode(text, type=cls)

    def _field(self, column: Column) -> StructField:
        kept_as_text = column.name in self.as_text
        return StructField(column.name, StringType() if kept_as_text else _spark_type(column.type))


class RowImages:
    """Converts the row images of a table's changes to values for Arrow."""

    def __init__(self, typed: TypedTable) -> None:
        table = typed.table
        exact = tuple(column for column in table.columns if column.name not in typed.as_text)
        self._table = table
        self._exact = exact
        self._codec = RowCodec(table, [column.name for column in exact])
        self._converters = [(n, c) for n, column in enumerate(exact) if (c := converter(column.type))]
        self._texts = tuple(column for column in table.columns if column.name in typed.as_text)
        names = [column.name for column in (*exact, *self._texts)]
        self._order = tuple(names.index(column.name) for column in table.columns)
        key = tuple(column for column in exact if column.name in table.primary_key)
        self._key_codec = RowCodec(table, [column.name for column in key])
        self._key_positions = tuple(exact.index(column) for column in key)
        self._row_key = tuple(map([column.name for column in table.columns].index, table.primary_key))

    def typed(self, op: str, before: bytes | None, after: bytes | None) -> _TypedImages:
        """Returns key, old row, new row, and the columns that an update omitted (null in the row).

        Raises:
            RowContradictsSchemaError: The record does not match the declaration.
            InputError: Spark's type cannot represent a value.
        """
        old = None if before is None else self.before(before)
        new, left_out = (None, None) if after is None else self.after(op, before, after)
        row = new or old
        key = None if row is None or not self._row_key else tuple(row[n] for n in self._row_key)
        return key, old, new, left_out

    def after(self, op: str, before: bytes | None, after: bytes) -> tuple[Values, list[str] | None]:
        """Returns the new row, and the names of the columns that an update omitted (null in the row).

        The update of a primary key is a delete and an insert, which omits them, too.
        """
        row, texts = self._codec.decode(after, is_snapshot=op == "r"), self._texts_of(after, op)
        if op == "r" or not (self._codec.has_unavailable(row) or UNAVAILABLE in texts):
            return self._values(row, texts), None
        if before is not None and self._table.replica_identity_full:
            row = self._codec.merge(row, self._codec.decode(before))
        values = (*self._codec.merge(row, (UNAVAILABLE,) * len(row)), *texts)
        columns = (*self._exact, *self._texts)
        left_out = [c.name for c, value in zip(columns, values, strict=True) if value == UNAVAILABLE]
        known = tuple(None if value == UNAVAILABLE else value for value in values)
        return self._values(known[: len(row)], known[len(row) :]), left_out or None

    def before(self, before: bytes) -> Values:
        """Returns the old row: all of it with REPLICA IDENTITY FULL, otherwise the primary key's columns."""
        if self._table.replica_identity_full:
            return self._values(self._codec.decode(before), self._texts_of(before))
        row: list[Any] = [None] * len(self._exact)
        for position, value in zip(self._key_positions, self._key_codec.decode(before), strict=True):
            row[position] = value
        texts = self._texts_of(before)
        for number, column in enumerate(self._texts):
            if column.name not in self._table.primary_key:
                texts[number] = None
        return self._values(tuple(row), texts)

    def _values(self, row: WireRow, texts: Sequence[str | None]) -> Values:
        values = [*row, *texts]
        for position, convert in self._converters:
            value = values[position]
            if value is not None:
                try:
                    values[position] = convert(value)
                except ValueError as error:
                    column = self._exact[position]
                    holder = f"Spark's {_spark_type(column.type).simpleString()}"
                    raise value_out_of_range(self._table.full_name, column, str(error), holder) from error
        return tuple(values[position] for position in self._order)

    def _texts_of(self, image: bytes, op: str = "") -> list[str | None]:
        if not self._texts:
            return []
        try:
            fields = msgspec.json.decode(image, type=dict[str, msgspec.Raw])
            for column in self._texts:
                if column.was_added and column.name not in fields:
                    fields[column.name] = msgspec.Raw(msgspec.json.encode(column.absent))
            missing = [column.name for column in self._texts if column.name not in fields]
            if missing:
                table = self._table.full_name
                raise RowContradictsSchemaError(table, missing[0], "any value", "no such field")
            return [self._text(column, bytes(fields[column.name]), op) for column in self._texts]
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RowContradictsSchemaError(self._table.full_name, "", "JSON in UTF-8", str(error)) from error

    def _text(self, column: Column, raw: bytes, op: str) -> str | None:
        try:
            return value_text(column.type, raw, is_snapshot=op == "r")
        except LostValueError as error:
            raise RowContradictsSchemaError(
                self._table.full_name, column.name, error.expected, raw.decode(), error.hint
            ) from error


def typed_row_schema(typed: TypedTable) -> StructType:
    """Returns the public schema with ``key``, ``before`` and ``after`` as structs of one declared table.

    ``unchanged`` contains the names of the columns that an update omitted because it did not change them
    (TOAST); they are null in ``after``. Without a primary key, there is no column ``key``.
    """
    columns: dict[str, DataType] = {"source": StringType(), "table": StringType(), "op": StringType()}
    columns |= {"key": typed.key_type} if typed.table.primary_key else {}
    columns |= {"before": typed.row_type, "after": typed.row_type, "unchanged": ArrayType(StringType())}
    columns |= {"xid": LongType(), "commit_lsn": LongType(), "commit_ts": TimestampType()}
    columns |= {"order_in_transaction": LongType(), "partition": IntegerType(), "offset": LongType()}
    return StructType([StructField(name, each) for name, each in columns.items()])


class TypedRowWriter(RowWriter):
    """Converts changes of one declared table to Arrow batches of :func:`typed_row_schema`."""

    def __init__(self, source: str, typed: TypedTable, schema: StructType, changes: BatchChanges) -> None:
        super().__init__(source, schema, changes)
        self._typed = typed
        self._by_schema: dict[bytes | None, RowImages] = {None: RowImages(typed)}
        """By the Connect schemas of records; None: those without one."""

    def _images(self, message: Record, change: Change) -> tuple[Any, ...]:
        if self._typed.takes_only_own and not change.is_own:
            raise bad_input(message, foreign_change(change.table))
        try:
            images = self._of_schema(change.schema)
            values = images.typed(change.op, _image(change.before), _image(change.after))
        except InputError as error:
            raise bad_input(message, str(error)) from error
        return values if self._typed.table.primary_key else values[1:]

    def _of_schema(self, schema: bytes | None) -> RowImages:
        images = self._by_schema.get(schema)
        if images is None:
            table = self._typed.table
            columns = tuple(columns_in_forms(table, table.columns, schema or b""))
            images = RowImages(replace(self._typed, table=replace(table, columns=columns)))
            self._by_schema[schema] = images
        return images


def typed_frame(rows: DataFrame, typed: TypedTable, topic: str) -> DataFrame:
    """Returns the rows of one table with structs instead of JSON: the columns of ``typed_row_schema``."""
    of_table = rows.where(rows["table"] == typed.table.full_name).select(*_JSON_COLUMNS)
    return of_table.mapInArrow(row_typer(typed, topic), typed_row_schema(typed))


def row_typer(
    typed: TypedTable, topic: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns the function for ``mapInArrow`` that adds types to the rows of one table in ``ROW_SCHEMA``."""

    def convert(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        images = RowImages(typed)
        schema = to_arrow_schema(typed_row_schema(typed), timezone="UTC")
        for batch in batches:
            yield _converted(batch, images, topic, schema)

    return convert


def _spark_type(column_type: ColumnType) -> DataType:
    """Returns the Spark type that represents a column's values exactly.

    Raises:
        ValueError: There is none.
    """
    if not column_type.is_supported:
        raise ValueError(column_type.reason or "the type is not supported")
    if column_type.element is not None:
        return ArrayType(_spark_type(column_type.element))
    if column_type.kind is TypeKind.NUMERIC:
        return DecimalType(column_type.digits, column_type.decimals)
    return _SPARK.get(column_type.kind, StringType())


def converter(column_type: ColumnType) -> Convert | None:
    """Returns the function that converts a column's wire values for Arrow; None if it is not needed."""
    if column_type.element is not None:
        of_element = converter(column_type.element)
        return None if of_element is None else _of_list(of_element)
    if column_type.kind is TypeKind.TIMESTAMP:
        return partial(_timestamp, 1000 if column_type.is_millisecond else 1)
    if column_type.kind is TypeKind.TIME:
        return (1000).__mul__ if column_type.is_millisecond else None
    return _CONVERTERS.get(column_type.kind)


def value_out_of_range(table: str, column: Column, value: str, holder: str) -> InputError:
    """Returns the error for a value that a type of Spark or Python, the holder, cannot represent."""
    return InputError(
        f"column {column.name} ({column.type}) of {table} contains {value}, which {holder} cannot represent",
        f"read the column as text (as_text=[{column.name!r}]), or correct the row",
    )


def unsupported_columns(typed: TypedTable) -> Sequence[tuple[Column, str]]:
    """Returns the columns that can be shown neither with an exact Spark type nor as text, with the reason."""
    return [
        (column, column.type.reason)
        for column in typed.table.columns
        if not column.type.is_supported and (column.type.is_lost or column.name not in typed.as_text)
    ]


def _converted(batch: pa.RecordBatch, images: RowImages, topic: str, schema: pa.Schema) -> pa.RecordBatch:
    columns = {name: batch.column(name) for name in _JSON_COLUMNS}
    found = _typed_columns(columns, images, topic)
    arrays = [
        arrow_array(found[field.name], field.type) if field.name in found else columns[field.name]
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
    )


def _typed_columns(columns: dict[str, Any], images: RowImages, topic: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {"key": [], "before": [], "after": [], "unchanged": []}
    places = zip(columns["partition"].to_pylist(), columns["offset"].to_pylist(), strict=True)
    rows = zip(*(columns[name].to_pylist() for name in ("op", "before", "after")), strict=True)
    for (op, before, after), (partition, offset) in zip(rows, places, strict=True):
        try:
            values = images.typed(op, before and before.encode(), after and after.encode())
        except InputError as error:
            value = (after or before or "").encode()
            raise BadInputError(topic, partition, offset, str(error), value[:200]) from error
        for name, value in zip(found, values, strict=True):
            found[name].append(value)
    return found


def _image(image: Any) -> bytes | None:
    return None if image is None or image == NULL else bytes(image)


def _of_list(convert: Convert) -> Convert:
    return lambda values: [None if value is None else convert(value) for value in values]


def _date(days: int) -> int:
    if not 1 <= days + _EPOCH_DAY <= date.max.toordinal():
        raise ValueError(INFINITE_DAYS.get(days, f"a date {days} days from 1970-01-01"))
    return days


def _timestamp(unit_us: int, wire: int) -> int:
    microseconds = wire * unit_us
    if not _FIRST_US <= microseconds <= _LAST_US:
        raise ValueError(INFINITE_TIMES.get(wire, f"a time {microseconds} µs from 1970-01-01"))
    return microseconds


def _timestamptz(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise ValueError(text) from None


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except Base64Error as error:
        msg = f"{text[:40]!r}, which is not base64 (binary.handling.mode=bytes)"
        raise ValueError(msg) from error


_CONVERTERS: Final[dict[TypeKind, Convert]] = {
    TypeKind.NUMERIC: Decimal,
    TypeKind.DATE: _date,
    TypeKind.TIMESTAMPTZ: _timestamptz,
    TypeKind.BYTEA: _bytes,
}
