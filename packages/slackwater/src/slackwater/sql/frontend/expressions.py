"""Expressions over the rows of FROM and WHERE.

The SQL of an expression is the user's own text in which columns, subqueries, aggregates and windows are
replaced by ids. DuckDB therefore evaluates what was written. To check that the text in between is exactly the
expression, DuckDB parses it again.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from slackwater.sql.catalog import similar
from slackwater.sql.errors import SqlTextError
from slackwater.sql.frontend.context import (
    BindContext,
    Environment,
    NameScope,
    OuterRows,
    ResolvedColumn,
    Step,
)
from slackwater.sql.frontend.copies import renamed
from slackwater.sql.frontend.syntax import Node, Select, is_expression, meaning
from slackwater.sql.frontend.text import Splice, spliced
from slackwater.sql.limits import open_connection
from slackwater.sql.logical import Expression, Relation, never_null, spend

_REFUSED = {
    "STAR": ("* is not supported here", "Name the columns; count(*) is supported"),
    "PARAMETER": ("a parameter is not supported", "Write the value"),
    "POSITIONAL_REFERENCE": ("a position is not supported", "Name the column"),
    "DEFAULT": ("DEFAULT is not supported", "Write the value"),
    "COLLATE": (
        "COLLATE is not supported, because keys and state compare texts by their bytes",
        "Compare what the collation compares: lower(s) for NOCASE, strip_accents(s) for NOACCENT, "
        "nfc_normalize(s) for NFC, icu_sort_key(s, 'de') for a language",
    ),
}
_SCHEMAS = frozenset({"", "main", "pg_catalog"})

_IMPURE_AGGREGATES = frozenset({"reservoir_quantile"})  # samples at random, but is not marked as volatile
_FAILING = frozenset({"error"})  # is marked as volatile so that it fails only where it is evaluated
_IMPURE_BY_PARAMETERS = frozenset({("age", 1)})  # age(x) is measured from today
_ROW_MAKERS = frozenset({"unnest"})
_CALL = re.compile(r'"?(\w+)"?\(')
_PLAIN_KEYWORDS = frozenset(
    {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}
)
_COLUMN = re.compile(r'"c\d+"')
_WRITTEN_OTHERWISE = {
    "to_char": "Write strftime(value, '%Y-%m-%d') for times, and format('{:.2f}', value) for numbers",
    "to_date": "Write CAST(strptime(text, '%Y-%m-%d') AS DATE)",
    "to_number": "Write CAST(text AS DECIMAL(18, 2))",
    "initcap": "Write upper(s[1]) || lower(s[2:]) for one word",
    "btrim": "Write trim(…)",
    "isnull": "Write … IS NULL",
    "json_build_object": "Write json_object(…)",
    "jsonb_build_object": "Write json_object(…)",
    "json_agg": "Write json_group_array(…)",
    "jsonb_agg": "Write json_group_array(…)",
    "nvl": "Write coalesce(…)",
}
"""What to write in place of other databases' functions."""
_NO_PARAMETERS: frozenset[str] = frozenset()
_ELEMENT = "__slackwater_element"
OPERATORS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}

Replacement = Callable[[Node], str]


