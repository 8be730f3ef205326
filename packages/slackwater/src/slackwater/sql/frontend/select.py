"""One SELECT, and expressions over the groups of its GROUP BY."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Final

from slackwater.sql.duckdb_sql import identifier
from slackwater.sql.errors import Mistakes, SqlTextError
from slackwater.sql.frontend.calls import Windows, aggregate_call
from slackwater.sql.frontend.clock_conditions import clock_condition, is_on_clock
from slackwater.sql.frontend.context import (
    BoundSelect,
    Environment,
    OuterRows,
    ResolvedColumn,
)
from slackwater.sql.frontend.expressions import ExpressionBinder, Replacement, is_aggregate
from slackwater.sql.frontend.from_clause import bind_from
from slackwater.sql.frontend.grouping import GroupingSets
from slackwater.sql.frontend.region import Condition, Region
from slackwater.sql.frontend.row_sets import Unnests
from slackwater.sql.frontend.select_list import ListedColumn, select_list
from slackwater.sql.frontend.subqueries import Correlation, Subqueries, is_correlated
from slackwater.sql.frontend.syntax import Node, Query, Select, conjuncts
from slackwater.sql.frontend.text import Splice
from slackwater.sql.frontend.top_n import first_rows, limits, meant, rank_condition, sort_keys
from slackwater.sql.logical import (
    Aggregate,
    AggregateCall,
    Expression,
    Filter,
    Relation,
    SortKey,
    Span,
    closure,
    column_expression,
    dependencies,
    without_dependents,
)
from slackwater.sql.plan import Ranks

_GROUP_BY = re.compile(r"\bGROUP\s+BY\b", re.IGNORECASE)
MAX_QUERIES: Final = 300
"""SELECTs in a view, including those of other views and of WITH, counted each time they are read."""


class GroupBinder(ExpressionBinder):
    """Binds expressions over groups of rows.

    Outside of aggregates, expressions may use the columns of GROUP BY and, as in PostgreSQL, columns that
    depend on them: those of a table whose primary key is in GROUP BY.
    """

    def __init__(self, rows: ExpressionBinder, relation: Relation, aliases: Mapping[str, Node]) -> None:
        super().__init__(rows.environment, rows.scope, aliases, rows.outer)
        self.around = rows.around
        self.outer_groups: dict[str, str] = {}
        self._rows = rows
        self._rules = list(dependencies(relation))
        self._groups: list[tuple[str, Expression]] = []
        self._by_signature: dict[str, str] = {}
        self._calls: dict[str, tuple[str, AggregateCall]] = {}
        self._group_by = -1
        self._sets: GroupingSets | None = None
        self.unnest_rows: Replacement | None = None
        """As `unnest`, for the rows that are grouped."""

    @property
    def calls(self) -> tuple[tuple[str, AggregateCall], ...]:
        """The aggregates found so far."""
        return tuple(self._calls.values())

    @property
    def is_global(self) -> bool:
        """Whether there is no GROUP BY."""
        return not self._groups and self._sets is None

    @property
    def safe(self) -> frozenset[str]:
        """Groups and counts that are never NULL."""
        below = self._rows.safe
        counts = {name for name, call in self.calls if call.function == "count"}
        groups = {name for name, each in self._groups if each.column in below}
        return frozenset(counts | (groups if self._sets is None else groups & self._sets.everywhere))

    def group_by(self, node: Node, start: int) -> str:
        """Adds an expression of GROUP BY; returns its id.

        GROUP BY names it at the offset `start`, perhaps by an alias or a position.
        """
        with self._rows.reading("GROUP BY", unnest=self.unnest_rows):
            expression = self._rows.expression(node)
        if self._group_by < 0 and start >= 0:
            places = list(_GROUP_BY.finditer(self.environment.text.structure, 0, start))
            self._group_by = places[-1].end() if places else -1
        name = self._by_signature[self.signature(node)] = self.group_by_expression(expression)
        return name

    def group_by_expression(self, expression: Expression) -> str:
        """Adds an expression to group by; returns its id."""
        for name, each in self._groups:
            if each.sql == expression.sql:
                return name
        label = self.context.labels.get(expression.column or "", expression.text)
        name = self.context.new_id(label)
        self._groups.append((name, expression))
        return name

    def settle(self, sets: tuple[tuple[str, ...], ...] = ()) -> None:
        """Ends GROUP BY: determines which of its columns identify a group; grouping sets are of their ids."""
        if not sets:
            self.identity = self._key(self._groups)
            return
        keys = tuple(self._key([each for each in self._groups if each[0] in ids]) for ids in sets)
        self.identity = self.context.union_identity(max(map(len, keys)))
        self._sets = GroupingSets(self.context, sets, keys, self.identity)

    def _key(self, groups: list[tuple[str, Expression]]) -> tuple[str, ...]:
        ids = {each.column or name: name for name, each in groups}
        reads = {name: each.columns or (name,) for name, each in groups if each.column is None}
        return tuple(ids[each] for each in without_dependents(tuple(ids), self._rules, reads))

    def aggregated(self, relation: Relation, span: Span) -> Relation:
        """Returns the rows of a relation as one row per group."""
        calls = self.calls
        if self._sets is not None:
            return self._sets.aggregated(relation, self._groups, calls, span)
        if not (calls or self._groups):
            count = AggregateCall("count(*)", "count", (), False, None, (), span, "")
            calls = ((self.context.new_id(), count),)
        return Aggregate(relation, tuple(self._groups), calls, self.identity, span)

    def replacement(self, node: Node, parameters: frozenset[str]) -> str | None:
        """Returns the group's id for an expression of GROUP BY; otherwise as for rows."""
        if node.kind not in {"COLUMN_REF", "CONSTANT"} and self._by_signature:
            group = self._by_signature.get(self.signature(node))
            if group is not None:
                self._read_subqueries(node)
                return identifier(group)
        if node.operator == "GROUPING_FUNCTION" and node.children:
            columns = tuple(self._grouped(each) for each in node.children)
            return "CAST(0 AS BIGINT)" if self._sets is None else identifier(self._sets.grouping(columns))
        return super().replacement(node, parameters)

    def _read_subqueries(self, node: Node) -> None:
        """Lets DuckDB find the tables of subqueries in an expression that a group stands for."""
        if any(each.kind == "SUBQUERY" for each in node.walk()):
            with self._rows.reading("GROUP BY"):
                self._rows.sql(node)

    def _grouped(self, node: Node) -> str:
        """Returns the id of an argument of GROUPING."""
        with self._rows.reading("GROUPING"):
            sql = self._rows.sql(node)
        for name, each in self._groups:
            if sql in {each.sql, f"({each.sql})"}:
                return name
        raise self.error(node, "GROUPING is of expressions in GROUP BY only", "Add it to GROUP BY")

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
        around = set(self.around.ids.values()) if self.around is not None else set()
        if call.columns and around.issuperset(call.columns):
            problem = "an aggregate of the outer query's columns alone is not supported in a subquery"
            raise self.error(node, problem, "Compute it in a subquery in FROM")
        if call.sql not in self._calls:
            self._calls[call.sql] = (self.context.new_id(), call)
        return identifier(self._calls[call.sql][0])

    def outer_column(self, node: Node, around: OuterRows) -> str:
        """Returns SQL for a column of the outer query; groups are of one of its rows each."""
        assert self.outer is not None  # noqa: S101 - it has a column
        sql = super().outer_column(node, around)
        columns = {copy: column for column, copy in around.ids.items()}
        for copy in self.context.columns_of(sql):
            found = next((name for name, each in self._groups if each.column == copy), "")
            if not found:
                found = self.context.new_id(self.context.labels.get(copy, ""))
                self._groups.append((found, self._rows.placed(node, identifier(copy))))
            self.outer_groups[found] = columns[copy]
            sql = sql.replace(identifier(copy), identifier(found))
        return sql

    def _dependent(self, node: Node, found: ResolvedColumn) -> str:
        for name, each in self._groups:
            if each.column == found.id:
                return name
        grouped = {each.column for _, each in self._groups if each.column is not None}
        if found.id not in closure(grouped, self._rules) or self._group_by < 0 or self._sets:
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


