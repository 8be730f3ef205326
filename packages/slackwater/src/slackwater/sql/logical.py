"""A view as a tree of relations, before it is divided into stages.

Every column of the tree has its own id (``c1``, ``c2``, …), so that no two are ever confused; expressions are
DuckDB SQL over these ids. Relations are bags; `identity` distinguishes their rows: its values are unique, and
NULL equals NULL. The tree shows which columns are never NULL, and which depend on others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final

from slackwater.sql.catalog import Table
from slackwater.sql.duckdb_sql import identifier
from slackwater.sql.errors import SourceText
from slackwater.sql.plan import Ranks

Dependency = tuple[frozenset[str], frozenset[str]]
"""Rows that agree on the first columns, where NULL equals NULL, agree on the second ones."""

_NO_READS: Mapping[str, Iterable[str]] = {}

MAX_STEPS: Final = 500_000
"""Steps of planning a view: nodes of its tree and of its expressions, counted at each visit."""


class TooManyStepsError(Exception):
    """Planning a view takes more than `MAX_STEPS` steps."""


_left: ContextVar[int | None] = ContextVar("planning", default=None)


@contextmanager
def limited_steps() -> Iterator[None]:
    """Limits the steps of planning in the block, and in blocks within it; they raise `TooManyStepsError`."""
    if _left.get() is not None:
        yield
        return
    token = _left.set(MAX_STEPS)
    try:
        yield
    finally:
        _left.reset(token)


def spend(steps: int = 1) -> None:
    """Counts steps of planning; the number is the same on every machine."""
    left = _left.get()
    if left is not None:
        _left.set(left - steps)
        if left < steps:
            raise TooManyStepsError


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `[start, end)` of the view's text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Expression:
    """A scalar expression.

    Attributes:
        sql: DuckDB SQL; columns are written as quoted ids, ``"c7"``.
        columns: The ids it reads, each once.
        text: What the user wrote, for messages.
        bounds: For a condition that holds where a column, if it is a rank, is between two integers: these.
    """

    sql: str
    columns: tuple[str, ...]
    span: Span
    text: str = ""
    bounds: tuple[str, int, int] | None = None

    @property
    def column(self) -> str | None:
        """The id, if the expression is just a column."""
        return self.columns[0] if len(self.columns) == 1 and self.sql == f'"{self.columns[0]}"' else None


SortKey = tuple[Expression, str]
"""A part of ORDER BY, with ``ASC`` or ``DESC`` and ``NULLS FIRST`` or ``NULLS LAST``."""


@dataclass(frozen=True, slots=True)
class Ranking(Expression):
    """A call of ``row_number()``, ``rank()`` or ``dense_rank()``, including OVER, with its order."""

    function: str = "row_number"
    order: tuple[SortKey, ...] = ()


def column_expression(column: str, like: Expression) -> Expression:
    """Returns an expression that is just a column, at the place of another one."""
    return Expression(identifier(column), (column,), like.span, like.text)


def conjunction(parts: Sequence[Expression]) -> Expression | None:
    """Returns an expression that holds where all of them hold; None if there are none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    sql = " AND ".join(f"({each.sql})" for each in parts)
    columns = tuple(dict.fromkeys(column for each in parts for column in each.columns))
    return Expression(sql, columns, parts[0].span, " AND ".join(each.text for each in parts))


@dataclass(frozen=True)
class Scan:
    """Rows of a declared table.

    Attributes:
        ids: Id of each usable column of the table (all of supported types), by column name.
        alias: Its name in the view.
    """

    table: Table
    ids: dict[str, str]
    alias: str
    span: Span

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Ids of the columns."""
        return tuple(self.ids.values())

    @property
    def identity(self) -> tuple[str, ...]:
        """The primary key."""
        return tuple(self.ids[name] for name in self.table.primary_key)


@dataclass(frozen=True)
class _OverRows:
    """The rows of a child, each at most once."""

    child: "Relation"

    @property
    def identity(self) -> tuple[str, ...]:
        """The child's identity."""
        return self.child.identity


