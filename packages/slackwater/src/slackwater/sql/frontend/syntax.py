"""A query as DuckDB reads it: the syntax tree of `json_serialize_sql`, typed, with places.

DuckDB parses what it later evaluates, so the SQL cannot be understood in two ways.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import duckdb

from slackwater.sql.errors import SqlTextError
from slackwater.sql.frontend.text import ViewText

Raw = Mapping[str, Any]

_UNKNOWN_LOCATION = 2**64 - 1
MAX_CHARACTERS: Final = 100_000
"""The longest text of a view."""
MAX_DEPTH: Final = 300
"""The deepest tree that DuckDB may build: two or three levels are one level of an expression."""
MAX_PARTS: Final = 20_000
"""The largest number of expressions in a view, including nested ones."""
_DEPTH = re.compile(
    r'"query_location":(?P<place>\d{1,9}),|"(?:[^"\\]|\\.)*"|(?P<open>[\[{])|(?P<close>[\]}])'
)
_TAKES_LAMBDA = frozenset(
    {
        f"{prefix}{name}"
        for prefix in ("", "list_", "array_")
        for name in ("transform", "apply", "filter", "reduce")
    }
)
_MODIFIERS = ("DISTINCT_MODIFIER", "ORDER_MODIFIER", "LIMIT_MODIFIER")
_SYSTEM_TIME = re.compile(r"FOR\s+SYSTEM_TIME\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A part of an expression.

    Attributes:
        kind: DuckDB's expression class, for instance COLUMN_REF, FUNCTION, LAMBDA, WINDOW.
        operator: DuckDB's expression type, for instance COMPARE_EQUAL.
        start: Offset of the first character, without parentheses around it; -1 if it was not written.
        names: Parts of a column's name, or the parameters of a lambda.
        function: Lower-case name of a function.
        parts: The expressions below it by role (``arguments``, ``filter``, ``partitions``, …); for a subquery
            the left side of IN.
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
    """An item in FROM.

    Attributes:
        kind: BASE_TABLE, JOIN, SUBQUERY, TABLE_FUNCTION, EMPTY, …
        start: Offset of the first character; -1 if DuckDB does not say.
        end: Offset after the last character, including an alias.
        columns: Column names given with the alias.
        join_type: INNER, LEFT, …
        join_kind: REGULAR, CROSS, NATURAL, ASOF, …
        values: The rows of VALUES.
        function: The call of a table function, whose place is that of its arguments.
        with_ordinality: Whether its rows are numbered.
        is_decorated: Whether it has a sample, a point in time or a catalog.
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
    values: tuple[tuple[Node, ...], ...]
    function: Node | None
    with_ordinality: bool
    is_decorated: bool


@dataclass(frozen=True, slots=True, eq=False)
class CommonTable:
    """A query of WITH."""

    name: str
    columns: tuple[str, ...]
    query: "Query"


@dataclass(frozen=True, slots=True, eq=False)
class Trailing:
    """What follows a query.

    Attributes:
        orders: The expressions of ORDER BY, each with its direction.
    """

    orders: tuple[tuple[Node, str], ...] = ()
    limit: Node | None = None
    offset: Node | None = None

    @property
    def limits(self) -> bool:
        """Whether there is LIMIT or OFFSET."""
        return self.limit is not None or self.offset is not None


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """A SELECT.

    Attributes:
        start: Offset of its first expression; -1 if unknown.
        group_sets: For each grouping set, the positions of its expressions in `groups`; one for a plain
            GROUP BY.
        refused: Names of clauses that no view may have, each with an offset or -1.
    """

    start: int
    with_: tuple[CommonTable, ...]
    items: tuple[Node, ...]
    source: Item
    where: Node | None
    groups: tuple[Node, ...]
    group_sets: tuple[tuple[int, ...], ...]
    groups_all: bool
    having: Node | None
    qualify: Node | None
    is_distinct: bool
    distinct_on: tuple[Node, ...]
    trailing: Trailing
    refused: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class SetOperation:
    """UNION, EXCEPT or INTERSECT.

    Attributes:
        start: Offset of its first expression; -1 if unknown.
        operation: UNION, EXCEPT, INTERSECT or UNION_BY_NAME.
        keeps_duplicates: Whether ALL follows it.
        refused: Names of clauses that no view may have, each with an offset or -1.
    """

    start: int
    with_: tuple[CommonTable, ...]
    operation: str
    keeps_duplicates: bool
    branches: tuple["Query", ...]
    trailing: Trailing
    refused: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """A query of a kind that no view may have."""

    start: int
    what: str


