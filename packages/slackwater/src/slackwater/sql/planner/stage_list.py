"""The stages of a pipeline as they are finished, and the edges between them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from slackwater.sql.logical import Aggregate, Filter, Join, Relation, Union, Window, children
from slackwater.sql.plan import (
    AccumulatePart,
    DocumentsOutput,
    Edge,
    InputPlan,
    KeyColumn,
    Output,
    RowsOutput,
    RowsPart,
    StagePlan,
)
from slackwater.sql.planner.fragments import Assembly, Fragment
from slackwater.sql.planner.partitioning import Origin, StageRows


class StageList:
    """Numbers stages, and creates their plans.

    Args:
        origins: What the leaves stand for.
    """

    def __init__(self, origins: Mapping[int, Origin]) -> None:
        self._origins = origins
        self._stages: dict[int, StagePlan] = {}
        self._edges: dict[int, list[Edge]] = {}
        self._newest = 0
        self.labels: dict[str, str] = {}
        """The user's names for columns of the view that is being divided, by id."""

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        """All stages so far, ascending."""
        return tuple(
            with_edges(self._stages[number], self._edges.get(number, ())) for number in sorted(self._stages)
        )

    def needed_by(self, view: int) -> tuple[int, ...]:
        """Returns the numbers of the stages whose results reach the documents of a view, ascending."""
        needed: set[int] = set()
        for stage in reversed(self.stages):
            if stage.output == DocumentsOutput(view) or not needed.isdisjoint(stage.receivers):
                needed.add(stage.number)
        return tuple(sorted(needed))

    def new(self) -> int:
        """Returns the number for a stage that will be finished later."""
        self._newest += 1
        return self._newest

    def stage_of(self, fragment: Fragment) -> int:
        """Returns the stage that finishes this fragment."""
        return self.new() if fragment.accumulated is None else fragment.accumulated.stage

    def finish(
        self, stage: int, assembly: Assembly, statement: str, output: Output, latest: str | None = None
    ) -> None:
        """Creates the plan of the stage that computes a fragment.

        Args:
            stage: Its number.
            assembly: The fragment with its inputs.
            statement: SQL for its results at points.
            output: Where the results go.
            latest: SQL for its documents if all rows are live.
        """
        accumulated = assembly.fragment.accumulated
        if accumulated is None:
            rows: RowsPart | None = self.rows_part(stage, assembly, statement, output, latest)
            accumulate = None
        else:
            rows = accumulated.rows
            accumulate = AccumulatePart(
                key=accumulated.key,
                accumulators=accumulated.accumulation.accumulators,
                is_global=accumulated.is_global,
                statement=statement,
                output=output,
                has_stage_key=accumulated.has_stage_key,
            )
        key = self._stage_key(rows) if rows is not None else accumulate.key if accumulate else ()
        why, labels = _why(assembly.relation, rows, accumulate), self._labels_of(rows, accumulate)
        self._stages[stage] = StagePlan(stage, key, rows, accumulate, why, labels)

    def rows_part(
        self, stage: int, assembly: Assembly, statement: str, output: Output, latest: str | None = None
    ) -> RowsPart:
        """Returns a rows part, with edges to its inputs; for the arguments see `finish`."""
        for number, (plan, part) in enumerate(
            zip(assembly.inputs, assembly.fragment.final_split, strict=True)
        ):
            rows = self._origins[part.leaf.number]
            if isinstance(rows, StageRows):
                self._add_edge(rows, plan, stage, number)
        return RowsPart(assembly.inputs, statement, latest, output)

    def _add_edge(self, rows: StageRows, plan: InputPlan, stage: int, number: int) -> None:
        edge = Edge(
            stage=stage,
            input=number,
            key=tuple(rows.wire.index(name) for name in plan.key),
            columns=tuple(rows.wire.index(name) for name in plan.column_names),
            keeps_null_keys=plan.keeps_null_keys,
        )
        self._edges.setdefault(rows.stage, []).append(edge)

    def _stage_key(self, rows: RowsPart) -> tuple[KeyColumn, ...]:
        first = rows.inputs[0]
        return tuple(
            KeyColumn(self.labels.get(each.name, each.name), each.type)
            for name in first.key
            for each in first.columns
            if each.name == name
        )

    def _labels_of(
        self, rows: RowsPart | None, accumulate: AccumulatePart | None
    ) -> tuple[tuple[str, str], ...]:
        names = [name for plan in (rows.inputs if rows is not None else ()) for name in plan.column_names]
        names += [part.name for part in (accumulate.key if accumulate is not None else ())]
        return tuple((name, self.labels[name]) for name in dict.fromkeys(names) if name in self.labels)


def with_edges(stage: StagePlan, edges: Iterable[Edge]) -> StagePlan:
    """Returns a stage whose rows are sent to these inputs."""
    output = stage.output
    if not isinstance(output, RowsOutput):
        return stage
    output = replace(output, edges=tuple(edges))
    if stage.accumulate is not None:
        return replace(stage, accumulate=replace(stage.accumulate, output=output))
    return replace(stage, rows=replace(stage.rows, output=output) if stage.rows is not None else None)


def _why(relation: Relation, rows: RowsPart | None, accumulate: AccumulatePart | None) -> str:
    """Describes what a stage does, for people."""
    if accumulate is not None:
        return "adds up what changes" if rows is None else "joins, and adds up what changes"
    parts = sorted({_WORDS[type(each)] for each in _below(relation) if type(each) in _WORDS})
    return ", ".join(parts) or "computes columns of rows"


def _below(relation: Relation) -> Iterable[Relation]:
    yield relation
    for child in children(relation):
        yield from _below(child)


_WORDS: dict[type, str] = {
    Join: "joins",
    Aggregate: "computes groups from their rows",
    Window: "computes windows from their rows",
    Union: "unites",
    Filter: "filters",
}
