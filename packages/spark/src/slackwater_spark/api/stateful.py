"""A stage whose documents a user's Python function makes."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from pyspark.sql.types import StructType

from slackwater_spark.api.changes import Changes
from slackwater_spark.api.documents import Documents
from slackwater_spark.api.function_stage import FunctionStage, KeyColumns, unusable_argument
from slackwater_spark.api.python_evaluator import KeyFunction, Rows
from slackwater_spark.api.session import check_session
from slackwater_spark.pipeline import PipelineDefinition, ViewOutput, table_names
from slackwater_spark.pipeline.definition import DEFAULT_BUCKETS
from slackwater_spark.sink import Emit

__all__ = ["Rows", "StatefulOptions", "stateful"]


class StatefulOptions(TypedDict, total=False):
    """Further arguments of :func:`stateful`."""

    emit: Literal["latest", "transactions"]
    """A document per key and batch (default), or per key and commit that changed it."""
    buckets: int
    """Slices of the keys; 64. Fixed for the life of a checkpoint."""
    version: str
    """Change it when the function means something else: state of another version is refused."""
    columns: Mapping[str, Collection[str]]
    """By table, the columns to keep beside the keys; of tables not named all that are supported. Less state,
    and less work: a change of other columns does not touch the key."""
    as_text: Mapping[str, Collection[str]]
    """By table, columns whose values are to be text, e.g. dates that may be infinite."""
    key_names: Sequence[str]
    """Names of the key's columns in the documents' keys; else those of the first table."""


def stateful(
    changes: Changes,
    function: KeyFunction,
    *,
    name: str,
    key: KeyColumns,
    document: "StructType | str",
    **options: Unpack[StatefulOptions],
) -> Documents:
    """Makes the documents that a Python function returns for all rows of a key; right at every commit.

    For each key whose rows a commit changes the function is called with the key and *all* its rows as of that
    commit, and returns the key's document, or None if it has none. State, commit order, comparison with the
    document before, deletes and recovery are the engine's. A key without rows has no document.

    The function must be pure: the same rows, the same document. It may be called more than once for a commit,
    and not at all for commits whose result nobody will see (``emit="latest"``). It travels to the workers by
    cloudpickle: modules that it imports must be there.

    Args:
        changes: The source; with declared tables, from the earliest change on.
        function: ``function(key, rows)``: the key's value (a tuple if it has several columns) and, by table,
            the rows ordered by primary key: dicts of int, float, str, bool, Decimal, date, time, datetime
            (with time zone UTC for timestamptz), bytes, list, or None; json and uuid are str.
        name: Of the view: names its state and, if it is written to Kafka, its topic.
        key: By table the column, or columns, that hold the key; or one name for all tables.
        document: The documents' type, as Spark writes it: ``"id BIGINT, total DECIMAL(12,2)"``. The
            function's dicts must have exactly these fields; values are written as views write theirs.
        options: See :class:`StatefulOptions`.

    Raises:
        PipelineConfigError: names the argument and what is expected, the table that is not declared or not
            read, or the settings that the session lacks; or the changes are not all there are.
    """
    check_session(changes.session)
    _check_options(name, options)
    stage = FunctionStage(
        name=name,
        key=key,
        document=document,
        columns=options.get("columns", {}),
        as_text=options.get("as_text", {}),
        key_names=options.get("key_names"),
        version=options.get("version", "1"),
    )
    plan, pickled = stage.plan(function, changes.catalog, changes.tables)
    tables = table_names(plan)
    definition = PipelineDefinition(
        name=name,
        source=changes.options.source,
        emit=Emit(options.get("emit", "latest")),
        buckets=options.get("buckets", DEFAULT_BUCKETS),
        outputs=(ViewOutput(name, name),),
        topics={table: topic for table, topic in changes.options.routed.items() if table in tables},
        plan=plan,
        evaluators=pickled,
    )
    return Documents.of(changes, definition)


def _check_options(name: str, options: StatefulOptions) -> None:
    known = StatefulOptions.__optional_keys__
    for option, value in options.items():
        if option not in known:
            raise unusable_argument(name, option, "is no option", f"known: {', '.join(sorted(known))}")
        _check_value(name, option, value)


def _check_value(name: str, option: str, value: Any) -> None:
    if option == "emit" and value not in ("latest", "transactions"):
        raise unusable_argument(name, option, f"is {value!r}", "expected 'latest' or 'transactions'")
    if option == "buckets" and (not isinstance(value, int) or value < 1):
        raise unusable_argument(name, option, f"is {value!r}", "expected a positive number")
