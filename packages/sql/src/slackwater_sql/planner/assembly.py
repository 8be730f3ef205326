"""The SQL of a finished fragment, and the types of what it computes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from slackwater_sql.column_type import carried
from slackwater_sql.document import Field, document_expression, document_text, identifier
from slackwater_sql.logical import Leaf, Relation, Scan
from slackwater_sql.plan import InputPlan
from slackwater_sql.planner.accumulating import Kept, accumulated_relation, partials_statement
from slackwater_sql.planner.fragment import (
    Accumulated,
    Fragment,
    Origin,
    stage_input,
    table_input,
    used_by_leaf,
)
from slackwater_sql.planner.reads import reads
from slackwater_sql.planner.rendering import AT, RenderLeaf, lifted_leaf, live_leaf, render
from slackwater_sql.stage_evaluation import POINTS_SCHEMA, STEPS_SCHEMA, rows_schema
from slackwater_sql.stages import AccumulatorKind, Reads
from slackwater_sql.statement import (
    ACCUMULATORS_TABLE,
    POINT,
    POINTS_TABLE,
    STEPS_TABLE,
    rows_table,
)


@dataclass(frozen=True)
class Assembly:
    """What a fragment reads, and how its leaves are written in SQL.

    Attributes:
        inputs: The inputs of its rows part; none if it stands on accumulators.
        origins: For each input the stage it comes from; 0: a table.
        reads: For each input.
        leaf: Its leaves at points.
        live: Its leaves when all rows are live; None on accumulators.
        tables: Empty tables that its SQL reads, by name.
    """

    inputs: tuple[InputPlan, ...]
    origins: tuple[int, ...]
    reads: tuple[Reads, ...]
    leaf: RenderLeaf
    live: RenderLeaf | None
    tables: Mapping[str, pa.Table]


def assemble(fragment: Fragment, wanted: Sequence[str], leaves: Mapping[int, Origin]) -> Assembly:
    """What a fragment reads to compute the wanted ids."""
    if fragment.accumulated is not None:
        return _on_accumulators(fragment.accumulated)
    used = used_by_leaf(fragment.relation, wanted)
    split = fragment.final_split
    modes = reads(fragment.relation, split)
    inputs: dict[int, tuple[int, InputPlan, dict[str, str]]] = {}
    origins = []
    for number, part in enumerate(split):
        origin = leaves[part.leaf.number]
        of_leaf = used.get(part.leaf.number, ())
        if isinstance(origin, Scan):
            alias = _unused(origin.alias, {plan.alias for _, plan, _ in inputs.values()})
            plan, names = table_input(origin, alias, of_leaf, part)
            origins.append(0)
        else:
            plan, names = stage_input(origin, part.leaf, of_leaf, part)
            origins.append(origin.stage)
        inputs[part.leaf.number] = (number, plan, names)
    plans = tuple(plan for _, plan, _ in inputs.values())
    tables = {
        rows_table(number): rows_schema(plan, is_lifted=True).empty_table()
        for number, plan in enumerate(plans)
    }
    return Assembly(
        inputs=plans,
        origins=tuple(origins),
        reads=tuple(modes[part.leaf.number] for part in split),
        leaf=lifted_leaf(inputs),
        live=live_leaf(inputs),
        tables=tables | {POINTS_TABLE: POINTS_SCHEMA.empty_table(), STEPS_TABLE: STEPS_SCHEMA.empty_table()},
    )


class Binder:
    """Asks DuckDB for the types of expressions over a fragment."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def types(self, assembly: Assembly, relation: Relation, expressions: Sequence[str]) -> tuple[str, ...]:
        """DuckDB's names of the types of SQL expressions over all columns they may read."""
        return tuple(str(each) for each in self.duckdb_types(assembly, relation, expressions))

    def duckdb_types(
        self, assembly: Assembly, relation: Relation, expressions: Sequence[str]
    ) -> list[duckdb.sqltypes.DuckDBPyType]:
        """The types themselves."""
        if not expressions:
            return []
        wanted = [name for name in relation.columns if any(f'"{name}"' in each for each in expressions)]
        text = f"SELECT {', '.join(expressions)} FROM ({render(relation, wanted, assembly.leaf)})"  # noqa: S608
        for name, table in assembly.tables.items():
            self._connection.register(name, table)
        try:
            return list(self._connection.sql(text).types)
        finally:
            for name in assembly.tables:
                self._connection.unregister(name)


def rows_statement(relation: Relation, wire: Sequence[str], types: Sequence[str], assembly: Assembly) -> str:
    """Rows for later stages."""
    values = ", ".join(
        carried(of_type).wire_expression(identifier(name)) for name, of_type in zip(wire, types, strict=True)
    )
    rows = render(relation, wire, assembly.leaf)
    return f"SELECT {AT} AS point, CAST(json_array({values}) AS VARCHAR) AS row FROM ({rows})"  # noqa: S608


def documents_statement(
    relation: Relation, key: tuple[Field, ...], fields: tuple[Field, ...], leaf: RenderLeaf, point: str
) -> str:
    """Documents with their record keys; the point's column is called `point`."""
    wanted = [each.expression.strip('"') for each in (*key, *fields)]
    rows = render(relation, wanted, leaf)
    return (
        f"SELECT {AT} AS {identifier(point)}, {document_text(key)} AS key, "  # noqa: S608 - made of ids
        f"{document_expression(fields)} AS document FROM ({rows})"
    )


def partials(
    relation: Relation, groups: Sequence[tuple[str, str]], kept: Sequence[Kept], assembly: Assembly
) -> str:
    """What changes add to groups."""
    read = [*(name for name, _ in groups), *(column for each in kept for column in each.columns)]
    wire = [carried(of_type).wire_expression(identifier(name)) for name, of_type in groups]
    rows = render(relation, read, assembly.leaf)
    return partials_statement(rows, [name for name, _ in groups], kept, wire)


def _on_accumulators(accumulated: Accumulated) -> Assembly:
    key = accumulated.key
    groups = [
        (part.name, part.type.duckdb_expression(identifier(f"k{number}"))) for number, part in enumerate(key)
    ]

    def leaf(_: Leaf, wanted: tuple[str, ...]) -> str:
        return accumulated_relation(groups, accumulated.accumulation, wanted, is_global=accumulated.is_global)

    fields = [(POINT, pa.int32())]
    fields += [(f"k{number}", part.type.arrow) for number, part in enumerate(key)]
    fields += [("n", pa.int64())]
    for number, each in enumerate(accumulated.accumulation.accumulators):
        fields += _accumulator_fields(number, each.kind)
    tables = {ACCUMULATORS_TABLE: pa.schema(fields).empty_table(), STEPS_TABLE: STEPS_SCHEMA.empty_table()}
    return Assembly((), (), (), leaf, None, tables | {POINTS_TABLE: POINTS_SCHEMA.empty_table()})


def _accumulator_fields(number: int, kind: AccumulatorKind) -> list[tuple[str, pa.DataType]]:
    match kind:
        case AccumulatorKind.COUNT | AccumulatorKind.DISTINCT:
            return [(f"a{number}", pa.int64())]
        case AccumulatorKind.SUM:
            return [(f"a{number}_n", pa.int64()), (f"a{number}", pa.string())]
        case AccumulatorKind.MIN | AccumulatorKind.MAX:
            return [(f"a{number}", pa.string())]


def _unused(name: str, taken: set[str]) -> str:
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name} {number}", number + 1
    return candidate
