"""From a user's function and its arguments to the plan of a stage."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from slackwater_spark.api.document import encoder
from slackwater_spark.api.errors import StageDefinitionError, UndeclaredTableError
from slackwater_spark.api.python_evaluator import FunctionPlan, KeyFunction
from slackwater_spark.api.schema import declared_table
from slackwater_sql.catalog import Catalog, Column, Table
from slackwater_sql.plan import (
    DocumentsOutput,
    EnginePlan,
    InputPlan,
    KeyColumn,
    OutputColumn,
    PublishedView,
    Reads,
    RowsPart,
    StagePlan,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from slackwater_spark.api.stateful import StatefulOptions

KeyColumns = Mapping[str, str | Sequence[str]] | str | Sequence[str]
"""By table the key's column or columns; or one column, or several, that all tables have."""

_DOCUMENT_HINT: Final = 'expected the fields as Spark writes them, e.g. "id BIGINT, total DECIMAL(12,2)"'


class ReadTables(Protocol):
    """What is read: see :class:`slackwater_spark.Changes`."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Full names."""
        ...

    @property
    def catalog(self) -> Catalog | None:
        """Their declarations."""
        ...


@dataclass(frozen=True, slots=True)
class StageSketch:
    """The checked arguments of a stage.

    Attributes:
        name: Of the stage and its view.
        inputs: One per table.
        key: Names and types of the key's columns.
        schema: The documents' type.
        as_text: By input, the columns whose values are to be text.
        version: Of the function's meaning.
    """

    name: str
    inputs: tuple[InputPlan, ...]
    key: tuple[KeyColumn, ...]
    schema: "StructType"
    as_text: tuple[tuple[str, ...], ...]
    version: str

    @property
    def tables(self) -> tuple[str, ...]:
        """Full names of the tables that are read."""
        return tuple(each.table.full_name for each in self.inputs)

    @classmethod
    def of(
        cls,
        name: str,
        key: KeyColumns,
        document: "StructType | str",
        changes: ReadTables,
        options: "StatefulOptions",
    ) -> "StageSketch":
        """Checks the arguments of :func:`slackwater_spark.stateful`.

        Raises:
            StageDefinitionError: names the argument.
            UndeclaredTableError: a table is not declared, or not read.
        """
        columns_of = _columns_by_table(name, key, changes.tables)
        inputs = tuple(
            _input(name, _table(changes, table), columns, options) for table, columns in columns_of.items()
        )
        return cls(
            name,
            inputs,
            _key(name, inputs, options.get("key_names")),
            _schema(name, document),
            tuple(_as_text(name, each, options) for each in inputs),
            options.get("version", "1"),
        )


def function_plan(sketch: StageSketch, function: KeyFunction) -> tuple[EnginePlan, FunctionPlan]:
    """A plan of one stage whose rows part calls the function, and the function."""
    schema = json.dumps(sketch.schema.jsonValue(), sort_keys=True)
    meaning = json.dumps(["python", sketch.name, sketch.version, schema, sketch.as_text])
    rows = RowsPart(
        inputs=sketch.inputs,
        statement=meaning,
        latest_statement=meaning,
        output=DocumentsOutput(0),
    )
    stage = StagePlan(1, sketch.key, rows, None, "the key of a Python function")
    fingerprint = sha256(msgspec.json.encode((sketch.name, stage))).hexdigest()
    view = PublishedView(
        name=sketch.name,
        sql="",
        key=tuple(column.name for column in sketch.key),
        outputs=tuple(OutputColumn(f.name, f.dataType.simpleString()) for f in sketch.schema.fields),
        fingerprint=fingerprint,
        stages=(1,),
    )
    of_function = FunctionPlan(sketch.name, _pickled(function), schema, sketch.as_text)
    return EnginePlan((stage,), (view,)), of_function


def _pickled(function: KeyFunction) -> bytes:
    from pyspark import cloudpickle

    pickled: bytes = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]  # as Spark pickles functions
    return pickled


