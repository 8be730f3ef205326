"""A query as DuckDB itself reads it: the syntax tree of `json_serialize_sql`, typed, with places.

DuckDB parses what it later evaluates, so that no second reading of the SQL can differ from the first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A part of an expression.

    Attributes:
        kind: DuckDB's expression class, for instance COLUMN_REF, FUNCTION, LAMBDA, WINDOW.
        operator: DuckDB's expression type, for instance COMPARE_EQUAL.
        start: Offset of the first character, parentheses around it left out; -1: written nowhere.
        end: Offset behind the last character.
        alias: Name given with AS.
        names: Parts of a column's name, or the parameters of a lambda.
        function: Lower-case name of a function.
        parts: The expressions below it by role (``arguments``, ``filter``, ``partitions``, …); of a subquery
            what stands left of IN.
        query: The query of a subquery.
        raw: What DuckDB says.
    """

    kind: str
    operator: str
    start: int
    end: int
    alias: str
    names: tuple[str, ...]
    function: str
    parts: Mapping[str, tuple["Node", ...]]
    query: "Query | None"
    raw: Raw = field(repr=False)

    @property
    def children(self) -> tuple["Node", ...]:
        """The expressions below it, in order."""
        return tuple(node for part in self.parts.values() for node in part)

    @property
    def arguments(self) -> tuple["Node", ...]:
        """The arguments of a function."""
        return self.parts.get("arguments", ())

    def walk(self) -> Iterator["Node"]:
        """This expression and all below it; subqueries are not entered."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """Something in FROM.

    Attributes:
        kind: BASE_TABLE, JOIN, SUBQUERY, TABLE_FUNCTION, EMPTY, …
        start: Offset of the first character; -1 if DuckDB does not say.
        end: Offset behind the last character, an alias included.
        schema: Schema of a table, as written.
        name: Name of a table, as written.
        alias: Alias as written; may be empty.
        columns: Column names given with the alias.
        join_type: INNER, LEFT, …
        join_kind: REGULAR, CROSS, NATURAL, ASOF, …
        using: Columns of USING.
        condition: What stands behind ON.
        sides: Left and right side of a join.
        query: A subquery.
        is_decorated: With a sample, a point in time or a catalog.
    """

    kind: str
    start: int
    end: int
    schema: str
    name: str
    alias: str
    columns: tuple[str, ...]
    join_type: str
    join_kind: str
    using: tuple[str, ...]
    condition: Node | None
    sides: tuple["Item", ...]
    query: "Query | None"
    is_decorated: bool


@dataclass(frozen=True, slots=True, eq=False)
class CommonTable:
    """A query of WITH."""

    name: str
    columns: tuple[str, ...]
    query: "Query"


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """A SELECT.

    Attributes:
        start: Offset of its first expression; -1 if unknown.
        with_: Its common tables.
        items: The select list.
        source: What stands behind FROM.
        where: Condition of WHERE.
        groups: Expressions of GROUP BY.
        groups_all: GROUP BY ALL.
        having: Condition of HAVING.
        qualify: Condition of QUALIFY.
        is_distinct: SELECT DISTINCT.
        refused: Names of clauses that no view may have, with an offset or -1.
    """

    start: int
    with_: tuple[CommonTable, ...]
    items: tuple[Node, ...]
    source: Item
    where: Node | None
    groups: tuple[Node, ...]
    groups_all: bool
    having: Node | None
    qualify: Node | None
    is_distinct: bool
    refused: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class SetOperation:
    """UNION, EXCEPT or INTERSECT.

    Attributes:
        start: Offset of its first expression; -1 if unknown.
        with_: Its common tables.
        operation: UNION, EXCEPT, INTERSECT or UNION_BY_NAME.
        keeps_duplicates: ALL stands behind it.
        branches: The queries.
        refused: Names of clauses that no view may have, with an offset or -1.
    """

    start: int
    with_: tuple[CommonTable, ...]
    operation: str
    keeps_duplicates: bool
    branches: tuple["Query", ...]
    refused: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """A query of a kind that no view may have."""

    start: int
    what: str


Query = Select | SetOperation | Refused


def conjuncts(node: Node | None) -> Iterator[Node]:
    """The conditions that AND connects."""
    if node is None:
        return
    if node.operator == "CONJUNCTION_AND":
        for child in node.children:
            yield from conjuncts(child)
    else:
        yield node


def outermost(tree: object) -> Iterator[Raw]:
    """The outermost expressions in a part of DuckDB's tree."""
    if isinstance(tree, dict):
        if tree.get("class"):
            yield tree
            return
        for value in tree.values():
            yield from outermost(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from outermost(value)


def meaning(raw: object, *, is_top: bool = True) -> object:
    """DuckDB's tree without places and without the alias at the top."""
    if isinstance(raw, dict):
        dropped = {"query_location", "query_location_length", *(("alias",) if is_top else ())}
        return {key: meaning(value, is_top=False) for key, value in raw.items() if key not in dropped}
    if isinstance(raw, list):
        return [meaning(value, is_top=False) for value in raw]
    return raw
