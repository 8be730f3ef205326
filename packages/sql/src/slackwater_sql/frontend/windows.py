"""Window functions.

A function that depends on the order of rows that compare equal is made to order them by the rows' identity:
in the window's own ORDER BY where only that order counts (`row_number`, `lag`, ROWS frames), in an ORDER BY
among the arguments where peers are to stay peers (`last_value`, `list`, … over RANGE and GROUPS frames).
"""

from dataclasses import dataclass, field

from slackwater_sql.document import identifier
from slackwater_sql.frontend.aggregates import ORDER_SENSITIVE, order_splices, parentheses
from slackwater_sql.frontend.levels import Level
from slackwater_sql.frontend.syntax import Node
from slackwater_sql.frontend.text import Splice, spliced
from slackwater_sql.logical import Expression, Relation, Window

_NUMBERING = frozenset({"row_number", "ntile", "lag", "lead"})
_RANKING = frozenset({"rank", "dense_rank", "rank_dense", "percent_rank", "cume_dist"})
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


@dataclass
class Windows:
    """The window functions of one SELECT.

    Attributes:
        level: The rows they are computed from.
    """

    level: Level
    _calls: dict[str, tuple[str, tuple[Expression, ...], Expression]] = field(default_factory=dict)

    @property
    def is_used(self) -> bool:
        """There are any."""
        return bool(self._calls)

    def value(self, node: Node) -> str:
        """The id of a window function's value.

        Raises:
            ViewError: It is not supported.
        """
        partition, call = _Call(self.level, node).read()
        if call.sql not in self._calls:
            self._calls[call.sql] = (self.level.build.new_id(), partition, call)
        return identifier(self._calls[call.sql][0])

    def applied(self, relation: Relation) -> Relation:
        """The rows with all the values."""
        by_partition: dict[frozenset[str], list[tuple[str, tuple[Expression, ...], Expression]]] = {}
        for each in self._calls.values():
            by_partition.setdefault(frozenset(part.sql for part in each[1]), []).append(each)
        for calls in by_partition.values():
            _, partition, first = calls[0]
            values = tuple((name, call) for name, _, call in calls)
            relation = Window(relation, partition, values, first.span)
        return relation


class _Call:
    """One window function with its OVER."""

    def __init__(self, level: Level, node: Node) -> None:
        self._level = level
        self._node = node
        self._unit = self._frame_unit()

    def read(self) -> tuple[tuple[Expression, ...], Expression]:
        """What it partitions by, and the whole call."""
        level, node = self._level, self._node
        with level.reading("a window function"):
            partition = tuple(level.expression(each) for each in node.parts.get("partitions", ()))
            if not partition:
                hint = (
                    "Partition by the key whose rows belong together; a window over all rows is not supported"
                )
                raise level.error(node, "the window has no PARTITION BY", hint)
            orders = self._orders()
            self._check_function(orders)
            sql = f"{self._function(orders)} OVER ({self._over(partition, orders)})"
        return partition, level.made(node, sql)

    def _function(self, orders: list[str]) -> str:
        level, node = self._level, self._node
        text = level.environment.text
        over = text.top_level(r"\bOVER\b", node.start, node.end)
        end = over.start() if over else node.end
        splices = [each for each in level.splices(node) if each.end <= end]
        splices += self._argument_order(orders)
        if node.function == "any_value" and not node.parts.get("arg_orders"):
            splices.append(Splice(node.start, parentheses(level, node)[0], "min"))
        return spliced(text.code, node.start, end, splices).rstrip()

    def _argument_order(self, orders: list[str]) -> list[Splice]:
        level, node = self._level, self._node
        if node.function in _PICKING and not node.raw["distinct"]:
            opening, closing = parentheses(level, node)
            text = level.environment.text
            at = text.top_level(r"\b(?:RESPECT|IGNORE)\s+NULLS\b", opening + 1, closing)
            end = at.start() if at else closing
            is_ordered = text.top_level(r"\bORDER\s+BY\b", opening + 1, closing) is not None
            if self._is_peerless and not is_ordered:
                return []
            keys = [*([] if is_ordered else orders), *map(identifier, level.identity)]
            if not keys:
                return []
            return [Splice(end, end, f"{', ' if is_ordered else ' ORDER BY '}{', '.join(keys)} ")]
        return list(order_splices(level, node, level.identity, ", ".join(orders)))

    @property
    def _is_peerless(self) -> bool:
        """Rows are in an order without ties, which the identity makes."""
        return self._node.function in _NUMBERING or self._unit == "ROWS"

    def _over(self, partition: tuple[Expression, ...], orders: list[str]) -> str:
        keys = [*orders, *(map(identifier, self._level.identity) if self._is_peerless else ())]
        parts = [f"PARTITION BY {', '.join(each.sql for each in partition)}"]
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

    def _frame_unit(self) -> str:
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
        level, node = self._level, self._node
        is_known = node.function in _NUMBERING | _RANKING | _PICKING or node.operator == "WINDOW_AGGREGATE"
        if not is_known:
            raise level.error(
                node, f"{node.function} is not supported as a window function", "Use another one"
            )
        excluded = node.raw["exclude_clause"]
        if self._is_peerless and excluded in {"GROUP", "TIES"} and node.function not in _NUMBERING:
            problem = f"EXCLUDE {excluded} of a ROWS frame is not supported"
            raise level.error(node, problem, "Use a RANGE or GROUPS frame")
        if node.raw["distinct"] and node.function in ORDER_SENSITIVE and not orders:
            problem = f"{node.function}(DISTINCT …) has no order"
            raise level.error(node, problem, "Take DISTINCT away, or aggregate in a subquery")