def bind_select(
    environment: Environment,
    select: Select,
    outer: ExpressionBinder | None,
    around: OuterRows | None = None,
) -> BoundSelect:
    """Returns the tree of a SELECT, which may be a subquery of an expression of an outer query.

    Given rows of the outer query, the subquery joins them; otherwise only its conditions may use them.

    Raises:
        SqlTextError: It uses something that is not supported.
    """
    environment.refuse_clauses(select)
    environment.context.queries += 1
    if environment.context.queries > MAX_QUERIES:
        problem = f"the view reads more than {MAX_QUERIES:,} queries"
        hint = "A view, or a query in WITH, counts each time that it is read: read it only once"
        raise environment.text.error(select.start, select.start, problem, hint)
    environment = environment.with_commons(select.with_)
    region, scope = bind_from(environment, select.source, outer)
    if around is not None:
        region = replace(region, parts=[around.relation, *region.parts])
    rows = ExpressionBinder(environment, scope, _aliases(select), outer)
    rows.around = around
    return _Reader(environment, select, region, rows).read()


def _aliases(select: Select) -> dict[str, Node]:
    return {item.alias.lower(): item for item in reversed(select.items) if item.alias}


class _Reader:
    def __init__(
        self,
        environment: Environment,
        select: Select,
        region: Region,
        rows: ExpressionBinder,
    ) -> None:
        self._environment = environment
        self._select = select
        self._region = region
        self._outputs = select_list(environment, rows.scope, select.items)
        self._subqueries = Subqueries(bind_subquery)
        self._rows = rows
        rows.subquery = lambda node: self._subqueries.value(rows, node)
        self._aliases = _aliases(select)
        self._correlation = Correlation(list(rows.around.equal) if rows.around is not None else [])
        self._ranks = limits(environment, select.trailing)
        self._order: tuple[SortKey, ...] = ()
        self._on: tuple[Expression, ...] = ()
        self._mistakes = Mistakes()

    def read(self) -> BoundSelect:
        self._where()
        base = self._region.joined()
        self._rows.identity = base.identity
        selected = self._grouped(base) if self._is_aggregated() else self._ungrouped(base)
        if self._on:
            selected = self._first(selected, self._on, Ranks("row_number", 1, 1))
        if self._select.is_distinct:
            items = selected.items
            selected = self._distinct(selected)
            self._order = tuple((self._selected(e, items, selected.items), d) for e, d in self._order)
        return selected if self._ranks is None else self._first(selected, (), self._ranks)

    def _where(self) -> None:
        rows = self._rows
        rows.relation = self._region.joined
        for node in (*self._region.late, *conjuncts(self._select.where)):
            with self._mistakes.part(), rows.reading("WHERE"):
                if is_on_clock(rows, node):
                    rows.attach(clock_condition(rows, node))
                    continue
                if is_correlated(rows, node):
                    self._correlation.take(rows, node)
                    continue
                self._subqueries.accept(node)
                if not self._subqueries.condition(rows, node):
                    self._require(node)

    def _require(self, node: Node) -> None:
        rows = self._rows
        whole = rank_condition(rows, node)
        if node.operator == "COMPARE_EQUAL" and set(whole.columns) <= self._region.columns:
            left, right = (rows.expression(child) for child in node.children)
            if self._region.require(Condition(whole, (left, right)), is_where=True):
                return
        rows.attach(partial(Filter, condition=whole))

    def _is_aggregated(self) -> bool:
        select = self._select
        roots = [*select.items, *(each for each in (select.having, select.qualify) if each is not None)]
        roots += [node for node, _ in select.trailing.orders]
        return (
            bool(select.group_sets)
            or select.groups_all
            or select.having is not None
            or any(is_aggregate(node) for root in roots for node in root.walk())
        )

    def _ungrouped(self, base: Relation) -> BoundSelect:
        rows = self._rows
        rows.partition = rows.around.identity if rows.around is not None else ()
        windows, unnests = Windows(rows), Unnests(rows)
        items, qualify = self._columns(rows, windows, unnests)
        is_tied = bool(self._correlation.equal or self._correlation.residual)
        if is_tied and windows.is_used and rows.around is None:
            raise self._refused_correlation()
        return BoundSelect(
            unnests.applied(reduce(Filter, qualify, windows.applied(rows.applied(base)))),
            tuple(each.name for each in self._outputs),
            items,
            tuple(self._correlation.equal),
            tuple(self._correlation.residual),
        )

    def _grouped(self, base: Relation) -> BoundSelect:
        groups = GroupBinder(self._rows, base, self._aliases)
        groups.subquery = lambda node: self._subqueries.value(groups, node)
        groups.relation = lambda: groups.aggregated(self._rows.applied(base), self._span())
        grouped = Unnests(self._rows)
        groups.unnest_rows = grouped.value
        sets = self._group_by(groups)
        if grouped.ordinal:
            self._rows.attach(grouped.applied)
            self._rows.identity = (*base.identity, grouped.ordinal)
        is_global = groups.is_global and not sets
        equal = self._correlated_groups(groups)
        if equal and sets:
            raise self._refused_correlation()
        groups.settle(sets)
        for node in conjuncts(self._select.having):
            with self._mistakes.part(), groups.reading("HAVING"):
                self._subqueries.accept(node)
                if not self._subqueries.condition(groups, node):
                    groups.attach(partial(Filter, condition=groups.expression(node)))
        groups.partition = tuple(right for _, right in equal)
        windows, unnests = Windows(groups), Unnests(groups)
        items, qualify = self._columns(groups, windows, unnests)
        if equal and windows.is_used and groups.around is None:
            raise self._refused_correlation()
        aggregate = groups.aggregated(self._rows.applied(base), self._span())
        relation = unnests.applied(reduce(Filter, qualify, windows.applied(groups.applied(aggregate))))
        names = tuple(each.name for each in self._outputs)
        calls = groups.calls if is_global else None
        outer = tuple(groups.outer_groups.items())
        return BoundSelect(relation, names, items, equal, (), calls, relation is aggregate, outer)

    def _columns(
        self, binder: ExpressionBinder, windows: Windows, unnests: Unnests
    ) -> tuple[tuple[Expression, ...], list[Expression]]:
        """Returns the columns of the select list and the conditions of QUALIFY; reads the order."""
        found, qualify = [], []
        for each in self._outputs:
            with self._mistakes.part(), binder.reading("SELECT", windows.value, unnests.value):
                found.append(_column_sql(binder, each))
        with self._mistakes.part(), binder.reading("QUALIFY", windows.value):
            qualify = [rank_condition(binder, node) for node in conjuncts(self._select.qualify)]
            if self._select.qualify is not None and not any(each.bounds for each in qualify):
                qualify = [binder.expression(self._select.qualify)]
        self._mistakes.raise_any()
        items = tuple(found)
        self._read_order(binder, windows, items)
        return items, qualify

    def _read_order(self, binder: ExpressionBinder, windows: Windows, items: tuple[Expression, ...]) -> None:
        select = self._select
        if self._ranks is None and not select.distinct_on:
            return
        outputs = tuple(zip((each.name for each in self._outputs), items, strict=True))
        with binder.reading("ORDER BY", windows.value):
            self._order = sort_keys(binder, select.trailing.orders, outputs)
        with binder.reading("DISTINCT ON", windows.value):
            self._on = tuple(each for node in select.distinct_on for each in meant(binder, node, outputs))
        if not self._order:
            problem = f"{'DISTINCT ON' if self._on else 'LIMIT'} has no ORDER BY"
            self._rows.refuse_lost_order(select.items[0], problem, "Write ORDER BY in the same SELECT")

    def _first(self, selected: BoundSelect, on: tuple[Expression, ...], ranks: Ranks) -> BoundSelect:
        """Takes the first rows; in a correlated subquery, for each row of the outer query."""
        if selected.calls is not None and ranks.first == 1 <= ranks.last:
            return selected  # there is one row at most
        if selected.residual:
            raise self._refused_correlation()
        context, partition = self._environment.context, (*on, *(right for _, right in selected.equal))
        order, span = self._order, self._span()
        relation, columns = first_rows(context, selected.relation, partition, order, ranks, span)
        equal = tuple((left, columns.get(right.sql, right)) for left, right in selected.equal)
        items = tuple(columns.get(each.sql, each) for each in selected.items)
        return replace(selected, relation=relation, items=items, equal=equal, is_bare=False)

    def _group_by(self, groups: GroupBinder) -> tuple[tuple[str, ...], ...]:
        """Reads GROUP BY; returns the sets of ids, if there are several."""
        ids = []
        for node in self._select.groups:
            with self._mistakes.part():
                ids.append(self._group(groups, node))
        self._mistakes.raise_any()  # what groups are not known cannot be selected
        if self._select.groups_all:
            for output in self._outputs:
                if not any(is_aggregate(each) or each.kind == "WINDOW" for each in output.node.walk()):
                    self._group_output(groups, output, -1)
        sets = tuple(tuple(dict.fromkeys(ids[each] for each in places)) for places in self._select.group_sets)
        return sets if len(sets) > 1 else ()

    def _group(self, groups: GroupBinder, node: Node) -> str:
        if node.kind == "CONSTANT" and node.raw["literal"].get("kind") == "INTEGER":
            position = int(node.raw["literal"]["text"])
            if not 1 <= position <= len(self._outputs):
                problem = f"there is no column {position} in the select list"
                raise groups.error(node, problem, "Name the column")
            return self._group_output(groups, self._outputs[position - 1], node.start)
        name = node.names[0].lower() if len(node.names) == 1 else ""
        named = {each.name.lower(): each.node for each in self._outputs if each.column is None}
        if (column := self._aliases.get(name) or named.get(name)) and not groups.scope.resolve_parts(
            node.names
        ):
            return groups.group_by(column, node.start)
        return groups.group_by(node, node.start)

    def _group_output(self, groups: GroupBinder, output: ListedColumn, start: int) -> str:
        if output.column is None:
            return groups.group_by(output.node, start)
        return groups.group_by_expression(_column_sql(self._rows, output))

    def _correlated_groups(self, groups: GroupBinder) -> tuple[tuple[Expression, Expression], ...]:
        """Groups by what the outer query compares, too."""
        if self._correlation.residual:
            raise self._refused_correlation()
        return tuple(
            (left, column_expression(name, right))
            for left, right in self._correlation.equal
            for name in (groups.group_by_expression(right),)
        )

    def _distinct(self, selected: BoundSelect) -> BoundSelect:
        context = self._environment.context
        result = selected.computed(context)
        relation, chosen = result.relation, [each.id for each in result.columns]
        rules = list(dependencies(relation))
        columns = tuple(map(column_expression, chosen, selected.items))
        if set(relation.identity) <= closure(chosen, rules):
            return replace(selected, relation=relation, items=columns, is_bare=False)
        if selected.residual:
            raise self._refused_correlation()
        ids = {column: context.new_id(context.labels.get(column, "")) for column in dict.fromkeys(chosen)}
        groups = {ids[column]: each for column, each in zip(chosen, columns, strict=True)}
        extra = [(context.new_id(), right) for _, right in selected.equal]
        kept = without_dependents(tuple(ids), rules)
        identity = (*(ids[column] for column in kept), *(name for name, _ in extra))
        aggregate = Aggregate(relation, (*groups.items(), *extra), (), identity, self._span())
        items = tuple(map(column_expression, (ids[column] for column in chosen), selected.items))
        equal = tuple(
            (left, column_expression(name, right))
            for (left, right), (name, _) in zip(selected.equal, extra, strict=True)
        )
        return BoundSelect(aggregate, selected.names, items, equal, (), selected.calls, is_bare=False)

    def _selected(
        self, value: Expression, before: Sequence[Expression], after: Sequence[Expression]
    ) -> Expression:
        """Returns a part of the order of the rows that DISTINCT makes of others."""
        for one, other in zip(before, after, strict=True):
            if one.sql == value.sql:
                return other
        problem = "ORDER BY of SELECT DISTINCT can use only columns of the select list"
        raise self._environment.error(value.span, problem, "Select what it orders by")

    def _span(self) -> Span:
        item = self._select.items[0]
        last = self._select.items[-1]
        return self._environment.place(item.start, max(item.end, last.end))

    def _refused_correlation(self) -> Exception:
        conditions = [*self._correlation.residual, *(right for _, right in self._correlation.equal)]
        problem = "this subquery may be correlated with the outer query only by equality"
        if not self._correlation.residual:
            what = "window functions or grouping sets"
            problem = f"a subquery with {what} cannot be correlated with the outer query"
        hint = "Aggregate with GROUP BY in a subquery in FROM, and join it"
        return self._environment.error(conditions[0].span, problem, hint)


def bind_subquery(binder: ExpressionBinder, query: Query, around: OuterRows | None) -> BoundSelect:
    """Returns the tree of a query that may be correlated with the rows that a binder knows."""
    if isinstance(query, Select):
        return bind_select(binder.environment, query, binder, around)
    result = binder.context.bind_query(query, binder.environment)
    items = tuple(
        Expression(identifier(each.id), (each.id,), span, each.name)
        for each, span in zip(result.columns, result.spans, strict=True)
    )
    return BoundSelect(result.relation, tuple(each.name for each in result.columns), items)


def _column_sql(binder: ExpressionBinder, output: ListedColumn) -> Expression:
    """Returns the column over ids."""
    if output.column is None:
        return binder.expression(output.node)
    column = output.column
    source = next((each for each in binder.scope.sources if column in each.columns), None)
    return binder.placed(
        output.node, binder.value(output.node, ResolvedColumn(column.id, column.name, (), source))
    )
