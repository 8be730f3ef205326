"""Conditions on the time, such as ``ts > now() - INTERVAL 1 DAY``, as rows that end, or begin, at a moment.

The clock of a commit is its commit time, or a later one of an earlier commit, in whole seconds. What is
beside it is moved to the other side of the comparison, which then is the moment. Rows with a condition like
``ts <= now()`` begin at their moment: they are all rows without those whose moment has not come.
"""

from dataclasses import replace
from typing import Final

import duckdb

from slackwater.sql.duckdb_sql import identifier
from slackwater.sql.frontend.context import Step
from slackwater.sql.frontend.expressions import ExpressionBinder
from slackwater.sql.frontend.syntax import Node
from slackwater.sql.logical import (
    Aggregate,
    Expire,
    Expression,
    Extend,
    Filter,
    Join,
    JoinKind,
    Relation,
    column_expression,
    never_null,
)

_CLOCKS: Final = frozenset({"now", "current_timestamp", "transaction_timestamp", "get_current_timestamp"})
_FLIPPED: Final = {
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
}
_TYPES: Final = frozenset({"TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ"})
_HINT: Final = "Compare a time in WHERE: ts > now() - INTERVAL 1 DAY"


def is_on_clock(binder: ExpressionBinder, node: Node) -> bool:
    """Whether a condition of WHERE depends on the time."""
    return any(_is_clock(binder, each) for each in node.walk())


def clock_condition(binder: ExpressionBinder, node: Node) -> Step:
    """Returns the step that leaves the rows for which the condition holds at the clock of each commit.

    Raises:
        SqlTextError: It is not a comparison of the time with a moment that the row determines.
    """
    if node.kind == "BETWEEN":
        value, lower, upper = (node.parts[each][0] for each in ("input", "lower", "upper"))
        steps = [
            _compared(binder, node, "COMPARE_GREATERTHANOREQUALTO", value, lower),
            _compared(binder, node, "COMPARE_LESSTHANOREQUALTO", value, upper),
        ]
        return lambda rows: steps[1](steps[0](rows))
    if node.operator not in _FLIPPED:
        raise binder.error(node, "the time is not compared here", _HINT)
    return _compared(binder, node, node.operator, *node.children)


def _compared(binder: ExpressionBinder, node: Node, operator: str, left: Node, right: Node) -> Step:
    sides = [is_on_clock(binder, left), is_on_clock(binder, right)]
    if all(sides):
        raise binder.error(node, "the time is compared with itself", _HINT)
    if not any(sides):  # one bound of BETWEEN
        sign = "<=" if operator == "COMPARE_LESSTHANOREQUALTO" else ">="
        one, other = binder.expression(left), binder.expression(right)
        condition = binder.placed(node, f"({one.sql}) {sign} ({other.sql})")
        return lambda rows: Filter(rows, condition)
    if sides[1]:
        left, right, operator = right, left, _FLIPPED[operator]
    moment = _moment(binder, left, right)
    if operator in {"COMPARE_LESSTHANOREQUALTO", "COMPARE_GREATERTHAN"}:  # it still holds, or not yet, then
        moment = binder.placed(right, f"{moment.sql} + 1")
    name = binder.context.new_id()
    if operator in {"COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO"}:
        return lambda rows: Expire(Extend(rows, ((name, moment),)), name)
    return lambda rows: _begun(binder, Extend(rows, ((name, moment),)), name)


def _moment(binder: ExpressionBinder, clock: Node, other: Node) -> Expression:
    """Returns the moment of the comparison, in microseconds since the epoch."""
    value = f"CAST(({binder.expression(other).sql}) AS TIMESTAMPTZ)"
    while not _is_clock(binder, clock):
        if clock.kind == "CAST" and clock.raw["type_expr"]["type_name"].upper() in _TYPES:
            (clock,) = clock.children
        elif clock.function in {"+", "-"} and len(clock.arguments) == 2:
            first, second = clock.arguments
            if clock.function == "+" and is_on_clock(binder, second):
                first, second = second, first
            if is_on_clock(binder, second):
                raise binder.error(clock, "the time is subtracted here", _HINT)
            sign = "-" if clock.function == "+" else "+"
            value = f"({value} {sign} ({_interval(binder, second)}))"
            clock = first
        else:
            raise binder.error(clock, "only intervals can be added to the time", _HINT)
    return binder.placed(other, f"epoch_us({value})")


def _interval(binder: ExpressionBinder, node: Node) -> str:
    """Returns the SQL of a constant interval of exact length."""
    interval = binder.expression(node)
    if interval.columns:
        raise binder.error(node, "only a constant interval can be added to the time", "Add it to the column")
    sql = f"CAST(({interval.sql}) AS INTERVAL)"
    months = f"SELECT datepart('year', {sql}) * 12 + datepart('month', {sql})"
    try:
        ((found,),) = binder.context.connection.execute(months).fetchall()
    except duckdb.Error as error:
        raise binder.error(node, "only an interval can be added to the time", _HINT) from error
    if found:
        raise binder.error(node, "a month has no exact length", "Write the interval in days")
    return sql


def _begun(binder: ExpressionBinder, rows: Extend, name: str) -> Relation:
    """Returns the rows whose moment has come: all but those whose moment is still to come."""
    moment = rows.computed[-1][1]
    known = Filter(rows, Expression(f"{identifier(name)} IS NOT NULL", (name,), moment.span))
    safe = never_null(known)
    own = [column_expression(each, moment) for each in known.identity]
    new = tuple(binder.context.new_id() for _ in own)
    waiting = Aggregate(Expire(rows, name), tuple(zip(new, own, strict=True)), (), new, moment.span)
    pairs: list[tuple[Expression, Expression]] = []
    for each, other in zip(own, new, strict=True):
        form = "{}" if each.column in safe else "[{}]"
        left, right = (
            replace(side, sql=form.format(side.sql)) for side in (each, column_expression(other, moment))
        )
        pairs.append((left, right))
    return Join(JoinKind.ANTI, known, waiting, tuple(pairs), None, moment.span)


def _is_clock(binder: ExpressionBinder, node: Node) -> bool:
    if node.kind == "COLUMN_REF":
        is_name = len(node.names) == 1 and node.names[0].lower() == "current_timestamp"
        return is_name and not binder.knows(node)
    return node.kind == "FUNCTION" and node.function in _CLOCKS and not node.arguments