@dataclass(frozen=True)
class Extend(_OverRows):
    """The child's rows with computed columns added."""

    computed: tuple[tuple[str, Expression], ...]

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The child's columns and the computed ones."""
        return (*self.child.columns, *(name for name, _ in self.computed))


@dataclass(frozen=True)
class OneRow:
    """One row without columns, whatever the tables contain: what a SELECT without FROM reads."""

    columns: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unnest:
    """The child's rows, each once for every element of its lists; shorter lists are filled up with NULL.

    Attributes:
        lists: The elements' ids, and the lists.
        ordinal: Id of the elements' numbers, from 1.
        keeps_empty: Whether a row without elements is kept once, with NULL for the elements and their number.
    """

    child: "Relation"
    lists: tuple[tuple[str, Expression], ...]
    ordinal: str
    keeps_empty: bool = False

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The child's columns, the elements and their number."""
        return (*self.child.columns, *(name for name, _ in self.lists), self.ordinal)

    @property
    def identity(self) -> tuple[str, ...]:
        """The child's identity, and the element's number."""
        return (*self.child.identity, self.ordinal)


@dataclass(frozen=True)
class Filter(_OverRows):
    """The child's rows for which the condition is true."""

    condition: Expression

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The child's columns."""
        return self.child.columns


@dataclass(frozen=True)
class Expire(_OverRows):
    """The child's rows until their moment comes, at the clock of commits.

    Attributes:
        moment: The column with the moment, in microseconds since the epoch; rows with NULL do not exist.
    """

    moment: str

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The child's columns."""
        return self.child.columns


class JoinKind(StrEnum):
    """Joins of SQL; RIGHT JOIN is a LEFT JOIN with its sides exchanged."""

    INNER = "INNER"
    LEFT = "LEFT"
    FULL = "FULL"
    SEMI = "SEMI"
    ANTI = "ANTI"
    ASOF = "ASOF"
    ASOF_LEFT = "ASOF LEFT"

    @property
    def has_one_partner(self) -> bool:
        """Whether a left row meets at most one of the right rows that fulfil the conditions: the closest."""
        return self in {JoinKind.ASOF, JoinKind.ASOF_LEFT}

    @property
    def drops_left(self) -> bool:
        """Whether a left row without a partner is not part of the result."""
        return self in {JoinKind.INNER, JoinKind.SEMI, JoinKind.ASOF}

    @property
    def keeps_left_only(self) -> bool:
        """Whether the result has only the left side's columns."""
        return self in {JoinKind.SEMI, JoinKind.ANTI}


@dataclass(frozen=True)
class Join:
    """Pairs of rows.

    Attributes:
        equal: Comparisons `left = right` that must all hold; empty for every pair.
        residual: A further condition, over columns of both sides. That of ASOF compares the left side with a
            column of the right side; of several closest rows, the one with the smallest identity counts.
    """

    kind: JoinKind
    left: "Relation"
    right: "Relation"
    equal: tuple[tuple[Expression, Expression], ...]
    residual: Expression | None
    span: Span

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns of both sides, or only those of the left one."""
        return self.left.columns if self.kind.keeps_left_only else (*self.left.columns, *self.right.columns)

    @cached_property
    def identity(self) -> tuple[str, ...]:
        """The left side's if each of its rows has at most one partner on the right, otherwise both."""
        joined = {right.column for _, right in self.equal}
        right_is_unique = self.kind.has_one_partner or set(self.right.identity) <= joined
        if self.kind.keeps_left_only or (right_is_unique and self.kind is not JoinKind.FULL):
            return self.left.identity
        if self.kind is JoinKind.INNER and set(self.left.identity) <= {left.column for left, _ in self.equal}:
            return self.right.identity
        return (*self.left.identity, *self.right.identity)


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """An aggregate function over the rows of a group.

    Attributes:
        sql: The whole call as DuckDB SQL over ids, FILTER included. An aggregate that depends on the order of
            its rows has an ORDER BY that ends with the child's identity.
        function: Lower-case name: ``sum``, ``count``, ``list``, …; ``count`` without arguments is count(*).
        columns: The ids it reads, including those in ORDER BY.
        orders: What it orders its rows by, the identity included, each with direction and place of NULLs as
            ``create_sort_key`` takes them.
    """

    sql: str
    function: str
    arguments: tuple[Expression, ...]
    is_distinct: bool
    condition: Expression | None
    columns: tuple[str, ...]
    span: Span
    text: str
    orders: tuple[SortKey, ...] = ()


