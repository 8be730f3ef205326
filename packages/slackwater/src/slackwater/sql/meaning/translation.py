"""A view in PostgreSQL's SQL as a view in DuckDB's.

DuckDB parses the text, and the types of operands are inferred from the declared tables up. Where an operator,
function or cast means something else in DuckDB, its text is replaced (:mod:`.rules`); everything else
remains as the user wrote it.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final

import duckdb

from slackwater.sql.catalog import Catalog
from slackwater.sql.duckdb_sql import identifier, literal
from slackwater.sql.frontend.names import derived_name, end_of_column
from slackwater.sql.frontend.syntax import Node, Raw, node_reader, statement
from slackwater.sql.frontend.text import ViewText
from slackwater.sql.meaning.code import Code, Piece, TranslatedText, copied, filled, text_of
from slackwater.sql.meaning.marked import key_problem, marked_type, order_template, special, without_collation
from slackwater.sql.meaning.rules import Call, Operand, Rewriting, rewriting
from slackwater.sql.meaning.types import LITERAL, UNKNOWN, inferred, stub

_DESCENDING: Final = re.compile(r"[\s)]*\bDESC\b", re.IGNORECASE)
_ASCENDING: Final = frozenset({"ORDER_DEFAULT", "ASCENDING"})
_OVER: Final = r"\bOVER\b"
_MOST_DIGITS: Final = 38
_HASHED: Final = re.compile(r"#(?=>>?\s*')")
_BOOLEAN: Final = frozenset({"COMPARISON", "CONJUNCTION", "BETWEEN"})
_ATOMS: Final = frozenset({"COLUMN_REF", "CONSTANT", "FUNCTION"})
_ROOTS: Final = ("where_clause", "group_expressions", "having", "qualify", "modifiers")

Columns = tuple[tuple[str, str], ...]
"""Names and types."""


def in_duckdb(
    connection: duckdb.DuckDBPyConnection, views: Mapping[str, ViewText], catalog: Catalog
) -> "Translator":
    """Returns a translator of the views of a pipeline, by their names."""
    return Translator(connection, views, catalog)


@dataclass
class Translator:
    """Translates the views of a pipeline, each once."""

    connection: duckdb.DuckDBPyConnection
    views: Mapping[str, ViewText]
    catalog: Catalog
    _texts: dict[str, ViewText] = field(default_factory=dict)
    _columns: dict[str, Columns] = field(default_factory=dict)

    def texts(self, names: Collection[str]) -> dict[str, ViewText]:
        """Returns all views, of which these and those that they read are translated.

        Raises:
            SqlTextError: A view means something in PostgreSQL that it cannot mean here.
        """
        for name in names:
            self.columns(name.lower())
        return {name: self._texts.get(name.lower(), text) for name, text in self.views.items()}

    def columns(self, name: str) -> Columns | None:
        """Returns the columns of a view after translating it; None if there is no such view."""
        text = next((each for other, each in self.views.items() if other.lower() == name), None)
        if text is not None and name not in self._columns:
            self._columns[name] = ()  # a view that reads itself is refused later
            translation = _Translation(self, text)
            parsed = ViewText(text.path, _HASHED.sub("-", text.text))
            self._columns[name] = translation.query(statement(self.connection, parsed), None, {})
            self._texts[name] = translation.result()
        return self._columns.get(name)


@dataclass
class _Scope:
    """The names of a query's FROM."""

    outer: "_Scope | None"
    sources: list[tuple[tuple[str, ...], Columns]] = field(default_factory=list)
    """What may precede the names of columns, and the columns."""
    merged: set[str] = field(default_factory=set)
    """Columns of USING, which are those of the first source."""

    def type_of(self, names: tuple[str, ...]) -> str:
        lower = tuple(name.lower() for name in names)
        for length in range(min(2, len(lower) - 1), -1, -1):
            for qualifiers, columns in self.sources:
                if length and ".".join(lower[:length]) not in qualifiers:
                    continue
                for name, column_type in columns:
                    if name.lower() == lower[length]:
                        return _of_fields(column_type, names[length + 1 :])
        return self.outer.type_of(names) if self.outer is not None else UNKNOWN

    def starred(self, qualifier: str) -> Iterator[tuple[str, str]]:
        seen: set[str] = set()
        for qualifiers, columns in self.sources:
            if qualifier and qualifier.lower() not in qualifiers:
                continue
            yield from (each for each in columns if qualifier or each[0].lower() not in seen)
            seen |= self.merged & {name.lower() for name, _ in columns}


