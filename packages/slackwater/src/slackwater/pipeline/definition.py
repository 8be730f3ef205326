"""The definition of a pipeline: everything that determines its results."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from slackwater.cdc.captured import shared_topics
from slackwater.engine.evaluate.evaluators import Evaluators
from slackwater.engine.settings import Scope, StageSettings
from slackwater.outputs.contract import HISTORY_SUFFIX, Emit, Format, KeyFormat, SinkKind
from slackwater.protocol import ConfigError, SourceTopics
from slackwater.protocol.keys import commit_topic, is_reserved_topic
from slackwater.sql.catalog import Catalog, Column, Table
from slackwater.sql.compiler import compile_pipeline, compile_separately
from slackwater.sql.limits import DEFAULT_LIMITS, StatementLimits
from slackwater.sql.plan import (
    DocumentsOutput,
    EnginePlan,
    InputPlan,
    PublishedView,
    StagePlan,
    with_documents_before,
)
from slackwater.sql.planner.sharing import stage_uses

SOURCE_TOPIC = re.compile(r".+\.[A-Za-z_][A-Za-z0-9_]{0,62}\.[A-Za-z_][A-Za-z0-9_]{0,62}")
"""The name of a topic that contains a table of a source, <prefix>.<schema>.<table>."""
"""Of the table with every version, beside a table of PostgreSQL."""
_TABLE_OF_THE_DATABASE = 0
"""The origin of an input that is not the result of another stage."""


@dataclass(frozen=True, slots=True)
class ViewOutput:
    """The place where a view is published."""

    view: str
    name: str
    """The name of the topic; for an output that is a table, ``schema.name``."""
    partitions: int | None = None
    """The number of partitions of a topic; None for the existing number, or four."""
    kind: SinkKind = SinkKind.KAFKA
    """The kind of the sink."""
    history: bool = False
    """Whether a PostgreSQL table has a second table beside it with every version."""
    format: Format = Format.JSON
    """The form of documents in Kafka."""
    key_format: KeyFormat = KeyFormat.JSON
    """The form of keys in Kafka."""

    cloudevents: bool = False
    """Whether records in Kafka have the attributes of CloudEvents in their headers."""

    @property
    def is_source(self) -> bool:
        """Whether the output is a table of a connector to its readers, ``<prefix>.<schema>.<table>``."""
        return self.format is Format.DEBEZIUM

    @property
    def prefix(self) -> str:
        """The ``topic.prefix`` of such an output."""
        return self.name.rsplit(".", 2)[0]


@dataclass(frozen=True)
class PipelineSql:
    """The SQL from which a pipeline's plan is made."""

    catalog: Catalog
    """The declared tables."""
    views: tuple[tuple[str, str], ...]
    """The path and the text of each view, by its name."""

    @property
    def view_names(self) -> tuple[str, ...]:
        """The names of the views."""
        return tuple(Path(path).stem for path, _ in self.views)

    def plan(
        self, published: Collection[str], catalog: Catalog | None = None, scope: Scope = Scope.STRICT
    ) -> EnginePlan:
        """Plans the published views, optionally over other tables.

        Raises:
            SqlTextError: A view is not supported; the error contains the position.
        """
        accumulates = scope is Scope.STRICT
        return compile_pipeline(
            self.views, catalog or self.catalog, published=published, accumulates=accumulates
        )

    def plan_separately(self, published: Collection[str], scope: Scope) -> EnginePlan:
        """Plans the published views as if they had nothing in common, each with the columns that it needs."""
        accumulates = scope is Scope.STRICT
        return compile_separately(self.views, self.catalog, published=published, accumulates=accumulates)

    def stage_uses(self, published: Collection[str], scope: Scope) -> dict[int, int]:
        """Returns for each stage the number of stages that there would be instead if none were shared."""
        plan = self.plan_separately(published, scope)
        return stage_uses(plan, [text for _, text in self.views])[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDefinition:
    """The views of a pipeline, and where it reads and writes: everything that determines its results."""

    name: str
    """The name, which is also the base of the progress topic and the transactional id. From revision 2 on, it
    ends in ``.v<revision>``."""
    source: str
    """The connector's ``topic.prefix``."""
    owner: str = ""
    """Whom to ask about it, as free text; empty if nobody is named."""
    scope: Scope = Scope.STRICT
    """Strict: all views show the same commit; aggregate: each document shows its own."""
    emit: Emit
    buckets: int | None = None
    """The number of buckets of each stage, fixed for the life of a checkpoint; None to let the first run
    choose."""
    revision: int = 1
    """The number of the meaning that the views have; each revision has its own checkpoint and outputs."""
    outputs: tuple[ViewOutput, ...]
    """The outputs, in the order of the plan's views."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """The topic of each table whose rows a transform of the connector routes to another topic than usual."""
    plan: EnginePlan
    sql: PipelineSql | None = None
    """The SQL from which the plan was made; None if there is none."""
    evaluators: Evaluators | None = None
    """Evaluates the rows of stages; None for DuckDB."""

    @property
    def tables(self) -> tuple[str, ...]:
        """The full names of the tables that the views read, each once."""
        return table_names(self.plan)

    @property
    def input_topics(self) -> frozenset[str]:
        """The topics of the tables."""
        return frozenset(map(SourceTopics(self.source, self.topics).data, self.tables))


def stage_settings(definition: PipelineDefinition, limits: StatementLimits = DEFAULT_LIMITS) -> StageSettings:
    """Returns the settings of the stages of a pipeline whose number of buckets is known."""
    assert definition.buckets is not None  # noqa: S101 - chosen when a run is checked, or noted by the first one
    return StageSettings(
        buckets=definition.buckets,
        every_commit=definition.emit is Emit.TRANSACTIONS,
        scope=definition.scope,
        limits=limits,
    )


@dataclass(frozen=True, slots=True)
class OutputFault:
    """The reason why a source or outputs are impossible."""

    key: str
    """The key of pipeline.toml that has to be changed."""
    problem: str
    hint: str


def fault_of_outputs(
    source: str, emit: Emit, scope: Scope, outputs: Sequence[ViewOutput], plan: EnginePlan
) -> OutputFault | None:
    """Returns why outputs cannot have their forms; None if they can.

    Args:
        source: The source that the pipeline reads.
        emit: Which states are published.
        scope: The scope of the pipeline.
        outputs: All outputs, in the order of the plan's views.
        plan: The plan of the pipeline.
    """
    for output in outputs:
        if output.cloudevents and output.format in (Format.AVRO, Format.JSON_SCHEMA):
            hint = "remove one of the two: CloudEvents have no content type for values with a schema id"
            problem = f'cloudevents cannot be combined with format = "{output.format}"'
            return OutputFault("outputs", f"view {output.view!r}: {problem}", hint)
    return _fault_of_sources(source, emit, scope, outputs, plan)


def _fault_of_sources(
    source: str, emit: Emit, scope: Scope, outputs: Sequence[ViewOutput], plan: EnginePlan
) -> OutputFault | None:
    """Returns why the outputs that are to be tables cannot be tables of one source."""
    tables = [(view, o) for view, o in zip(plan.views, outputs, strict=True) if o.is_source]
    if not tables:
        return None
    needs = 'format = "debezium" needs'
    if emit is not Emit.TRANSACTIONS:
        hint = 'set emit = "transactions": each event then belongs to a transaction of the database'
        return OutputFault("emit", f"{needs} every transaction", hint)
    if scope is not Scope.STRICT:
        hint = 'set scope = "strict": BEGIN and END describe whole transactions'
        return OutputFault("scope", f"{needs} whole transactions", hint)
    for _, output in tables:
        if not SOURCE_TOPIC.fullmatch(output.name):
            hint = "schema and table may contain letters, digits and '_', at most 63 each"
            problem = f"{output.name!r}: expected prefix.schema.table, as Debezium names topics"
            return OutputFault("outputs", problem, hint)
        if output.key_format is not KeyFormat.JSON:
            hint = "remove it: other pipelines read such a topic like that of a connector"
            problem = f"key_format {str(output.key_format)!r} cannot be combined with format 'debezium'"
            return OutputFault("outputs", f"view {output.view!r}: {problem}", hint)
    prefixes = sorted({output.prefix for _, output in tables})
    if len(prefixes) > 1:
        problem = f"the topics have different prefixes: {' and '.join(map(repr, prefixes))}"
        return OutputFault("outputs", problem, "a source has one prefix: <prefix>.<schema>.<table>")
    if prefixes[0] == source:
        problem = f"{prefixes[0]!r} is the prefix of the source that is read"
        hint = 'an output that is a source needs its own prefix: set topic = "<prefix>.<schema>.<table>"'
        return OutputFault("source", problem, hint)
    return next((fault for view, _ in tables if (fault := _fault_of_key(view)) is not None), None)


def _fault_of_key(view: PublishedView) -> OutputFault | None:
    missing = [name for name in view.key if name not in {column.name for column in view.outputs}]
    if view.key and not missing:
        return None
    what = f"its key has column {missing[0]!r}, which it does not select" if missing else "it has no key"
    hint = "a table of a source needs a primary key: select all columns of the key"
    return OutputFault("outputs", f"view {view.name!r}: {what}", hint)


def own_places(output: ViewOutput) -> tuple[str, ...]:
    """Returns the names of everything that an output writes."""
    if output.kind is not SinkKind.KAFKA:
        return (output.name, *((output.name + HISTORY_SUFFIX,) if output.history else ()))
    return (output.name, commit_topic(output.name))


def shared_places(output: ViewOutput) -> tuple[str, ...]:
    """Returns the names of everything that an output writes together with others."""
    topics = SourceTopics(output.prefix)
    return (topics.transactions, topics.notifications) if output.is_source else ()


def fault_of_names(
    source: str, outputs: Sequence[ViewOutput], plan: EnginePlan, routed: Mapping[str, str]
) -> OutputFault | None:
    """Returns which table or output would share a topic that has another purpose; None if there is none.

    Args:
        source: The source that the pipeline reads.
        outputs: All outputs.
        plan: The plan of the pipeline.
        routed: The topics of tables whose records a transform sends elsewhere.
    """
    topics = SourceTopics(source, routed)
    for shared in shared_topics(topics, table_names(plan)):
        return OutputFault("source", f"table {shared.table}: {shared.text}", shared.hint)
    inputs = {topics.data(table): f"the topic of table {table}" for table in table_names(plan)}
    inputs[topics.transactions] = "the transaction topic of the source"
    inputs[topics.notifications] = "the topic of the connector's notifications"
    for output in outputs:
        if output.kind is not SinkKind.KAFKA:
            continue
        for place in (*own_places(output), *shared_places(output)):
            used = inputs.get(place) or _purpose_of(place, source)
            if used:
                problem = f"view {output.view!r} cannot write topic {place!r}, which is {used}"
                return OutputFault("outputs", problem, "use another name for the topic")
    return None


def _purpose_of(topic: str, source: str) -> str:
    if is_reserved_topic(topic):
        return "reserved for the records of Slackwater, Kafka or a connector"
    if SOURCE_TOPIC.fullmatch(topic) and topic.rsplit(".", 2)[0] == source:
        return f"a table of source {source!r} by its name"
    return ""


def with_changes(plan: EnginePlan, outputs: Sequence[ViewOutput]) -> EnginePlan:
    """Returns a plan whose documents are changes for outputs that are tables of a source."""
    tables = [number for number, output in enumerate(outputs) if output.is_source]
    return with_documents_before(plan, tables) if tables else plan


def pipeline_definition(
    *,
    name: str,
    source: str,
    catalog: Catalog,
    views: Mapping[str, str],
    emit: Emit = Emit.LATEST,
    buckets: int | None = None,
    outputs: Sequence[ViewOutput] | None = None,
) -> PipelineDefinition:
    """Returns the definition of a pipeline without a folder.

    Args:
        name: The pipeline's name.
        source: The connector's ``topic.prefix``.
        catalog: The declared tables.
        views: Name and SQL of each view.
        emit: Which states are published.
        buckets: The number of buckets of each stage, fixed for the life of a checkpoint; None to let the
            first run choose.
        outputs: Where views are published, and in which form, in their order; None to publish each as JSON in
            the topic of its name.

    Raises:
        ConfigError: An output cannot have its form.
        SqlTextError: A view is not supported; the error contains the position.
    """
    sql = PipelineSql(catalog, tuple((f"{view}.sql", text) for view, text in views.items()))
    outputs = tuple(map(ViewOutput, views, views)) if outputs is None else tuple(outputs)
    outputs = tuple(
        replace(each, format=Format(each.format), key_format=KeyFormat(each.key_format)) for each in outputs
    )
    plan = sql.plan([output.view for output in outputs])
    fault = fault_of_outputs(source, emit, Scope.STRICT, outputs, plan)
    fault = fault or fault_of_names(source, outputs, plan, {})
    if fault is not None:
        raise ConfigError(f"pipeline {name!r}: {fault.key}: {fault.problem}", fault.hint)
    return PipelineDefinition(
        name=name,
        source=source,
        emit=emit,
        buckets=buckets,
        outputs=outputs,
        plan=with_changes(plan, outputs),
        sql=sql,
    )


def table_names(plan: EnginePlan) -> tuple[str, ...]:
    """Returns the full names of the tables that the plan reads, each once, in order."""
    return tuple(sorted({each.table.full_name for each in _table_inputs(plan.stages)}))


def used_columns(plan: EnginePlan) -> dict[str, frozenset[str]]:
    """Returns the full names of the tables that the plan reads, each with the columns that it needs."""
    used: dict[str, frozenset[str]] = {}
    for each in _table_inputs(plan.stages):
        columns = (*each.column_names, *each.table.primary_key)
        used[each.table.full_name] = used.get(each.table.full_name, frozenset()).union(columns)
    return used


def declared_keys(plan: EnginePlan) -> dict[str, tuple[str, ...]]:
    """Returns the declared primary keys of the tables that the plan reads, by their full names."""
    return {each.table.full_name: each.table.primary_key for each in _table_inputs(plan.stages)}


def needed_columns(plan: EnginePlan) -> list[tuple[Table, Column]]:
    """Returns the columns that the plan needs, each once."""
    used = used_columns(plan)
    return list(
        {
            (each.table.full_name, column.name): (each.table, column)
            for each in _table_inputs(plan.stages)
            for column in each.table.columns
            if column.name in used[each.table.full_name]
        }.values()
    )


def view_inputs(plan: EnginePlan, view: PublishedView) -> Iterator[InputPlan]:
    """Yields the inputs of a view that are tables of the database, once for each use of a table."""
    return stage_inputs(plan, view.stages)


def stage_inputs(plan: EnginePlan, stages: Iterable[int]) -> Iterator[InputPlan]:
    """Yields the inputs of stages that are tables of the database, once for each use of a table."""
    return _table_inputs(map(plan.stage, stages))


def keys_move(plan: EnginePlan, view: int) -> bool:
    """Returns whether a document of a view may move from one key of its last stage to another.

    It cannot if there is one document for each stage key, or for each group.
    """
    outputs = ((stage, stage.output) for stage in plan.stages)
    (last,) = (stage for stage, o in outputs if isinstance(o, DocumentsOutput) and o.view == view)
    return last.accumulate is None and last.rows is not None and last.rows.latest_statement is None


def _table_inputs(stages: Iterable[StagePlan]) -> Iterator[InputPlan]:
    """Yields the inputs that are tables of the database, once for each use of a table."""
    for stage in stages:
        if stage.rows is not None:
            for each in stage.rows.inputs:
                if each.origin == _TABLE_OF_THE_DATABASE:
                    yield each
