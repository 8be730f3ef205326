"""Conditions of a subquery that use columns of the query around it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from slackwater_sql.frontend.levels import Level, RowLevel
from slackwater_sql.frontend.syntax import Node
from slackwater_sql.logical import Expression


@dataclass
class Correlation:
    """How rows of a subquery belong to rows of the query around it.

    Attributes:
        equal: Comparisons of an expression over the query around with one over the subquery's rows.
        residual: Other conditions over both.
    """

    equal: list[tuple[Expression, Expression]] = field(default_factory=list)
    residual: list[Expression] = field(default_factory=list)

    def take(self, rows: RowLevel, node: Node) -> None:
        """One more condition.

        Raises:
            ViewError: It holds what is not supported in such a condition.
        """
        outer = rows.outer
        assert outer is not None  # noqa: S101 - else it would not be correlated
        if node.operator == "COMPARE_EQUAL":
            for one, other in (node.children, node.children[::-1]):
                if _is_all_outer(rows, one) and not is_correlated(rows, other) and _names(other):
                    with outer.reading("the WHERE of a subquery"), rows.reading("WHERE"):
                        self.equal.append((outer.expression(one), rows.expression(other)))
                    return
        self.residual.append(_BothLevel(rows, outer).expression(node))


def is_correlated(rows: Level, node: Node) -> bool:
    """The expression uses columns of the query around."""
    return any(_is_outer(rows, name) for name in _names(node))


class _BothLevel(Level):
    """A subquery's rows beside those of the query around."""

    def __init__(self, rows: RowLevel, outer: Level) -> None:
        super().__init__(rows.environment, rows.scope, {}, None)
        self._rows = rows
        self._around = outer
        self.clause = "a condition on the outer query"

    def column(self, node: Node) -> str:
        """SQL for a name of either."""
        return self._around.column(node) if _is_outer(self._rows, node) else self._rows.column(node)


def _is_all_outer(rows: Level, node: Node) -> bool:
    names = list(_names(node))
    return bool(names) and all(_is_outer(rows, name) for name in names)


def _is_outer(rows: Level, node: Node) -> bool:
    return rows.outer is not None and not rows.knows(node) and rows.outer.knows(node)


def _names(node: Node, parameters: frozenset[str] = frozenset()) -> Iterator[Node]:
    """Names of columns in the expression."""
    if node.kind == "COLUMN_REF" and node.names[0].lower() not in parameters:
        yield node
    if node.kind == "LAMBDA":
        parameters |= {name.lower() for name in node.names}
    for child in node.children:
        yield from _names(child, parameters)