class ExpressionBinder:
    """Binds expressions over rows of one kind: replaces names by ids, and refuses what is not allowed.

    Attributes:
        identity: Columns that identify the rows.
        clause: The clause that is being read, for messages.
        relation: Returns the rows of FROM.
        subquery: Returns SQL for a subquery's value, after attaching what computes it.
        window: Returns SQL for a window function's value; None where windows are not allowed.
        around: The rows of the outer query, if they are among the rows here.
        partition: Columns by which all windows partition.
        unnest: Returns SQL for the elements of a list, one per row; None where it is not allowed.
    """

    def __init__(
        self,
        environment: Environment,
        scope: NameScope,
        aliases: Mapping[str, Node],
        outer: "ExpressionBinder | None",
    ) -> None:
        self.environment = environment
        self.scope = scope
        self.outer = outer
        self.identity: tuple[str, ...] = ()
        self.clause = "SELECT"
        self.relation: Callable[[], Relation] | None = None
        self.subquery: Replacement | None = None
        self.window: Replacement | None = None
        self.around: OuterRows | None = None
        self.partition: tuple[Expression, ...] = ()
        self.unnest: Replacement | None = None
        self._aliases = aliases
        self._expanding: list[str] = []
        self._checked: set[tuple[int, int]] = set()
        self._steps: list[Step] = []

    @property
    def context(self) -> BindContext:
        """What all queries of the view share."""
        return self.environment.context

    @property
    def _clause(self) -> str:
        return f"{self.clause} clause" if self.clause.isupper() else self.clause

    @property
    def safe(self) -> frozenset[str]:
        """Columns that are never NULL."""
        return never_null(self.relation()) if self.relation is not None else frozenset()

    def attach(self, step: Step) -> None:
        """Adds a step that the rows pass through."""
        self._steps.append(step)

    def applied(self, relation: Relation) -> Relation:
        """Returns the rows after all steps."""
        for step in self._steps:
            relation = step(relation)
        return relation

    @contextmanager
    def reading(
        self, clause: str, window: Replacement | None = None, unnest: Replacement | None = None
    ) -> Iterator[None]:
        """Names the clause that is read in the block, and says what it may contain."""
        before = self.clause, self.window, self.unnest
        self.clause, self.window, self.unnest = clause, window, unnest
        try:
            yield
        finally:
            self.clause, self.window, self.unnest = before

    def expression(self, node: Node) -> Expression:
        """Returns the expression over ids.

        Raises:
            SqlTextError: It contains something that is not allowed here.
        """
        return self.placed(node, self.sql(node))

    def placed(self, node: Node, sql: str) -> Expression:
        """Returns an expression with this SQL for what the user wrote at a place."""
        text = self.environment.text.text[max(node.start, 0) : max(node.end, 0)]
        return Expression(
            sql, self.context.columns_of(sql), self.environment.place(node.start, node.end), text
        )

    def sql(self, node: Node) -> str:
        """Returns SQL for the expression over ids."""
        replaced = self.replacement(node, _NO_PARAMETERS)
        if replaced is not None:
            return replaced
        self._check_extent(node)
        return spliced(self.environment.text.code, node.start, node.end, self.splices(node))

    def splices(self, node: Node, parameters: frozenset[str] = _NO_PARAMETERS) -> Iterator[Splice]:
        """Yields the replacements of parts of the expression, which is not replaced itself."""
        if node.kind == "LAMBDA":
            parameters |= {name.lower() for name in node.names}
        for child in node.children:
            replaced = self.replacement(child, parameters)
            if replaced is None:
                yield from self.splices(child, parameters)
            elif child.start >= 0:
                self._check_extent(child)
                yield Splice(child.start, child.end, replaced)

    def replacement(self, node: Node, parameters: frozenset[str]) -> str | None:
        """Returns SQL for the whole expression; None if its text is kept and only its parts are replaced."""
        spend()
        self._refuse(node)
        if node.kind == "COLUMN_REF":
            return None if node.names[0].lower() in parameters else self.column(node)
        if node.operator == "OPERATOR_NOT" and node.children[0].kind == "SUBQUERY":
            return f"(NOT {self.replacement(node.children[0], parameters)})"  # NOT may be inside: x NOT IN
        if node.kind == "SUBQUERY":
            if elements_of(node) is not None:
                return comparison_with_elements(self, node)
            if self.subquery is None:
                problem = f"a subquery in {self.clause} is not supported"
                raise self.error(node, problem, "Subqueries are supported in SELECT, WHERE, HAVING and FROM")
            return self.subquery(node)
        if node.kind == "WINDOW":
            if self.window is None:
                problem = f"{self._clause} cannot contain window functions"
                raise self.error(node, problem, "Compute it in a subquery in FROM, or use QUALIFY")
            return self.window(node)
        if is_aggregate(node):
            return self.aggregate(node)
        if node.function in function_facts().row_makers and self.unnest is not None:
            return self.unnest(node)
        return None

    def column(self, node: Node) -> str:
        """Returns SQL for a name."""
        found = self.scope.resolve(node)
        if found is not None:
            return self.value(node, found)
        name = node.names[0].lower()
        if name in self._aliases and name not in self._expanding:
            return self._expanded(name)
        if self.around is not None and self.outer is not None and self.outer.knows(node):
            return self.outer_column(node, self.around)
        if self.environment.row is not None and (of_row := self.environment.row(node)) is not None:
            return of_row
        self._refuse_outer(node)
        if len(node.names) == 1 and function_facts().is_impure(name, 0):
            raise self._impure(node, name)
        raise self.scope.unknown(node)

    def outer_column(self, node: Node, around: OuterRows) -> str:
        """Returns SQL for a column of the outer query, whose rows are among the rows here."""
        assert self.outer is not None  # noqa: S101 - it has a column
        sql = self.outer.column(node)
        around.missing.extend(set(self.context.columns_of(sql)).difference(around.ids))
        return renamed(sql, around.ids)

    def value(self, node: Node, found: ResolvedColumn) -> str:
        """Returns SQL for a column of FROM."""
        return found.sql

    def aggregate(self, node: Node) -> str:
        """Returns SQL for the value of an aggregate function."""
        hint = "Compare aggregates in HAVING, or aggregate in a subquery in FROM"
        raise self.error(node, f"{self._clause} cannot contain aggregates", hint)

    def knows(self, node: Node) -> bool:
        """Whether the name means a column of FROM here, or of an outer query."""
        try:
            found = self.scope.resolve(node) is not None
        except SqlTextError:
            found = self.scope.source(node.names[:-1]) is not None
        return found or (self.around is not None and self.outer is not None and self.outer.knows(node))

    def _refuse(self, node: Node) -> None:
        """Refuses expressions that no view may use."""
        if node.kind in _REFUSED:
            raise self.error(node, *_REFUSED[node.kind])
        if node.operator == "GROUPING_FUNCTION":
            hint = "Use it with GROUP BY, outside of aggregates"
            raise self.error(node, "GROUPING is not supported here", hint)
        if node.kind not in {"FUNCTION", "WINDOW"}:
            return
        if node.raw.get("schema", "") not in _SCHEMAS:
            problem = f"calling {node.function} as a method of its argument is not supported"
            raise self.error(node, problem, f"Write {node.function}(…)")
        facts = function_facts()
        if node.function not in facts.names | facts.row_makers and not node.raw.get("is_operator"):
            raise self._unknown_function(node)
        if facts.is_impure(node.function, len(node.arguments)):
            raise self._impure(node, node.function)
        if node.function in facts.row_makers and self.unnest is None:
            problem = f"{self._clause} cannot contain {node.function}, which turns one row into several"
            raise self.error(node, problem, f"Write it in the select list, or in FROM: t, {node.function}(…)")

    def _unknown_function(self, node: Node) -> SqlTextError:
        likely = similar(node.function, [each for each in function_facts().names if each.isidentifier()])
        written = _WRITTEN_OTHERWISE.get(node.function) or (
            f"Did you mean {' or '.join(likely)}?" if likely else "Views are written in DuckDB's SQL"
        )
        return self.error(node, f"there is no function {node.function}", written)

    def _impure(self, node: Node, name: str) -> SqlTextError:
        hint = "A view may depend only on the rows of its tables; take the value from a column"
        return self.error(node, f"the result of {name} depends on more than the rows", hint)

    def _refuse_outer(self, node: Node) -> None:
        name = ".".join(node.names)
        lateral = self.environment.lateral
        if lateral is not None and lateral.resolve_parts(node.names) is not None:
            hint = "Only conditions of the subquery's WHERE can, and only behind JOIN, LEFT JOIN or a comma"
            raise self.error(node, f"a subquery in FROM cannot use {name} of another table", hint)
        around, distance = self.outer, 1
        while around is not None:
            if around.knows(node):
                problem = f"{name} is a column of the outer query"
                hint = "Only conditions in the WHERE of the subquery may use the outer query's columns"
                if distance > 1:
                    problem = f"{name} is a column of a query that does not directly enclose this one"
                    hint = "A subquery may use columns only of the query that directly encloses it"
                raise self.error(node, problem, hint)
            around, distance = around.outer, distance + 1

    def signature(self, node: Node) -> str:
        """Returns a text that is equal for expressions that have the same form."""
        return json.dumps(self._form(node.raw, is_top=True), sort_keys=True)

    def _form(self, raw: object, *, is_top: bool = False) -> object:
        if isinstance(raw, list):
            return [self._form(each) for each in raw]
        if not isinstance(raw, dict):
            return raw
        if raw.get("class") == "SUBQUERY":
            return meaning(raw)
        if raw.get("class") == "COLUMN_REF":
            found = self.scope.resolve_parts(tuple(raw["column_names"]))
            return found.sql if found is not None else [name.lower() for name in raw["column_names"]]
        dropped = {"query_location", "query_location_length", "qualified_name", "alias" if is_top else ""}
        form = {key: self._form(value) for key, value in raw.items() if key not in dropped}
        return form | {"function_name": str(raw.get("function_name", "")).lower()}

    def refuse_lost_order(self, node: Node, problem: str, hint: str) -> None:
        """Refuses what depends on the order of the rows, if a query in FROM sorts them.

        Raises:
            SqlTextError: One does.
        """
        if not self.context.sorted.isdisjoint(each.id for each in self.scope.visible):
            raise self.error(node, f"{problem}, and the order of a subquery's rows is not kept", hint)

    def error(self, node: Node, problem: str, hint: str) -> SqlTextError:
        """Returns an error at the place of an expression."""
        return self.environment.error(node, problem, hint)

    def _expanded(self, name: str) -> str:
        self._expanding.append(name)
        try:
            sql = self.sql(self._aliases[name])
        finally:
            self._expanding.pop()
        return sql if _COLUMN.fullmatch(sql) else f"({sql})"

    def _check_extent(self, node: Node) -> None:
        extent = (node.start, node.end)
        if extent in self._checked:  # an alias is expanded wherever it is used
            return
        self._checked.add(extent)
        if any(each.kind == "WINDOW" for each in node.walk()):
            return  # the named window is not part of this text
        text = self.environment.text.code[max(node.start, 0) : max(node.end, 0)]
        if not is_expression(self.context.connection, text, node):
            problem = "it is not clear where this expression begins and ends"
            raise self.error(node, problem, "Put it in parentheses, or write it as a function")


