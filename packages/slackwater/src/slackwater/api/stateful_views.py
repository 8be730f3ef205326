"""A stage whose documents are computed by a user's Python function."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, Literal, TypedDict, Unpack

import msgspec
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from slackwater.api.change_frame import Changes, find_table
from slackwater.api.documents import Documents
from slackwater.api.python_evaluator import KeyFunction, PickledFunction, Rows, encoder
from slackwater.api.session import check_session
from slackwater.outputs.contract import Emit
from slackwater.pipeline.definition import PipelineDefinition, ViewOutput, table_names
from slackwater.protocol import ConfigError
from slackwater.sql.catalog import Catalog, Column, Table
from slackwater.sql.plan import (
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

__all__ = ["Rows", "StatefulOptions", "stateful"]

KeyColumns = Mapping[str, str | Sequence[str]] | str | Sequence[str]
"""For each table, the column or columns of the key; or one column, or several, that all tables have."""

_DOCUMENT_HINT: Final = 'expected the fields as Spark writes them, e.g. "id BIGINT, total DECIMAL(12,2)"'


class StatefulOptions(TypedDict, total=False):
    """Further arguments of :func:`stateful`."""

    emit: Literal["latest", "transactions"]
    """A document per key and batch (the default), or per key and commit that changed it."""
    buckets: int | None
    """The number of buckets, fixed for the life of a checkpoint; None (the default) to let the first run
    choose."""
    version: str
    """Change it when the function gets another meaning: a state of another version is refused."""
    columns: Mapping[str, Collection[str]]
    """For each table, the columns to keep besides the keys; for other tables, all supported columns are kept.
    Fewer columns mean less state and less work, because a change of other columns does not affect the key."""
    as_text: Mapping[str, Collection[str]]
    """For each table, columns whose values are to be text, for example dates that may be infinite."""
    key_names: Sequence[str]
    """The names of the key's columns in the documents' keys; by default, those of the first table."""


def stateful(
    changes: Changes,
    function: KeyFunction,
    *,
    name: str,
    key: KeyColumns,
    document: "StructType | str",
    **options: Unpack[StatefulOptions],
) -> Documents:
    """Computes documents with a Python function from all rows of a key, correct at every commit.

    For each key whose rows a commit changes, the function is called with the key and *all* its rows as of
    that commit. It returns the key's document, or None if there is none. The engine keeps the state, ensures
    commit order, compares with the previous document, writes deletes, and recovers. A key without rows has no
    document.

    The function must be pure: the same rows always give the same document. It may be called more than once
    for a commit, and not at all for commits whose result is not published (``emit="latest"``). cloudpickle
    sends it to the workers, so the modules that it imports must exist there.

    Args:
        changes: The source, with declared tables, from the earliest change on.
        function: ``function(key, rows)``: the key's value (a tuple if it has several columns) and, by table,
            the rows ordered by primary key: dicts of int, float, str, bool, Decimal, date, time, datetime
            (with time zone UTC for timestamptz), bytes, list, or None; json and uuid are str.
        name: The name of the view, of its state and, if it is written to Kafka, of its topic.
        key: For each table, the column or columns that contain the key; or one name for all tables.
        document: The type of the documents, in Spark's notation: ``"id BIGINT, total DECIMAL(12,2)"``. The
            dicts that the function returns must have exactly these fields; values are written as in views.
        options: See :class:`StatefulOptions`.

    Raises:
        ConfigError: An argument cannot be used, a table is not declared or not read, the session
            lacks settings, or the changes do not start at the beginning. The error names what is expected.
    """
    check_session(changes.session)
    stage = FunctionStage(name=name, key=key, document=document, options=options)
    plan, pickled = stage.plan(function, changes.catalog, changes.tables)
    tables = table_names(plan)
    definition = PipelineDefinition(
        name=name,
        source=changes.options.source,
        emit=Emit(options.get("emit", "latest")),
        buckets=options.get("buckets"),
        outputs=(ViewOutput(name, name),),
        topics={table: topic for table, topic in changes.options.routed.items() if table in tables},
        plan=plan,
        evaluators=pickled,
    )
    return Documents(changes, definition)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionStage:
    """The arguments of :func:`stateful` from which its stage is planned; :meth:`plan` checks them."""

    name: str
    """The name of the stage and of its view."""
    key: KeyColumns
    document: StructType | str
    """The documents' type."""
    options: StatefulOptions = field(default_factory=StatefulOptions)

    def plan(
        self, function: KeyFunction, catalog: Catalog | None, read: Collection[str]
    ) -> tuple[EnginePlan, PickledFunction]:
        """Plans one stage whose rows part calls the function."""
        self._check_options()
        inputs = tuple(
            self._input(find_table(catalog, table, read), columns)
            for table, columns in self._key_columns(read).items()
        )
        key, document = self._key(inputs), self._document_type()
        as_text = tuple(map(self._text_columns, inputs))
        schema = json.dumps(document.jsonValue(), sort_keys=True)
        meaning = json.dumps(["python", self.name, self.options.get("version", "1"), schema, as_text])
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
        pickled: bytes = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]  # has no types
        return EnginePlan((stage,), (view,)), PickledFunction(self.name, pickled, schema, as_text)

    def _check_options(self) -> None:
        known = StatefulOptions.__optional_keys__
        for option in self.options:
            if option not in known:
                raise self._error(option, "is not an option", f"the options are {', '.join(sorted(known))}")
        emit, buckets = self.options.get("emit", "latest"), self.options.get("buckets")
        if emit not in ("latest", "transactions"):
            raise self._error("emit", f"is {emit!r}", "expected 'latest' or 'transactions'")
        if buckets is not None and (not isinstance(buckets, int) or buckets < 1):
            raise self._error("buckets", f"is {buckets!r}", "expected a positive number")

    def _key_columns(self, read: Collection[str]) -> dict[str, tuple[str, ...]]:
        by_table = self.key if isinstance(self.key, Mapping) else dict.fromkeys(read, self.key)
        columns_of = {t: (each,) if isinstance(each, str) else tuple(each) for t, each in by_table.items()}
        widths = {len(columns) for columns in columns_of.values()}
        if len(widths) != 1 or 0 in widths:
            shown = {table: list(columns) for table, columns in columns_of.items()}
            hint = "expected at least one table, and the same number of columns for each table"
            raise self._error("key", f"is {shown}", hint)
        return columns_of

    def _input(self, table: Table, key: tuple[str, ...]) -> InputPlan:
        for column in key:
            self._key_column(table, column)
        if not table.primary_key:
            hint = "declare one: rows are identified by their primary key"
            raise self._error("key", f"names {table.full_name}, which has no primary key", hint)
        moves = not set(key) <= set(table.primary_key)
        if moves and not table.replica_identity_full:
            problem = f"of {table.full_name} can be changed by an update, which does not contain the old key"
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
        wanted = self.options.get("columns", {}).get(table.full_name)
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
            hint = f"the columns are {', '.join(each.name for each in table.columns)}"
            raise self._error("key", f"names {table.full_name}.{name}, which does not exist", hint)
        if not column.type.is_key_safe:
            hint = "a key must be smallint, integer, bigint, boolean, text, varchar, enum or uuid"
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
                    raise self._error("key", problem, "expected the same types in all tables")
        names = tuple(self.options.get("key_names") or inputs[0].key)
        if len(names) != len(first) or len(set(names)) < len(names):
            problem = f"is {list(names)} for a key of {len(first)} columns"
            raise self._error("key_names", problem, "expected a different name for each column")
        return tuple(KeyColumn(n, column.type) for n, column in zip(names, first, strict=True))

    def _document_type(self) -> StructType:
        try:
            found = StructType.fromDDL(self.document) if isinstance(self.document, str) else self.document
            if not isinstance(found, StructType):
                raise self._error("document", "has no fields", _DOCUMENT_HINT)
            encoder(found)
        except (PySparkException, ValueError) as error:
            raise self._error("document", f"cannot be used: {error}", _DOCUMENT_HINT) from error
        return found

    def _text_columns(self, each: InputPlan) -> tuple[str, ...]:
        wanted = tuple(self.options.get("as_text", {}).get(each.alias, ()))
        unknown = sorted(set(wanted) - set(each.column_names))
        if unknown:
            problem = f"names {each.alias}.{unknown[0]}, which is not kept"
            raise self._error("as_text", problem, f"the kept columns are {', '.join(each.column_names)}")
        return wanted

    def _error(self, argument: str, problem: str, hint: str) -> ConfigError:
        """Returns the error for an argument that cannot be used, with the reason and a remedy."""
        return ConfigError(f"stage {self.name!r}: {argument} {problem}", hint)
