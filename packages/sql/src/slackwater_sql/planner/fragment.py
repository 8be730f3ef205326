"""A part of a view's tree that one stage computes, while it still grows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slackwater_sql.catalog import Column, Table
from slackwater_sql.column_type import carried
from slackwater_sql.logical import Expression, Leaf, Relation, Scan, children
from slackwater_sql.plan import InputPlan, KeyColumn
from slackwater_sql.planner.accumulating import Accumulation
from slackwater_sql.planner.partitioning import LeafKey, Partitioning
from slackwater_sql.planner.rendering import render
from slackwater_sql.stages import RowsPart


@dataclass(frozen=True)
class StageRows:
    """What a stage hands on as rows.

    Attributes:
        stage: Its number.
        wire: Ids of the wire row's values, the identity first.
        types: DuckDB types of them.
    """

    stage: int
    wire: tuple[str, ...]
    types: tuple[str, ...]


@dataclass(frozen=True)
class Accumulated:
    """The groups that a stage's accumulate part keeps.

    Attributes:
        stage: Its number.
        groups: Ids of the groups' key, with its types.
        accumulation: What is kept.
        is_global: There is one group, always.
        rows: The rows part of the same stage, if it has one.
    """

    stage: int
    groups: tuple[tuple[str, str], ...]
    accumulation: Accumulation
    is_global: bool
    rows: RowsPart | None

    @property
    def key(self) -> tuple[KeyColumn, ...]:
        """The key as the stage's plan has it."""
        return tuple(KeyColumn(name, carried(of_type)) for name, of_type in self.groups)


Origin = Scan | StageRows
"""What a leaf stands for."""


@dataclass(frozen=True)
class Fragment:
    """A growing part.

    Attributes:
        relation: The tree over leaves.
        split: How its leaves are split; None while it has one leaf, which any key may split.
        accumulated: If its one leaf is an accumulate part's groups.
    """

    relation: Relation
    split: Partitioning | None = None
    accumulated: Accumulated | None = None

    @property
    def final_split(self) -> Partitioning:
        """How the leaves are split if nobody asks for more: by what tells their rows apart."""
        if self.split is not None:
            return self.split
        leaf = only_leaf(self.relation)
        return (LeafKey(leaf, leaf.identity, keeps_nulls=True),)

    def over(self, relation: Relation) -> "Fragment":
        """The fragment with another tree on top of the same leaves."""
        return Fragment(relation, self.split, self.accumulated)


def only_leaf(relation: Relation) -> Leaf:
    """The leaf of a tree that has one."""
    while not isinstance(relation, Leaf):
        (relation,) = children(relation)
    return relation


def used_by_leaf(relation: Relation, wanted: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """The ids that are read of each leaf to compute the wanted ones."""
    used: dict[int, tuple[str, ...]] = {}

    def note(leaf: Leaf, names: tuple[str, ...]) -> str:
        used[leaf.number] = tuple(dict.fromkeys((*used.get(leaf.number, ()), *names)))
        return "SELECT 1"

    render(relation, wanted, note)
    return used


def table_input(
    scan: Scan, alias: str, used: Sequence[str], part: LeafKey
) -> tuple[InputPlan, dict[str, str]]:
    """A table as an input, and the column of each id."""
    names = {number: name for name, number in scan.ids.items()}
    key = tuple(names[number] for number in part.key)
    wanted = {names[number] for number in used} | set(key) | set(scan.table.primary_key)
    columns = tuple(column for column in scan.table.columns if column.name in wanted)
    is_nullable = any(column.nullable for column in columns if column.name in key)
    moves = not set(key) <= set(scan.table.primary_key)
    table = replace(scan.table, columns=columns)
    plan = InputPlan(alias, table, columns, key, moves, part.keeps_nulls and is_nullable)
    return plan, names


def stage_input(
    rows: StageRows, leaf: Leaf, used: Sequence[str], part: LeafKey
) -> tuple[InputPlan, dict[str, str]]:
    """Rows of an earlier stage as an input: that stage's result in the form of a table."""
    wanted = dict.fromkeys((*leaf.identity, *part.key, *used))
    types = dict(zip(rows.wire, rows.types, strict=True))
    columns = tuple(Column(name, carried(types[name]), nullable=True) for name in wanted)
    table = Table("", f"stage {rows.stage}", columns, leaf.identity, replica_identity_full=True)
    plan = InputPlan(table.name, table, columns, part.key, False, part.keeps_nulls)
    return plan, {name: name for name in wanted}


def column(name: str, like: Expression) -> Expression:
    """An expression that is the column of this id."""
    return Expression(f'"{name}"', (name,), like.span, like.text)