Query = Select | SetOperation | Refused


def direction(raw: Raw) -> str:
    """Returns the direction of a part of ORDER BY, as in `SortKey`."""
    nulls = "FIRST" if raw["null_order"].endswith("FIRST") else "LAST"
    return f"{'DESC' if raw['type'] == 'DESCENDING' else 'ASC'} NULLS {nulls}"


def conjuncts(node: Node | None) -> Iterator[Node]:
    """Yields the conditions that AND connects."""
    if node is None:
        return
    if node.operator == "CONJUNCTION_AND":
        for child in node.children:
            yield from conjuncts(child)
    else:
        yield node


def meaning(raw: object, *, is_top: bool = True) -> object:
    """Returns DuckDB's tree without places, and without the alias at the top."""
    if isinstance(raw, dict):
        dropped = {"query_location", "query_location_length", *(("alias",) if is_top else ())}
        return {key: meaning(value, is_top=False) for key, value in raw.items() if key not in dropped}
    if isinstance(raw, list):
        return [meaning(value, is_top=False) for value in raw]
    return raw


def parse(connection: duckdb.DuckDBPyConnection, text: ViewText) -> Query:
    """Returns the one query of a view.

    Raises:
        SqlTextError: It is not SQL, or not a single query.
    """
    return _Reader(text).query(statement(connection, text))


def statement(connection: duckdb.DuckDBPyConnection, text: ViewText) -> Raw:
    """Returns DuckDB's tree of the one query of a view; raises as :func:`parse`."""
    if len(text.text) > MAX_CHARACTERS:
        problem = f"the view is longer than {MAX_CHARACTERS:,} characters"
        raise text.error(MAX_CHARACTERS, MAX_CHARACTERS, problem, "Write several views")
    serialized = _serialized(connection, text.query)
    reader = _Reader(text)
    reader.refuse_depth(serialized)
    tree = json.loads(serialized)
    if tree.get("error"):
        raise reader.syntax_error(tree)
    if len(tree["statements"]) != 1:
        raise text.error(0, 0, "the file contains more than one statement", "Write one SELECT per file")
    return cast("Raw", tree["statements"][0]["node"])


def node_reader(text: ViewText) -> Callable[[Raw], Node]:
    """Returns a function that types an expression of the tree of a view."""
    return _Reader(text).node


def is_expression(connection: duckdb.DuckDBPyConnection, sql: str, node: Node) -> bool:
    """Whether DuckDB reads this text as exactly this expression."""
    tree = json.loads(_serialized(connection, f"SELECT\n{sql}\n"))
    if tree.get("error"):
        return False
    items = tree["statements"][0]["node"]["select_list"]
    return len(items) == 1 and meaning(items[0]) == meaning(node.raw)


