"""Subqueries in expressions, as joins with what they compute."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from slackwater.sql.duckdb_sql import identifier
from slackwater.sql.errors import SqlTextError
from slackwater.sql.frontend.context import BoundSelect, OuterRows
from slackwater.sql.frontend.copies import created, renamed
from slackwater.sql.frontend.expressions import ExpressionBinder, compared_by, elements_of
from slackwater.sql.frontend.row_sets import reads_tables, value_within_row
from slackwater.sql.frontend.syntax import Item, Node, Query, Select
from slackwater.sql.frontend.top_n import without_limit
from slackwater.sql.logical import (
    Aggregate,
    AggregateCall,
    Expression,
    Extend,
    Join,
    JoinKind,
    Relation,
    Span,
    column_expression,
    conjunction,
    never_null,
)
from slackwater.sql.rendering import render_over_tables

Pair = tuple[Expression, Expression]
ReadSelect = Callable[[ExpressionBinder, Query, OuterRows | None], BoundSelect]

_EXISTS_HINT = "Write [NOT] EXISTS (SELECT … WHERE … = …)"
_JOIN_HINT = "Aggregate with GROUP BY in a subquery in FROM, and join it"
_SEVERAL_ROWS = "more than one row returned by a subquery used as an expression"


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
        if elements_of(node) is not None or not _is_equality(node) or not reads_tables(node.query):
            return False
        selected = self._rows_of(binder, node, node.query)
        pairs = self._compared(binder, node, selected)
        if kind is JoinKind.ANTI and not _are_never_null(binder, selected, pairs):
            return False
        span = binder.environment.place(node.start, node.end)
        residual = conjunction(list(selected.residual))
        equal = (*selected.equal, *pairs)
        binder.attach(lambda rows: Join(kind, rows, selected.relation, equal, residual, span))
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
        if not reads_tables(node.query):
            return value_within_row(binder, node)
        if node.raw["subquery_type"] != "SCALAR":
            return self._membership(binder, node, node.query)
        selected = self._selected(binder, node.query)
        if len(selected.items) != 1:
            raise binder.error(node, "the subquery has several columns", "Write one subquery for each value")
        if selected.calls is not None and selected.is_correlated:
            selected = self._without_residual(binder, node.query, selected)
            return self._aggregate(binder, node, selected)
        result = selected.computed(binder.context)
        joined = {right.column for _, right in selected.equal}
        if set(result.relation.identity) <= joined:
            self._left_join(binder, node, result.relation, selected)
            return identifier(result.columns[0].id)
        selected = self._without_residual(binder, node.query, selected)
        return self._only_value(binder, node, selected)

    def _selected(self, binder: ExpressionBinder, query: Query) -> BoundSelect:
        """Reads a subquery; if its conditions cannot tell which rows belong together, with the outer rows."""
        try:
            return self.read(binder, query, None)
        except SqlTextError as error:
            if not isinstance(query, Select) or binder.relation is None:
                raise
            found = self._among_outer_rows(binder, query, error)
            if found is None:
                raise
            return found

    def _without_residual(self, binder: ExpressionBinder, query: Query, selected: BoundSelect) -> BoundSelect:
        """Returns the same rows such that only equality ties them to the outer query."""
        if not selected.residual:
            return selected
        return self._among_outer_rows(binder, query, None) or selected

    def _among_outer_rows(
        self, binder: ExpressionBinder, query: Query, error: SqlTextError | None
    ) -> BoundSelect | None:
        """Reads a subquery whose rows are joined with the rows of the outer query; None if it uses none.

        Reading may add columns to the outer query's groups, so the rows are copied again if some are missing.
        """
        for _ in range(2):
            around = _copied_rows(binder)
            try:
                selected = self.read(binder, query, around)
            except SqlTextError:
                if error is not None:
                    raise error from None
                raise
            if not around.missing:
                return selected
        return None

    def _rows_of(self, binder: ExpressionBinder, node: Node, query: Query) -> BoundSelect:
        """Returns the rows of [NOT] EXISTS or [NOT] IN."""
        if isinstance(query, Select):
            query = without_limit(binder.environment, query, is_exists=node.raw["subquery_type"] != "ANY")
        selected = self._selected(binder, query)
        if selected.calls is not None and selected.is_correlated:
            problem = "an aggregate without GROUP BY returns a row for every row of the outer query"
            raise binder.error(node, problem, "Compare the aggregate: (SELECT count(*) …) > 0")
        return selected

    def _compared(self, binder: ExpressionBinder, node: Node, selected: BoundSelect) -> list[Pair]:
        """Returns what IN or ANY compares; nothing for EXISTS."""
        if node.raw["subquery_type"] != "ANY":
            return []
        (left,) = node.children
        values = left.arguments if left.function == "row" else (left,)
        if len(values) != len(selected.items):
            problem = f"IN compares {len(values)} with {len(selected.items)} columns"
            raise binder.error(node, problem, _EXISTS_HINT)
        return list(zip(map(binder.expression, values), selected.items, strict=True))

    def _membership(self, binder: ExpressionBinder, node: Node, query: Query) -> str:
        """Returns SQL for the value of EXISTS, IN or ANY."""
        selected = self._without_residual(binder, query, self._rows_of(binder, node, query))
        pairs = self._compared(binder, node, selected)
        if _is_equality(node):
            is_certain = (node.start, node.end) in self._accepted or _are_never_null(binder, selected, pairs)
            found = self._mark(binder, node, selected, [*selected.equal, *pairs]) if is_certain else ""
            if found:
                return found
        if len(pairs) != 1:
            return self._row_comparison(binder, node, query)
        ((left, right),) = pairs
        return self._quantified(binder, node, selected, left, right)

    def _mark(self, binder: ExpressionBinder, node: Node, selected: BoundSelect, equal: list[Pair]) -> str:
        """Returns SQL that is true where the subquery has an equal row."""
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

    def _quantified(
        self, binder: ExpressionBinder, node: Node, selected: BoundSelect, left: Expression, right: Expression
    ) -> str:
        """Returns SQL for ``left op ANY (…)``: NULL if a comparison is, and no other one is true."""
        operator = compared_by(binder, node)
        functions = {"<": ["max"], "<=": ["max"], ">": ["min"], ">=": ["min"], "<>": ["min", "max"]}
        extremes = functions.get(operator, [])
        rows, known, *bounds = self._grouped(
            binder, node, selected, [("count", None), ("count", right), *((each, right) for each in extremes)]
        )
        true = " OR ".join(f"({left.sql}) {operator} {each}" for each in bounds)
        if operator == "=":
            true = self._mark(binder, node, selected, [*selected.equal, (left, right)])
        return (
            f"(CASE WHEN coalesce({true}, false) THEN true WHEN coalesce({rows}, 0) = 0 THEN false "
            f"WHEN ({left.sql}) IS NULL OR {known} < {rows} THEN NULL ELSE false END)"
        )

    def _row_comparison(self, binder: ExpressionBinder, node: Node, query: Query) -> str:
        """Returns SQL for ``(a, b) IN (…)``, where any of the values may be NULL."""
        around = _copied_rows(binder)
        selected = self.read(binder, query, around) if isinstance(query, Select) else None
        if selected is None or not _is_equality(node):
            raise binder.error(node, "rows are compared only by = ANY, IN and NOT IN", _EXISTS_HINT)
        pairs = self._compared(binder, node, selected)
        alike = [f"({renamed(left.sql, around.ids)}) = ({right.sql})" for left, right in pairs]
        missing = set().union(*(left.columns for left, _ in pairs)) - set(around.ids)
        if missing or around.missing:
            problem = "values of other subqueries or new aggregates cannot be compared as rows here"
            raise binder.error(node, problem, _EXISTS_HINT)
        whole = binder.placed(node, " AND ".join(alike))
        is_null = replace(whole, sql=f"nullif(({whole.sql}) IS NULL, false)")
        true, unknown = self._grouped(binder, node, selected, [("bool_or", whole), ("count", is_null)])
        return (
            f"(CASE WHEN coalesce({true}, false) THEN true "
            f"WHEN coalesce({unknown}, 0) > 0 THEN NULL ELSE false END)"
        )

    def _only_value(self, binder: ExpressionBinder, node: Node, selected: BoundSelect) -> str:
        """Returns SQL for the value of the only row; a second row is an error where the value is used."""
        result = selected.computed(binder.context)
        ((column, item),) = ((each, item) for each, item in zip(result.columns, selected.items, strict=True))
        orders = ", ".join(map(identifier, result.relation.identity))
        value = replace(
            item,
            sql=f"{identifier(column.id)} ORDER BY {orders}",
            columns=(column.id, *result.relation.identity),
        )
        rows, only = self._grouped(
            binder, node, replace(selected, relation=result.relation), [("count", None), ("first", value)]
        )
        return f"(CASE WHEN {rows} > 1 THEN error('{_SEVERAL_ROWS}') ELSE {only} END)"

    def _grouped(
        self,
        binder: ExpressionBinder,
        node: Node,
        selected: BoundSelect,
        wanted: list[tuple[str, Expression | None]],
    ) -> list[str]:
        """Aggregates the rows that belong to each row of the outer query; returns SQL for the results."""
        span = binder.environment.place(node.start, node.end)
        text = binder.environment.text.text[max(node.start, 0) : max(node.end, 0)]
        calls = []
        for function, value in wanted:
            sql, columns = (value.sql, value.columns) if value else ("*", ())
            # The first value stays with the rows of its group, of which there should be one.
            arguments = () if value is None or function == "first" else (value,)
            call = AggregateCall(f"{function}({sql})", function, arguments, False, None, columns, span, text)
            calls.append((binder.context.new_id(), call))
        groups = tuple((binder.context.new_id(), right) for _, right in selected.equal)
        names = tuple(name for name, _ in groups)
        grouped = Aggregate(selected.relation, groups, tuple(calls), names, span)
        pairs = tuple(
            (left, column_expression(name, right))
            for name, (left, right) in zip(names, selected.equal, strict=True)
        )
        binder.attach(lambda rows: Join(JoinKind.LEFT, rows, grouped, pairs, None, span))
        return [identifier(name) for name, _ in calls]

    def _aggregate(self, binder: ExpressionBinder, node: Node, selected: BoundSelect) -> str:
        """Returns one aggregated value for each row of the outer query, also where no rows belong to it."""
        (item,) = aggregate_items(binder, node, selected)
        self._left_join(binder, node, selected.relation, selected)
        return f"({item.sql})"

    def _left_join(
        self, binder: ExpressionBinder, node: Node, right: Relation, selected: BoundSelect
    ) -> None:
        span = binder.environment.place(node.start, node.end)
        residual = conjunction(list(selected.residual))
        binder.attach(lambda rows: Join(JoinKind.LEFT, rows, right, selected.equal, residual, span))


def _copied_rows(binder: ExpressionBinder) -> OuterRows:
    """Returns a copy of the rows that a binder reads, without the values of subqueries so far."""
    assert binder.relation is not None  # noqa: S101 - it reads rows that can be copied
    base = binder.relation()
    rows = binder.applied(base)
    while rows is not base and isinstance(rows, Join) and rows.kind is JoinKind.LEFT:
        rows = rows.left
    ids = {each: binder.context.new_id(binder.context.labels.get(each, "")) for each in created(rows)}
    safe, span = never_null(rows), Span(0, 0)
    equal = []
    for column in rows.identity:
        form = "{}" if column in safe else "[{}]"  # NULL equals NULL
        left, right = (
            Expression(form.format(identifier(each)), (each,), span) for each in (column, ids[column])
        )
        equal.append((left, right))
    return OuterRows(renamed(rows, ids), ids, tuple(equal))


def _is_equality(node: Node) -> bool:
    return node.raw["subquery_type"] != "ANY" or bool(node.raw["comparison_type"] == "COMPARE_EQUAL")


def _are_never_null(binder: ExpressionBinder, selected: BoundSelect, pairs: list[Pair]) -> bool:
    """Whether no value on either side of the comparisons can be NULL."""
    known = (binder.safe, never_null(selected.relation))
    return all(pair[number].column in known[number] for pair in pairs for number in (0, 1))


def aggregate_items(binder: ExpressionBinder, node: Node | Item, selected: BoundSelect) -> list[Expression]:
    """Returns aggregates of a correlated subquery as values of the rows to which its groups are joined.

    Raises:
        SqlTextError: They are not supported.
    """
    if selected.residual or not selected.is_bare:
        problem = "HAVING, windows and DISTINCT are not supported in this subquery"
        raise binder.environment.error(node, problem, _JOIN_HINT)
    items = list(selected.items)
    empty_values = _empty_values(binder, node, selected.calls or (), selected.relation)
    values = {name: f"coalesce({identifier(name)}, {empty})" for name, empty in empty_values.items()}
    for name, value in (*values.items(), *((own, identifier(column)) for own, column in selected.outer)):
        items = [replace(each, sql=each.sql.replace(identifier(name), value)) for each in items]
    return items


def _empty_values(
    binder: ExpressionBinder,
    node: Node | Item,
    calls: tuple[tuple[str, AggregateCall], ...],
    relation: Relation,
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
            raise binder.environment.error(node, problem, _JOIN_HINT)
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
    is_apart = rows.outer is not None and rows.around is None
    return is_apart and rows.outer is not None and not rows.knows(node) and rows.outer.knows(node)


def _column_names(node: Node, parameters: frozenset[str] = frozenset()) -> Iterator[Node]:
    """Yields names of columns in the expression."""
    if node.kind == "COLUMN_REF" and node.names[0].lower() not in parameters:
        yield node
    if node.kind == "LAMBDA":
        parameters |= {name.lower() for name in node.names}
    for child in node.children:
        yield from _column_names(child, parameters)
