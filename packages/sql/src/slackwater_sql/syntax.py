"""A view's SQL as DuckDB itself reads it: the syntax tree of `json_serialize_sql`, typed, with places.

DuckDB parses what it will later evaluate, so that no second reading of the SQL can differ from the first.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

from slackwater_sql.errors import ViewError
from slackwater_sql.place import SourceText

_UNKNOWN_LOCATION = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Expression:
    """A part of an expression.

    Attributes:
        kind: DuckDB's expression class, for instance COLUMN_REF, FUNCTION, LAMBDA.
        operator: DuckDB's expression type, for instance COMPARE_EQUAL.
        start: Offset of the first character; -1 if DuckDB does not say.
        end: Offset behind the last character.
        alias: Name given with AS.
        names: Parts of a column's name, or the parameters of a lambda.
        function: Lower-case name of a function.
        children: The expressions below it, in order.
        parameters: Number of a function's arguments.
        is_distinct: DISTINCT stands in an aggregate.
        is_ordered: ORDER BY stands in an aggregate.
    """

    kind: str
    operator: str
    start: int
    end: int
    alias: str
    names: tuple[str, ...]
    function: str
    children: tuple["Expression", ...]
    parameters: int
    is_distinct: bool
    is_ordered: bool

    def walk(self) -> Iterator["Expression"]:
        """This expression and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or join in FROM.

    Attributes:
        kind: BASE_TABLE, JOIN, SUBQUERY, TABLE_FUNCTION, EMPTY, …
        start: Offset of the first character; -1 if DuckDB does not say.
        end: Offset behind the last character, an alias included.
        schema: Schema of a base table, as written.
        name: Name of a base table, as written.
        alias: Alias, or the name of a base table without one.
        is_plain: Neither sample nor column aliases nor time travel.
        join_type: INNER, LEFT, …
        join_kind: REGULAR, CROSS, NATURAL, ASOF, …
        using: Columns of USING.
        condition: What stands behind ON.
        inputs: Left and right side of a join.
    """

    kind: str
    start: int
    end: int
    schema: str
    name: str
    alias: str
    is_plain: bool
    join_type: str
    join_kind: str
    using: tuple[str, ...]
    condition: Expression | None
    inputs: tuple["Relation", ...]


@dataclass(frozen=True, slots=True)
class Select:
    """A SELECT statement.

    Attributes:
        items: The select list.
        source: What stands behind FROM.
        where: Condition of WHERE.
        groups: Expressions of GROUP BY.
        having: Condition of HAVING.
        is_plain_grouping: GROUP BY lists expressions: no ALL, ROLLUP, CUBE or GROUPING SETS.
        extras: Clauses that only some queries have (ORDER, LIMIT, DISTINCT, WITH, QUALIFY, SAMPLE), with the
            offset of a part of each, or -1.
    """

    items: tuple[Expression, ...]
    source: Relation
    where: Expression | None
    groups: tuple[Expression, ...]
    having: Expression | None
    is_plain_grouping: bool
    extras: tuple[tuple[str, int], ...]

    def expressions(self) -> Iterator[Expression]:
        """All top-level expressions outside of FROM."""
        yield from self.items
        yield from self.groups
        yield from (clause for clause in (self.where, self.having) if clause is not None)


def parse_select(connection: duckdb.DuckDBPyConnection, source: SourceText, sql: str) -> Select:
    """The one SELECT of `sql`, which has the same offsets as the user's text.

    Raises:
        ViewError: It is not SQL, or something else than one SELECT.
    """
    reader = _Reader(source)
    ((serialized,),) = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    tree: Mapping[str, Any] = json.loads(serialized)
    if tree.get("error"):
        raise reader.syntax_error(tree)
    if len(tree["statements"]) != 1:
        raise reader.error(0, 0, "the file holds more than one statement", "Write one SELECT per file")
    node = tree["statements"][0]["node"]
    if node["type"] != "SELECT_NODE":
        what = node.get("setop_type") or node["type"]
        raise reader.error(0, 0, f"{what} is not supported", "Write one SELECT TRANSACTIONALLY without UNION")
    return reader.select(node)


class _Reader:
    def __init__(self, source: SourceText) -> None:
        self._source = source
        self._characters = _character_offsets(source.text)

    def select(self, node: Mapping[str, Any]) -> Select:
        sets = node["group_sets"]
        return Select(
            items=tuple(self.expression(item) for item in node["select_list"]),
            source=self.relation(node["from_table"]),
            where=self._optional(node["where_clause"]),
            groups=tuple(self.expression(item) for item in node["group_expressions"]),
            having=self._optional(node["having"]),
            is_plain_grouping=node["aggregate_handling"] == "STANDARD_HANDLING" and len(sets) <= 1,
            extras=tuple(self._extras(node)),
        )

    def expression(self, node: Mapping[str, Any]) -> Expression:
        start, end = self._span(node)
        kind = node["class"]
        below = node["expr"] if kind == "LAMBDA" else {} if kind == "SUBQUERY" else node
        names = node.get("column_names", ())
        if kind == "LAMBDA":
            names = [name for part in _nodes(node["lhs"]) for name in part.get("column_names", ())]
        children = (
            [below] if kind == "LAMBDA" else list(_nodes(dict(below, **{"class": ""}))) if below else []
        )
        return Expression(
            kind=kind,
            operator=node["type"],
            start=start,
            end=end,
            alias=node["alias"],
            names=tuple(names),
            function=node.get("function_name", "").lower(),
            children=tuple(self.expression(child) for child in children),
            parameters=len(node.get("arguments", ())),
            is_distinct=bool(node.get("distinct")),
            is_ordered=bool((node.get("order_bys") or {}).get("orders")),
        )

    def relation(self, node: Mapping[str, Any]) -> Relation:
        start, end = self._span(node)
        name = node.get("table_name", "")
        decorations = (
            node.get("sample"),
            node.get("column_name_alias"),
            node.get("at_clause"),
            node.get("catalog_name"),
        )
        sides = [node[side] for side in ("left", "right") if node["type"] == "JOIN"]
        return Relation(
            kind=node["type"],
            start=start,
            end=end,
            schema=node.get("schema_name", ""),
            name=name,
            alias=node["alias"] or name,
            is_plain=not any(decorations),
            join_type=node.get("join_type", ""),
            join_kind=node.get("ref_type", ""),
            using=tuple(node.get("using_columns", ())),
            condition=self._optional(node.get("condition")),
            inputs=tuple(self.relation(side) for side in sides),
        )

    def syntax_error(self, tree: Mapping[str, Any]) -> ViewError:
        if tree.get("error_type") != "parser":
            return self.error(0, 0, "this is not a SELECT", "Write one SELECT TRANSACTIONALLY")
        start, length = json.loads(tree.get("location", "[0,0]"))
        start, end = self._offset(start), self._offset(start + length)
        return self.error(start, end, tree["error_message"], "The SQL is DuckDB's")

    def error(self, start: int, end: int, problem: str, hint: str) -> ViewError:
        return ViewError(self._source.place(start, end), problem, hint)

    def _extras(self, node: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
        for modifier in node["modifiers"]:
            yield modifier["type"].removesuffix("_MODIFIER"), self._first_offset(modifier)
        if node["cte_map"]["map"]:
            yield "WITH", self._first_offset(node["cte_map"])
        for clause in ("qualify", "sample"):
            if node[clause]:
                yield clause.upper(), self._first_offset(node[clause])

    def _first_offset(self, node: object) -> int:
        spans = [self._span(part) for part in _nodes(node)]
        return min((start for start, _ in spans if start >= 0), default=-1)

    def _optional(self, node: Mapping[str, Any] | None) -> Expression | None:
        return None if node is None else self.expression(node)

    def _span(self, node: Mapping[str, Any]) -> tuple[int, int]:
        location = node.get("query_location", _UNKNOWN_LOCATION)
        if location == _UNKNOWN_LOCATION:
            return -1, -1
        return self._offset(location), self._offset(location + node["query_location_length"])

    def _offset(self, byte: int) -> int:
        return self._characters[min(byte, len(self._characters) - 1)]


def _nodes(tree: object) -> Iterator[Mapping[str, Any]]:
    """The outermost expressions in a part of the tree."""
    if isinstance(tree, dict):
        if tree.get("class"):
            yield tree
            return
        for value in tree.values():
            yield from _nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _nodes(value)


def _character_offsets(text: str) -> list[int]:
    """For each offset in UTF-8 bytes, the offset in characters: DuckDB counts bytes."""
    offsets = []
    for index, character in enumerate(text):
        offsets.extend([index] * len(character.encode()))
    return [*offsets, len(text)]
