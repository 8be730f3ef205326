"""A part of a view's tree that one stage computes: while it grows, as SQL over inputs, and as a stage."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import duckdb
import pyarrow as pa

from slackwater.sql.catalog import Column, Table, carried
from slackwater.sql.duckdb_sql import Field, document_expression, document_text, identifier
from slackwater.sql.logical import (
    Aggregate,
    Expression,
    Extend,
    Filter,
    Join,
    Leaf,
    Relation,
    Scan,
    TopN,
    Union,
    Unnest,
    Window,
    children,
)
from slackwater.sql.plan import (
    ACCUMULATORS_TABLE,
    POINTS_TABLE,
    STEPS_TABLE,
    AccumulatePart,
    DocumentsOutput,
    Edge,
    InputPlan,
    KeyColumn,
    Output,
    Reads,
    RowsOutput,
    RowsPart,
    StagePlan,
    rows_table,
)
from slackwater.sql.planner.accumulating import (
    Accumulation,
    AccumulatorInput,
    accumulated_relation,
    partials_statement,
)
from slackwater.sql.planner.partitioning import LeafKey, Origin, Partitioning, StageRows, reads
from slackwater.sql.rendering import AT, LeafInput, RenderLeaf, render, typed_leaf
from slackwater.sql.stage_evaluation import POINTS_SCHEMA, STEPS_SCHEMA, accumulators_schema, rows_schema


@dataclass(frozen=True)
class KeptGroups:
    """The groups that a stage's accumulate part keeps.

    Attributes:
        groups: Ids of the groups' key, with its types.
        is_global: Whether there is always exactly one group.
        rows: The rows part of the same stage, if it has one.
        has_stage_key: Whether the rows of that part are distributed by the groups' key.
    """

    stage: int
    groups: tuple[tuple[str, str], ...]
    accumulation: Accumulation
    is_global: bool
    rows: RowsPart | None
    has_stage_key: bool

    @property
    def key(self) -> tuple[KeyColumn, ...]:
        """The key as in the stage's plan."""
        return tuple(KeyColumn(name, carried(of_type)) for name, of_type in self.groups)


@dataclass(frozen=True)
class Fragment:
    """A growing part.

    Attributes:
        relation: The tree over leaves.
        split: How its leaves are split; None while it has a single leaf, which any key may split.
        accumulated: Whether its only leaf is the groups of an accumulate part.
    """

    relation: Relation
    split: Partitioning | None = None
    accumulated: KeptGroups | None = None

    @property
    def final_split(self) -> Partitioning:
        """The split that applies if nothing else is required: by the leaf's identity."""
        if self.split is not None:
            return self.split
        leaf = self.relation
        while not isinstance(leaf, Leaf):
            (leaf,) = children(leaf)
        return (LeafKey(leaf, leaf.identity, keeps_nulls=True),)