def _of_fields(column_type: str, names: tuple[str, ...]) -> str:
    part = stub(column_type)
    for name in names:
        part = f"struct_extract({part}, {literal(name)})"
    return inferred(part) if names else column_type


@dataclass(frozen=True)
class _Typed:
    """An expression in DuckDB's SQL.

    Attributes:
        code: Its SQL.
        probe: SQL of the same type over constants.
    """

    node: Node
    code: Code
    probe: str
    known: str = ""
    elements: tuple[Operand, ...] = ()
    is_rewritten: bool = False

    @property
    def type(self) -> str:
        """Its type."""
        if self.node.kind == "CONSTANT" and self.node.raw["literal"].get("kind") == "STRING":
            return LITERAL
        return self.known or inferred(self.probe)

    @property
    def stub(self) -> str:
        """SQL of a constant of its type."""
        if self.node.kind == "CONSTANT" or _is_lambda(self.node):
            return self.probe
        return stub(self.type)


class _Translation:
    """The translation of one view."""

    def __init__(self, views: Translator, text: ViewText) -> None:
        self._views = views
        self._text = text
        self._code = text.code
        self._read = node_reader(text)
        self._parts: dict[tuple[int, int], Code] = {}

    def result(self) -> ViewText:
        """Returns the whole view."""
        if not self._parts:
            return self._text
        pieces = self._copied(0, len(self._code))
        return TranslatedText(self._text.path, text_of(pieces), pieces, self._text)

    def query(self, raw: Raw, outer: _Scope | None, commons: Mapping[str, Columns]) -> Columns:
        """Translates a query; returns its columns."""
        for entry in raw["cte_map"]["map"]:
            columns = self.query(entry["value"]["query_node"], None, commons)
            commons = {**commons, entry["key"].lower(): _renamed(columns, entry["value"]["aliases"])}
        if raw["type"] == "SELECT_NODE":
            return self._select(raw, outer, commons)
        branches = [self.query(child, outer, commons) for child in raw.get("children", ())]
        scope = _Scope(None, [((), branches[0])] if branches else [])
        self._expressions(raw.get("modifiers", ()), scope, commons)
        if not branches or any(len(each) != len(branches[0]) for each in branches):
            return ()
        for same in zip(*branches, strict=True):
            types = {column_type for _, column_type in same}
            self._check_alike(types, None, is_key=not raw.get("setop_all"))
        return tuple(
            (same[0][0], inferred_union(tuple(column_type for _, column_type in same)))
            for same in zip(*branches, strict=True)
        )

    def _select(self, raw: Raw, outer: _Scope | None, commons: Mapping[str, Columns]) -> Columns:
        scope = _Scope(outer)
        self._from(raw["from_table"], scope, commons)
        columns: list[tuple[str, str]] = []
        for item in raw["select_list"]:
            if item["class"] == "STAR":
                columns += scope.starred(item["relation_name"])
                continue
            typed = self._root(item, scope, commons)
            name = typed.node.alias or derived_name(self._text, typed.node)
            if not typed.node.alias and text_of(typed.code) != self._code[typed.node.start : typed.node.end]:
                at = end_of_column(self._text, typed.node)
                self._parts[at, at] = (Piece(f" AS {identifier(name)}", at - 1, False),)
            columns.append((name, "VARCHAR" if typed.type == LITERAL else typed.type))
        aliases = tuple((name, each) for name, each in columns if name)
        inner = replace(scope, sources=[*scope.sources, ((), aliases)])
        for key in _ROOTS:
            self._expressions(raw.get(key), inner, commons)
        self._check_groups(raw, inner, columns, commons)
        return tuple(columns)

    def _check_groups(
        self, raw: Raw, scope: _Scope, columns: Sequence[tuple[str, str]], commons: Mapping[str, Columns]
    ) -> None:
        """Refuses groups of values that may be equal although they differ."""
        for each in raw.get("group_expressions") or ():
            node = self._read(each)
            self._check_alike({self._type_at(node, scope, commons)}, node)
        is_distinct = any(each["type"] == "DISTINCT_MODIFIER" for each in raw.get("modifiers") or ())
        if is_distinct or raw.get("aggregate_handling") == "FORCE_AGGREGATES":
            for _, column_type in columns:
                self._check_alike({column_type}, None)

    def _type_at(self, node: Node, scope: _Scope, commons: Mapping[str, Columns]) -> str:
        """Returns the type of an expression in GROUP BY or ORDER BY, where an integer names a column."""
        number = str((node.raw.get("literal") or {}).get("text", "")) if node.kind == "CONSTANT" else ""
        columns = scope.sources[-1][1] if scope.sources else ()
        if number.isdigit() and 1 <= int(number) <= len(columns):
            return columns[int(number) - 1][1]
        return self._typed(node, scope, commons).type

    def _check_alike(self, types: set[str], node: Node | None, *, is_key: bool = True) -> None:
        """Checks values that are matched with each other, or form one column."""
        marked = [each for each in types if special(each) is not None]
        problem = "Cast each of them to text: x::text" if marked and len(types) > 1 else ""
        for each in types if is_key else ():
            problem = problem or key_problem(each)
        if problem:
            start, end = (
                (node.start, node.end) if node is not None and node.start >= 0 else (0, len(self._code))
            )
            what = "whether such values are equal cannot be seen here as PostgreSQL sees it"
            raise self._text.error(start, end, what, problem)

    def _expressions(self, raw: Any, scope: _Scope, commons: Mapping[str, Columns]) -> None:
        """Translates all expressions in a part of DuckDB's tree."""
        if isinstance(raw, list | tuple):
            for each in raw:
                self._expressions(each, scope, commons)
        elif isinstance(raw, dict):
            if raw.get("class"):
                self._root(raw, scope, commons)
                return
            for each in raw.values():
                self._expressions(each, scope, commons)
            self._order(raw, scope, commons)

    def _from(self, raw: Raw, scope: _Scope, commons: Mapping[str, Columns]) -> None:
        kind = raw["type"]
        if kind == "JOIN":
            self._from(raw["left"], scope, commons)
            self._from(raw["right"], scope, commons)
            scope.merged |= {name.lower() for name in raw["using_columns"]}
            for name in scope.merged:
                types = {
                    each for _, columns in scope.sources for other, each in columns if other.lower() == name
                }
                self._check_alike(types, None)
            self._expressions(raw["condition"], scope, commons)
            return
        columns: Columns = ()
        qualifiers = [raw["alias"].lower()]
        if kind == "SUBQUERY":
            columns = self.query(raw["subquery"]["node"], scope, commons)
        elif kind == "BASE_TABLE":
            name, schema = raw["table_name"], raw["schema_name"]
            qualifiers = qualifiers if raw["alias"] else [name.lower(), f"{schema}.{name}".lower()]
            columns = self._named(schema, name, commons)
        elif kind == "TABLE_FUNCTION":
            self._expressions(raw["function"].get("arguments"), scope, commons)
        elif kind == "EXPRESSION_LIST":
            rows = [[self._root(each, scope, commons) for each in row] for row in raw["expressions"]]
            columns = tuple(
                (f"col{number}", inferred_union(tuple(each.type for each in column)))
                for number, column in enumerate(zip(*rows, strict=False))
            )
        scope.sources.append((tuple(qualifiers), _renamed(columns, raw.get("column_name_alias", ()))))

    def _named(self, schema: str, name: str, commons: Mapping[str, Columns]) -> Columns:
        if not schema and name.lower() in commons:
            return commons[name.lower()]
        tables = self._views.catalog.find(schema, name)
        if not tables:
            return (self._views.columns(name.lower()) if not schema else None) or ()
        return tuple(
            (each.name, marked_type(each.type) if each.type.is_supported else UNKNOWN)
            for each in tables[0].columns
        )

    def _root(self, raw: Raw, scope: _Scope, commons: Mapping[str, Columns]) -> _Typed:
        typed = self._typed(self._read(raw), scope, commons)
        node = typed.node
        if node.start >= 0 and text_of(typed.code) != self._code[node.start : node.end]:
            self._parts[node.start, node.end] = typed.code
        return typed

    def _typed(self, node: Node, scope: _Scope, commons: Mapping[str, Columns]) -> _Typed:
        if node.kind == "COLUMN_REF":
            known = scope.type_of(node.names)
            return _Typed(node, self._copied(node.start, node.end), "", known)
        if _is_lambda(node):
            return self._lambda(node, scope)
        if node.kind == "SUBQUERY":
            return self._subquery(node, scope, commons)
        if (plain_number := exact_constant(node, self._text)) is not None:
            return _Typed(
                node, (Piece(plain_number, max(node.start, 0), False),), plain_number, is_rewritten=True
            )
        self._window(node, scope, commons)
        children = [self._typed(child, scope, commons) for child in node.children]
        if of := without_collation(node, [child.type for child in children]):
            return _Typed(node, _closed(children[0]), "", of, is_rewritten=True)
        code = self._in_place(node, children)
        known = "BOOLEAN" if node.kind in _BOOLEAN else ""
        plain = _Typed(node, code, self._probe(node, children), known)
        if any(_is_lambda(child.node) for child in children):
            return plain
        if (
            node.operator == "OPERATOR_NOT"
            and children[0].is_rewritten
            and children[0].node.start == node.start
        ):
            negated = filled(
                "(NOT {0})", {"0": children[0].code}, node.start
            )  # NOT was inside, as in x NOT IN
            return replace(plain, code=negated, known="BOOLEAN", is_rewritten=True)
        by_node = {child.node: child for child in children}
        arguments = node.arguments or (node.children if node.kind != "WINDOW" else ())
        operands = [
            Operand(_closed(each), each.type, each.stub, each.node, each.elements)
            for each in map(by_node.get, arguments)
            if each
        ]

        def with_operand(number: int, template: str) -> Code:
            chosen = by_node[arguments[number]]
            inside = filled(template, {"0": _closed(chosen)}, max(node.start, 0))
            return self._in_place(
                node, [replace(each, code=inside) if each is chosen else each for each in children]
            )

        change = rewriting(Call(node, operands, code, self._text, with_operand))
        if change is None:
            return replace(plain, elements=tuple(operands)) if node.function == "row" else plain
        return _changed(plain, change, operands)

    def _subquery(self, node: Node, scope: _Scope, commons: Mapping[str, Columns]) -> _Typed:
        children = [self._typed(child, scope, commons) for child in node.children]
        columns = self.query(node.raw["subquery"]["node"], scope, commons)
        is_scalar = node.raw["subquery_type"] == "SCALAR"
        if children and columns:
            self._check_alike({children[0].type, columns[0][1]} - {LITERAL}, node)
        known = (columns[0][1] if columns else UNKNOWN) if is_scalar else "BOOLEAN"
        return _Typed(node, self._in_place(node, children), "", known)

    def _lambda(self, node: Node, scope: _Scope) -> _Typed:
        """Returns a lambda, which PostgreSQL does not have: it keeps DuckDB's meaning."""
        parameters = {name.lower() for name in node.names}
        columns = [
            (each.start, each.end, (Piece(stub(scope.type_of(each.names)), each.start, False),))
            for each in node.walk()
            if each.kind == "COLUMN_REF" and each.names[0].lower() not in parameters
        ]
        probe = text_of(copied(self._code, node.start, node.end, columns))
        return _Typed(node, self._copied(node.start, node.end), probe)

    def _in_place(self, node: Node, children: Sequence[_Typed]) -> Code:
        if node.start < 0:
            return (Piece(written(node), 0, False),)
        parts = [(each.node.start, each.node.end, each.code) for each in children if each.node.start >= 0]
        return self._copied(node.start, node.end, parts)

    def _copied(self, start: int, end: int, parts: Sequence[tuple[int, int, Code]] = ()) -> Code:
        inside = [
            (*place, code) for place, code in self._parts.items() if start <= place[0] and place[1] <= end
        ]
        return copied(self._code, start, end, [*parts, *inside])

    def _probe(self, node: Node, children: Sequence[_Typed]) -> str:
        if node.kind == "CONSTANT":
            return written(node)
        start, end = max(node.start, 0), max(node.end, 0)
        over = self._text.top_level(_OVER, start, end) if node.kind == "WINDOW" else None
        end = over.start() if over else end
        stubs = [
            (child.node.start, child.node.end, (Piece(child.stub, 0, False),))
            for child in children
            if child.node.start >= 0 and child.node.end <= end
        ]
        return text_of(copied(self._code, start, end, stubs)) + (" OVER ()" if over else "")

    def _window(self, node: Node, scope: _Scope, commons: Mapping[str, Columns]) -> None:
        """Orders and partitions rows as PostgreSQL does, by values that are equal there."""
        self._order(node.raw, scope, commons)
        for key in ("order_bys", "arg_orders"):
            self._order(node.raw.get(key), scope, commons)
        for each in node.parts.get("partitions", ()):
            of = special(found := self._typed(each, scope, commons).type)
            if of is not None and of.tag == "citext" and each.kind == "COLUMN_REF":
                self._parts[each.start, each.end] = self._replaced(each, "lower({0})")
            else:
                self._check_alike({found}, each)

    def _replaced(self, node: Node, template: str) -> Code:
        return filled(template, {"0": copied(self._code, node.start, node.end)}, node.start)

    def _order(self, raw: Any, scope: _Scope, commons: Mapping[str, Columns]) -> None:
        """Orders as PostgreSQL does: NULL first where it is descending, and by the order of the type."""
        if not isinstance(raw, dict):
            return
        for each in raw.get("orders") or ():
            node = self._read(each["expression"])
            if template := order_template(self._type_at(node, scope, commons), node, self._text):
                self._parts[node.start, node.end] = self._replaced(node, template)
        for each in raw.get("orders") or ():
            if each.get("type") != "DESCENDING" or each.get("null_order") != "ORDER_DEFAULT":
                continue
            node = self._read(each["expression"])
            found = _DESCENDING.match(self._text.structure, node.end) if node.end >= 0 else None
            if found is not None:
                at = found.end()
                self._parts[at, at] = (Piece(" NULLS FIRST", at - 1, False),)


