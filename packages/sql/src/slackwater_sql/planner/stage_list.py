"""The stages of a pipeline as they are finished, and the edges between them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from slackwater_sql.logical import Aggregate, Filter, Join, Relation, Union, Window, children
from slackwater_sql.plan import InputPlan, KeyColumn
from slackwater_sql.planner.assembly import Assembly
from slackwater_sql.planner.fragment import Fragment, Origin, StageRows
from slackwater_sql.stages import AccumulatePart, Edge, Output, RowsOutput, RowsPart, StagePlan


class StageList:
    """Numbers stages, and makes their plans.

    Args:
        origins: What leaves stand for.
    """

    def __init__(self, origins: Mapping[int, Origin]) -> None:
        self._origins = origins
        self._stages: dict[int, StagePlan] = {}
        self._edges: dict[int, list[Edge]] = {}
        self._newest = 0
        self.labels: dict[str, str] = {}
        """What the user calls columns of the view that is being cut."""

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        """All stages so far, ascending."""
        return tuple(
            _with_edges(self._stages[number], self._edges.get(number, ())) for number in sorted(self._stages)
        )

    def new(self) -> int:
        """The number of a stage that will be finished later."""
        self._newest += 1
        return self._newest

    def of(self, fragment: Fragment) -> int:
        """The stage that finishes this fragment."""
        return self.new() if fragment.accumulated is None else fragment.accumulated.stage

    def finish(
        self,
        stage: int,
        fragment: Fragment,
        assembly: Assembly,
        statements: tuple[str, str | None],
        output: Output,
    ) -> None:
        """Makes the plan of a stage that computes a fragment.

        Args:
            stage: Its number.
            fragment: What it computes.
            assembly: What the fragment reads.
            statements: At points, and over live rows.
            output: Where its results go.
        """
        accumulated = fragment.accumulated
        if accumulated is None:
            rows: RowsPart | None = self.rows_part(stage, fragment, assembly, statements, output)
            accumulate = None
        else:
            rows = accumulated.rows
            accumulate = AccumulatePart(
                key=accumulated.key,
                accumulators=accumulated.accumulation.accumulators,
                is_global=accumulated.is_global,
                statement=statements[0],
                output=output,
            )
        key = self._stage_key(rows) if rows is not None else accumulate.key if accumulate else ()
        why, labels = _why(fragment, rows, accumulate), self._labels_of(rows, accumulate)
        self._stages[stage] = StagePlan(stage, key, rows, accumulate, why, labels)

    def rows_part(
        self,
        stage: int,
        fragment: Fragment,
        assembly: Assembly,
        statements: tuple[str, str | None],
        output: Output,
    ) -> RowsPart:
        """A rows part, with edges to its inputs."""
        for number, (plan, origin) in enumerate(zip(assembly.inputs, assembly.origins, strict=True)):
            if origin:
                self._add_edge(fragment, number, plan, stage)
        return RowsPart(
            assembly.inputs, assembly.origins, assembly.reads, statements[0], statements[1], output
        )

    def _add_edge(self, fragment: Fragment, number: int, plan: InputPlan, stage: int) -> None:
        rows = self._origins[fragment.final_split[number].leaf.number]
        assert isinstance(rows, StageRows)  # noqa: S101 - origins say so
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


def _with_edges(stage: StagePlan, edges: Iterable[Edge]) -> StagePlan:
    """A stage whose rows go to these inputs."""
    output = stage.output
    if not isinstance(output, RowsOutput):
        return stage
    output = replace(output, edges=tuple(edges))
    if stage.accumulate is not None:
        return replace(stage, accumulate=replace(stage.accumulate, output=output))
    return replace(stage, rows=replace(stage.rows, output=output) if stage.rows is not None else None)


def _why(fragment: Fragment, rows: RowsPart | None, accumulate: AccumulatePart | None) -> str:
    """What a stage does, for people."""
    if accumulate is not None:
        return "adds up what changes" if rows is None else "joins, and adds up what changes"
    parts = sorted({_WORDS[type(each)] for each in _below(fragment.relation) if type(each) in _WORDS})
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
