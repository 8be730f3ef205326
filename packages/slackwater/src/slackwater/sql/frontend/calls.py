"""Calls of aggregate and window functions, with an order where their results depend on one.

Results never depend on the order in which rows happen to arrive. An aggregate whose result would depend on it
is ordered by the identity of its rows last, and `any_value` is the smallest value. A window function orders
rows that compare equal by their identity: in the window's own ORDER BY where only that order counts
(`row_number`, `lag`, ROWS frames), in an ORDER BY among the arguments where peers must remain peers
(`last_value`, `list`, … over RANGE and GROUPS frames).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from slackwater.sql.duckdb_sql import identifier
from slackwater.sql.frontend.expressions import ExpressionBinder
from slackwater.sql.frontend.syntax import Node, direction
from slackwater.sql.frontend.text import Splice, spliced
from slackwater.sql.logical import (
    AggregateCall,
    Expression,
    Ranking,
    Relation,
    SortKey,
    Window,
    column_expression,
)
from slackwater.sql.rendering import AT

_ORDER_SENSITIVE = frozenset(
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

_NUMBERING = frozenset({"row_number", "ntile", "lag", "lead"})
_RANKING = frozenset({"rank", "dense_rank", "rank_dense", "percent_rank", "cume_dist"})
_RANKS = {
    name: name.replace("rank_dense", "dense_rank")
    for name in ("row_number", "rank", "dense_rank", "rank_dense")
}
_PICKING = frozenset({"first_value", "last_value", "nth_value", "first", "last"})
_DIRECTIONS = {"ORDER_DEFAULT": "", "ASCENDING": " ASC", "DESCENDING": " DESC"}
_NULLS = {"ORDER_DEFAULT": "", "NULLS_FIRST": " NULLS FIRST", "NULLS_LAST": " NULLS LAST"}
_BOUNDS = {
    "UNBOUNDED_PRECEDING": "UNBOUNDED PRECEDING",
    "UNBOUNDED_FOLLOWING": "UNBOUNDED FOLLOWING",
    "CURRENT_ROW": "CURRENT ROW",
    "EXPR_PRECEDING": "PRECEDING",
    "EXPR_FOLLOWING": "FOLLOWING",
}
_EXCLUDED = {
    "NO_OTHER": "",
    "CURRENT_ROW": " EXCLUDE CURRENT ROW",
    "GROUP": " EXCLUDE GROUP",
    "TIES": " EXCLUDE TIES",
}


def aggregate_call(binder: ExpressionBinder, node: Node) -> AggregateCall:
    """Returns the call over the rows that a binder knows.

    Raises:
        SqlTextError: Its result depends on the order of rows, and no order can be added.
    """
    text = binder.environment.text
    with binder.reading("an aggregate function"):
        arguments = tuple(binder.expression(each) for each in node.arguments)
        filters = node.parts.get("filter", ())
        condition = binder.expression(filters[0]) if filters else None
        orders = tuple(_sort_keys(binder, node))
        splices = [
            *_order_splices(binder, node),
            *_any_value_splices(binder, node),
            *binder.splices(node),
        ]
    sql = spliced(text.code, node.start, node.end, splices)
    columns = binder.context.columns_of(sql)
    own = {column.id for source in binder.scope.sources for column in source.columns}
    if binder.environment.row is not None and columns and own.isdisjoint(columns):
        problem = f"{node.function} aggregates only columns of the query around this one"
        raise binder.error(node, problem, "Aggregate in that query, or aggregate a column of this one")
    return AggregateCall(
        sql=sql,
        function="any_value" if _keeps_any_value(node) else _NAMES.get(node.function, node.function),
        arguments=arguments,
        is_distinct=bool(node.raw.get("distinct")),
        condition=condition,
        columns=columns,
        span=binder.environment.place(node.start, node.end),
        text=text.text[node.start : node.end],
        orders=orders,
    )


@dataclass
class Windows:
    """The window functions of one SELECT."""

    binder: ExpressionBinder
    _calls: dict[str, tuple[str, tuple[Expression, ...], Expression]] = field(default_factory=dict)

    @property
    def is_used(self) -> bool:
        """Whether there are any."""
        return bool(self._calls)

    def value(self, node: Node) -> str:
        """Returns the id of a window function's value.

        Raises:
            SqlTextError: It is not supported.
        """
        partition, call = _Call(self.binder, node).read()
        if call.sql not in self._calls:
            self._calls[call.sql] = (self.binder.context.new_id(), partition, call)
        return identifier(self._calls[call.sql][0])

    def applied(self, relation: Relation) -> Relation:
        """Returns the rows with all window values added."""
        by_partition: dict[frozenset[str], list[tuple[str, tuple[Expression, ...], Expression]]] = {}
        for each in self._calls.values():
            by_partition.setdefault(frozenset(part.sql for part in each[1]), []).append(each)
        for calls in by_partition.values():
            _, partition, first = calls[0]
            values = tuple((name, call) for name, _, call in calls)
            relation = Window(relation, partition, values, first.span)
        return relation


@dataclass(frozen=True, slots=True)
class _Call:
    """A window function with its OVER clause."""

    _level: ExpressionBinder
    _node: Node

    def read(self) -> tuple[tuple[Expression, ...], Expression]:
        """Returns the expressions that it partitions by, and the whole call."""
        binder, node = self._level, self._node
        with binder.reading("a window function"):
            own = (binder.expression(each) for each in node.parts.get("partitions", ()))
            partition = (*binder.partition, *own)
            orders = self._orders()
            if self._is_peerless and not orders:
                problem = f"the result of {node.function} depends on the order of the rows"
                binder.refuse_lost_order(node, problem, "Write OVER (… ORDER BY …)")
            self._check_function(orders)
            sql = f"{self._function(orders)} OVER ({self._over(partition, orders)})"
            call = binder.placed(node, sql)
            return partition, self._ranking(call) or call

    def _ranking(self, call: Expression) -> Ranking | None:
        """Returns the call as one whose first ranks can be kept; None if it is another one."""
        node, function = self._node, _RANKS.get(self._node.function)
        others = [part for name, part in node.parts.items() if name not in {"partitions", "orders"}]
        if function is None or any(others) or node.raw["exclude_clause"] != "NO_OTHER":
            return None
        keys = zip(node.parts.get("orders", ()), node.raw["orders"], strict=True)
        order = tuple((self._level.expression(each), direction(raw)) for each, raw in keys)
        return Ranking(call.sql, call.columns, call.span, call.text, None, function, order)

    def _function(self, orders: list[str]) -> str:
        binder, node = self._level, self._node
        text = binder.environment.text
        over = text.top_level(r"\bOVER\b", node.start, node.end)
        end = over.start() if over else node.end
        splices = [each for each in binder.splices(node) if each.end <= end]
        splices += self._argument_order(orders)
        splices += _any_value_splices(binder, node)
        return spliced(text.code, node.start, end, splices).rstrip()

    def _argument_order(self, orders: list[str]) -> list[Splice]:
        binder, node = self._level, self._node
        if node.function in _PICKING and not node.raw["distinct"]:
            opening, closing = _parentheses(binder, node)
            text = binder.environment.text
            at = text.top_level(r"\b(?:RESPECT|IGNORE)\s+NULLS\b", opening + 1, closing)
            end = at.start() if at else closing
            is_ordered = text.top_level(r"\bORDER\s+BY\b", opening + 1, closing) is not None
            if self._is_peerless and not is_ordered:
                return []
            keys = [*([] if is_ordered else orders), *map(identifier, binder.identity)]
            if not keys:
                return []
            return [Splice(end, end, f"{', ' if is_ordered else ' ORDER BY '}{', '.join(keys)} ")]
        return list(_order_splices(binder, node, ", ".join(orders)))

    @property
    def _is_peerless(self) -> bool:
        """Whether rows are in an order without ties, which the identity ensures."""
        return self._node.function in _NUMBERING or self._unit == "ROWS"

    def _over(self, partition: tuple[Expression, ...], orders: list[str]) -> str:
        keys = [*orders, *(map(identifier, self._level.identity) if self._is_peerless else ())]
        parts = [f"PARTITION BY {', '.join([AT, *(each.sql for each in partition)])}"]
        if keys:
            parts.append(f"ORDER BY {', '.join(keys)}")
        frame = self._frame()
        return " ".join([*parts, *([frame] if frame else [])])

    def _orders(self) -> list[str]:
        nodes = self._node.parts.get("orders", ())
        return [
            self._level.sql(node) + _DIRECTIONS[raw["type"]] + _NULLS[raw["null_order"].replace(" ", "_")]
            for node, raw in zip(nodes, self._node.raw["orders"], strict=True)
        ]

    @property
    def _unit(self) -> str:
        for bound in (self._node.raw["start"], self._node.raw["end"]):
            for unit in ("ROWS", "GROUPS", "RANGE"):
                if bound.endswith(f"_{unit}"):
                    return unit
        return "RANGE"  # the whole partition, whatever the unit

    def _frame(self) -> str:
        raw = self._node.raw
        is_default = (raw["start"], raw["end"]) == ("UNBOUNDED_PRECEDING", "CURRENT_ROW_RANGE")
        if is_default and raw["exclude_clause"] == "NO_OTHER":
            return ""
        start = self._bound(raw["start"], "start_expr")
        end = self._bound(raw["end"], "end_expr")
        return f"{self._unit} BETWEEN {start} AND {end}{_EXCLUDED[raw['exclude_clause']]}"

    def _bound(self, bound: str, part: str) -> str:
        kind = bound
        for unit in ("_ROWS", "_GROUPS", "_RANGE"):
            kind = kind.removesuffix(unit)
        distance = self._node.parts.get(part, ())
        return f"{self._level.sql(distance[0])} {_BOUNDS[kind]}" if distance else _BOUNDS[kind]

    def _check_function(self, orders: list[str]) -> None:
        binder, node = self._level, self._node
        is_known = node.function in _NUMBERING | _RANKING | _PICKING or node.operator == "WINDOW_AGGREGATE"
        if not is_known:
            raise binder.error(
                node, f"{node.function} is not supported as a window function", "Use another function"
            )
        excluded = node.raw["exclude_clause"]
        if self._is_peerless and excluded in {"GROUP", "TIES"} and node.function not in _NUMBERING:
            problem = f"EXCLUDE {excluded} of a ROWS frame is not supported"
            raise binder.error(node, problem, "Use a RANGE or GROUPS frame")
        if node.raw["distinct"] and node.function in _ORDER_SENSITIVE and not orders:
            problem = f"the result of {node.function}(DISTINCT …) depends on the order of the rows"
            raise binder.error(node, problem, "Remove DISTINCT, or aggregate in a subquery")


def _order_splices(binder: ExpressionBinder, node: Node, before: str = "") -> Iterator[Splice]:
    """Yields an ORDER BY for a call whose result depends on the order of rows.

    The identity orders rows that are equal otherwise; `before` is SQL to order by first, if the call has no
    ORDER BY of its own.
    """
    if node.function in _MACROS:
        problem = f"the result of {node.function} depends on the order of the rows"
        hint = "Write to_json(list(… ORDER BY …)); lists and structs become JSON in documents as they are"
        raise binder.error(node, problem, hint)
    if node.function not in _ORDER_SENSITIVE or (node.function == "any_value" and not _keeps_any_value(node)):
        return
    opening, closing = _parentheses(binder, node)
    if node.raw.get("distinct"):
        _refuse_unordered_distinct(binder, node, opening, closing)
        return
    text = binder.environment.text
    is_ordered = text.top_level(_ORDER, opening + 1, closing) is not None
    if node.function == "mode" and not node.arguments:
        return  # of the most frequent values, the first in the order of WITHIN GROUP
    if _orders(node) and not is_ordered:
        problem = f"{node.function} … WITHIN GROUP is not supported"
        raise binder.error(node, problem, f"Write {node.function}(… ORDER BY …)")
    keys = [identifier(each) for each in binder.identity]
    if not is_ordered and not before:
        problem = f"the result of {node.function} depends on the order of the rows"
        binder.refuse_lost_order(node, problem, f"Write {node.function}(… ORDER BY …)")
    if not is_ordered and before:
        keys.insert(0, before)
    if keys:
        yield Splice(closing, closing, (", " if is_ordered else " ORDER BY ") + ", ".join(keys))


def _parentheses(binder: ExpressionBinder, node: Node) -> tuple[int, int]:
    """Returns the offsets of the parentheses around a call's arguments."""
    text = binder.environment.text
    call = _CALL.match(text.code, node.start, node.end)
    if call is None or any(0 <= each.start < call.end() for each in node.arguments):
        problem = f"calling {node.function} as a method of its argument is not supported"
        raise binder.error(node, problem, f"Write {node.function}(…)")
    return call.end(), text.closing(call.end())