def _is_lambda(node: Node) -> bool:
    """Whether it is a lambda, and not ``->`` of a document, which DuckDB parses alike."""
    return node.kind == "LAMBDA" and bool(node.names)


def _closed(typed: _Typed) -> Code:
    """Returns the code of an operand with parentheses, which may be around it in the text."""
    if _is_lambda(typed.node) or (typed.node.kind in _ATOMS and not typed.node.raw.get("is_operator")):
        return typed.code
    start = max(typed.node.start, 0)
    return (Piece("(", start, False), *typed.code, Piece(")", start, False))


def _changed(plain: _Typed, change: Rewriting, operands: Sequence[Operand]) -> _Typed:
    start = max(plain.node.start, 0)
    codes: dict[str, Code | str] = {str(number): each.code for number, each in enumerate(operands)}
    stubs: dict[str, Code | str] = {str(number): each.stub for number, each in enumerate(operands)}
    codes, stubs = codes | {"self": plain.code}, stubs | {"self": plain.probe}
    codes, stubs = {**codes, **change.parts}, {**stubs, **change.parts}
    probe = change.probe or text_of(filled(change.template, stubs, start))
    return _Typed(plain.node, filled(change.template, codes, start), probe, change.known, is_rewritten=True)


def inferred_union(types: tuple[str, ...]) -> str:
    """Returns the type that DuckDB gives rows of these types."""
    if len(set(types)) == 1:
        return types[0]
    stubs = map(stub, types)
    return inferred(f"* FROM (SELECT {' UNION ALL SELECT '.join(stubs)})") if types else UNKNOWN


