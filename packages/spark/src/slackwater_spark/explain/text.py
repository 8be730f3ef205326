"""Lays an explanation out as text."""

from collections.abc import Iterator, Mapping, Sequence

from slackwater_spark.explain.explanation import (
    ExplainedInput,
    ExplainedStage,
    ExplainedView,
    Explanation,
    explain,
)
from slackwater_spark.pipeline import PipelineDefinition

_WIDTH = 100


def explain_pipeline(definition: PipelineDefinition, *, with_sql: bool = False) -> str:
    """Writes what ``slackwater explain`` prints of a pipeline."""
    return "\n".join(explanation_lines(explain(definition, with_sql=with_sql)))


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Yields the lines of the text; statements where the explanation has them."""
    stages, views = len(explanation.stages), len(explanation.views)
    yield (
        f"pipeline {explanation.name}: {_counted(views, 'view')} over "
        f"{_counted(len(explanation.tables), 'table')} of source {explanation.source}, in "
        f"{_counted(stages, 'stage')}; emit = {explanation.emit}, scope = {explanation.scope}"
    )
    for stage in explanation.stages:
        yield ""
        yield from _stage(stage)
    for view in explanation.views:
        yield ""
        yield from _view(view)
    if explanation.hints:
        yield ""
        yield "hints"
        for hint in explanation.hints:
            yield from _folded("  - ", hint)


def _stage(stage: ExplainedStage) -> Iterator[str]:
    key = ", ".join(stage.key) if stage.key else "nothing: one group"
    yield f"stage {stage.number}, keyed by {key}: {stage.why}"
    for each in stage.inputs:
        yield from _folded("  reads     ", _input(each))
    for kept in stage.keeps:
        yield from _folded("  keeps     ", kept)
    for computed in stage.computes:
        yield from _folded("  computes  ", computed)
    yield from _folded("  sends     ", stage.sends)
    for name, statement in stage.sql.items():
        yield f"  SQL ({name})"
        for line in statement.splitlines():
            yield f"    {line}"


def _input(each: ExplainedInput) -> str:
    name = each.table if each.alias == each.table else f"{each.table} as {each.alias}"
    return f"{name}, by {', '.join(each.key) or 'nothing'}: {_columns(each.columns)}"


def _view(view: ExplainedView) -> Iterator[str]:
    partitions = "" if view.partitions is None else f", {_counted(view.partitions, 'partition')}"
    of = ", ".join(map(str, view.stages))
    yield f"view {view.name}: topic {view.topic}{partitions}; made by stage{'s' if ',' in of else ''} {of}"
    yield from _folded("  order     ", _order(view.partitions))
    rows = [("key", name, kind or "(in the record key only)") for name, kind in view.key.items()]
    rows += [("column", name, kind) for name, kind in view.columns.items()]
    yield from _table(rows)


def _order(partitions: int | None) -> str:
    if partitions == 1:
        return "one partition: documents are read in the order in which they became visible"
    return (
        "per key only: a plain consumer reads different keys of two commits in any order (docs/views.md, "
        "Several partitions)"
    )


def _table(rows: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    width = max(len(name) for _, name, _ in rows)
    for what, name, kind in rows:
        yield f"  {what:<8}  {name:<{width}}  {kind}"


def _columns(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _folded(start: str, text: str) -> Iterator[str]:
    """Folds a text into lines of a readable width."""
    line, lead = start, " " * len(start)
    for word in text.split():
        if len(line) + len(word) > _WIDTH and line.strip() not in ("", "-"):
            yield line.rstrip()
            line = lead
        line += word + " "
    yield line.rstrip()
