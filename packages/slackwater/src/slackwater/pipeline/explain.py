"""Describes a pipeline: what each stage reads, keeps, computes and sends, and what could make it cheaper.

:func:`explain` collects the facts, for tools; :func:`explanation_lines` formats them, for people.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slackwater.outputs.contract import Emit
from slackwater.pipeline.definition import PipelineDefinition, PipelineSql, ViewOutput, table_names
from slackwater.sql.catalog import Catalog
from slackwater.sql.plan import (
    AccumulatePart,
    AccumulatorKind,
    DocumentsOutput,
    Edge,
    EnginePlan,
    InputPlan,
    KeyColumn,
    PartialsOutput,
    PublishedView,
    Reads,
    StagePlan,
    withholds,
)

_WIDTH = 100
"""The number of characters in a line of text."""

_READS = {
    Reads.GROUP: "if only {input} changed, all rows of the key are evaluated",
    Reads.CHANGED: "if only {input} changed, its changed rows with the others' rows of the key are evaluated",
    Reads.CHANGED_AND_WITNESS: (
        "if only {input} changed, its changed rows and one other of them with the others' rows of the key "
        "are evaluated"
    ),
    Reads.ALONE: "each changed row of {input} by itself",
}
_ACCUMULATORS = {
    AccumulatorKind.COUNT: "a number for {text}",
    AccumulatorKind.SUM: "an exact sum and a number for {text}",
    AccumulatorKind.MIN: "the ordered values of {text}",
    AccumulatorKind.MAX: "the ordered values of {text}",
    AccumulatorKind.DISTINCT: "the different values of {text}",
    AccumulatorKind.QUANTILE: "the ordered values of {text}, counted by ranges",
}


@dataclass(frozen=True, slots=True)
class ExplainedInput:
    """An input of a stage."""

    alias: str
    table: str
    """``schema.table``, or ``stage n``."""
    stage: int
    """The number of the stage that sends the rows; 0 for a table of the database."""
    key: tuple[str, ...]
    """The columns by which its rows are distributed."""
    columns: dict[str, str]
    """Name and type of the columns that are kept."""


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
    views: tuple[str, ...]
    """The views that it is computed for."""
    uses: int
    """The number of stages that there would be instead if none were shared; 0 if it is not known."""
    state_bytes: int | None
    """The size of its state before compression; None if no state was read."""
    kept_by: int
    """The stage that keeps this stage's rows and all else of it; 0 for the stage itself."""


@dataclass(frozen=True, slots=True)
class ExplainedView:
    """A view that is published."""

    name: str
    topic: str
    partitions: int | None
    key: dict[str, str]
    """The columns of the record key; an empty type means that only the key contains the column."""
    columns: dict[str, str]
    stages: tuple[int, ...]
    fingerprint: str
    partition_by: str = ""
    """The column by which the topic is partitioned; empty for the key."""
    withheld: str = ""
    """Where keys that cannot be evaluated are named; empty: they end the run."""
    stopping: tuple[int, ...] = ()
    """The stages in which an error ends the run nevertheless."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The description of a pipeline."""

    name: str
    source: str
    scope: str
    emit: str
    buckets: int | None
    """None if the first run chooses."""
    revision: int
    tables: tuple[str, ...]
    stages: tuple[ExplainedStage, ...]
    levels: tuple[tuple[int, ...], ...]
    """The numbers of the stages by level; a batch takes one exchange per level."""
    views: tuple[ExplainedView, ...]
    hints: tuple[str, ...] = ()