def exact_constant(node: Node, text: ViewText) -> str | None:
    """Returns SQL for a number with an exponent, which is exact in PostgreSQL; None for anything else."""
    value = node.raw.get("literal") if node.kind == "CONSTANT" else None
    if not value or value.get("kind") != "NUMERIC":
        return None
    number = str(value["text"]).replace("_", "")
    digits = f"{Decimal(number):f}"
    if sum(map(str.isdigit, digits)) > _MOST_DIGITS:
        hint = "Cast a text: '…'::float8"
        raise text.error(node.start, node.end, f"{number} has more than {_MOST_DIGITS} digits", hint)
    if "e" not in number.lower():
        return None
    return f"CAST('{digits}' AS DECIMAL({_MOST_DIGITS},{len(digits.partition('.')[2])}))"


def written(node: Node) -> str:
    """Returns the SQL of a constant that is not in the text as such."""
    value = node.raw.get("literal") or {}
    if value.get("kind") == "NULL_LITERAL":
        return "NULL"
    text = str(value.get("text", ""))
    return literal(text) if value.get("kind") == "STRING" else text


def _renamed(columns: Columns, names: Sequence[str]) -> Columns:
    given = tuple(zip(names, (each for _, each in columns), strict=False))
    return given + columns[len(given) :]
