"""The columns of a view's table in a lake: Arrow types for DuckDB's types, and documents as Arrow rows. Pure.

Delta and Iceberg get the same Arrow types, so that a view has the same columns in both.
"""

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from operator import itemgetter
from typing import Any, Final, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from duckdb import sqltype
from duckdb.sqltypes import DuckDBPyType

from slackwater.engine.payloads import Document
from slackwater.outputs.contract import (
    OutputRefusedError,
    OutputTable,
    UnfitValueError,
    row_decoder,
    unfit_document,
)
from slackwater.outputs.lake.table import DELETED
from slackwater.protocol import ConfigError
from slackwater.sql.duckdb_sql import type_children, type_kind
from slackwater.sql.plan import OutputColumn

_TYPES: Final[dict[str, Any]] = {
    "boolean": pa.bool_(),
    **dict.fromkeys(("tinyint", "utinyint", "smallint", "usmallint", "integer"), pa.int32()),
    **dict.fromkeys(("uinteger", "bigint"), pa.int64()),
    "ubigint": pa.decimal128(20, 0),
    **dict.fromkeys(("hugeint", "uhugeint"), pa.decimal128(38, 0)),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    **dict.fromkeys(("timestamp", "timestamp_s", "timestamp_ms"), pa.timestamp("us")),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
    "blob": pa.binary(),
}
"""By DuckDB's name of the type; all other types are text."""
_NAMES: Final = {
    "bool": "boolean",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "date32[day]": "date",
}
_LISTS: Final = frozenset({"list", "array"})
_INTEGERS: Final = frozenset(name for name, kind in _TYPES.items() if "int" in name)
_FLOATS: Final = frozenset({"float", "double"})
_FORBIDDEN: Final = re.compile(r"[ ,;{}()\n\t=\"`]")
"""Characters that the column names of Delta tables cannot contain in Parquet files, and quotes."""


def check_names(view: str, columns: Iterable[OutputColumn]) -> None:
    """Refuses columns whose names cannot be used in a lake.

    Raises:
        ConfigError: There is one; the error names it.
    """
    seen: set[str] = set()
    for column in columns:
        if _FORBIDDEN.search(column.name) or column.name.lower() in {*seen, DELETED}:
            raise ConfigError(
                f"view {view!r}: a table in a lake cannot have a column {column.name!r}: names must not "
                f"contain spaces, quotes or brackets, differ only in case, or be {DELETED!r}",
                "give the column another name with AS",
            )
        seen.add(column.name.lower())


def table_schema(columns: Sequence[OutputColumn]) -> Any:
    """Returns the Arrow schema of a view's table; every column may be NULL."""
    return pa.schema([_field(column.name, sqltype(column.type)) for column in columns])


def arrow_type(duckdb_type: DuckDBPyType) -> Any:
    """Returns the Arrow type for the values of a DuckDB type in documents."""
    kind = type_kind(duckdb_type)
    children = type_children(duckdb_type)
    if kind in _LISTS:
        return pa.list_(_field("element", children[0][1]))
    if kind == "struct":
        return pa.struct([_field(name, child) for name, child in children])
    if kind == "map":
        return pa.map_(*(_TYPES[type_kind(each)] if _stays(each) else pa.string() for _, each in children))
    if kind == "decimal":
        precision, scale = (value for _, value in duckdb_type.children)
        return pa.decimal128(precision, scale)
    return _TYPES.get(kind, pa.string())


def type_texts(schema: Any) -> dict[str, str]:
    """Returns the names of the types of columns, which are the same for all lakes."""
    return {field.name: _type_text(field.type) for field in schema}


