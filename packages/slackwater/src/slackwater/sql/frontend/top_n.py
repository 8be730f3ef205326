"""The first rows of an order: ORDER BY with LIMIT, DISTINCT ON, and filters on ranks.

Rows that the user's order does not distinguish are taken in the order of their identity. ORDER BY without
LIMIT has no effect, because rows have no order; an aggregate or window whose result would depend on the order
in which a subquery's rows are sorted is refused.
"""

from collections.abc import Iterable
from dataclasses import replace

from slackwater.sql.duckdb_sql import identifier
from slackwater.sql.frontend.context import BindContext, BoundQuery, Environment, NamedRelation, NameScope
from slackwater.sql.frontend.expressions import ExpressionBinder
from slackwater.sql.frontend.syntax import Node, Select, SetOperation, Trailing
from slackwater.sql.logical import (
    Expression,
    Extend,
    Filter,
    Join,
    JoinKind,
    Leaf,
    OneRow,
    Ranking,
    Relation,
    Scan,
    SortKey,
    Span,
    TopN,
    Union,
    Window,
    column_expression,
)
from slackwater.sql.plan import Ranks

_UPPER = {"COMPARE_EQUAL": 0, "COMPARE_LESSTHANOREQUALTO": 0, "COMPARE_LESSTHAN": -1}
"""What is added to the right side for the largest left side."""
_FLIPPED = {
    "COMPARE_EQUAL": "COMPARE_EQUAL",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
}


def limits(environment: Environment, trailing: Trailing) -> Ranks | None:
    """Returns the ranks that LIMIT and OFFSET keep; None for all.

    Raises:
        SqlTextError: They are not constant, or there is only OFFSET.
    """
    limit = _constant(environment, trailing.limit, "LIMIT")
    offset = _constant(environment, trailing.offset, "OFFSET") or 0
    if limit is not None:
        return Ranks("row_number", offset + 1, offset + limit)
    if offset and trailing.offset is not None:
        hint = "Add LIMIT: a change would otherwise cost as much as all rows that follow"
        raise environment.error(trailing.offset, "OFFSET without LIMIT is not supported", hint)
    return None


def _constant(environment: Environment, node: Node | None, clause: str) -> int | None:
    if node is None or node.raw.get("literal", {}).get("kind") == "NULL_LITERAL":  # LIMIT ALL
        return None
    value = _integer(node)
    if value is None or value < 0:
        hint = "To keep a number of rows that depends on rows, compare row_number() with it in QUALIFY"
        raise environment.error(node, f"{clause} is supported with an integer from 0 only", hint)
    return value


def without_limit(environment: Environment, query: Select, *, is_exists: bool) -> Select:
    """Returns a subquery of IN or EXISTS without what does not change whether there is a row."""
    ranks = limits(environment, query.trailing)
    if is_exists and ranks is not None and ranks.first == 1 <= ranks.last:
        return replace(query, is_distinct=False, distinct_on=(), trailing=Trailing())
    return query if ranks is not None else replace(query, is_distinct=False)


def sort_keys(
    binder: ExpressionBinder, orders: Iterable[tuple[Node, str]], outputs: tuple[tuple[str, Expression], ...]
) -> tuple[SortKey, ...]:
    """Returns the order of rows; the columns of the select list can be meant by position and name."""
    return tuple((each, direction) for node, direction in orders for each in meant(binder, node, outputs))


def meant(
    binder: ExpressionBinder, node: Node, outputs: tuple[tuple[str, Expression], ...]
) -> tuple[Expression, ...]:
    """Returns what an expression of ORDER BY or DISTINCT ON means."""
    if node.kind == "STAR":
        return tuple(each for _, each in outputs)
    if node.kind == "CONSTANT" and node.raw["literal"].get("kind") == "INTEGER":
        position = int(node.raw["literal"]["text"])
        if not 1 <= position <= len(outputs):
            problem = f"there is no column {position} in the select list"
            raise binder.error(node, problem, "Name the column")
        return (outputs[position - 1][1],)
    name = node.names[0].lower() if len(node.names) == 1 else ""
    named = {each.sql: each for output, each in outputs if name and output.lower() == name}
    if len(named) > 1:
        raise binder.error(node, f"column {name} is ambiguous", "Write its position, or rename it with AS")
    return tuple(named.values()) or (binder.expression(node),)