@dataclass(frozen=True)
class Aggregate:
    """One row per group; without GROUP BY always one row. DISTINCT is an aggregate without calls.

    Attributes:
        groups: The columns of GROUP BY with their ids in the result.
        calls: The aggregates with their ids in the result.
        identity: The groups that identify a row; the others depend on them.
    """

    child: "Relation"
    groups: tuple[tuple[str, Expression], ...]
    calls: tuple[tuple[str, AggregateCall], ...]
    identity: tuple[str, ...]
    span: Span

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The groups and the aggregates."""
        return (*(name for name, _ in self.groups), *(name for name, _ in self.calls))


@dataclass(frozen=True)
class Union:
    """The rows of all children (UNION ALL).

    Attributes:
        sources: For each column of the result: its id, and the id in each branch.
        identity: Ids of the columns that identify a row: the branch's number, then the branch's identity as
            text, padded with NULL to the longest one.
    """

    children: tuple["Relation", ...]
    sources: tuple[tuple[str, tuple[str, ...]], ...]
    identity: tuple[str, ...]
    span: Span

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The common columns and the identity."""
        return (*(name for name, _ in self.sources), *self.identity)


@dataclass(frozen=True)
class Window(_OverRows):
    """The child's rows with values computed from the rows of their partition.

    Attributes:
        partition: The columns by which at least all windows partition.
        calls: Id in the result, and the whole call as SQL, including OVER, which partitions by the point,
            too. A call that depends on the order of rows that compare equal has an ORDER BY that ends with
            the child's identity.
    """

    partition: tuple[Expression, ...]
    calls: tuple[tuple[str, Expression], ...]
    span: Span

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The child's columns and the computed ones."""
        return (*self.child.columns, *(name for name, _ in self.calls))


@dataclass(frozen=True)
class TopN:
    """The rows of the child that come first in their partition.

    Attributes:
        order: For ``row_number``, rows that are equal in it are ordered by the child's identity.
        rank: Id of the rank in the result.
    """

    child: "Relation"
    partition: tuple[Expression, ...]
    order: tuple[SortKey, ...]
    ranks: Ranks
    rank: str
    identity: tuple[str, ...]
    span: Span

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The child's columns and the rank."""
        return (*self.child.columns, self.rank)

    @property
    def read(self) -> tuple[Expression, ...]:
        """What decides which rows come first."""
        return (*self.partition, *(value for value, _ in self.order))


@dataclass(frozen=True)
class Leaf:
    """Rows that a stage receives: a scan, or the result of an earlier stage.

    Attributes:
        number: The leaf's number in the pipeline.
    """

    number: int
    columns: tuple[str, ...]
    identity: tuple[str, ...]


Relation = Scan | OneRow | Leaf | Extend | Unnest | Filter | Expire | Join | Aggregate | Union | Window | TopN


@dataclass(frozen=True)
class LogicalView:
    """A view as a tree.

    Attributes:
        text: What the user wrote; its name is the view's.
        outputs: Name and id of each column, in select order.
        types: DuckDB type of each output, as DuckDB derives it from the user's text.
        labels: The user's names (``o.id``) for ids of base columns and groups.
        notes: What the user should know about the view.
    """

    text: SourceText
    relation: Relation
    outputs: tuple[tuple[str, str], ...]
    types: tuple[str, ...]
    labels: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def children(relation: Relation) -> tuple[Relation, ...]:
    """Returns the relations directly below."""
    match relation:
        case Scan() | OneRow() | Leaf():
            return ()
        case Join(left=left, right=right):
            return (left, right)
        case Union(children=branches):
            return branches
        case _:
            return (relation.child,)