def elements_of(node: Node) -> Node | None:
    """Returns the list that a comparison with ANY is about; None if it is about a subquery."""
    query = node.query if node.kind == "SUBQUERY" and node.raw["subquery_type"] == "ANY" else None
    if not isinstance(query, Select) or query.source.kind != "EMPTY" or len(query.items) != 1:
        return None
    (item,) = query.items
    return item.arguments[0] if item.function == "unnest" and len(item.arguments) == 1 else None


def comparison_with_elements(binder: ExpressionBinder, node: Node) -> str:
    """Returns SQL for ``x op ANY (list)``; ALL is the negation of ANY with the negated operator.

    Raises:
        SqlTextError: The operator is not supported.
    """
    elements = elements_of(node)
    assert elements is not None  # noqa: S101 - the caller has seen them
    left, right = binder.sql(node.children[0]), binder.sql(elements)
    results = f"list_transform({right}, lambda {_ELEMENT}: ({left}) {compared_by(binder, node)} {_ELEMENT})"
    return (
        f"(CASE WHEN coalesce(list_bool_or({results}), false) THEN true "
        f"WHEN len({results}) > list_count({results}) THEN NULL ELSE false END)"
    )


def compared_by(binder: ExpressionBinder, node: Node) -> str:
    """Returns the operator of a comparison with ANY.

    Raises:
        SqlTextError: It is not supported.
    """
    operator = OPERATORS.get(node.raw["comparison_type"])
    if operator is None:
        problem = "only =, <>, <, <=, > and >= are supported with ANY and ALL"
        raise binder.error(node, problem, "Write EXISTS (SELECT … WHERE …)")
    return operator


