"""Subqueries in expressions, as joins with what they compute."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from slackwater.sql.duckdb_sql import identifier
from slackwater.sql.frontend.context import BoundSelect
from slackwater.sql.frontend.expressions import ExpressionBinder
from slackwater.sql.frontend.syntax import Node, Query, Select
from slackwater.sql.frontend.top_n import without_limit
from slackwater.sql.logical import (
    Aggregate,
    AggregateCall,
    Expression,
    Extend,
    Join,
    JoinKind,
    Relation,
    column_expression,
    conjunction,
    never_null,
)
from slackwater.sql.rendering import render_over_tables

Pair = tuple[Expression, Expression]
ReadSelect = Callable[[ExpressionBinder, Query], BoundSelect]

_EXISTS_HINT = "Write [NOT] EXISTS (SELECT … WHERE … = …)"
_JOIN_HINT = "Aggregate with GROUP BY in a subquery in FROM, and join it"
_ONE_ROW_HINT = "Select one aggregate, or compare the whole primary key of the subquery's table by equality"


@dataclass
class Correlation:
    """The conditions that tie rows of a subquery to rows of the query around it.

    Attributes:
        equal: Comparisons of an expression over the outer query with one over the subquery's rows.
        residual: Other conditions over both.
    """

    equal: list[tuple[Expression, Expression]] = field(default_factory=list)
    residual: list[Expression] = field(default_factory=list)

    def take(self, rows: ExpressionBinder, node: Node) -> None:
        """Adds a condition.

        Raises:
            SqlTextError: It contains something that is not supported in such a condition.
        """
        outer = rows.outer
        assert outer is not None  # noqa: S101 - else it would not be correlated
        if node.operator == "COMPARE_EQUAL":
            for one, other in (node.children, node.children[::-1]):
                if _is_all_outer(rows, one) and not is_correlated(rows, other) and _column_names(other):
                    with outer.reading("the WHERE of a subquery"), rows.reading("WHERE"):
                        self.equal.append((outer.expression(one), rows.expression(other)))
                    return
        self.residual.append(_CorrelatedBinder(rows, outer).expression(node))


class Subqueries:
    """The subqueries of a SELECT."""

    def __init__(self, read: ReadSelect) -> None:
        self.read = read
        self._accepted: set[tuple[int, int]] = set()
        self._values: dict[tuple[int, int, int], str] = {}

    def accept(self, node: Node) -> None:
        """Notes that NULL counts as false in this condition, also in those that AND and OR connect."""
        if node.kind == "SUBQUERY":
            self._accepted.add((node.start, node.end))
        if node.kind == "CONJUNCTION":
            for child in node.children:
                self.accept(child)

    def condition(self, binder: ExpressionBinder, node: Node) -> bool:
        """Accepts a condition that is [NOT] EXISTS or [NOT] IN and nothing else; returns whether it is one.

        Raises:
            SqlTextError: The subquery is not supported.
        """
        kind = JoinKind.SEMI
        while node.operator == "OPERATOR_NOT":
            kind = JoinKind.ANTI if kind is JoinKind.SEMI else JoinKind.SEMI
            (node,) = node.children
        if node.kind != "SUBQUERY" or node.query is None or node.raw["subquery_type"] == "SCALAR":
            return False
        why = "NOT IN is then not true" if kind is JoinKind.ANTI else ""
        selected, equal = self._rows_of(binder, node, node.query, why)
        span = binder.environment.place(node.start, node.end)
        residual = conjunction(list(selected.residual))
        binder.attach(lambda rows: Join(kind, rows, selected.relation, tuple(equal), residual, span))
        return True

    def value(self, binder: ExpressionBinder, node: Node) -> str:
        """Returns SQL for the value of a subquery in an expression, after attaching what computes it.

        Raises:
            SqlTextError: The subquery is not supported.
        """
        place = (id(binder), node.start, node.end)
        if place not in self._values:
            self._values[place] = self._value(binder, node)
        return self._values[place]

    def _value(self, binder: ExpressionBinder, node: Node) -> str:
        assert node.query is not None  # noqa: S101 - it is a subquery
        if node.raw["subquery_type"] != "SCALAR":
            return self._mark(binder, node, node.query)
        selected = self.read(binder, node.query)
        if len(selected.items) != 1:
            raise binder.error(node, "the subquery has several columns", "Write one subquery for each value")
        if selected.calls is not None and selected.is_correlated:
            return self._aggregate(binder, node, selected)
        result = selected.computed(binder.context)
        joined = {right.column for _, right in selected.equal}
        if not set(result.relation.identity) <= joined:
            raise binder.error(node, "the subquery can return several rows", _ONE_ROW_HINT)
        self._left_join(binder, node, result.relation, selected)
        return identifier(result.columns[0].id)

    def _rows_of(
        self, binder: ExpressionBinder, node: Node, query: Query, refusal: str
    ) -> tuple[BoundSelect, list[Pair]]:
        """Returns the rows of [NOT] EXISTS or [NOT] IN, and the comparisons with them."""
        if isinstance(query, Select):
            query = without_limit(binder.environment, query, is_exists=node.raw["subquery_type"] != "ANY")
        selected = self.read(binder, query)
        if selected.calls is not None and selected.is_correlated:
            problem = "an aggregate without GROUP BY returns a row for every row of the outer query"
            raise binder.error(node, problem, "Compare the aggregate: (SELECT count(*) …) > 0")
        equal = list(selected.equal)
        if node.raw["subquery_type"] == "ANY":
            equal += self._membership(binder, node, selected, refusal)
        return selected, equal

    def _membership(
        self, binder: ExpressionBinder, node: Node, selected: BoundSelect, refusal: str
    ) -> list[Pair]:
        """Returns the comparisons that IN makes. With a refusal, raises it if a side may be NULL."""
        if node.raw["comparison_type"] != "COMPARE_EQUAL":
            raise binder.error(node, "only = ANY, IN and NOT IN are supported", _EXISTS_HINT)
        (left,) = node.children
        values = left.arguments if left.function == "row" else (left,)
        if len(values) != len(selected.items):
            problem = f"IN compares {len(values)} with {len(selected.items)} columns"
            raise binder.error(node, problem, _EXISTS_HINT)
        pairs = list(zip(map(binder.expression, values), selected.items, strict=True))
        known = (binder.safe, never_null(selected.relation))
        for side, safe in ((pair[number], known[number]) for pair in pairs for number in (0, 1)):
            if refusal and side.column not in safe:
                problem = f"{side.text or 'a value'} may be NULL, and {refusal}"
                raise binder.error(node, problem, _EXISTS_HINT)
        return pairs

    def _mark(self, binder: ExpressionBinder, node: Node, query: Query) -> str:
        """Returns SQL that is true where the subquery has a row."""
        why = "" if (node.start, node.end) in self._accepted else "the value of IN is then NULL"
        selected, equal = self._rows_of(binder, node, query, why)
        if selected.residual:
            problem = "only equality conditions on the outer query are supported here"
            raise binder.error(node, problem, "Make EXISTS a separate condition in WHERE")
        span = binder.environment.place(node.start, node.end)
        new_id = binder.context.new_id
        if not equal:
            count = AggregateCall("count(*)", "count", (), False, None, (), span, "EXISTS")
            number = new_id()
            counted = Aggregate(selected.relation, (), ((number, count),), (), span)
            binder.attach(lambda rows: Join(JoinKind.LEFT, rows, counted, (), None, span))
            return f"({identifier(number)} > 0)"
        groups = tuple((new_id(), right) for _, right in equal)
        names = tuple(name for name, _ in groups)
        found = new_id()
        distinct = Aggregate(selected.relation, groups, (), names, span)
        marked = Extend(distinct, ((found, Expression("true", (), span, "EXISTS")),))
        lefts = (left for left, _ in equal)
        rights = (column_expression(name, each) for name, (_, each) in zip(names, equal, strict=True))
        pairs = tuple(zip(lefts, rights, strict=True))
        binder.attach(lambda rows: Join(JoinKind.LEFT, rows, marked, pairs, None, span))
        return f"coalesce({identifier(found)}, false)"

    def _aggregate(self, binder: ExpressionBinder, node: Node, selected: BoundSelect) -> str:
        """Returns one aggregated value for each row of the outer query, also where no rows belong to it."""
        calls = selected.calls or ()
        if selected.residual or not selected.is_bare:
            problem = "only equality conditions on the outer query are supported in this subquery"
            raise binder.error(node, problem, _JOIN_HINT)
        self._left_join(binder, node, selected.relation, selected)
        sql = selected.items[0].sql
        for name, empty in _empty_values(binder, node, calls, selected.relation).items():
            sql = sql.replace(identifier(name), f"coalesce({identifier(name)}, {empty})")
        return f"({sql})"

    def _left_join(
        self, binder: ExpressionBinder, node: Node, right: Relation, selected: BoundSelect
    ) -> None:
        span = binder.environment.place(node.start, node.end)
        residual = conjunction(list(selected.residual))
        binder.attach(lambda rows: Join(JoinKind.LEFT, rows, right, selected.equal, residual, span))


def _empty_values(
    binder: ExpressionBinder, node: Node, calls: tuple[tuple[str, AggregateCall], ...], relation: Relation
) -> dict[str, str]:
    """Returns the aggregates that are not NULL over no rows, with their values."""
    assert isinstance(relation, Aggregate)  # noqa: S101 - it is bare
    of_none = Aggregate(relation.child, (), calls, (), relation.span)
    row = binder.context.connection.execute(render_over_tables(of_none)).fetchone() if calls else ()
    found = {}
    for (name, call), value in zip(calls, row or (), strict=True):
        if value is None:
            continue
        if not isinstance(value, int):
            problem = f"the result of {call.text} over no rows is not NULL"
            raise binder.error(node, problem, _JOIN_HINT)
        found[name] = str(value).lower()
    return found


def is_correlated(rows: ExpressionBinder, node: Node) -> bool:
    """Whether the expression uses columns of the outer query."""
    return any(_is_outer(rows, name) for name in _column_names(node))


class _CorrelatedBinder(ExpressionBinder):
    """Binds conditions over a subquery's rows and those of the outer query."""

    def __init__(self, rows: ExpressionBinder, outer: ExpressionBinder) -> None:
        super().__init__(rows.environment, rows.scope, {}, None)
        self._rows = rows
        self._around = outer
        self.clause = "a condition on the outer query"

    def column(self, node: Node) -> str:
        """Returns SQL for a name of either query."""
        return self._around.column(node) if _is_outer(self._rows, node) else self._rows.column(node)


def _is_all_outer(rows: ExpressionBinder, node: Node) -> bool:
    names = list(_column_names(node))
    return bool(names) and all(_is_outer(rows, name) for name in names)


def _is_outer(rows: ExpressionBinder, node: Node) -> bool:
    return rows.outer is not None and not rows.knows(node) and rows.outer.knows(node)


def _column_names(node: Node, parameters: frozenset[str] = frozenset()) -> Iterator[Node]:
    """Yields names of columns in the expression."""
    if node.kind == "COLUMN_REF" and node.names[0].lower() not in parameters:
        yield node
    if node.kind == "LAMBDA":
        parameters |= {name.lower() for name in node.names}
    for child in node.children:
        yield from _column_names(child, parameters)