def _columns_by_table(name: str, key: KeyColumns, tables: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    by_table = key if isinstance(key, Mapping) else dict.fromkeys(tables, key)
    columns_of = {t: (each,) if isinstance(each, str) else tuple(each) for t, each in by_table.items()}
    widths = {len(columns) for columns in columns_of.values()}
    if len(widths) != 1 or 0 in widths:
        shown = {table: list(columns) for table, columns in columns_of.items()}
        hint = "expected at least one table, and for each equally many columns"
        raise StageDefinitionError(name, "key", f"is {shown}", hint)
    return columns_of


def _table(changes: ReadTables, name: str) -> Table:
    table = declared_table(changes.catalog, name)
    if name not in changes.tables:
        raise UndeclaredTableError(name, "is not among the tables that are read", changes.tables)
    return table


def _input(name: str, table: Table, key: tuple[str, ...], options: "StatefulOptions") -> InputPlan:
    for column in key:
        _key_column(name, table, column)
    if not table.primary_key:
        hint = "rows are told apart by it: declare PRIMARY KEY"
        raise StageDefinitionError(name, "key", f"names {table.full_name}, which has no primary key", hint)
    moves = not set(key) <= set(table.primary_key)
    if moves and not table.replica_identity_full:
        problem = f"of {table.full_name} may change by an update, and old rows do not say from what"
        hint = f"ALTER TABLE {table.full_name} REPLICA IDENTITY FULL, in the database and in the schema"
        raise StageDefinitionError(name, "key", problem, hint)
    needed = {*key, *table.primary_key, *_kept(name, table, options.get("columns", {}).get(table.full_name))}
    return InputPlan(
        alias=table.full_name,
        table=table,
        columns=tuple(column for column in table.columns if column.name in needed),
        key=key,
        needs_replica_identity_full=moves,
        keeps_null_keys=False,
        origin=0,
        reads=Reads.GROUP,
    )


def _kept(name: str, table: Table, wanted: Collection[str] | None) -> list[str]:
    if wanted is None:
        return [column.name for column in table.columns if column.type.is_supported]
    for each in wanted:
        column = table.column(each)
        if column is None or not column.type.is_supported:
            reason = "is not declared" if column is None else column.type.reason
            names = ", ".join(c.name for c in table.columns if c.type.is_supported)
            raise StageDefinitionError(
                name, "columns", f"names {table.full_name}.{each}: {reason}", f"supported: {names}"
            )
    return list(wanted)


def _key_column(name: str, table: Table, column_name: str) -> Column:
    column = table.column(column_name)
    if column is None:
        hint = f"declared are {', '.join(each.name for each in table.columns)}"
        raise StageDefinitionError(name, "key", f"names {table.full_name}.{column_name}", hint)
    if not column.type.is_key_safe:
        hint = "keys are smallint, integer, bigint, boolean, text, varchar, enum or uuid"
        problem = f"names {table.full_name}.{column_name} of type {column.type}"
        raise StageDefinitionError(name, "key", problem, hint)
    return column


def _key(name: str, inputs: tuple[InputPlan, ...], key_names: Sequence[str] | None) -> tuple[KeyColumn, ...]:
    first = [_key_column(name, inputs[0].table, column) for column in inputs[0].key]
    for each in inputs[1:]:
        for mine, column_name in zip(first, each.key, strict=True):
            column = _key_column(name, each.table, column_name)
            if column.type.wire_family != mine.type.wire_family:
                problem = (
                    f"has {mine.name} of type {mine.type} and {each.alias}.{column.name} of {column.type}"
                )
                raise StageDefinitionError(name, "key", problem, "expected types alike in all tables")
    names = tuple(key_names or inputs[0].key)
    if len(names) != len(first) or len(set(names)) < len(names):
        problem = f"is {list(names)} for a key of {len(first)} columns"
        raise StageDefinitionError(name, "key_names", problem, "expected one name for each, all different")
    return tuple(KeyColumn(n, column.type) for n, column in zip(names, first, strict=True))


def _schema(name: str, document: "StructType | str") -> "StructType":
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        schema = StructType.fromDDL(document) if isinstance(document, str) else document
        if not isinstance(schema, StructType):
            raise StageDefinitionError(name, "document", "has no fields", _DOCUMENT_HINT)
        encoder(schema)
    except (PySparkException, ValueError) as error:
        raise StageDefinitionError(name, "document", f"is no usable type: {error}", _DOCUMENT_HINT) from error
    return schema


def _as_text(name: str, each: InputPlan, options: "StatefulOptions") -> tuple[str, ...]:
    wanted = tuple(options.get("as_text", {}).get(each.alias, ()))
    unknown = sorted(set(wanted) - set(each.column_names))
    if unknown:
        problem = f"names {each.alias}.{unknown[0]}, which is not kept"
        raise StageDefinitionError(name, "as_text", problem, f"kept are {', '.join(each.column_names)}")
    return wanted