def first_rows(
    context: BindContext,
    relation: Relation,
    partition: tuple[Expression, ...],
    order: tuple[SortKey, ...],
    ranks: Ranks,
    span: Span,
) -> tuple[Relation, dict[str, Expression]]:
    """Returns the first rows of each partition, and the columns of its expressions, by their SQL."""
    computed = {each.sql: (context.new_id(each.text), each) for each in partition if each.column is None}
    if computed:
        relation = Extend(relation, tuple(computed.values()))
    columns = {sql: column_expression(name, each) for sql, (name, each) in computed.items()}
    partition = tuple(columns.get(each.sql, each) for each in partition)
    is_one = ranks.last <= ranks.first
    identity = tuple(dict.fromkeys(each.columns[0] for each in partition)) if is_one else relation.identity
    return TopN(relation, partition, order, ranks, context.new_id(), identity, span), columns


def limited(environment: Environment, query: SetOperation, result: BoundQuery) -> BoundQuery:
    """Returns the first rows of UNION, EXCEPT or INTERSECT, whose ORDER BY can mean only its columns."""
    ranks = limits(environment, query.trailing)
    if ranks is None:
        return result
    columns = tuple(
        (each.name, Expression(identifier(each.id), (each.id,), span, each.name))
        for each, span in zip(result.columns, result.spans, strict=True)
    )
    source = NamedRelation("the result", (), result.columns, None)
    scope = NameScope(environment.text, (source,), result.columns)
    binder = ExpressionBinder(environment, scope, {}, None)
    order = sort_keys(binder, query.trailing.orders, columns)
    span = environment.place(query.start, query.start)
    first, _ = first_rows(environment.context, result.relation, (), order, ranks, span)
    return replace(result, relation=first)


def rank_condition(binder: ExpressionBinder, node: Node) -> Expression:
    """Returns a condition, with its bounds if it compares a column with integers."""
    whole, compared = binder.expression(node), _compared(node)
    column = None if compared is None else binder.expression(compared[0]).column
    return whole if column is None or compared is None else replace(whole, bounds=(column, *compared[1:]))


def _compared(node: Node) -> tuple[Node, int, int] | None:
    """Returns the expression that a condition bounds from above, and its smallest and largest rank."""
    operator, parts = node.operator, node.children
    if operator == "COMPARE_BETWEEN":
        lower, last = map(_integer, parts[1:])
        return None if lower is None or last is None else (parts[0], max(lower, 1), last)
    if len(parts) == 2 and _integer(parts[0]) is not None:
        operator, parts = _FLIPPED.get(operator, ""), parts[::-1]
    last = _integer(parts[1]) if operator in _UPPER else None
    if last is None:
        return None
    last += _UPPER[operator]
    return parts[0], last if operator == "COMPARE_EQUAL" else 1, last


def _integer(node: Node) -> int | None:
    literal = node.raw.get("literal", {}) if node.kind == "CONSTANT" else {}
    return int(literal["text"]) if literal.get("kind") == "INTEGER" else None


def with_top_n(relation: Relation) -> Relation:
    """Returns a tree in which a filter on the rank of a window takes the first rows."""
    match relation:
        case Filter(condition=condition):
            child = with_top_n(relation.child)
            found = None if condition.bounds is None else _placed(child, *condition.bounds)
            return found or Filter(child, condition)
        case Join(left=left, right=right):
            return replace(relation, left=with_top_n(left), right=with_top_n(right))
        case Union(children=branches):
            return replace(relation, children=tuple(map(with_top_n, branches)))
        case Scan() | OneRow() | Leaf():
            return relation
        case _:
            return replace(relation, child=with_top_n(relation.child))


def _placed(relation: Relation, name: str, first: int, last: int) -> Relation | None:
    """Returns the rows with these ranks; None if the name is not the rank of a window below."""
    match relation:
        case Window(child=child, partition=partition, calls=((rank, Ranking() as call),)) if rank == name:
            ranks = Ranks(call.function, first, last)
            return TopN(child, partition, call.order, ranks, rank, child.identity, relation.span)
        case Filter() | Extend():
            below = _placed(relation.child, name, first, last)
            return below and replace(relation, child=below)
        case Join(left=left, right=right, kind=kind) if kind is not JoinKind.FULL:
            below = _placed(left, name, first, last)
            if below is not None or kind is not JoinKind.INNER:
                return below and replace(relation, left=below)
            below = _placed(right, name, first, last)
            return below and replace(relation, right=below)
        case _:
            return None
