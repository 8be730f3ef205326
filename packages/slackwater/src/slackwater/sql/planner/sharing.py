"""Merges equal stages of a pipeline into one, and lets stages keep common rows once.

Stages are equal if they compute the same rows, with the same order of columns, from the same tables and
stages. Only generated names, spacing and descriptions may differ. The stages that feed an accumulate part are
shared together with it. Stages that publish documents are not shared, because documents have one receiver.
Rows are kept together only by stages whose inputs are all tables: they are on the first level.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slackwater.sql.catalog import Catalog, Column
from slackwater.sql.plan import (
    FINGERPRINT_VERSION,
    AccumulatePart,
    Edge,
    EnginePlan,
    InputPlan,
    Output,
    PartialsOutput,
    RowsOutput,
    RowsPart,
    StagePlan,
    rows_table,
    statement_words,
)
from slackwater.sql.planner.fragments import unused_name, with_edges

_IDENTITY_DIGITS = 16
_ID_LIKE = re.compile(r"\b[ck]\d+\b", re.IGNORECASE)
_ID = re.compile(r"""(?P<qualifier>\br ?\. ?)?(?P<quote>["'])(?P<name>[ck]\d+)(?P=quote)""")
_OPAQUE = re.compile(r"[$\\]")
"""Signs of strings that are not written as '…': spacing and comments are not distinguished from content."""
MAX_SHARERS = 64
"""The most stages whose rows are kept together."""

_NUMBERED = re.compile(
    rf"""(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")|\b{rows_table(0)[:-1]}(?P<number>\d+)\b"""
)


def shared(plan: EnginePlan, texts: Iterable[str]) -> EnginePlan:
    """Returns a plan of the same views in which no two stages with rows are equal.

    The views' fingerprints stay the same, since they do not depend on other views. Names that users wrote in
    the texts of all views that the planned ones may read are not mistaken for generated names.
    """
    return _merged(plan, _stand_ins(plan, _id_like_names(texts)))


def with_identities(plan: EnginePlan, texts: Iterable[str]) -> EnginePlan:
    """Returns the plan with an identity for each stage, which equal stages of other pipelines share.

    Stages of equal identity keep equal state if they read the same source. Equal stages may have different
    identities if names in their views look generated. No two stages with rows may be equal, and each has only
    the columns that it needs.
    """
    written = _id_like_names(texts)
    columns_taken = _columns_taken(plan)
    identities: dict[int, str] = {}
    for unit in _units(plan):
        facts = repr(_Meaning(unit, columns_taken, identities, written).facts())
        for place, stage in enumerate(unit):
            digest = hashlib.sha256(f"{FINGERPRINT_VERSION} {place} {facts}".encode())
            identities[stage.number] = digest.hexdigest()[:_IDENTITY_DIGITS]
    return replace(
        plan, stages=tuple(replace(stage, identity=identities[stage.number]) for stage in plan.stages)
    )


def stage_uses(plan: EnginePlan, texts: Iterable[str]) -> dict[int, int]:
    """Returns how many stages of the plan are replaced by each stage that :func:`shared` returns."""
    uses = Counter(_stand_ins(plan, _id_like_names(texts)).values())
    return dict(enumerate((uses[number] for number in sorted(uses)), 1))


def _id_like_names(texts: Iterable[str]) -> frozenset[str]:
    """Returns the names in texts that look generated."""
    return frozenset(found.lower() for text in texts for found in _ID_LIKE.findall(text))


def _columns_taken(plan: EnginePlan) -> dict[tuple[int, int], tuple[int, ...]]:
    return {
        (edge.stage, edge.input): edge.columns
        for stage in plan.stages
        if isinstance(stage.output, RowsOutput)
        for edge in stage.output.edges
    }


def _stand_ins(plan: EnginePlan, written: frozenset[str]) -> dict[int, int]:
    """Returns for each stage the one whose rows it shares, perhaps itself."""
    stands_for = {stage.number: stage.number for stage in plan.stages}
    columns_taken = _columns_taken(plan)
    known: dict[Hashable, tuple[StagePlan, ...]] = {}
    for unit in _units(plan):
        if isinstance(unit[-1].output, RowsOutput):
            meaning = _Meaning(unit, columns_taken, stands_for, written).facts()
            for stage, other in zip(unit, known.setdefault(meaning, unit), strict=True):
                stands_for[stage.number] = other.number
    return stands_for


def _units(plan: EnginePlan) -> Iterator[tuple[StagePlan, ...]]:
    """Yields units that can be shared only as a whole: a stage with all stages that add to its groups.

    A unit follows those from which it receives rows.
    """
    feeding: dict[int, list[StagePlan]] = {}
    for stage in plan.stages:
        unit = (*feeding.pop(stage.number, ()), stage)
        if isinstance(stage.output, PartialsOutput):
            feeding.setdefault(stage.output.stage, []).extend(unit)
        else:
            yield unit


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a unit computes, in a form that is equal for equal units.

    The columns taken are, by numbers of stage and input, the positions of its columns in the rows received. A
    stage is equal to an earlier one that it stands for.
    """

    _unit: tuple[StagePlan, ...]
    _columns_taken: Mapping[tuple[int, int], tuple[int, ...]]
    _stands_for: Mapping[int, Hashable]
    _written: frozenset[str]

    def facts(self) -> Hashable:
        """Returns the facts about all stages of the unit."""
        return tuple(map(self._stage, self._unit))

    def _stage(self, stage: StagePlan) -> Hashable:
        return (
            tuple(column.type for column in stage.key),
            None if stage.rows is None else self._rows(stage.number, stage.rows),
            None if stage.accumulate is None else self._accumulate(stage.accumulate),
        )

    def _rows(self, stage: int, part: RowsPart) -> Hashable:
        columns: dict[str, list[str]] = {}
        for number, each in enumerate(part.inputs):
            for position, name in enumerate(each.column_names):
                columns.setdefault(name, []).append(f"{number}.{position}")
        statements = [part.statement, part.latest_statement or ""]
        return (
            tuple(self._input(stage, number, each) for number, each in enumerate(part.inputs)),
            tuple(_canonical(each, columns, self._written) for each in statements),
            self._output(part.output),
        )

    def _input(self, stage: int, number: int, plan: InputPlan) -> Hashable:
        own = (plan.moment_position,) if plan.moment else ()
        facts = (
            plan.key_positions, plan.needs_replica_identity_full, plan.keeps_null_keys, plan.reads, *own
        )  # fmt: skip
        if not plan.origin:
            return plan.table, plan.columns, *facts
        return self._stands_for[plan.origin], self._columns_taken[stage, number], *facts

    def _accumulate(self, part: AccumulatePart) -> Hashable:
        transport = {f"k{number}" for number in range(len(part.key))}
        return (
            tuple(column.type for column in part.key),
            tuple(tuple(each.facts) for each in part.accumulators),
            part.is_global,
            _canonical(part.statement, {}, self._written | transport),
            self._output(part.output),
        )

    def _output(self, output: Output) -> Hashable:
        if isinstance(output, RowsOutput):
            return output.identity
        if isinstance(output, PartialsOutput):
            return output.key, [stage.number for stage in self._unit].index(output.stage)
        return output.with_before


def _canonical(statement: str, columns: Mapping[str, list[str]], fixed: frozenset[str]) -> str:
    """Returns a statement without spacing, comments and generated names.

    The columns are the places of each name of the inputs' columns; fixed names look generated, but are not.
    """
    ids: dict[str, str] = {}

    def replaced(found: re.Match[str]) -> str:
        name, qualifier, quote = found["name"], found["qualifier"] or "", found["quote"]
        places = f"#({', '.join(columns[name])})" if qualifier and name in columns else ""
        if name in fixed:
            return found.group() + places
        return f"{qualifier}{quote}{places or ids.setdefault(name, f'#{len(ids)}')}{quote}"

    is_opaque = _OPAQUE.search(statement) is not None
    return _ID.sub(replaced, statement if is_opaque else " ".join(statement_words(statement)))


def _merged(plan: EnginePlan, stands_for: Mapping[int, int]) -> EnginePlan:
    """Returns the plan with only the stages that stand for themselves or for others, renumbered."""
    kept = [stage for stage in plan.stages if stands_for[stage.number] == stage.number]
    numbers = {stage.number: number for number, stage in enumerate(kept, 1)}
    new = {old: numbers[other] for old, other in stands_for.items()}
    edges: dict[int, list[Edge]] = {}
    for stage in plan.stages:
        if isinstance(stage.output, RowsOutput):
            taken = [edge for edge in stage.output.edges if edge.stage in numbers]
            edges.setdefault(stands_for[stage.number], []).extend(taken)
    stages = (_renumbered(with_edges(stage, edges.get(stage.number, ())), new) for stage in kept)
    views = (
        replace(view, stages=tuple(sorted({new[number] for number in view.stages}))) for view in plan.views
    )
    return EnginePlan(tuple(stages), tuple(views))


def _renumbered(stage: StagePlan, new: Mapping[int, int]) -> StagePlan:
    rows, accumulate = stage.rows, stage.accumulate
    if rows is not None:
        rows = replace(rows, inputs=_inputs(rows.inputs, new), output=_output(rows.output, new))
    if accumulate is not None:
        accumulate = replace(accumulate, output=_output(accumulate.output, new))
    return replace(stage, number=new[stage.number], rows=rows, accumulate=accumulate)


def _output(output: Output, new: Mapping[int, int]) -> Output:
    if isinstance(output, RowsOutput):
        return replace(output, edges=tuple(replace(edge, stage=new[edge.stage]) for edge in output.edges))
    return replace(output, stage=new[output.stage]) if isinstance(output, PartialsOutput) else output


def _inputs(inputs: Iterable[InputPlan], new: Mapping[int, int]) -> tuple[InputPlan, ...]:
    """Returns inputs that receive rows of the renumbered stages; two may receive those of one."""
    result: list[InputPlan] = []
    for plan in inputs:
        if plan.origin:
            name, taken = f"stage {new[plan.origin]}", {each.alias for each in result}
            alias = unused_name(f"{name} again", taken) if name in taken else name
            plan = replace(plan, alias=alias, table=replace(plan.table, name=name), origin=new[plan.origin])
        result.append(plan)
    return tuple(result)


def with_shared_rows(plan: EnginePlan, catalog: Catalog) -> EnginePlan:
    """Returns a plan of the same stages in which rows that several of them keep are kept by one."""
    groups: dict[Hashable, list[StagePlan]] = {}
    for stage in plan.stages:
        if stage.rows is None or not stage.key or any(stage.rows.origins):
            continue
        of_kind = groups.setdefault(_kept(stage, stage.rows), [])
        if of_kind and (len(of_kind) == MAX_SHARERS or not _fits(stage.rows, of_kind[0].rows)):
            continue
        of_kind.append(stage)
    changed: dict[int, StagePlan] = {}
    for of_kind in groups.values():
        if len(of_kind) > 1:
            changed |= {stage.number: stage for stage in _together(of_kind, catalog)}
    return replace(plan, stages=tuple(changed.get(stage.number, stage) for stage in plan.stages))


def _kept(stage: StagePlan, rows: RowsPart) -> Hashable:
    """Returns which rows a stage keeps, regardless of their columns, and by which key."""
    return tuple(column.type for column in stage.key), tuple(sorted(map(_kept_of_input, rows.inputs)))


def _kept_of_input(plan: InputPlan) -> tuple[str, tuple[str, ...], bool, bool]:
    return plan.table.full_name, plan.key, plan.needs_replica_identity_full, plan.keeps_null_keys


def _order(rows: RowsPart) -> list[int]:
    """Returns the numbers of the inputs, ordered by what they keep."""
    return sorted(range(len(rows.inputs)), key=lambda number: _kept_of_input(rows.inputs[number]))


def _places(rows: RowsPart, host: RowsPart) -> dict[int, int]:
    """Returns, by the number of each input, the number of the host's input that keeps its rows."""
    return dict(zip(_order(rows), _order(host), strict=True))


def _fits(rows: RowsPart, host: RowsPart | None) -> bool:
    """Returns whether the part's statements can be written with the host's numbers of inputs."""
    if host is None or all(one == other for one, other in _places(rows, host).items()):
        return True
    return not any(_OPAQUE.search(each or "") for each in (rows.statement, rows.latest_statement))


def _together(stages: Sequence[StagePlan], catalog: Catalog) -> Iterator[StagePlan]:
    """Yields the stages such that the first of them keeps the rows of all."""
    parts = [stage.rows for stage in stages if stage.rows is not None]
    places = [_places(rows, parts[0]) for rows in parts]
    wanted: list[set[str]] = [set() for _ in parts[0].inputs]
    for rows, of_part in zip(parts, places, strict=True):
        for number, place in of_part.items():
            wanted[place].update(rows.inputs[number].column_names)
    declared = {table.full_name: table.columns for table in catalog.tables}
    for stage, rows, of_part in zip(stages, parts, places, strict=True):
        inputs = {
            place: _with_columns(rows.inputs[number], wanted[place], declared)
            for number, place in of_part.items()
        }
        of_all = tuple(inputs[place] for place in sorted(inputs))
        keeper = 0 if stage is stages[0] else stages[0].number
        yield replace(stage, rows=_over(rows, of_all, of_part), kept_by=keeper)


def _with_columns(
    plan: InputPlan, wanted: Collection[str], declared: Mapping[str, Sequence[Column]]
) -> InputPlan:
    columns = tuple(column for column in declared[plan.table.full_name] if column.name in wanted)
    return replace(plan, table=replace(plan.table, columns=columns), columns=columns)


def _over(rows: RowsPart, inputs: tuple[InputPlan, ...], places: Mapping[int, int]) -> RowsPart:
    """Returns the part over these inputs instead of its own."""
    if all(number == place for number, place in places.items()):
        return replace(rows, inputs=inputs)

    def placed(found: re.Match[str]) -> str:
        return found["text"] or rows_table(places[int(found["number"])])

    latest = rows.latest_statement
    return replace(
        rows,
        inputs=inputs,
        statement=_NUMBERED.sub(placed, rows.statement),
        latest_statement=None if latest is None else _NUMBERED.sub(placed, latest),
    )