def never_null(relation: Relation) -> frozenset[str]:  # noqa: C901 - a case per relation
    """Returns the columns without NULL."""
    spend()
    match relation:
        case Scan(table=table, ids=ids):
            keys = set(table.primary_key)
            return frozenset(
                ids[column.name]
                for column in table.columns
                if column.name in ids and (not column.nullable or column.name in keys)
            )
        case Join(kind=kind, left=left, right=right):
            if kind is JoinKind.FULL:
                return frozenset()
            return never_null(left) | (never_null(right) if kind.drops_left else frozenset())
        case Aggregate(child=child, groups=groups, calls=calls):
            below = never_null(child)
            counts = {name for name, call in calls if call.function == "count"}
            return frozenset(counts | {name for name, each in groups if each.column in below})
        case Union(children=children, sources=sources, identity=identity):
            each = [never_null(child) for child in children]
            safe = {
                name
                for name, ids in sources
                if all(column in known for column, known in zip(ids, each, strict=True))
            }
            return frozenset(safe | {identity[0]})
        case Extend(child=child, computed=computed):
            below = never_null(child)
            return below | {name for name, each in computed if each.column in below}
        case Expire(child=child, moment=moment):
            return never_null(child) | {moment}
        case Unnest(child=child, ordinal=ordinal, keeps_empty=keeps_empty):
            return never_null(child) | (frozenset() if keeps_empty else {ordinal})
        case Filter() | Window() | TopN():
            return never_null(relation.child)
        case Leaf() | OneRow():
            return frozenset()


def dependencies(relation: Relation) -> Iterator[Dependency]:
    """Yields the dependencies that hold between the columns of the relation's rows."""
    spend()
    match relation:
        case Scan() | Aggregate() | Union():
            yield frozenset(relation.identity), frozenset(relation.columns)
        case Join(kind=kind, left=left, right=right):
            yield from _of_side(left, may_be_missing=kind is JoinKind.FULL)
            if not kind.keeps_left_only:
                yield from _of_side(right, may_be_missing=not kind.drops_left)
        case Extend(child=child, computed=computed):
            for determiners, determined in dependencies(child):
                made = {name for name, each in computed if determined.issuperset(each.columns)}
                yield determiners, determined | made
        case Filter() | Expire() | Window() | TopN() | Unnest():
            yield from dependencies(relation.child)
    yield frozenset(relation.identity), frozenset(relation.columns)


def closure(known: Iterable[str], rules: Iterable[Dependency]) -> frozenset[str]:
    """Returns the columns and all that depend on them; columns that depend on nothing are omitted."""
    found = set(known)
    rules = [rule for rule in rules if rule[0]]
    while more := [rule for rule in rules if rule[0] <= found and not rule[1] <= found]:
        spend(len(rules))
        found.update(*(determined for _, determined in more))
    return frozenset(found)


def without_dependents(
    columns: tuple[str, ...], rules: Iterable[Dependency], reads: Mapping[str, Iterable[str]] = _NO_READS
) -> tuple[str, ...]:
    """Returns the first of the columns on which all of them depend.

    Values that are equal need not be identical (0.0 and -0.0), so a computed column depends only on what
    determines the columns that it is computed from. `reads` contains these for computed columns.
    """
    rules = [rule for rule in rules if rule[0]]
    kept = list(columns)
    for column in reversed(columns):
        rest = [each for each in kept if each != column]
        known = closure(rest, rules)
        determined = {each for rule in rules if rule[0] <= known for each in rule[1]}
        if set(reads.get(column, (column,))) <= determined:
            kept = rest
    return tuple(kept)


def _of_side(side: Relation, *, may_be_missing: bool) -> Iterator[Dependency]:
    if not may_be_missing:
        yield from dependencies(side)
        return
    safe = never_null(side)  # where these are NULL, the whole side is NULL
    yield from (rule for rule in dependencies(side) if rule[0] & safe)
