"""FROM: tables, subqueries, other views, and joins of them, with equalities where they belong.

Adjacent inner joins form a *region*: their order is free, and conditions that compare two of its parts may
come from ON or from WHERE. A region is joined part by part in the order of FROM. A part that no equality
connects with the parts before it waits until one does.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from slackwater.sql.catalog import Table
from slackwater.sql.duckdb_sql import identifier
from slackwater.sql.errors import Mistakes
from slackwater.sql.frontend.context import (
    BoundQuery,
    Environment,
    NamedColumn,
    NamedRelation,
    NameScope,
)
from slackwater.sql.frontend.expressions import ExpressionBinder, elements_of
from slackwater.sql.frontend.subqueries import is_correlated
from slackwater.sql.frontend.syntax import Item, Node, conjuncts
from slackwater.sql.frontend.text import Splice
from slackwater.sql.frontend.top_n import rank_condition
from slackwater.sql.logical import (
    Expression,
    Extend,
    Filter,
    Join,
    JoinKind,
    Relation,
    Scan,
    Span,
    Union,
    conjunction,
    never_null,
)

_JOINS = "Supported are JOIN, LEFT, RIGHT, FULL, SEMI, ANTI and CROSS JOIN with ON or USING"
_SOURCES = "Supported are declared tables, other views, subqueries and joins of them"
_KINDS = {
    "INNER": JoinKind.INNER,
    "LEFT": JoinKind.LEFT,
    "RIGHT": JoinKind.LEFT,
    "OUTER": JoinKind.FULL,
    "FULL": JoinKind.FULL,
    "SEMI": JoinKind.SEMI,
    "ANTI": JoinKind.ANTI,
}

Pair = tuple[Expression, Expression]


@dataclass
class Condition:
    """A condition that must hold.

    Attributes:
        whole: The condition.
        sides: Left and right side of ``=``, if it is an equality.
    """

    whole: Expression
    sides: Pair | None


@dataclass
class _OuterJoin:
    """An outer join. Conditions can still be added to its left side."""

    kind: JoinKind
    left: "Region"
    right: Relation
    equal: tuple[Pair, ...]
    residual: Expression | None
    span: Span

    @property
    def columns(self) -> frozenset[str]:
        """Ids of the result."""
        own = self.left.columns
        return own if self.kind.keeps_left_only else own | set(self.right.columns)

    def joined(self) -> Relation:
        """Builds the tree."""
        return Join(self.kind, self.left.joined(), self.right, self.equal, self.residual, self.span)


@dataclass
class Region:
    """Relations that are inner joined.

    Attributes:
        parts: In the order of FROM.
        conditions: Conditions over several parts.
        late: Conditions of ON that use subqueries or the outer query, which hold as if they were in WHERE.
    """

    parts: list[Relation | _OuterJoin]
    conditions: list[Condition] = field(default_factory=list)
    late: list[Node] = field(default_factory=list)
    span: Span = field(default_factory=lambda: Span(0, 0))

    @property
    def columns(self) -> frozenset[str]:
        """Ids of all parts."""
        return frozenset(column for part in self.parts for column in part.columns)

    def require(self, condition: Condition, *, is_where: bool) -> bool:
        """Adds a condition, if it belongs here; returns whether it does.

        Of those from WHERE, only comparisons of two parts are accepted.
        """
        needed = set(condition.whole.columns)
        holders = [number for number, part in enumerate(self.parts) if needed & set(part.columns)]
        if len(holders) == 1:
            return self._require_of(holders[0], condition, is_where=is_where)
        is_pair = condition.sides is not None and all(side.columns for side in condition.sides)
        if is_where and not is_pair:
            return False
        self.conditions.append(condition)
        return True

    def joined(self) -> Relation:
        """Builds the tree."""
        relations = [part.joined() if isinstance(part, _OuterJoin) else part for part in self.parts]
        waiting = list(self.conditions)
        result, rest = relations[0], relations[1:]
        result = _filtered(result, waiting, self.span)
        while rest:
            following = next((each for each in rest if _are_compared(result, each, waiting)), rest[0])
            rest.remove(following)
            result = self._with(result, following, waiting)
        return result

    def _with(self, left: Relation, right: Relation, waiting: list[Condition]) -> Relation:
        known = set(left.columns) | set(right.columns)
        used = [each for each in waiting if set(each.whole.columns) <= known]
        waiting[:] = [each for each in waiting if each not in used]
        right, equal, residual = _distributed(JoinKind.INNER, frozenset(left.columns), right, used)
        return Join(JoinKind.INNER, left, right, equal, residual, self.span)

    def _require_of(self, number: int, condition: Condition, *, is_where: bool) -> bool:
        part = self.parts[number]
        if isinstance(part, _OuterJoin):
            of_left = set(condition.whole.columns) <= part.left.columns
            if of_left and part.kind is not JoinKind.FULL and part.left.require(condition, is_where=is_where):
                return True
            if is_where:
                return False
            self.parts[number] = part = part.joined()
        if is_where:
            return False
        self.parts[number] = Filter(part, condition.whole)
        return True


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
        result = environment.context.bind_query(item.query, replace(environment, lateral=lateral))
        relation, source = _source(item, result, ())
    else:
        what = {"EXPRESSION_LIST": "VALUES"}.get(item.kind, item.kind.replace("_", " ").lower())
        raise environment.error(item, f"{what} is not supported", _SOURCES)
    scope = NameScope(environment.text, (source,), source.columns)
    return Region([relation], span=environment.place(item.start, item.end)), scope


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
        mistakes, beside = Mistakes(), self._environment
        with mistakes.part():
            left, left_scope = bind_from(self._environment, self._item.sides[0], self._outer)
            beside = replace(self._environment, lateral=left_scope)
        with mistakes.part():
            right, right_scope = bind_from(beside, self._item.sides[1], self._outer)
        mistakes.raise_any()
        self._refuse_equal_names(left_scope, right_scope)
        self._refuse_late(kind, left, right)
        if kind is JoinKind.FULL:
            left, left_scope = self._safe(left, left_scope, right)
        conditions = [
            *self._on(kind, left_scope.joined(right_scope)),
            *(self._using(left_scope, right_scope, name) for name in self._shared(left_scope, right_scope)),
        ]
        region = self._joined(kind, left, right, conditions)
        if kind.keeps_left_only:
            return region, left_scope
        return self._named(kind, region, left_scope, right_scope)

    def _kind(self) -> JoinKind:
        item = self._item
        if item.join_kind in {"REGULAR", "CROSS", "NATURAL"} and item.join_type in _KINDS:
            return _KINDS[item.join_type]
        what = item.join_type if item.join_kind in {"REGULAR", "NATURAL"} else item.join_kind
        raise self._environment.error(item, f"{what} JOIN is not supported", _JOINS)

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
            for node in conjuncts(self._item.condition):
                if self._environment.text.code[node.start : node.end].upper() == "TRUE":
                    continue
                if kind is JoinKind.INNER and (is_correlated(binder, node) or _has_subquery(node)):
                    self._late.append(node)
                    continue
                whole = rank_condition(binder, node)
                sides = None
                if node.operator == "COMPARE_EQUAL":
                    left, right = (binder.expression(child) for child in node.children)
                    sides = (left, right)
                yield Condition(whole, sides)

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
            region = Region(left.parts + right.parts, left.conditions + right.conditions, late, self._span)
            for each in conditions:
                region.require(each, is_where=False)
            return region
        if self._item.join_type == "RIGHT":
            left, right = right, left
        other, equal, residual = _distributed(kind, left.columns, right.joined(), conditions)
        part = _OuterJoin(kind, left, other, equal, residual, self._span)
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


def _distributed(
    kind: JoinKind, left: frozenset[str], right: Relation, conditions: list[Condition]
) -> tuple[Relation, tuple[Pair, ...], Expression | None]:
    """Returns the conditions of a join as filters of the right side, equal pairs and the rest."""
    equal: list[Pair] = []
    residual: list[Expression] = []
    for condition in conditions:
        needed = set(condition.whole.columns)
        pair = _oriented(left, frozenset(right.columns), condition.sides)
        if pair is not None:
            equal.append(pair)
        elif needed and needed <= set(right.columns) and kind is not JoinKind.FULL:
            right = Filter(right, condition.whole)
        else:
            residual.append(condition.whole)
    return right, tuple(equal), conjunction(residual)


def _are_compared(left: Relation, right: Relation, conditions: list[Condition]) -> bool:
    sides = frozenset(left.columns), frozenset(right.columns)
    return any(_oriented(*sides, each.sides) is not None for each in conditions)


def _oriented(left: frozenset[str], right: frozenset[str], sides: Pair | None) -> Pair | None:
    """Returns the pair as left and right side; None if it does not compare the two sides."""
    if sides is None or not all(side.columns for side in sides):
        return None
    one, other = sides
    if set(one.columns) <= left and set(other.columns) <= right:
        return one, other
    if set(other.columns) <= left and set(one.columns) <= right:
        return other, one
    return None


def _filtered(relation: Relation, waiting: list[Condition], span: Span) -> Relation:
    """Filters the first part by its own conditions, and by those without columns."""
    for condition in [each for each in waiting if set(each.whole.columns) <= set(relation.columns)]:
        waiting.remove(condition)
        relation = Filter(relation, condition.whole)
    return relation