def is_aggregate(node: Node) -> bool:
    """Whether the node is a call of an aggregate function."""
    return node.kind == "FUNCTION" and node.function in function_facts().aggregates


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """Facts about DuckDB's functions, with macros expanded.

    Attributes:
        names: Names of all functions that may be in expressions.
        aggregates: Names of functions that compute one value from many rows.
        impure: Names of functions whose result depends on time, chance, session or settings.
        row_makers: Names of functions that return several rows for one.
    """

    names: frozenset[str]
    aggregates: frozenset[str]
    impure: frozenset[str]
    row_makers: frozenset[str]

    def is_impure(self, name: str, parameters: int) -> bool:
        """Whether a call with this number of arguments is not a pure function of them."""
        return name in self.impure or (name, parameters) in _IMPURE_BY_PARAMETERS


@lru_cache(maxsize=1)
def function_facts() -> FunctionFacts:
    """Returns the facts about the installed DuckDB, read once per process."""
    with open_connection() as connection:
        functions = connection.execute(
            "SELECT function_name, function_type, macro_definition, stability, parameter_types, return_type "
            "FROM duckdb_functions()"
        ).fetchall()
    aggregates = {name for name, kind, *_ in functions if kind == "aggregate"}
    impure = {
        name for name, kind, _, *facts in functions if kind == "scalar" and not _is_pure(*facts)
    } - _FAILING
    macros = [(name, definition) for name, kind, definition, *_ in functions if kind == "macro"]
    return FunctionFacts(
        names=frozenset(name for name, kind, *_ in functions if "table" not in kind),
        aggregates=_closed_over_macros(aggregates, macros),
        impure=_closed_over_macros(impure | _IMPURE_AGGREGATES | _PLAIN_KEYWORDS, macros),
        row_makers=_closed_over_macros(set(_ROW_MAKERS), macros),
    )


def _is_pure(stability: str, parameters: list[str], result: str) -> bool:
    """Returns whether a function depends on its arguments alone if the session's time zone is UTC.

    DuckDB marks functions of times with a zone like those that return the current time, because they depend
    on the session's time zone, which is the same in all our sessions (:func:`open_connection`).
    """
    is_zoned = any("WITH TIME ZONE" in each or "TIMESTAMPTZ" in each for each in [*parameters, result])
    within_query = stability == "CONSISTENT_WITHIN_QUERY" and is_zoned and bool(parameters)
    return stability == "CONSISTENT" or within_query


def _closed_over_macros(names: set[str], macros: list[tuple[str, str]]) -> frozenset[str]:
    """Returns the names, and all macros whose definition uses one of them, directly or indirectly."""
    names = set(names)
    while True:
        found = {
            name
            for name, definition in macros
            if name not in names
            and (
                not names.isdisjoint(_CALL.findall(definition))
                or _PLAIN_KEYWORDS & names & _words(definition)
            )
        }
        if not found:
            return frozenset(names)
        names |= found


def _words(definition: str) -> set[str]:
    return set(re.findall(r"\w+", definition))
