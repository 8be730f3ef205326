"""Aggregates whose result depends on the order of rows get one."""

import re
from collections.abc import Iterator

from slackwater_sql.document import identifier
from slackwater_sql.resolution import Scope
from slackwater_sql.statement import Splice
from slackwater_sql.syntax import Expression, Select

ORDER_SENSITIVE = frozenset(
    {
        "list", "array_agg", "string_agg", "group_concat", "listagg", "first", "last", "any_value",
        "arbitrary", "arg_min", "arg_max", "argmin", "argmax", "min_by", "max_by", "arg_min_null",
        "arg_max_null", "mode",
    }
)  # fmt: skip
_CALL = re.compile(r'"?\w+"?\s*(?=\()')
_SKIPPED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_DISTINCT = re.compile(r"\s*DISTINCT\b", re.IGNORECASE)


def order_splices(scope: Scope, select: Select, dependents: frozenset[int]) -> Iterator[Splice]:
    """An ORDER BY for each aggregate that needs one and has none: the primary keys, or the value if DISTINCT.

    Args:
        scope: The view's names.
        select: The view.
        dependents: Inputs with at most one row per key, which need no order.
    """
    order = ", ".join(
        f"{identifier(each.alias)}.{identifier(name)}"
        for number, each in enumerate(scope.inputs)
        if number not in dependents
        for name in each.table.primary_key
    )
    clauses = [*select.items, *([select.having] if select.having is not None else [])]
    for node in (node for clause in clauses for node in clause.walk()):
        if node.kind == "FUNCTION" and node.function in ORDER_SENSITIVE and not node.is_ordered:
            yield from _order_splice(scope, node, order)


def _order_splice(scope: Scope, node: Expression, order: str) -> Iterator[Splice]:
    text = scope.source.text
    call = _CALL.match(text, node.start, node.end)
    if call is None:
        problem = f"{node.function} stands behind its argument"
        raise scope.error(node, problem, f"Write it as {node.function}(…)")
    opening = call.end()
    closing = _closing(text, opening)
    if node.is_distinct:
        distinct = _DISTINCT.match(text, opening + 1)
        inner = text[distinct.end() if distinct else opening + 1 : closing]
        problem = f"{node.function}(DISTINCT …) has no order"
        raise scope.error(node, problem, f"Write {node.function}(DISTINCT {inner.strip()} ORDER BY …)")
    if order:
        yield Splice(closing, closing, f" ORDER BY {order}")


def _closing(text: str, opening: int) -> int:
    """Offset of the parenthesis that closes the one at `opening`."""
    depth, position = 0, opening
    while position < len(text):
        if skipped := _SKIPPED.match(text, position):
            position = skipped.end()
            continue
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position
        position += 1
    return position
