"""Plans the stage of a user's function."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from slackwater_spark.api.document_encoder import encoder
from slackwater_spark.api.python_evaluator import KeyFunction, PickledFunction
from slackwater_spark.api.schema import find_table
from slackwater_spark.errors import PipelineConfigError
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

KeyColumns = Mapping[str, str | Sequence[str]] | str | Sequence[str]
"""By table the key's column or columns; or one column, or several, that all tables have."""

_DOCUMENT_HINT: Final = 'expected the fields as Spark writes them, e.g. "id BIGINT, total DECIMAL(12,2)"'


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionStage:
    """The arguments of a stage whose documents a Python function makes; :meth:`plan` checks them."""

    name: str
    """The name of the stage and of its view."""
    key: KeyColumns
    document: StructType | str
    """The documents' type."""
    columns: Mapping[str, Collection[str]] = field(default_factory=dict)
    """By table, the columns to keep beside the keys; all that are supported of tables that are not named."""
    as_text: Mapping[str, Collection[str]] = field(default_factory=dict)
    """By table, columns whose values are to be text."""
    key_names: Sequence[str] | None = None
    """Names of the key's columns in the documents' keys; None: those of the first table."""
    version: str = "1"
    """The version of the function's meaning."""

    def plan(
        self, function: KeyFunction, catalog: Catalog | None, read: Collection[str]
    ) -> tuple[EnginePlan, PickledFunction]:
        """Plans one stage whose rows part calls the function.

        Args:
            function: The user's function.
            catalog: The declared tables.
            read: Full names of the tables that are read; those of the stage unless its key names them.

        Raises:
            PipelineConfigError: an argument cannot be used, or a table is not declared, or not read.
        """
        inputs = tuple(
            self._input(find_table(catalog, table, read), columns)
            for table, columns in self._key_columns(read).items()
        )
        key, document = self._key(inputs), self._document_type()
        as_text = tuple(map(self._text_columns, inputs))
        schema = json.dumps(document.jsonValue(), sort_keys=True)
        meaning = json.dumps(["python", self.name, self.version, schema, as_text])
        rows = RowsPart(inputs=inputs, statement=meaning, latest_statement=meaning, output=DocumentsOutput(0))
        stage = StagePlan(1, key, rows, None, "the key of a Python function")
        view = PublishedView(
            name=self.name,
            sql="",
            key=tuple(column.name for column in key),
            outputs=tuple(OutputColumn(f.name, f.dataType.simpleString()) for f in document.fields),
            fingerprint=sha256(msgspec.json.encode((self.name, stage))).hexdigest(),
            stages=(1,),
        )
        return EnginePlan((stage,), (view,)), PickledFunction.pickle(function, self.name, schema, as_text)

    def _key_columns(self, read: Collection[str]) -> dict[str, tuple[str, ...]]:
        by_table = self.key if isinstance(self.key, Mapping) else dict.fromkeys(read, self.key)
        columns_of = {t: (each,) if isinstance(each, str) else tuple(each) for t, each in by_table.items()}
        widths = {len(columns) for columns in columns_of.values()}
        if len(widths) != 1 or 0 in widths:
            shown = {table: list(columns) for table, columns in columns_of.items()}
            hint = "expected at least one table, and for each equally many columns"
            raise self._error("key", f"is {shown}", hint)
        return columns_of

    def _input(self, table: Table, key: tuple[str, ...]) -> InputPlan:
        for column in key:
            self._key_column(table, column)
        if not table.primary_key:
            hint = "rows are told apart by it: declare PRIMARY KEY"
            raise self._error("key", f"names {table.full_name}, which has no primary key", hint)
        moves = not set(key) <= set(table.primary_key)
        if moves and not table.replica_identity_full:
            problem = f"of {table.full_name} may change by an update, and old rows do not say from what"
            hint = f"ALTER TABLE {table.full_name} REPLICA IDENTITY FULL, in the database and in the schema"
            raise self._error("key", problem, hint)
        needed = {*key, *table.primary_key, *self._kept_columns(table)}
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

    def _kept_columns(self, table: Table) -> list[str]:
        wanted = self.columns.get(table.full_name)
        if wanted is None:
            return [column.name for column in table.columns if column.type.is_supported]
        for each in wanted:
            column = table.column(each)
            if column is None or not column.type.is_supported:
                reason = "is not declared" if column is None else column.type.reason
                names = ", ".join(c.name for c in table.columns if c.type.is_supported)
                problem = f"names {table.full_name}.{each}: {reason}"
                raise self._error("columns", problem, f"supported: {names}")
        return list(wanted)

    def _key_column(self, table: Table, name: str) -> Column:
        column = table.column(name)
        if column is None:
            hint = f"declared are {', '.join(each.name for each in table.columns)}"
            raise self._error("key", f"names {table.full_name}.{name}", hint)
        if not column.type.is_key_safe:
            hint = "keys are smallint, integer, bigint, boolean, text, varchar, enum or uuid"
            raise self._error("key", f"names {table.full_name}.{name} of type {column.type}", hint)
        return column

    def _key(self, inputs: tuple[InputPlan, ...]) -> tuple[KeyColumn, ...]:
        first = [self._key_column(inputs[0].table, column) for column in inputs[0].key]
        for each in inputs[1:]:
            for mine, name in zip(first, each.key, strict=True):
                column = self._key_column(each.table, name)
                if column.type.wire_family != mine.type.wire_family:
                    other = f"{each.alias}.{column.name} of {column.type}"
                    problem = f"has {mine.name} of type {mine.type} and {other}"
                    raise self._error("key", problem, "expected types alike in all tables")
        names = tuple(self.key_names or inputs[0].key)
        if len(names) != len(first) or len(set(names)) < len(names):
            problem = f"is {list(names)} for a key of {len(first)} columns"
            raise self._error("key_names", problem, "expected one name for each, all different")
        return tuple(KeyColumn(n, column.type) for n, column in zip(names, first, strict=True))

    def _document_type(self) -> StructType:
        try:
            found = StructType.fromDDL(self.document) if isinstance(self.document, str) else self.document
            if not isinstance(found, StructType):
                raise self._error("document", "has no fields", _DOCUMENT_HINT)
            encoder(found)
        except (PySparkException, ValueError) as error:
            raise self._error("document", f"is no usable type: {error}", _DOCUMENT_HINT) from error
        return found

    def _text_columns(self, each: InputPlan) -> tuple[str, ...]:
        wanted = tuple(self.as_text.get(each.alias, ()))
        unknown = sorted(set(wanted) - set(each.column_names))
        if unknown:
            problem = f"names {each.alias}.{unknown[0]}, which is not kept"
            raise self._error("as_text", problem, f"kept are {', '.join(each.column_names)}")
        return wanted

    def _error(self, argument: str, problem: str, hint: str) -> PipelineConfigError:
        return unusable_argument(self.name, argument, problem, hint)


def unusable_argument(stage: str, argument: str, problem: str, hint: str) -> PipelineConfigError:
    """Names an argument of which no stage can be made, what is wrong with it, and what helps."""
    return PipelineConfigError(f"stage {stage!r}: {argument} {problem}", hint)
