"""A plan in words: what each stage reads, keeps, computes and hands on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from slackwater_spark.explain.hints import hints
from slackwater_spark.explain.words import accumulated, computed, key_columns, listed, sent
from slackwater_spark.pipeline import PipelineDefinition, ViewOutput
from slackwater_spark.sink import Emit
from slackwater_sql.plan import DocumentsOutput, EnginePlan, InputPlan, PublishedView, StagePlan


@dataclass(frozen=True, slots=True)
class ExplainedInput:
    """Rows that a stage reads."""

    alias: str
    table: str
    """``schema.table``, or ``stage n``."""
    stage: int
    """The number of the stage they come from; 0: a table of the database."""
    key: tuple[str, ...]
    """What they are spread by."""
    columns: dict[str, str]
    """Name and type of what is kept of them."""


@dataclass(frozen=True, slots=True)
class ExplainedStage:
    """A step with state."""

    number: int
    key: tuple[str, ...]
    why: str
    inputs: tuple[ExplainedInput, ...]
    keeps: tuple[str, ...]
    computes: tuple[str, ...]
    sends: str
    sql: dict[str, str]


@dataclass(frozen=True, slots=True)
class ExplainedView:
    """What is published."""

    name: str
    topic: str
    partitions: int | None
    key: dict[str, str]
    """The record key's columns; an empty type: the column is in the key only."""
    columns: dict[str, str]
    stages: tuple[int, ...]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A pipeline."""

    name: str
    source: str
    scope: str
    emit: str
    buckets: int
    revision: int
    tables: tuple[str, ...]
    stages: tuple[ExplainedStage, ...]
    views: tuple[ExplainedView, ...]
    hints: tuple[str, ...] = ()


def explain(definition: PipelineDefinition) -> Explanation:
    """Everything that can be said of a pipeline without running it."""
    plan = definition.plan
    return Explanation(
        name=definition.name,
        source=definition.source,
        scope=str(definition.scope),
        emit=str(definition.emit),
        buckets=definition.buckets,
        revision=definition.revision,
        tables=definition.tables,
        stages=tuple(_stage(stage, plan, definition.emit) for stage in plan.stages),
        views=tuple(map(_view, plan.views, definition.outputs)),
        hints=tuple(hints(definition)),
    )


def without_sql(explanation: Explanation) -> Explanation:
    """The same without statements."""
    return replace(explanation, stages=tuple(replace(stage, sql={}) for stage in explanation.stages))


def _stage(stage: StagePlan, plan: EnginePlan, emit: Emit) -> ExplainedStage:
    rows = stage.rows
    labels = dict(stage.labels)
    inputs = () if rows is None else tuple(_input(each, labels) for each in rows.inputs)
    return ExplainedStage(
        number=stage.number,
        key=key_columns(stage.key, dict(stage.labels)),
        why=stage.why,
        inputs=inputs,
        keeps=tuple(_keeps(stage, inputs, emit)),
        computes=tuple(computed(stage)),
        sends=sent(stage, plan),
        sql=dict(_statements(stage, emit)),
    )


def _input(plan: InputPlan, labels: Mapping[str, str]) -> ExplainedInput:
    return ExplainedInput(
        alias=plan.alias,
        table=plan.table.name if plan.origin else plan.table.full_name,
        stage=plan.origin,
        key=tuple(labels.get(name, name) for name in plan.key),
        columns=_columns(plan, labels),
    )


def _columns(plan: InputPlan, labels: Mapping[str, str]) -> dict[str, str]:
    columns: dict[str, str] = {}
    for column in plan.columns:
        label = labels.get(column.name, column.name)
        columns[f"{label} ({column.name})" if label in columns else label] = str(column.type)
    return columns


def _keeps(stage: StagePlan, inputs: tuple[ExplainedInput, ...], emit: Emit) -> Iterator[str]:
    if inputs:
        names = dict.fromkeys(
            f"the rows of {each.table}" if not each.stage else f"the rows of stage {each.stage}"
            for each in inputs
        )
        yield listed(list(names))
    if stage.accumulate is not None:
        yield accumulated(stage.accumulate, dict(stage.labels))
    rows = stage.rows
    if emit is Emit.TRANSACTIONS or rows is None or rows.latest_statement is None:
        return
    if isinstance(rows.output, DocumentsOutput):
        yield "a digest of each key's newest document (emit = latest)"


def _statements(stage: StagePlan, emit: Emit) -> Iterator[tuple[str, str]]:
    if stage.rows is not None:
        yield "rows", stage.rows.statement
        if emit is Emit.LATEST and stage.rows.latest_statement is not None:
            yield "latest", stage.rows.latest_statement
    if stage.accumulate is not None:
        yield "accumulate", stage.accumulate.statement


def _view(view: PublishedView, output: ViewOutput) -> ExplainedView:
    columns = {each.name: each.type for each in view.outputs}
    return ExplainedView(
        name=view.name,
        topic=output.topic,
        partitions=output.partitions,
        key={name: columns.get(name, "") for name in view.key},
        columns=columns,
        stages=view.stages,
        fingerprint=view.fingerprint,
    )