def _serialized(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    ((serialized,),) = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    return str(serialized)


class _Reader:
    def __init__(self, text: ViewText) -> None:
        self._text = text
        self._characters = _character_offsets(text.query)
        self._parts = 0

    def refuse_depth(self, serialized: str) -> None:
        """Checks the depth of a tree level by level, before anything walks through it."""
        depth = place = 0
        for found in _DEPTH.finditer(serialized):
            if found["place"]:
                place = int(found["place"])
            depth += (found["open"] is not None) - (found["close"] is not None)
            if depth > MAX_DEPTH:
                raise _too_deep(self._text, self._offset(place))

    def query(self, raw: Raw) -> Query:
        if raw["type"] == "SELECT_NODE":
            return self._select(raw)
        if raw["type"] != "SET_OPERATION_NODE":
            what = "WITH RECURSIVE" if raw["type"] == "RECURSIVE_CTE_NODE" else raw["type"]
            return Refused(self._first_offset(raw), what.removesuffix("_NODE").replace("_", " "))
        return SetOperation(
            start=self._first_offset(raw["children"]),
            with_=self._with(raw),
            operation=raw["setop_type"],
            keeps_duplicates=raw["setop_all"],
            branches=tuple(self.query(child) for child in raw["children"]),
            trailing=self._trailing(raw["modifiers"]),
            refused=tuple(self._refused(raw["modifiers"])),
        )

    def node(self, raw: Raw, parent: str = "") -> Node:
        kind = raw["class"]
        self._parts += 1
        if self._parts > MAX_PARTS:
            start, end = self._span(raw)
            problem = f"the view has more than {MAX_PARTS:,} expressions"
            raise self._text.error(
                max(start, 0), max(end, 0), problem, "Put the values into a table, and join it"
            )
        function = raw.get("function_name", "").lower()
        is_lambda = kind == "LAMBDA" and (raw.get("syntax_type") != "SINGLE_ARROW" or parent in _TAKES_LAMBDA)
        names = raw.get("column_names", ())
        if is_lambda:
            names = [name for part in self.node(raw["lhs"]).walk() for name in part.names]
        parts = {
            key: tuple(self.node(child, function) for child in _outermost(value))
            for key, value in self._below(raw, is_lambda=is_lambda)
        }
        query = self.query(raw["subquery"]["node"]) if kind == "SUBQUERY" else None
        start, end = self._extent(raw, [child for part in parts.values() for child in part])
        return Node(kind, raw["type"], start, end, raw["alias"], tuple(names), function, parts, query, raw)

    def syntax_error(self, tree: Raw) -> Exception:
        if tree.get("error_type") != "parser":
            return self._text.error(0, 0, "this is not a SELECT", "Write one SELECT TRANSACTIONALLY")
        if "expression depth" in tree["error_message"]:
            return _too_deep(self._text, self._text.deepest())
        start, length = json.loads(tree.get("location", "[0,0]"))
        start, end = self._offset(start), self._offset(start + length)
        hint = "Views are written in DuckDB's SQL"
        if _SYSTEM_TIME.match(self._text.structure, start):
            hint = (
                "A view shows all tables as of the same commit: leave FOR SYSTEM_TIME AS OF out. For the row "
                "that was valid at a time of the data, write t ASOF JOIN r ON t.k = r.k AND t.time >= r.time"
            )
        return self._text.error(start, end, tree["error_message"], hint)

    def _select(self, raw: Raw) -> Select:
        distinct = [each for each in raw["modifiers"] if each["type"] == "DISTINCT_MODIFIER"]
        refused = list(self._refused(raw["modifiers"]))
        if raw["sample"]:
            refused.append(("USING SAMPLE", -1))
        return Select(
            start=self._first_offset(raw["select_list"]),
            with_=self._with(raw),
            items=tuple(self.node(item) for item in raw["select_list"]),
            source=self._item(raw["from_table"]),
            where=self._optional(raw["where_clause"]),
            groups=tuple(self.node(item) for item in raw["group_expressions"]),
            group_sets=tuple(tuple(each) for each in raw["group_sets"]),
            groups_all=raw["aggregate_handling"] == "FORCE_AGGREGATES",
            having=self._optional(raw["having"]),
            qualify=self._optional(raw["qualify"]),
            is_distinct=bool(distinct) and not distinct[0]["distinct_on_targets"],
            distinct_on=tuple(self.node(each) for part in distinct for each in part["distinct_on_targets"]),
            trailing=self._trailing(raw["modifiers"]),
            refused=tuple(refused),
        )

    def _item(self, raw: Raw) -> Item:
        start, end = self._span(raw)
        sides = tuple(self._item(raw[side]) for side in ("left", "right") if raw["type"] == "JOIN")
        return Item(
            kind=raw["type"],
            start=start,
            end=end,
            schema=raw.get("schema_name", ""),
            name=raw.get("table_name", ""),
            alias=raw["alias"],
            columns=tuple(raw.get("column_name_alias", ())),
            join_type=raw.get("join_type", ""),
            join_kind=raw.get("ref_type", ""),
            using=tuple(raw.get("using_columns", ())),
            condition=self._optional(raw.get("condition")),
            sides=sides,
            query=self.query(raw["subquery"]["node"]) if raw["type"] == "SUBQUERY" else None,
            values=tuple(tuple(self.node(value) for value in row) for row in raw.get("values", ())),
            function=self._optional(raw.get("function")),
            with_ordinality=raw.get("with_ordinality") == "WITH_ORDINALITY",
            is_decorated=any(raw.get(key) for key in ("sample", "at_clause", "catalog_name")),
        )

    def _with(self, raw: Raw) -> tuple[CommonTable, ...]:
        return tuple(
            CommonTable(
                entry["key"], tuple(entry["value"]["aliases"]), self.query(entry["value"]["query_node"])
            )
            for entry in raw["cte_map"]["map"]
        )

    def _below(self, raw: Raw, *, is_lambda: bool) -> Iterator[tuple[str, object]]:
        wanted = {"SUBQUERY": ("child",), "TYPE": ()}.get(raw["class"])
        for key, value in raw.items():
            is_part = key in wanted if wanted is not None else key != "type_expr"
            if isinstance(value, dict | list) and is_part and not (is_lambda and key == "lhs"):
                yield key, value

    def _extent(self, raw: Raw, children: list[Node]) -> tuple[int, int]:
        start, end = self._span(raw)
        spans = [(start, end)] if start < end else []
        if raw["class"] != "WINDOW":
            spans += [(child.start, child.end) for child in children if child.start >= 0]
        if not spans:
            return -1, -1
        return self._text.balanced(min(start for start, _ in spans), max(end for _, end in spans))

    def _trailing(self, modifiers: list[Raw]) -> Trailing:
        orders = [order for each in modifiers for order in each.get("orders", ())]
        limits = next(
            (each for each in modifiers if each["type"] == "LIMIT_MODIFIER"), {"limit": None, "offset": None}
        )
        return Trailing(
            tuple((self.node(each["expression"]), direction(each)) for each in orders),
            self._optional(limits["limit"]),
            self._optional(limits["offset"]),
        )

    def _refused(self, modifiers: list[Raw]) -> Iterator[tuple[str, int]]:
        types = [each["type"] for each in modifiers]
        for number, each in enumerate(modifiers):
            if each.get("limit_type") == "PERCENTAGE":
                yield "LIMIT of a percentage", self._first_offset(each)
            if types[: number + 1] != [kind for kind in _MODIFIERS if kind in types[: number + 1]]:
                yield "ORDER BY or LIMIT after another LIMIT", self._first_offset(each)

    def _first_offset(self, raw: object) -> int:
        spans = [self._span(part) for part in _outermost(raw)]
        return min((start for start, _ in spans if start >= 0), default=-1)

    def _optional(self, raw: Raw | None) -> Node | None:
        return None if raw is None else self.node(raw)

    def _span(self, raw: Raw) -> tuple[int, int]:
        location = raw.get("query_location", _UNKNOWN_LOCATION)
        if location == _UNKNOWN_LOCATION:
            return -1, -1
        return self._offset(location), self._offset(location + raw["query_location_length"])

    def _offset(self, byte: int) -> int:
        return self._characters[min(byte, len(self._characters) - 1)]


def _too_deep(text: ViewText, offset: int) -> SqlTextError:
    problem = "the view is nested too deeply here"
    hint = "Move parts of it into queries in WITH or other views, and write long chains of conditions with IN"
    return text.error(offset, offset, problem, hint)


def _character_offsets(text: str) -> list[int]:
    """Returns the offset in characters for each offset in UTF-8 bytes, because DuckDB counts bytes."""
    offsets = []
    for index, character in enumerate(text):
        offsets.extend([index] * len(character.encode()))
    return [*offsets, len(text)]


def _outermost(tree: object) -> Iterator[Raw]:
    """Yields the outermost expressions in a part of DuckDB's tree."""
    if isinstance(tree, dict):
        if tree.get("class"):
            yield tree
            return
        for value in tree.values():
            yield from _outermost(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _outermost(value)
