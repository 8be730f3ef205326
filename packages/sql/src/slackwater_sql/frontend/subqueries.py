"""Subqueries in expressions: joins with what they compute."""

from collections.abc import Callable
from dataclasses import replace

from slackwater_sql.document import identifier
from slackwater_sql.frontend.build import Build
from slackwater_sql.frontend.dependencies import never_null
from slackwater_sql.frontend.levels import Level, conjunction, plain_column
from slackwater_sql.frontend.plain import plain
from slackwater_sql.frontend.selected import Selected
from slackwater_sql.frontend.syntax import Node, Query, Select
from slackwater_sql.logical import Aggregate, AggregateCall, Expression, Extend, Join, JoinKind, Relation

Pair = tuple[Expression, Expression]
ReadSelect = Callable[[Level, Query], Selected]

_EXISTS_HINT = "Write [NOT] EXISTS (SELECT … WHERE … = …)"
_ONE_ROW_HINT = "Select one aggregate, or compare the whole primary key of the subquery's table by equality"


class Subqueries:
    """The subqueries of a SELECT.

    Attributes:
        read: Reads a subquery of a level.
    """

    def __init__(self, read: ReadSelect) -> None:
        self.read = read
        self._accepted: set[tuple[int, int]] = set()
        self._values: dict[tuple[int, int, int], str] = {}

    def accept(self, node: Node) -> None:
        """Read a condition that NULL fails like false: so do subqueries that AND and OR connect in it."""
        if node.kind == "SUBQUERY":
            self._accepted.add((node.start, node.end))
        if node.kind == "CONJUNCTION":
            for child in node.children:
                self.accept(child)

    def condition(self, level: Level, node: Node) -> bool:
        """Take a condition that is nothing but [NOT] EXISTS or [NOT] IN; False if it is something else.

        Raises:
            ViewError: The subquery is not supported.
        """
        kind = JoinKind.SEMI
        while node.operator == "OPERATOR_NOT":
            kind = JoinKind.ANTI if kind is JoinKind.SEMI else JoinKind.SEMI
            (node,) = node.children
        if node.kind != "SUBQUERY" or node.query is None or node.raw["subquery_type"] == "SCALAR":
            return False
        selected = self._rows_of(level, node, node.query)
        equal = list(selected.equal)
        if node.raw["subquery_type"] == "ANY":
            why = "NOT IN is not true" if kind is JoinKind.ANTI else ""
            equal += self._membership(level, node, selected, why)
        span = level.environment.place(node.start, node.end)
        residual = conjunction(list(selected.residual))
        level.attach(lambda rows: Join(kind, rows, selected.relation, tuple(equal), residual, span))
        return True

    def value(self, level: Level, node: Node) -> str:
        """SQL for the value of a subquery in an expression, having attached what computes it.

        Raises:
            ViewError: The subquery is not supported.
        """
        place = (id(level), node.start, node.end)
        if place not in self._values:
            self._values[place] = self._value(level, node)
        return self._values[place]

    def _value(self, level: Level, node: Node) -> str:
        assert node.query is not None  # noqa: S101 - it is a subquery
        if node.raw["subquery_type"] != "SCALAR":
            return self._mark(level, node, node.query)
        selected = self.read(level, node.query)
        if len(selected.items) != 1:
            raise level.error(node, "the subquery has several columns", "Write one subquery for each value")
        if selected.calls is not None and selected.is_correlated:
            return self._aggregate(level, node, selected)
        result = selected.computed(level.build)
        joined = {right.column for _, right in selected.equal}
        if not set(result.relation.identity) <= joined:
            raise level.error(node, "the subquery can have several rows", _ONE_ROW_HINT)
        self._left_join(level, node, result.relation, selected)
        return identifier(result.columns[0].id)

    def _rows_of(self, level: Level, node: Node, query: Query) -> Selected:
        if isinstance(query, Select):
            query = replace(query, is_distinct=False)  # whether there is a row does not depend on it
        selected = self.read(level, query)
        if selected.calls is not None and selected.is_correlated:
            problem = "an aggregate without GROUP BY has a row for every row of the outer query"
            raise level.error(node, problem, "Compare the aggregate: (SELECT count(*) …) > 0")
        return selected

    def _membership(self, level: Level, node: Node, selected: Selected, refusal: str) -> list[Pair]:
        """The comparisons that IN makes; with a refusal, it is refused if a side may be NULL."""
        if node.raw["comparison_type"] != "COMPARE_EQUAL":
            raise level.error(node, "only = ANY, IN and NOT IN are supported", _EXISTS_HINT)
        (left,) = node.children
        values = left.arguments if left.function == "row" else (left,)
        if len(values) != len(selected.items):
            problem = f"IN compares {len(values)} with {len(selected.items)} columns"
            raise level.error(node, problem, _EXISTS_HINT)
        pairs = list(zip(map(level.expression, values), selected.items, strict=True))
        known = (level.safe, never_null(selected.relation))
        for side, safe in ((pair[number], known[number]) for pair in pairs for number in (0, 1)):
            if refusal and side.column not in safe:
                problem = f"{refusal} where {side.text or 'a value'} is NULL, which it may be"
                raise level.error(node, problem, _EXISTS_HINT)
        return pairs

    def _mark(self, level: Level, node: Node, query: Query) -> str:
        """Whether there is a row."""
        selected = self._rows_of(level, node, query)
        equal = list(selected.equal)
        if node.raw["subquery_type"] == "ANY":
            why = "" if (node.start, node.end) in self._accepted else "the value of IN is NULL"
            equal += self._membership(level, node, selected, why)
        if selected.residual:
            problem = "only conditions of equality on the outer query are supported here"
            raise level.error(node, problem, "Make EXISTS a condition of its own in WHERE")
        span = level.environment.place(node.start, node.end)
        new_id = level.build.new_id
        if not equal:
            count = AggregateCall("count(*)", "count", (), False, None, (), span, "EXISTS")
            number = new_id()
            counted = Aggregate(selected.relation, (), ((number, count),), (), span)
            level.attach(lambda rows: Join(JoinKind.LEFT, rows, counted, (), None, span))
            return f"({identifier(number)} > 0)"
        groups = tuple((new_id(), right) for _, right in equal)
        names = tuple(name for name, _ in groups)
        found = new_id()
        distinct = Aggregate(selected.relation, groups, (), names, span)
        marked = Extend(distinct, ((found, Expression("true", (), span, "EXISTS")),))
        lefts = (left for left, _ in equal)
        rights = (plain_column(name, each) for name, (_, each) in zip(names, equal, strict=True))
        pairs = tuple(zip(lefts, rights, strict=True))
        level.attach(lambda rows: Join(JoinKind.LEFT, rows, marked, pairs, None, span))
        return f"coalesce({identifier(found)}, false)"

    def _aggregate(self, level: Level, node: Node, selected: Selected) -> str:
        """One aggregated value for each row of the query around; of no rows where none belong to it."""
        calls = selected.calls or ()
        if selected.residual or not selected.is_bare:
            problem = "only conditions of equality on the outer query are supported in this subquery"
            raise level.error(node, problem, "Aggregate in a subquery in FROM with GROUP BY, and join it")
        self._left_join(level, node, selected.relation, selected)
        sql = selected.items[0].sql
        for name, empty in _empty_values(level, node, calls, selected.relation).items():
            sql = sql.replace(identifier(name), f"coalesce({identifier(name)}, {empty})")
        return f"({sql})"

    def _left_join(self, level: Level, node: Node, right: Relation, selected: Selected) -> None:
        span = level.environment.place(node.start, node.end)
        residual = conjunction(list(selected.residual))
        level.attach(lambda rows: Join(JoinKind.LEFT, rows, right, selected.equal, residual, span))


def _empty_values(
    level: Level, node: Node, calls: tuple[tuple[str, AggregateCall], ...], relation: Relation
) -> dict[str, str]:
    """The aggregates that are not NULL where there are no rows, with their values."""
    assert isinstance(relation, Aggregate)  # noqa: S101 - it is bare
    of_none = Aggregate(relation.child, (), calls, (), relation.span)
    row = _one_row(level.build, of_none) if calls else ()
    found = {}
    for (name, call), value in zip(calls, row, strict=True):
        if value is None:
            continue
        if not isinstance(value, int):
            problem = f"{call.text} is not NULL where there are no rows"
            raise level.error(node, problem, "Aggregate in a subquery in FROM with GROUP BY, and join it")
        found[name] = str(value).lower()
    return found


def _one_row(build: Build, relation: Relation) -> tuple[object, ...]:
    row: tuple[object, ...] | None = build.connection.execute(plain(relation)).fetchone()
    return row or ()
