"""Expressions over the groups of a GROUP BY."""

import re
from collections.abc import Mapping

from slackwater.sql.duckdb_sql import identifier
from slackwater.sql.errors import SqlTextError
from slackwater.sql.frontend.calls import aggregate_call
from slackwater.sql.frontend.expressions import ExpressionBinder
from slackwater.sql.frontend.names import ResolvedColumn
from slackwater.sql.frontend.syntax import Node
from slackwater.sql.frontend.text import Splice
from slackwater.sql.logical import (
    Aggregate,
    AggregateCall,
    Expression,
    Relation,
    Span,
    closure,
    dependencies,
    without_dependents,
)

_GROUP_BY = re.compile(r"\bGROUP\s+BY\b", re.IGNORECASE)


class GroupBinder(ExpressionBinder):
    """Binds expressions over groups of rows.

    Outside of aggregates, expressions may use the columns of GROUP BY and, as in PostgreSQL, columns that
    depend on them: those of a table whose primary key is in GROUP BY.
    """

    def __init__(self, rows: ExpressionBinder, relation: Relation, aliases: Mapping[str, Node]) -> None:
        super().__init__(rows.environment, rows.scope, aliases, rows.outer)
        self._rows = rows
        self._rules = list(dependencies(relation))
        self._groups: list[tuple[str, Expression]] = []
        self._by_signature: dict[str, str] = {}
        self._calls: dict[str, tuple[str, AggregateCall]] = {}
        self._group_by = -1

    @property
    def calls(self) -> tuple[tuple[str, AggregateCall], ...]:
        """The aggregates found so far."""
        return tuple(self._calls.values())

    @property
    def is_global(self) -> bool:
        """Whether there is no GROUP BY."""
        return not self._groups

    @property
    def safe(self) -> frozenset[str]:
        """Groups and counts that are never NULL."""
        below = self._rows.safe
        counts = {name for name, call in self.calls if call.function == "count"}
        return frozenset(counts | {name for name, each in self._groups if each.column in below})

    def group_by(self, node: Node, start: int) -> None:
        """Adds an expression of GROUP BY.

        Args:
            node: The expression.
            start: The offset at which GROUP BY names it, perhaps by an alias or a position.
        """
        with self._rows.reading("GROUP BY"):
            expression = self._rows.expression(node)
        if self._group_by < 0 and start >= 0:
            places = list(_GROUP_BY.finditer(self.environment.text.structure, 0, start))
            self._group_by = places[-1].end() if places else -1
        self._by_signature[self.signature(node)] = self.group_by_expression(expression)

    def group_by_expression(self, expression: Expression) -> str:
        """Adds an expression to group by; returns its id."""
        for name, each in self._groups:
            if each.sql == expression.sql:
                return name
        label = self.context.labels.get(expression.column or "", expression.text)
        name = self.context.new_id(label)
        self._groups.append((name, expression))
        return name

    def settle(self) -> None:
        """Ends GROUP BY: determines which of its columns identify a group."""
        ids = {each.column or name: name for name, each in self._groups}
        reads = {name: each.columns or (name,) for name, each in self._groups if each.column is None}
        self.identity = tuple(ids[each] for each in without_dependents(tuple(ids), self._rules, reads))

    def aggregated(self, relation: Relation, span: Span) -> Relation:
        """Returns the rows of a relation as one row per group."""
        calls = self.calls
        if not (calls or self._groups):
            count = AggregateCall("count(*)", "count", (), False, None, (), span, "")
            calls = ((self.context.new_id(), count),)
        return Aggregate(relation, tuple(self._groups), calls, self.identity, span)

    def replacement(self, node: Node, parameters: frozenset[str]) -> str | None:
        """Returns the group's id for an expression of GROUP BY; otherwise as for rows."""
        if node.kind not in {"COLUMN_REF", "CONSTANT"} and self._by_signature:
            group = self._by_signature.get(self.signature(node))
            if group is not None:
                return identifier(group)
        return super().replacement(node, parameters)

    def value(self, node: Node, found: ResolvedColumn) -> str:
        """Returns SQL for a column that has one value per group."""
        sql = found.sql
        for name, each in self._groups:
            if each.sql == sql:
                return identifier(name)
        alias = node.names[0].lower() if len(node.names) == 1 and self.clause == "HAVING" else ""
        if alias in self._aliases and alias not in self._expanding:
            return self._expanded(alias)
        group = self._dependent(node, found)
        return ResolvedColumn(group, found.name, found.fields, found.source).sql

    def aggregate(self, node: Node) -> str:
        """Returns the id of an aggregate."""
        call = aggregate_call(self._rows, node)
        if call.sql not in self._calls:
            self._calls[call.sql] = (self.context.new_id(), call)
        return identifier(self._calls[call.sql][0])

    def _dependent(self, node: Node, found: ResolvedColumn) -> str:
        for name, each in self._groups:
            if each.column == found.id:
                return name
        grouped = {each.column for _, each in self._groups if each.column is not None}
        if found.id not in closure(grouped, self._rules) or self._group_by < 0:
            raise self._several_values(node, found)
        owner = f"{identifier(found.source.alias)}." if found.source and found.source.alias else ""
        added = f" {owner}{identifier(found.name)},"
        self.environment.splices.append(Splice(self._group_by, self._group_by, added))
        name = self.context.new_id(self.context.labels.get(found.id, found.name))
        column = identifier(found.id)
        span = self.environment.place(node.start, node.end)
        text = self.environment.text.text[node.start : node.end]
        self._groups.append((name, Expression(column, (found.id,), span, text)))
        return name

    def _several_values(self, node: Node, found: ResolvedColumn) -> SqlTextError:
        owner = f"{found.source.alias}." if found.source is not None else ""
        problem = f"{owner}{found.name} can have several values in one group"
        hint = (
            "Use it in an aggregate such as list(…) or max(…). Outside of aggregates, only columns in "
            "GROUP BY, and columns of tables whose primary key is in GROUP BY, can be used"
        )
        return self.error(node, problem, hint)
