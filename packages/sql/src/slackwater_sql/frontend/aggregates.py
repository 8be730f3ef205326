"""Aggregate functions: what each call is, with an order where its result depends on one."""

import re
from collections.abc import Iterator

from slackwater_sql.document import identifier
from slackwater_sql.frontend.levels import Level
from slackwater_sql.frontend.syntax import Node
from slackwater_sql.frontend.text import Splice, spliced
from slackwater_sql.logical import AggregateCall

ORDER_SENSITIVE = frozenset(
    {
        "list", "array_agg", "string_agg", "group_concat", "listagg", "first", "last", "any_value",
        "arbitrary", "arg_min", "arg_max", "argmin", "argmax", "min_by", "max_by", "arg_min_null",
        "arg_max_null", "arg_min_nulls_last", "arg_max_nulls_last", "mode", "approx_quantile", "approx_top_k",
        "lttb", "variant_group_object",
    }
)  # fmt: skip
_MACROS = frozenset({"json_group_array", "json_group_object", "variant_group_array"})
_NAMES = {"count_star": "count", "mean": "avg", "any_value": "min"}
_CALL = re.compile(r'(?:"?\w+"?\s*\.\s*)*"?\w+"?\s*(?=\()')
_ORDER = r"\bORDER\s+BY\b"


def aggregate_call(level: Level, node: Node) -> AggregateCall:
    """The call over the rows of a level.

    Raises:
        ViewError: Its result depends on the order of rows and it cannot be given one.
    """
    text = level.environment.text
    with level.reading("an aggregate function"):
        arguments = tuple(level.expression(each) for each in node.arguments)
        filters = node.parts.get("filter", ())
        condition = level.expression(filters[0]) if filters else None
        splices = [*order_splices(level, node, level.identity), *_names(level, node), *level.splices(node)]
    sql = spliced(text.code, node.start, node.end, splices)
    return AggregateCall(
        sql=sql,
        function="any_value" if _keeps_any_value(node) else _NAMES.get(node.function, node.function),
        arguments=arguments,
        is_distinct=bool(node.raw.get("distinct")),
        condition=condition,
        columns=level.build.columns_of(sql),
        span=level.environment.place(node.start, node.end),
        text=text.sql[node.start : node.end],
    )


def order_splices(level: Level, node: Node, identity: tuple[str, ...], before: str = "") -> Iterator[Splice]:
    """An ORDER BY for a call whose result depends on the order of rows.

    Args:
        level: Where it stands.
        node: The call.
        identity: What orders rows that are equal otherwise.
        before: SQL to order by before that, if the call has no ORDER BY of its own.
    """
    if node.function in _MACROS:
        problem = f"{node.function} has no order"
        hint = "Write to_json(list(… ORDER BY …)); lists and structs become JSON in documents as they are"
        raise level.error(node, problem, hint)
    if node.function not in ORDER_SENSITIVE or (node.function == "any_value" and not _keeps_any_value(node)):
        return
    opening, closing = parentheses(level, node)
    if node.raw.get("distinct"):
        _refuse_unordered_distinct(level, node, opening, closing)
        return
    text = level.environment.text
    is_ordered = text.top_level(_ORDER, opening + 1, closing) is not None
    if _orders(node) and not is_ordered:
        problem = f"{node.function} … WITHIN GROUP is not supported"
        raise level.error(node, problem, f"Write {node.function}(… ORDER BY …)")
    keys = [identifier(each) for each in identity]
    if not is_ordered and before:
        keys.insert(0, before)
    if keys:
        yield Splice(closing, closing, (", " if is_ordered else " ORDER BY ") + ", ".join(keys))


def parentheses(level: Level, node: Node) -> tuple[int, int]:
    """Offsets of the parentheses around a call's arguments.

    Raises:
        ViewError: The function stands behind its argument.
    """
    text = level.environment.text
    call = _CALL.match(text.code, node.start, node.end)
    if call is None or any(0 <= each.start < call.end() for each in node.arguments):
        problem = f"{node.function} stands behind its argument"
        raise level.error(node, problem, f"Write it as {node.function}(…)")
    return call.end(), text.closing(call.end())


def _keeps_any_value(node: Node) -> bool:
    """The user has said which of the values."""
    return node.function == "any_value" and bool(_orders(node))


def _orders(node: Node) -> tuple[Node, ...]:
    return node.parts.get("order_bys", ()) + node.parts.get("arg_orders", ())


def _names(level: Level, node: Node) -> Iterator[Splice]:
    """Any value is the smallest one: the same for the same rows."""
    if node.function == "any_value" and not _keeps_any_value(node):
        opening, _ = parentheses(level, node)
        yield Splice(node.start, opening, "min")


def _refuse_unordered_distinct(level: Level, node: Node, opening: int, closing: int) -> None:
    ordered = {level.signature(each) for each in _orders(node)}
    if node.arguments and level.signature(node.arguments[0]) in ordered:
        return
    text = level.environment.text
    distinct = re.compile(r"\s*DISTINCT\b", re.IGNORECASE).match(text.structure, opening + 1)
    inner = text.code[distinct.end() if distinct else opening + 1 : closing].strip()
    problem = f"{node.function}(DISTINCT …) has no order"
    raise level.error(node, problem, f"Write {node.function}(DISTINCT {inner} ORDER BY …)")