def explain(
    definition: PipelineDefinition, *, with_sql: bool, state_bytes: Mapping[int, int] | None = None
) -> Explanation:
    """Returns everything about a pipeline that is known without running it, optionally with statements.

    The sizes of states, in bytes, are by stage; None if they are not known.
    """
    plan = definition.plan
    uses, hints = {}, [*plan.notes, *_global_groups(plan)]
    if definition.sql is not None:
        uses = definition.sql.stage_uses(definition.published, definition.scope)
        hints = [*_replica_identities(plan, definition.sql, definition.published), *hints]
        if passed_over := definition.sql.catalog.passed_over:
            hints.append(
                f"the schema files have statements that say nothing about rows: {', '.join(passed_over)}"
            )
    return Explanation(
        name=definition.name,
        source=definition.source,
        scope=str(definition.scope),
        emit=str(definition.emit),
        buckets=definition.buckets,
        revision=definition.revision,
        tables=definition.tables,
        stages=tuple(_stage(each, definition, uses, state_bytes, with_sql=with_sql) for each in plan.stages),
        levels=plan.levels,
        views=tuple(
            _view(view, output, definition)
            for view, output in zip(plan.views, definition.outputs, strict=True)
            if not output.withheld_of
        ),
        hints=tuple(hints),
    )


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Yields the lines of the text, with statements if the explanation contains them."""
    stages, views = len(explanation.stages), len(explanation.views)
    yield (
        f"pipeline {explanation.name}: {_counted(views, 'view')} over "
        f"{_counted(len(explanation.tables), 'table')} of source {explanation.source}, in "
        f"{_counted(stages, 'stage')} on {_counted(len(explanation.levels), 'level')}; "
        f"emit = {explanation.emit}, scope = {explanation.scope}"
    )
    yield from shared_lines(explanation)
    yield ""
    yield f"a batch takes {_counted(len(explanation.levels), 'exchange')}, one per level"
    for level, numbers in enumerate(explanation.levels, 1):
        yield from _folded(f"  level {level:<3} ", _stages_text(numbers))
    for stage in explanation.stages:
        yield ""
        yield from _stage_lines(stage)
    for view in explanation.views:
        yield ""
        yield from _view_lines(view)
    if explanation.hints:
        yield ""
        yield "hints"
        for hint in explanation.hints:
            yield from _folded("  - ", hint)


def shared_lines(explanation: Explanation) -> Iterator[str]:
    """Yields what the views have in common, and what this saves."""
    keepers = {stage.kept_by for stage in explanation.stages} - {0}
    for keeper in sorted(keepers):
        sharers = [stage.number for stage in explanation.stages if stage.kept_by == keeper]
        tables = list(dict.fromkeys(each.table for each in explanation.stages[keeper - 1].inputs))
        text = f"stage {keeper} keeps the rows of {_listed(tables)} for {_stages_text(sharers)}, too"
        copies = "twice" if len(sharers) == 1 else f"{len(sharers) + 1} times"
        yield from _folded("", f"{text}: else they would be kept {copies}")
    shared = [stage for stage in explanation.stages if stage.uses > 1]
    if not shared:
        return
    saved = sum(stage.uses - 1 for stage in shared)
    sizes = [
        (stage.uses - 1) * stage.state_bytes
        for stage in shared
        if stage.state_bytes is not None and not stage.kept_by and stage.number not in keepers
    ]
    space = f", and {sum(sizes):,} bytes of state" if sizes else ""
    numbers = _stages_text([stage.number for stage in shared])
    verb = "replaces" if len(shared) == 1 else "replace"
    text = f"{numbers} {verb} several equal ones: that saves {_counted(saved, 'stage')}{space}"
    yield from _folded("", text)


def _stage(
    stage: StagePlan,
    definition: PipelineDefinition,
    uses: Mapping[int, int],
    state_bytes: Mapping[int, int] | None,
    *,
    with_sql: bool,
) -> ExplainedStage:
    rows, plan, emit = stage.rows, definition.plan, definition.emit
    labels = dict(stage.labels)
    inputs = () if rows is None else tuple(_input(each, labels) for each in rows.inputs)
    return ExplainedStage(
        number=stage.number,
        key=_key_columns(stage.key, labels),
        why=stage.why,
        inputs=inputs,
        keeps=tuple(_keeps(stage, plan, inputs, emit)),
        computes=tuple(_computes(stage)),
        sends=_sends(stage, plan),
        sql=dict(_statements(stage, emit)) if with_sql else {},
        views=tuple(view.name for view in plan.views if stage.number in view.stages),
        uses=uses.get(stage.number, 0),
        state_bytes=None if state_bytes is None else state_bytes.get(stage.number, 0),
        kept_by=stage.kept_by,
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


def _keeps(
    stage: StagePlan, plan: EnginePlan, inputs: tuple[ExplainedInput, ...], emit: Emit
) -> Iterator[str]:
    others = [each.number for each in plan.stages if each.kept_by == stage.number]
    if stage.kept_by:
        yield f"no rows: stage {stage.kept_by} keeps those that it reads"
    elif inputs:
        names = dict.fromkeys(
            f"the rows of {each.table}" if not each.stage else f"the rows of stage {each.stage}"
            for each in inputs
        )
        yield _listed(list(names)) + (f", for {_stages_text(others)}, too" if others else "")
    if stage.is_timed:
        yield "when each of them ends, by the commit times of the source"
    if stage.accumulate is not None:
        yield _accumulated(stage.accumulate, dict(stage.labels))
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


def _listed(words: Sequence[str]) -> str:
    """Joins words to a list for a sentence."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _key_columns(key: Sequence[KeyColumn], labels: Mapping[str, str]) -> tuple[str, ...]:
    """Returns name and type of each column; labels replace names that the planner generated."""
    return tuple(f"{labels.get(column.name, column.name)} {column.type}" for column in key)