def _keeps_any_value(node: Node) -> bool:
    """Whether the user has said which of the values to take."""
    return node.function == "any_value" and bool(_orders(node))


def _orders(node: Node) -> tuple[Node, ...]:
    return node.parts.get("order_bys", ()) + node.parts.get("arg_orders", ())


def _sort_keys(binder: ExpressionBinder, node: Node) -> Iterator[SortKey]:
    """Yields what an aggregate orders its rows by, as :func:`_order_splices` completes it."""
    for each, raw in zip(node.parts.get("order_bys", ()), node.raw["order_bys"]["orders"], strict=True):
        yield binder.expression(each), direction(raw)
    if node.function in _ORDER_SENSITIVE:
        for name in binder.identity:
            yield column_expression(name, binder.placed(node, "")), "ASC NULLS LAST"


def _any_value_splices(binder: ExpressionBinder, node: Node) -> Iterator[Splice]:
    """Makes any value the smallest one, so that equal rows give equal results."""
    if node.function == "any_value" and not _keeps_any_value(node):
        opening, _ = _parentheses(binder, node)
        yield Splice(node.start, opening, "min")


def _refuse_unordered_distinct(binder: ExpressionBinder, node: Node, opening: int, closing: int) -> None:
    ordered = {binder.signature(each) for each in _orders(node)}
    if node.arguments and binder.signature(node.arguments[0]) in ordered:
        return
    text = binder.environment.text
    distinct = re.compile(r"\s*DISTINCT\b", re.IGNORECASE).match(text.structure, opening + 1)
    inner = text.code[distinct.end() if distinct else opening + 1 : closing].strip()
    problem = f"the result of {node.function}(DISTINCT …) depends on the order of the rows"
    raise binder.error(node, problem, f"Write {node.function}(DISTINCT {inner} ORDER BY …)")