def used_by_leaf(relation: Relation, wanted: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """Returns the ids of each leaf that are read to compute the wanted ones."""
    used: dict[int, tuple[str, ...]] = {}

    def note(leaf: Leaf, names: tuple[str, ...]) -> str:
        used[leaf.number] = tuple(dict.fromkeys((*used.get(leaf.number, ()), *names)))
        return "SELECT 1"

    render(relation, wanted, note)
    return used


@dataclass(frozen=True)
class Assembly:
    """A fragment with its inputs, from which SQL can be written.

    Attributes:
        inputs: The inputs of its rows part; none if it reads accumulators.
        leaf: Its leaves at points.
        live: Its leaves when all rows are live; if it reads accumulators, the same.
        tables: The empty tables that its SQL reads, by name.
    """

    fragment: Fragment
    inputs: tuple[InputPlan, ...]
    leaf: RenderLeaf
    live: RenderLeaf
    tables: Mapping[str, pa.Table]

    @property
    def relation(self) -> Relation:
        """The fragment's tree."""
        return self.fragment.relation

    def types(
        self, connection: duckdb.DuckDBPyConnection, expressions: Sequence[str]
    ) -> list[duckdb.sqltypes.DuckDBPyType]:
        """Returns DuckDB's types of expressions over the tree's columns; leaves nothing in the connection."""
        if not expressions:
            return []
        wanted = [name for name in self.relation.columns if any(f'"{name}"' in each for each in expressions)]
        text = f"SELECT {', '.join(expressions)} FROM ({render(self.relation, wanted, self.leaf)})"  # noqa: S608
        for name, table in self.tables.items():
            connection.register(name, table)
        try:
            return list(connection.sql(text).types)
        finally:
            for name in self.tables:
                connection.unregister(name)

    def rows_statement(self, wire: Sequence[str], types: Sequence[str]) -> str:
        """Returns SQL for rows for later stages, see :class:`slackwater.sql.plan.RowsOutput`."""
        values = ", ".join(_wire_values(zip(wire, types, strict=True)))
        rows = render(self.relation, wire, self.leaf)
        return f"SELECT {AT} AS point, CAST(json_array({values}) AS VARCHAR) AS row FROM ({rows})"  # noqa: S608

    def documents_statement(
        self, key: tuple[Field, ...], fields: tuple[Field, ...], *, is_latest: bool = False
    ) -> str:
        """Returns SQL for documents and record keys, see :class:`slackwater.sql.plan.DocumentsOutput`.

        The latest documents are those of rows that are all live.
        """
        wanted = [each.expression.strip('"') for each in (*key, *fields)]
        leaf, point = (self.live, "group") if is_latest else (self.leaf, "point")
        rows = render(self.relation, wanted, leaf)
        return (
            f"SELECT {AT} AS {identifier(point)}, {document_text(key)} AS key, "  # noqa: S608 - made of ids
            f"{document_expression(fields)} AS document FROM ({rows})"
        )

    def partials_statement(self, groups: Sequence[tuple[str, str]], kept: Sequence[AccumulatorInput]) -> str:
        """Returns SQL for what changes add to groups, see :class:`slackwater.sql.plan.PartialsOutput`."""
        read = [*(name for name, _ in groups), *(column for each in kept for column in each.columns)]
        rows = render(self.relation, read, self.leaf)
        return partials_statement(rows, [name for name, _ in groups], kept, _wire_values(groups))


def assemble(fragment: Fragment, wanted: Sequence[str], leaves: Mapping[int, Origin]) -> Assembly:
    """Returns the inputs with which a fragment computes the wanted ids."""
    if fragment.accumulated is not None:
        return _on_accumulators(fragment, fragment.accumulated)
    used = used_by_leaf(fragment.relation, wanted)
    split = fragment.final_split
    modes = reads(fragment.relation, split)
    inputs: dict[int, LeafInput] = {}
    for number, part in enumerate(split):
        origin = leaves[part.leaf.number]
        of_leaf = used.get(part.leaf.number, ())
        mode = modes[part.leaf.number]
        if isinstance(origin, Scan):
            alias = unused_name(origin.alias, {each.plan.alias for each in inputs.values()})
            plan, names = table_input(origin, alias, of_leaf, part, mode)
        else:
            plan, names = stage_input(origin, of_leaf, part, mode)
        inputs[part.leaf.number] = LeafInput(number, plan, names)
    plans = tuple(each.plan for each in inputs.values())
    tables = {
        rows_table(number): rows_schema(plan, is_lifted=True).empty_table()
        for number, plan in enumerate(plans)
    }
    return Assembly(
        fragment=fragment,
        inputs=plans,
        leaf=typed_leaf(inputs, is_live=False),
        live=typed_leaf(inputs, is_live=True),
        tables=tables | {POINTS_TABLE: POINTS_SCHEMA.empty_table(), STEPS_TABLE: STEPS_SCHEMA.empty_table()},
    )


def table_input(
    scan: Scan, alias: str, used: Sequence[str], part: LeafKey, mode: Reads
) -> tuple[InputPlan, dict[str, str]]:
    """Returns a table as an input, and the name of the column for each id."""
    names = {number: name for name, number in scan.ids.items()}
    key = tuple(names[number] for number in part.key)
    wanted = {names[number] for number in used} | set(key) | set(scan.table.primary_key)
    columns = tuple(column for column in scan.table.columns if column.name in wanted)
    is_nullable = any(column.nullable for column in columns if column.name in key)
    moves = not set(key) <= set(scan.table.primary_key)
    others = (c.name for c in scan.table.columns if c.name not in wanted and not c.has_default)
    table = replace(scan.table, columns=columns, left_out=tuple(others))
    plan = InputPlan(alias, table, columns, key, moves, part.keeps_nulls and is_nullable, 0, mode)
    return plan, names


def stage_input(
    rows: StageRows, used: Sequence[str], part: LeafKey, mode: Reads
) -> tuple[InputPlan, dict[str, str]]:
    """Returns the rows of an earlier stage as an input, in the form of a table."""
    own = (rows.moment,) if rows.moment else ()
    wanted = dict.fromkeys((*part.leaf.identity, *part.key, *used, *own))
    types = dict(zip(rows.wire, rows.types, strict=True))
    columns = tuple(Column(name, carried(types[name]), nullable=True) for name in wanted)
    table = Table("", f"stage {rows.stage}", columns, part.leaf.identity, replica_identity_full=True)
    nulls = part.keeps_nulls
    plan = InputPlan(table.name, table, columns, part.key, False, nulls, rows.stage, mode, rows.moment)
    return plan, {name: name for name in wanted}


def _wire_values(columns: Iterable[tuple[str, str]]) -> list[str]:
    """Returns SQL for the wire value of each column, given with its DuckDB type."""
    return [carried(of_type).wire_expression(identifier(name)) for name, of_type in columns]


def _on_accumulators(fragment: Fragment, accumulated: KeptGroups) -> Assembly:
    key = accumulated.key
    groups = [
        (part.name, part.type.duckdb_expression(identifier(f"k{number}"))) for number, part in enumerate(key)
    ]

    def leaf(_: Leaf, wanted: tuple[str, ...]) -> str:
        return accumulated_relation(groups, accumulated.accumulation, wanted, is_global=accumulated.is_global)

    schema = accumulators_schema(key, accumulated.accumulation.accumulators)
    tables = {ACCUMULATORS_TABLE: schema.empty_table(), STEPS_TABLE: STEPS_SCHEMA.empty_table()}
    return Assembly(fragment, (), leaf, leaf, tables | {POINTS_TABLE: POINTS_SCHEMA.empty_table()})


def unused_name(name: str, taken: set[str]) -> str:
    """Returns the name, with a number appended if it is taken."""
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name} {number}", number + 1
    return candidate


