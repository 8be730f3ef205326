"""FROM: tables, subqueries, other views, computed rows, and joins of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from slackwater.sql.catalog import Table
from slackwater.sql.duckdb_sql import identifier
from slackwater.sql.errors import Mistakes
from slackwater.sql.frontend.context import (
    BoundQuery,
    BoundSelect,
    Environment,
    NamedColumn,
    NamedRelation,
    NameScope,
)
from slackwater.sql.frontend.expressions import OPERATORS, ExpressionBinder, elements_of
from slackwater.sql.frontend.region import Condition, OuterJoin, Pair, Region, distributed, oriented
from slackwater.sql.frontend.row_sets import (
    as_elements,
    computed_for,
    is_computed,
    reads_tables,
    row_columns,
    table_function,
    values,
)
from slackwater.sql.frontend.subqueries import aggregate_items, is_correlated
from slackwater.sql.frontend.syntax import Item, Node, Select, SetOperation, conjuncts
from slackwater.sql.frontend.text import Splice
from slackwater.sql.frontend.time_windows import FORMS, table_of, windowed
from slackwater.sql.frontend.top_n import rank_condition
from slackwater.sql.logical import (
    Expression,
    Extend,
    Filter,
    Join,
    JoinKind,
    OneRow,
    Relation,
    Scan,
    Span,
    Union,
    conjunction,
    never_null,
)

_JOINS = "Supported are JOIN, LEFT, RIGHT, FULL, SEMI, ANTI, CROSS, ASOF and ASOF LEFT JOIN with ON or USING"
_ASOF = (
    "Write ON l.k = r.k AND l.time >= r.time: equalities, and one of >=, >, <= and <, of left and right side"
)
_TURNED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
_SOURCES = "Supported are declared tables, other views, subqueries, VALUES, functions, and joins of them"
_KINDS = {
    "INNER": JoinKind.INNER,
    "LEFT": JoinKind.LEFT,
    "RIGHT": JoinKind.LEFT,
    "OUTER": JoinKind.FULL,
    "FULL": JoinKind.FULL,
    "SEMI": JoinKind.SEMI,
    "ANTI": JoinKind.ANTI,
}

From = tuple[Region, NameScope]


def bind_from(environment: Environment, item: Item, outer: ExpressionBinder | None) -> From:
    """Returns the rows of FROM, and the names for them.

    Raises:
        SqlTextError: A relation that no view may read, or an unknown name.
    """
    if item.is_decorated:
        raise environment.error(item, "only a name and an alias are supported here", _SOURCES)
    if item.kind == "JOIN" and item.alias:
        raise environment.error(
            item, "a join with an alias is not supported", "Give its tables aliases instead"
        )
    if item.kind == "JOIN":
        return _Joiner(environment, item, outer).read()
    if item.kind == "BASE_TABLE":
        relation, source = _read_named(environment, item)
    elif item.kind == "SUBQUERY" and item.query is not None:
        lateral = environment.lateral or (outer.scope if outer is not None else None)
        row = None if reads_tables(item.query) else environment.row
        result = environment.context.bind_query(item.query, replace(environment, lateral=lateral, row=row))
        relation, source = _source(item, result, ())
    elif item.kind == "EXPRESSION_LIST":
        relation, source = values(environment, item)
    elif item.function is not None and item.function.function in FORMS:
        region, scope = bind_from(environment, table_of(environment, item), None)
        relation, source = windowed(environment, item, region.joined(), scope.sources[0])
    elif item.kind == "TABLE_FUNCTION":
        relation, source = table_function(environment, item)
    elif item.kind == "EMPTY":
        relation, source = OneRow(), NamedRelation("", (), (), None)
    else:
        what = item.kind.replace("_", " ").lower()
        raise environment.error(item, f"{what} is not supported", _SOURCES)
    return _region(environment, item, relation, source)


def _region(environment: Environment, item: Item, relation: Relation, source: NamedRelation) -> From:
    span = environment.place(item.start, item.end)
    if is_computed(relation):
        context = environment.context
        of_row = {c.id: context.new_id(c.name) for c in source.columns if c.id not in relation.columns}
        if of_row:
            copied = ((new, Expression(identifier(old), (old,), span)) for old, new in of_row.items())
            relation = Extend(relation, tuple(copied))
            columns = (NamedColumn(each.name, of_row.get(each.id, each.id)) for each in source.columns)
            source = replace(source, columns=tuple(columns))
        relation = as_elements(context, relation, span)
    return Region([relation], span=span), NameScope(environment.text, (source,), source.columns)


def _row_of(environment: Environment, scope: NameScope) -> Callable[[Node], str | None]:
    """Returns what finds the columns of the rows for which something beside them in FROM is computed."""
    binder = ExpressionBinder(environment, scope, {}, None)

    def of_row(node: Node) -> str | None:
        if scope.resolve(node) is not None:
            return binder.column(node)
        return None if environment.row is None else environment.row(node)

    return of_row


@dataclass(frozen=True, slots=True)
class _Joiner:
    """One join."""

    _environment: Environment
    _item: Item
    _outer: ExpressionBinder | None
    _late: list[Node] = field(default_factory=list)

    @property
    def _span(self) -> Span:
        return self._environment.place(self._item.start, self._item.end)

    def read(self) -> From:
        kind = self._kind()
        mistakes, beside, right_item = Mistakes(), self._environment, self._item.sides[1]
        correlation: list[Condition] = []
        with mistakes.part():
            left, left_scope = bind_from(self._environment, self._item.sides[0], self._outer)
            row = _row_of(self._environment, left_scope)
            beside = replace(self._environment, lateral=left_scope, row=row)
        is_known = beside is not self._environment
        with mistakes.part():
            selected = self._selected(kind, beside, left_scope) if is_known else None
            uses_names = any(each.kind != "BASE_TABLE" for each in _leaves(right_item))
            if selected is None and (is_known or not uses_names):
                right, right_scope = bind_from(beside, right_item, self._outer)
            elif selected is None:
                pass  # it may use names of the left side, which are not known
            elif selected.calls is not None and selected.is_correlated:
                left, right, right_scope = self._aggregated(kind, left, left_scope, selected)
            else:
                rows = selected.computed(beside.context)
                query = right_item.query
                if isinstance(query, Select | SetOperation) and query.trailing.orders:
                    beside.context.sorted.update(column.id for column in rows.columns)
                relation, source = _source(right_item, rows, ())
                right, right_scope = _region(beside, right_item, relation, source)
                correlation = list(_conditions(selected))
        mistakes.raise_any()
        self._refuse_equal_names(left_scope, right_scope)
        self._refuse_late(kind, left, right)
        self._refuse_row(kind, right)
        if kind is JoinKind.FULL:
            left, left_scope = self._safe(left, left_scope, right)
        conditions = [
            *correlation,
            *self._on(kind, left_scope.joined(right_scope)),
            *(self._using(left_scope, right_scope, name) for name in self._shared(left_scope, right_scope)),
        ]
        region = self._joined(kind, left, right, conditions)
        if kind.keeps_left_only:
            return region, left_scope
        return self._named(kind, region, left_scope, right_scope)

    def _kind(self) -> JoinKind:
        item = self._item
        if item.join_kind == "ASOF" and item.join_type in {"INNER", "LEFT"}:
            return JoinKind.ASOF if item.join_type == "INNER" else JoinKind.ASOF_LEFT
        if item.join_kind in {"REGULAR", "CROSS", "NATURAL"} and item.join_type in _KINDS:
            return _KINDS[item.join_type]
        words = dict.fromkeys((item.join_kind, item.join_type))
        what = " ".join(word for word in words if word not in {"REGULAR", "NATURAL", "INNER"})
        raise self._environment.error(item, f"{what} JOIN is not supported", _JOINS)

    def _selected(self, kind: JoinKind, beside: Environment, scope: NameScope) -> BoundSelect | None:
        """Returns the right side if it is a query over tables, which may be correlated with the left side."""
        query = self._item.sides[1].query
        may_be_lateral = kind in {JoinKind.INNER, JoinKind.LEFT} and self._item.join_type != "RIGHT"
        if query is None or not may_be_lateral or not reads_tables(query):
            return None
        binder = ExpressionBinder(replace(beside, row=None), scope, {}, self._outer)
        return beside.context.bind_subquery(binder, query, None)

    def _aggregated(
        self, kind: JoinKind, left: Region, scope: NameScope, selected: BoundSelect
    ) -> tuple[Region, Region, NameScope]:
        """Returns the left rows with aggregates over the rows that belong to each, also if there are none."""
        environment, item = self._environment, self._item.sides[1]
        binder = ExpressionBinder(environment, scope, {}, self._outer)
        if kind is JoinKind.LEFT and list(self._written()):
            problem = "a condition on aggregates is not supported here"
            raise environment.error(item, problem, "Write it in WHERE")
        names = [environment.context.new_id(name) for name in selected.names]
        items = aggregate_items(binder, item, selected)
        joined = Join(JoinKind.LEFT, left.joined(), selected.relation, selected.equal, None, self._span)
        columns = tuple(map(NamedColumn, selected.names, names))
        _, source = _source(item, BoundQuery(joined, columns, ()), ())
        extended = Extend(joined, tuple(zip(names, items, strict=True)))
        named = NameScope(environment.text, (source,), source.columns)
        of_left = Region([extended], late=left.late, span=self._span)
        return of_left, Region([OneRow()]), named

    def _refuse_row(self, kind: JoinKind, right: Region) -> None:
        """Refuses a right side that is computed for left rows where SQL has no such join, or reads tables."""
        relation = right.joined()
        is_left = kind is JoinKind.LEFT and self._item.join_type == "LEFT" and is_computed(relation)
        if kind is not JoinKind.INNER and not is_left and row_columns(relation):
            problem = f"{self._item.join_type} JOIN cannot use columns of its left side here"
            hint = "Write CROSS JOIN, or LEFT JOIN … ON true with what is computed from one row alone"
            raise self._environment.error(self._item, problem, hint)

    def _refuse_equal_names(self, left: NameScope, right: NameScope) -> None:
        taken = {each.alias.lower() for each in left.sources}
        for each, item in zip(right.sources, _leaves(self._item.sides[1]), strict=False):
            if each.alias and each.alias.lower() in taken:
                problem = f"two tables in FROM are called {each.alias}"
                raise self._environment.error(item, problem, "Give one of them another alias")

    def _refuse_late(self, kind: JoinKind, left: Region, right: Region) -> None:
        """Refuses conditions of a side whose rows an outer join may leave out."""
        late = {JoinKind.INNER: [], JoinKind.FULL: [*left.late, *right.late]}
        side = left if self._item.join_type == "RIGHT" else right
        for node in late.get(kind, side.late):
            problem = "a subquery in ON of a join within an outer join is not supported"
            raise self._environment.error(node, problem, "Write this side as a subquery in FROM")

    def _on(self, kind: JoinKind, scope: NameScope) -> Iterator[Condition]:
        binder = ExpressionBinder(self._environment, scope, {}, self._outer)
        with binder.reading("ON"):
            for node in self._written():
                if kind is JoinKind.INNER and (is_correlated(binder, node) or _has_subquery(node)):
                    self._late.append(node)
                    continue
                whole = rank_condition(binder, node)
                sides = None
                sign = OPERATORS.get(node.operator, "")
                if sign == "=" or (sign in _TURNED and self._item.join_kind == "ASOF"):
                    left, right = (binder.expression(child) for child in node.children)
                    sides = (left, right)
                yield Condition(whole, sides, sign)

    def _written(self) -> Iterator[Node]:
        for node in conjuncts(self._item.condition):
            if self._environment.text.code[node.start : node.end].upper() != "TRUE":
                yield node

    def _shared(self, left: NameScope, right: NameScope) -> list[str]:
        if self._item.join_kind != "NATURAL":
            return list(self._item.using)
        names = {each.name.lower() for each in right.visible}
        return [each.name for each in left.visible if each.name and each.name.lower() in names]

    def _using(self, left: NameScope, right: NameScope, name: str) -> Condition:
        sides = (self._column(left, name), self._column(right, name))
        sql = f"{sides[0].sql} = {sides[1].sql}"
        columns = sides[0].columns + sides[1].columns
        return Condition(Expression(sql, columns, self._span, f"USING ({name})"), sides)

    def _column(self, scope: NameScope, name: str) -> Expression:
        for each in scope.visible:
            if each.name.lower() == name.lower():
                return Expression(identifier(each.id), (each.id,), self._span, name)
        problem = f"column {name} does not exist on both sides of the join"
        raise self._environment.error(self._item, problem, "Write JOIN … ON a.k = b.k")

    def _joined(self, kind: JoinKind, left: Region, right: Region, conditions: list[Condition]) -> Region:
        if kind is JoinKind.INNER:
            late = [*left.late, *right.late, *self._late]
            if len(right.parts) == 1 and isinstance(outer := right.parts[0], OuterJoin) and outer.is_of_row:
                outer.left = Region(left.parts + outer.left.parts, left.conditions + outer.left.conditions)
                left, right = Region([]), Region([outer])
            region = Region(left.parts + right.parts, left.conditions + right.conditions, late, self._span)
            for each in conditions:
                region.require(each, is_where=False)
            return region
        if kind.has_one_partner:
            return self._closest(kind, left, right.joined(), conditions)
        if self._item.join_type == "RIGHT":
            left, right = right, left
        rows = right.joined()
        known = left.columns, frozenset(rows.columns)
        are_compared = any(oriented(*known, each.sides) is not None for each in conditions)
        if kind is JoinKind.LEFT and is_computed(rows) and (row_columns(rows) or not are_compared):
            on = conjunction([each.whole for each in conditions])
            rows = rows if on is None else Filter(rows, on)
            elements = as_elements(self._environment.context, rows, self._span, keeps_empty=True)
            return Region([computed_for(elements, left.joined())], late=left.late, span=self._span)
        other, equal, residual = distributed(kind, left.columns, rows, conditions)
        part = OuterJoin(kind, left, other, equal, residual, self._span)
        return Region([part], late=left.late, span=self._span)

    def _closest(self, kind: JoinKind, left: Region, right: Relation, conditions: list[Condition]) -> Region:
        """Returns an ASOF join, whose inequality compares the left side with a column of the right side."""
        equal: list[Pair] = []
        unequal: list[tuple[Pair, str]] = []
        for each in conditions:
            pair = oriented(left.columns, frozenset(right.columns), each.sides)
            if pair is None:
                raise self._environment.error(each.whole.span, "ASOF JOIN has another condition", _ASOF)
            if each.sign == "=":
                equal.append(pair)
            else:
                is_turned = each.sides is not None and pair[0] is not each.sides[0]
                unequal.append((pair, _TURNED[each.sign] if is_turned else each.sign))
        if len(unequal) != 1 or self._item.using:
            raise self._environment.error(self._item, "ASOF JOIN needs one inequality", _ASOF)
        (((one, other), sign),) = unequal
        column = other.column or self._environment.context.new_id(other.text)
        right = right if other.column is not None else Extend(right, ((column, other),))
        whole = replace(one, sql=f"({one.sql}) {sign} {identifier(column)}", columns=(*one.columns, column))
        part = OuterJoin(kind, left, right, tuple(equal), whole, self._span)
        return Region([part], late=left.late, span=self._span)

    def _named(self, kind: JoinKind, region: Region, left: NameScope, right: NameScope) -> From:
        shared = list(dict.fromkeys(name.lower() for name in self._shared(left, right)))
        visible = list(left.visible)
        for name in shared:
            at = next(number for number, each in enumerate(visible) if each.name.lower() == name)
            other = self._column(right, name).columns[0]
            if kind is JoinKind.FULL:
                merged = self._environment.context.new_id(name)
                sql = f"coalesce({identifier(visible[at].id)}, {identifier(other)})"
                computed = Expression(sql, (visible[at].id, other), self._span, name)
                region = Region([Extend(region.joined(), ((merged, computed),))], span=self._span)
                visible[at] = NamedColumn(visible[at].name, merged)
            elif self._item.join_type == "RIGHT":
                visible[at] = NamedColumn(visible[at].name, other)
        rest = (each for each in right.visible if each.name.lower() not in shared)
        joined = left.joined(right)
        return region, replace(joined, visible=(*visible, *rest))

    def _safe(self, left: Region, scope: NameScope, right: Region) -> From:
        """Returns the left side such that a result row with an all-NULL identity has no left side."""
        relation, other = left.joined(), right.joined()
        if any(set(side.identity) & never_null(side) for side in (relation, other)):
            return Region([relation], span=self._span), scope
        context = self._environment.context
        ids = {column: context.new_id(context.labels.get(column, "")) for column in relation.columns}
        identity = context.union_identity(len(relation.identity))
        sources = tuple((new, (old,)) for old, new in ids.items())
        union = Union((relation,), sources, identity, self._span)
        return Region([union], span=self._span), _renamed(scope, ids)


def _has_subquery(node: Node) -> bool:
    return any(each.kind == "SUBQUERY" and elements_of(each) is None for each in node.walk())


def _conditions(selected: BoundSelect) -> Iterator[Condition]:
    """Yields what ties the rows of a subquery to those beside it."""
    for left, right in selected.equal:
        sql = f"({left.sql}) = ({right.sql})"
        yield Condition(replace(left, sql=sql, columns=left.columns + right.columns), (left, right))
    yield from (Condition(each, None) for each in selected.residual)


def _leaves(item: Item) -> Iterator[Item]:
    if item.kind != "JOIN":
        yield item
    for side in item.sides:
        yield from _leaves(side)


def _renamed(scope: NameScope, ids: dict[str, str]) -> NameScope:
    def columns(visible: tuple[NamedColumn, ...]) -> tuple[NamedColumn, ...]:
        return tuple(NamedColumn(each.name, ids[each.id]) for each in visible)

    sources = tuple(replace(each, columns=columns(each.columns)) for each in scope.sources)
    return replace(scope, sources=sources, visible=columns(scope.visible))


def _read_named(environment: Environment, item: Item) -> tuple[Relation, NamedRelation]:
    common = environment.commons.get(item.name.lower()) if not item.schema else None
    if common is not None:
        result = environment.context.bind_query(common.definition.query, common.environment)
        return _source(item, result, common.definition.columns)
    tables = environment.context.catalog.find(item.schema, item.name)
    name = f"{item.schema}.{item.name}" if item.schema else item.name
    view = item.name.lower() in environment.context.views and not item.schema
    if view and (not tables or item.name.lower() != environment.name):
        if tables:
            problem = f"{name} is both a table and a view"
            raise environment.error(item, problem, f"Write {tables[0].full_name}, or rename the view")
        return _view(environment, item)
    if len(tables) > 1:
        choices = " or ".join(table.full_name for table in tables)
        raise environment.error(item, f"table {name} is ambiguous", f"Write {choices}")
    if not tables:
        likely = environment.context.catalog.similar_names(item.schema, item.name)
        hint = (
            f"Did you mean {' or '.join(likely)}?" if likely else "Declare it in tables.sql or schema/*.sql"
        )
        raise environment.error(item, f"table {name} is not declared", hint)
    return _scan(environment, item, tables[0])


def _scan(environment: Environment, item: Item, table: Table) -> tuple[Relation, NamedRelation]:
    if not table.primary_key:
        hint = "Declare one: rows are identified by their primary key"
        raise environment.error(item, f"table {table.full_name} has no primary key", hint)
    if table.identity_index:
        problem = (
            f"deletes and updates of {table.full_name} do not contain the primary key of the old row, "
            f"only the columns of {table.identity_index} (REPLICA IDENTITY USING INDEX)"
        )
        hint = (
            f"ALTER TABLE {table.full_name} REPLICA IDENTITY DEFAULT, or FULL; then take a new snapshot, and "
            "declare the table again"
        )
        raise environment.error(item, problem, hint)
    if table.children:
        problem = (
            f"{' and '.join(table.children)} inherit from {table.full_name}: in PostgreSQL, a SELECT also "
            "shows their rows, but their changes are written under their own names"
        )
        raise environment.error(item, problem, "Read only tables without children, or partition the table")
    alias = item.alias or item.name
    supported = [column for column in table.columns if column.type.is_supported]
    if len({column.name.lower() for column in table.columns}) < len(table.columns):
        problem = f"table {table.full_name} has columns whose names differ only in upper and lower case"
        raise environment.error(item, problem, "DuckDB does not distinguish them; rename one")
    ids = {column.name: environment.context.new_id(f"{alias}.{column.name}") for column in supported}
    for name in table.primary_key:
        if name not in ids:
            problem = f"the primary key of {table.full_name} has a type that is not supported"
            hint = "Rows are identified by their primary key; use a supported type for its columns"
            raise environment.error(item, problem, hint)
    if other := environment.context.create_table(table):
        problem = f"tables {other} and {table.full_name} differ only in upper and lower case"
        hint = "DuckDB does not distinguish them; read them in different pipelines, or rename one"
        raise environment.error(item, problem, hint)
    _point_to(environment, item, f"{identifier(table.schema)}.{identifier(table.name)}")
    names = [column.name for column in table.columns]
    if item.columns:
        names[: len(item.columns)] = item.columns
    columns = tuple(
        NamedColumn(name, ids[column.name])
        for name, column in zip(names, table.columns, strict=True)
        if column.name in ids
    )
    full_name = (table.schema.lower(), table.name.lower())
    qualifiers = ((alias.lower(),),) if item.alias else ((alias.lower(),), full_name)
    scan = Scan(table, ids, alias, environment.place(item.start, item.end))
    return scan, NamedRelation(alias, qualifiers, columns, table)


def _point_to(environment: Environment, item: Item, name: str) -> None:
    """Makes DuckDB find the table under its full name."""
    if not item.schema and item.start >= 0:
        end = item.start + len(item.name)
        written = environment.text.code[item.start : end]
        if written.startswith('"'):
            end += 2
        environment.splices.append(Splice(item.start, end, name))


def _view(environment: Environment, item: Item) -> tuple[Relation, NamedRelation]:
    name = item.name.lower()
    if name in environment.reading:
        problem = f"view {item.name} reads itself"
        through = environment.reading[environment.reading.index(name) :]
        if len(through) > 1:
            problem += f" through {', '.join(through[1:])}"
        raise environment.error(item, problem, "Views cannot depend on each other in a cycle")
    span = environment.place(item.start, item.end)
    result = environment.context.bind_other_view(name, environment, span)
    _point_to(environment, item, f"__slackwater_views.{identifier(name)}")
    return _source(item, result, ())


def _source(item: Item, result: BoundQuery, names: tuple[str, ...]) -> tuple[Relation, NamedRelation]:
    alias = item.alias or item.name
    given = [each.name for each in result.columns]
    for replacement in (names, item.columns):
        given[: len(replacement)] = replacement
    columns = tuple(
        NamedColumn(name, each.id) for name, each in zip(_disambiguated(given), result.columns, strict=True)
    )
    return result.relation, NamedRelation(alias, ((alias.lower(),),), columns, None)


def _disambiguated(names: list[str]) -> Iterator[str]:
    """Renames columns of a subquery that have the same name as DuckDB does: ``id``, ``id_1`` and so on."""
    seen: dict[str, int] = {}
    for name in names:
        lower = name.lower()
        if name and lower in seen:
            seen[lower] += 1
            name = f"{name}_{seen[lower] - 1}"
        seen.setdefault(name.lower(), 1)
        yield name