def _accumulated(part: AccumulatePart, labels: Mapping[str, str]) -> str:
    """Describes what is kept of groups."""
    of = f"per group ({', '.join(_key_columns(part.key, labels))})" if part.key else "for the one group"
    for top in filter(None, (each.ranks for each in part.accumulators)):
        return f"{of}: all rows in order, and shows {top.function}() from {top.first} to {top.last}"
    each = (_ACCUMULATORS[each.kind].format(text=each.text) for each in part.accumulators)
    kept = ["the number of rows", *each]
    return f"{of}, not its rows: {_listed(kept)}"


def _computes(stage: StagePlan) -> Iterator[str]:
    """Describes what is evaluated after a change."""
    rows = stage.rows
    if rows is not None:
        if set(rows.reads) == {Reads.ALONE}:
            yield "each changed row by itself"
        else:
            for each in rows.inputs:
                yield _READS[each.reads].format(input=each.alias)
            if len(rows.inputs) > 1 and not set(rows.reads) <= {Reads.GROUP, Reads.ALONE}:
                yield "if several changed, all rows of the key are evaluated"
    if stage.accumulate is not None:
        yield "what changed is added to the groups; only changed groups are evaluated"


def _sends(stage: StagePlan, plan: EnginePlan) -> str:
    """Describes where the results are sent."""
    match stage.output:
        case DocumentsOutput(view=view):
            return f"changed documents to view {plan.views[view].name}"
        case PartialsOutput(stage=target):
            return f"what changes add to groups to stage {target}"
        case other:
            return f"changed rows to {_listed([_receiver(edge, plan) for edge in other.edges])}"


def _receiver(edge: Edge, plan: EnginePlan) -> str:
    rows = plan.stage(edge.stage).rows
    alias = "" if rows is None else f" as {rows.inputs[edge.input].alias}"
    return f"stage {edge.stage}{alias}"


def _view(view: PublishedView, output: ViewOutput, definition: PipelineDefinition) -> ExplainedView:
    withheld = (each.name for each in definition.outputs if each.withheld_of == view.name)
    columns = {each.name: each.type for each in view.outputs}
    return ExplainedView(
        name=view.name,
        topic=output.name,
        partitions=output.partitions,
        key={name: columns.get(name, "") for name in view.key},
        columns=columns,
        stages=view.stages,
        fingerprint=view.fingerprint,
        partition_by=output.partition_by,
        withheld=next(withheld, ""),
        stopping=tuple(n for n in view.stages if not withholds(definition.plan, definition.plan.stage(n))),
    )