class StageList:
    """Numbers stages, and creates their plans."""

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

        `latest` is SQL for its documents if all rows are live.
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
    return stage.with_output(replace(output, edges=tuple(edges)))


def _why(relation: Relation, rows: RowsPart | None, accumulate: AccumulatePart | None) -> str:
    """Describes what a stage does, for people."""
    if accumulate is not None:
        is_top = any(each.ranks is not None for each in accumulate.accumulators)
        does = "keeps rows in order" if is_top else "adds up what changes"
        return does if rows is None or len(rows.inputs) < 2 else f"joins, and {does}"
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
    TopN: "takes the first rows",
    Union: "unites",
    Filter: "filters",
}


def has_global_aggregate(relation: Relation) -> bool:
    """Returns whether there may be a row even if no leaf has one."""
    is_global = isinstance(relation, Aggregate) and not relation.groups
    return is_global or any(map(has_global_aggregate, children(relation)))


def columns_read(expressions: Iterable[Expression]) -> frozenset[str]:
    """Returns the columns that expressions read."""
    return frozenset(column for each in expressions for column in each.columns)


def all_columns_read(aggregate: Aggregate) -> frozenset[str]:
    """Returns the columns of its child that an aggregate reads."""
    of_calls = (column for _, call in aggregate.calls for column in call.columns)
    return columns_read(each for _, each in aggregate.groups) | frozenset(of_calls)


def row_by_row(
    relation: Filter | Extend | Unnest, needed: frozenset[str]
) -> tuple[Filter | Extend | Unnest, frozenset[str]]:
    """Returns what a relation computes of the needed columns, and the columns that it reads."""
    match relation:
        case Filter(condition=condition):
            return relation, frozenset(condition.columns)
        case Extend(child=child, computed=computed):
            kept = tuple(each for each in computed if each[0] in needed)
            return Extend(child, kept), columns_read(each for _, each in kept)
        case Unnest(lists=lists):
            return relation, columns_read(each for _, each in lists)


def closable(fragment: Fragment, *, closes: bool) -> Relation:
    """Returns the fragment's tree, or the leaf that it would be if it were a stage."""
    relation = fragment.relation
    return Leaf(-1, relation.columns, relation.identity) if closes else relation


def split_by_identity(fragment: Fragment) -> Partitioning | None:
    """Splits the rows of one input by their identity."""
    split = fragment.final_split
    return split if fragment.split is None and split[0].key == fragment.relation.identity else None
