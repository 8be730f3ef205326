"""Stages that read the same tables by the same keys keep their rows only once.

Such stages compute different results, so they stay separate stages. But they keep the same rows of the
tables, up to columns. So the first of them keeps the rows for all, with every column that one of them needs,
and the others are evaluated over these rows, in the same buckets, for the same events.

Only stages all of whose inputs are tables share rows: they are on the first level and receive nothing from
others.
"""

import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from slackwater.sql.catalog import Catalog, Column
from slackwater.sql.plan import EnginePlan, InputPlan, RowsPart, StagePlan, rows_table

MAX_SHARERS = 64
"""The most stages whose rows are kept together."""

_NUMBERED = re.compile(
    rf"""(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")|\b{rows_table(0)[:-1]}(?P<number>\d+)\b"""
)
_OPAQUE = re.compile(r"[$\\]")
"""Signs of strings that are not written as '…'."""


def with_shared_rows(plan: EnginePlan, catalog: Catalog) -> EnginePlan:
    """Returns a plan of the same stages in which rows that several of them keep are kept by one.

    Args:
        plan: A plan in which each stage keeps its own rows.
        catalog: The declared tables.
    """
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
    """Returns for the number of each input that of the host's input that keeps its rows."""
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
        yield replace(stage, rows=_renumbered(rows, of_all, of_part), kept_by=keeper)


def _with_columns(
    plan: InputPlan, wanted: Collection[str], declared: Mapping[str, Sequence[Column]]
) -> InputPlan:
    columns = tuple(column for column in declared[plan.table.full_name] if column.name in wanted)
    return replace(plan, table=replace(plan.table, columns=columns), columns=columns)


def _renumbered(rows: RowsPart, inputs: tuple[InputPlan, ...], places: Mapping[int, int]) -> RowsPart:
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