def _replica_identities(plan: EnginePlan, sql: PipelineSql, published: Sequence[str]) -> Iterator[str]:
    """Finds tables whose old rows would make stages unnecessary, by planning with old rows."""
    read = table_names(plan)
    for table in sql.catalog.tables:
        if table.full_name not in read or table.replica_identity_full:
            continue
        others = (each for each in sql.catalog.tables if each is not table)
        other = sql.plan(published, Catalog((*others, replace(table, replica_identity_full=True))))
        saved = len(plan.stages) - len(other.stages)
        if saved > 0:
            yield (
                f"ALTER TABLE {table.full_name} REPLICA IDENTITY FULL would save {saved} "
                f"stage{'' if saved == 1 else 's'}: without old rows, a stage has to remember which key "
                "a row leaves"
            )


def _global_groups(plan: EnginePlan) -> Iterator[str]:
    fed = {stage.output.stage for stage in plan.stages if isinstance(stage.output, PartialsOutput)}
    for stage in plan.stages:
        if not stage.key:
            parallel = (
                "; what changes add to it is summed up in parallel before" if stage.number in fed else ""
            )
            yield f"stage {stage.number} has one group, so it runs in one task{parallel}"


def _stages_text(numbers: Sequence[int]) -> str:
    return f"stage{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _stage_lines(stage: ExplainedStage) -> Iterator[str]:
    key = ", ".join(stage.key) if stage.key else "nothing: one group"
    yield f"stage {stage.number}, keyed by {key}: {stage.why}"
    for each in stage.inputs:
        name = each.table if each.alias == each.table else f"{each.table} as {each.alias}"
        columns = ", ".join(f"{column} {kind}" for column, kind in each.columns.items())
        yield from _folded("  reads     ", f"{name}, by {', '.join(each.key) or 'nothing'}: {columns}")
    for kept in stage.keeps:
        yield from _folded("  keeps     ", kept)
    for computed in stage.computes:
        yield from _folded("  computes  ", computed)
    yield from _folded("  sends     ", stage.sends)
    if stage.uses > 1:
        yield from _folded("  shared    ", f"one stage in place of {stage.uses}, for {_listed(stage.views)}")
    if stage.state_bytes is not None and not stage.kept_by:
        yield from _folded("  state     ", f"{stage.state_bytes:,} bytes")
    for name, statement in stage.sql.items():
        yield f"  SQL ({name})"
        for line in statement.splitlines():
            yield f"    {line}"


def _view_lines(view: ExplainedView) -> Iterator[str]:
    partitions = "" if view.partitions is None else f", {_counted(view.partitions, 'partition')}"
    yield f"view {view.name}: topic {view.topic}{partitions}; made by {_stages_text(view.stages)}"
    yield from _folded("  order     ", _order(view))
    if view.withheld:
        text = f"keys that cannot be evaluated are withheld, and named in {view.withheld}"
        text += f"; an error in {_stages_text(view.stopping)} ends the run" if view.stopping else ""
        yield from _folded("  on error  ", text)
    rows = [("key", name, kind or "(in the record key only)") for name, kind in view.key.items()]
    rows += [("column", name, kind) for name, kind in view.columns.items()]
    width = max(len(name) for _, name, _ in rows)
    for what, name, kind in rows:
        yield f"  {what:<8}  {name:<{width}}  {kind}"


def _order(view: ExplainedView) -> str:
    if view.partitions == 1:
        return "one partition: documents are read in the order in which they became visible"
    one, several = (f"value of {view.partition_by}", "values") if view.partition_by else ("key", "keys")
    return (
        f"per {one} only: a plain consumer reads different {several} of two commits in any order "
        "(docs/views.md, Several partitions)"
    )


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _folded(start: str, text: str) -> Iterator[str]:
    """Wraps a text into lines of a readable width."""
    line, lead = start, " " * len(start)
    for word in text.split():
        if len(line) + len(word) > _WIDTH and line.strip() not in ("", "-"):
            yield line.rstrip()
            line = lead
        line += word + " "
    yield line.rstrip()