class RowReader:
    """Converts documents or keys to Arrow rows."""

    def __init__(self, columns: Sequence[OutputColumn]) -> None:
        self.schema = table_schema(columns)
        types = [(column.name, sqltype(column.type)) for column in columns]
        self._decode = row_decoder([(name, _json_type(kind)) for name, kind in types])
        self._columns = [
            (name, _python_value(kind, is_inner=False), _text_form(field.type), field.type)
            for (name, kind), field in zip(types, self.schema, strict=True)
        ]

    def table(self, documents: Iterable[bytes]) -> Any:
        """Returns an Arrow table with one row per document, in their order.

        Raises:
            UnfitValueError: A value does not fit its column; the error names it.
        """
        rows = list(map(self._decode, documents))
        arrays = []
        for number, (column, python_value, text_form, target) in enumerate(self._columns):
            try:
                values = map(itemgetter(number), rows)
                found = list(values) if python_value is None else list(map(python_value, values))
                array = pa.array(found, text_form)
                arrays.append(array if text_form == target else array.cast(target))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError) as error:
                raise UnfitValueError(f"column {column!r}: {error}") from error
        return pa.Table.from_arrays(arrays, schema=self.schema)


def _type_text(kind: Any) -> str:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{_type_text(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_type_text(field.type)}' for field in kind)}>"
    if pa.types.is_map(kind):
        return f"map<{_type_text(kind.key_type)}, {_type_text(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamp with time zone"
    name = str(kind).removeprefix("large_").removesuffix("_view")
    return _NAMES.get(name, name)


def _field(name: str, duckdb_type: DuckDBPyType) -> Any:
    """Returns a field. Its comment names the type in the view if the Arrow type stands for several."""
    kind, target = type_kind(duckdb_type), arrow_type(duckdb_type)
    is_integral = kind == "decimal" and target.scale == 0
    return pa.field(
        name, target, metadata={"doc": str(duckdb_type)} if kind == "json" or is_integral else None
    )


def _stays(duckdb_type: DuckDBPyType) -> bool:
    """Returns whether a value is the same in Arrow as in JSON."""
    return type_kind(duckdb_type) in _INTEGERS - {"ubigint", "hugeint", "uhugeint"} | {"boolean"}


def _json_type(duckdb_type: DuckDBPyType) -> Any:
    """Returns the type that msgspec decodes a value to."""
    kind, children = type_kind(duckdb_type), type_children(duckdb_type)
    if kind in _LISTS:
        return list[_json_type(children[0][1])] | None  # type: ignore[misc]
    if kind == "struct":
        fields = {name: _json_type(child) for name, child in children}
        return TypedDict("Struct", fields) | None  # type: ignore[operator]
    if kind == "map":
        is_text = type_kind(children[0][1]) not in _INTEGERS
        return dict[str if is_text else int, _json_type(children[1][1])] | None  # type: ignore[misc]
    if kind == "json":
        return msgspec.Raw
    if kind == "boolean":
        return bool | None
    if kind in _INTEGERS:
        return int | None
    return float | str | None if kind in _FLOATS else str | None


def _text_form(target: Any) -> Any:
    """Returns the Arrow type of values before Arrow parses their texts.

    Arrow cannot do this within lists and structs: where a struct is NULL, it would parse texts that do not
    exist.
    """
    if pa.types.is_decimal(target) or pa.types.is_date(target) or pa.types.is_timestamp(target):
        return pa.string()
    return target


def _python_value(duckdb_type: DuckDBPyType, *, is_inner: bool) -> Callable[[Any], Any] | None:
    """Returns the function that converts a value from JSON for Arrow; None if it is not needed."""
    kind, children = type_kind(duckdb_type), type_children(duckdb_type)
    if kind in _LISTS:
        inner = _python_value(children[0][1], is_inner=True)
        return None if inner is None else _unless_null(lambda value: list(map(inner, value)))
    if kind == "struct":
        return _struct_value([(name, _python_value(child, is_inner=True)) for name, child in children])
    return (_INNER_VALUES if is_inner and kind in _INNER_VALUES else _PYTHON_VALUES).get(kind)


def _struct_value(fields: list[tuple[str, Callable[[Any], Any] | None]]) -> Callable[[Any], Any] | None:
    changed = [(name, convert) for name, convert in fields if convert is not None]

    def convert_fields(value: Any) -> Any:
        for name, convert in changed:
            value[name] = convert(value[name])
        return value

    return _unless_null(convert_fields) if changed else None


def _json_text(value: msgspec.Raw) -> str | None:
    text = bytes(value).decode()
    return None if text == "null" else text


def _bytes(value: str) -> bytes:
    try:
        return b64decode(value, validate=True)
    except Base64Error as error:
        raise ValueError(f"not base64: {error}") from error


def _unless_null(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


_HUGE: Final = ("ubigint", "hugeint", "uhugeint")
_TIMES: Final = ("timestamp", "timestamp_s", "timestamp_ms", "timestamp with time zone")
_PYTHON_VALUES: Final[dict[str, Callable[[Any], Any]]] = {
    "json": _unless_null(_json_text),
    "blob": _unless_null(_bytes),
    **dict.fromkeys(_FLOATS, _unless_null(float)),
    **dict.fromkeys(_HUGE, _unless_null(str)),
    "map": _unless_null(lambda value: list(value.items())),
}

_INNER_VALUES: Final[dict[str, Callable[[Any], Any]]] = {
    "date": _unless_null(date.fromisoformat),
    **dict.fromkeys(("decimal", *_HUGE), _unless_null(Decimal)),
    **dict.fromkeys(_TIMES, _unless_null(datetime.fromisoformat)),
}
"""For values within lists and structs."""


_ROWS_AT_ONCE: Final = 10_000
"""The number of documents that are Python objects at the same time."""


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes of one table in a batch."""

    rows: Any
    """Arrow rows of the table and of ``DELETED``; each key occurs once."""
    documents: int
    """The number of documents in the batch, including several of one key."""
    deletes: int

    @property
    def remaining(self) -> Any:
        """The rows that are not deletes, without that column."""
        return self.rows.filter(pc.invert(self.rows[DELETED])).drop_columns([DELETED])


class ChangeReader:
    """Reads the documents of one view as changes of its table."""

    def __init__(self, pipeline: str, output: OutputTable, *, several: bool) -> None:
        self._pipeline = pipeline
        self._output = output
        self._several = several
        self._row = RowReader(output.columns)
        by_name = {column.name: column for column in output.columns}
        self._key = RowReader([by_name[name] for name in output.key])

    @property
    def schema(self) -> Any:
        """The Arrow schema of the table."""
        return self._row.schema

    def read(self, shown: Iterable[Document]) -> Changes:
        """Returns the changes of the table, all of them in memory.

        Args:
            shown: The documents; those of a key are in the order of their commits.

        Raises:
            OutputRefusedError: A value does not fit its column; the error names view, key and column.
        """
        documents = deletes = 0
        found = []
        stream = iter(shown)
        newest: dict[bytes, Document] = {}
        while part := list(islice(stream, _ROWS_AT_ONCE)):
            documents += len(part)
            deletes += sum(document is None for _, _, document in part)
            if self._several:
                newest.update((each[1], each) for each in part)
            else:
                found.append(self._rows(part))
        if newest:
            parts = iter(newest.values())
            while part := list(islice(parts, _ROWS_AT_ONCE)):
                found.append(self._rows(part))
        rows = pa.concat_tables(found) if found else self._rows([])
        return Changes(rows, documents, deletes)

    def _rows(self, part: list[Document]) -> Any:
        there = [document for _, _, document in part if document is not None]
        gone = [key for _, key, document in part if document is None]
        try:
            rows, keys = self._row.table(there), self._key.table(gone)
        except UnfitValueError:
            raise self._first_unfit(part) from None
        blank = pa.table(
            {
                field.name: keys[field.name]
                if field.name in keys.schema.names
                else pa.nulls(len(gone), field.type)
                for field in self.schema
            },
            schema=self.schema,
        )
        flags = pa.array([False] * len(there) + [True] * len(gone), pa.bool_())
        return pa.concat_tables([rows, blank]).append_column(DELETED, flags)

    def _first_unfit(self, part: list[Document]) -> OutputRefusedError:
        """Finds the document that does not fit, by reading them one by one."""
        for lsn, key, document in part:
            try:
                if document is None:
                    self._key.table([key])
                else:
                    self._row.table([document])
            except UnfitValueError as error:
                return unfit_document(self._pipeline, self._output, lsn, key, error)
        raise AssertionError("each of the documents by itself is valid")
