"""FROM: tables, subqueries, other views, and joins of them."""

from collections.abc import Iterator
from dataclasses import replace

from slackwater_sql.catalog import Table
from slackwater_sql.document import identifier
from slackwater_sql.frontend.build import Common, Environment, Result
from slackwater_sql.frontend.dependencies import never_null
from slackwater_sql.frontend.joining import Condition, Outer, Region, split
from slackwater_sql.frontend.levels import Level, RowLevel
from slackwater_sql.frontend.scope import Scope, Source, Visible
from slackwater_sql.frontend.syntax import Item, Query, conjuncts
from slackwater_sql.frontend.text import Splice
from slackwater_sql.logical import Expression, Extend, JoinKind, Relation, Scan, Union

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

From = tuple[Region, Scope]


def read_from(environment: Environment, item: Item, outer: Level | None) -> From:
    """The rows of FROM and the names for them.

    Raises:
        ViewError: Something that no view may read, or an unknown name.
    """
    if item.is_decorated:
        raise _error(environment, item, "only a name and an alias are supported here", _SOURCES)
    if item.kind == "JOIN" and item.alias:
        raise _error(environment, item, "a join with an alias is not supported", "Name its tables")
    if item.kind == "JOIN":
        return _Joiner(environment, item, outer).read()
    if item.kind == "BASE_TABLE":
        relation, source = _named(environment, item)
    elif item.kind == "SUBQUERY" and item.query is not None:
        lateral = environment.lateral or (outer.scope if outer is not None else None)
        relation, source = _subquery(replace(environment, lateral=lateral), item, item.query)
    else:
        what = {"EXPRESSION_LIST": "VALUES"}.get(item.kind, item.kind.replace("_", " ").lower())
        raise _error(environment, item, f"{what} is not supported", _SOURCES)
    scope = Scope(environment.text, (source,), source.columns)
    return Region([relation], span=environment.place(item.start, item.end)), scope


class _Joiner:
    """One join."""

    def __init__(self, environment: Environment, item: Item, outer: Level | None) -> None:
        self._environment = environment
        self._item = item
        self._outer = outer
        self._span = environment.place(item.start, item.end)

    def read(self) -> From:
        kind = self._kind()
        left, left_scope = read_from(self._environment, self._item.sides[0], self._outer)
        beside = replace(self._environment, lateral=left_scope)
        right, right_scope = read_from(beside, self._item.sides[1], self._outer)
        self._refuse_equal_names(left_scope, right_scope)
        if kind is JoinKind.FULL:
            left, left_scope = self._safe(left, left_scope, right)
        conditions = [
            *self._on(left_scope.joined(right_scope)),
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
        raise _error(self._environment, item, f"{what} JOIN is not supported", _JOINS)

    def _refuse_equal_names(self, left: Scope, right: Scope) -> None:
        taken = {each.alias.lower() for each in left.sources}
        for each, item in zip(right.sources, _leaves(self._item.sides[1]), strict=False):
            if each.alias and each.alias.lower() in taken:
                problem = f"two tables are called {each.alias}"
                raise _error(self._environment, item, problem, "Give one of them another alias")

    def _on(self, scope: Scope) -> Iterator[Condition]:
        level = RowLevel(self._environment, scope, {}, self._outer)
        with level.reading("ON"):
            for node in conjuncts(self._item.condition):
                if self._environment.text.code[node.start : node.end].upper() == "TRUE":
                    continue
                whole = level.expression(node)
                sides = None
                if node.operator == "COMPARE_EQUAL":
                    left, right = (level.expression(child) for child in node.children)
                    sides = (left, right)
                yield Condition(whole, sides)

    def _shared(self, left: Scope, right: Scope) -> list[str]:
        if self._item.join_kind != "NATURAL":
            return list(self._item.using)
        names = {each.name.lower() for each in right.visible}
        return [each.name for each in left.visible if each.name and each.name.lower() in names]

    def _using(self, left: Scope, right: Scope, name: str) -> Condition:
        sides = (self._column(left, name), self._column(right, name))
        sql = f"{sides[0].sql} = {sides[1].sql}"
        columns = sides[0].columns + sides[1].columns
        return Condition(Expression(sql, columns, self._span, f"USING ({name})"), sides)

    def _column(self, scope: Scope, name: str) -> Expression:
        for each in scope.visible:
            if each.name.lower() == name.lower():
                return Expression(identifier(each.id), (each.id,), self._span, name)
        problem = f"there is no column {name} on both sides"
        raise _error(self._environment, self._item, problem, "Write JOIN … ON a.k = b.k")

    def _joined(self, kind: JoinKind, left: Region, right: Region, conditions: list[Condition]) -> Region:
        if kind is JoinKind.INNER:
            region = Region(left.parts + right.parts, left.conditions + right.conditions, self._span)
            for each in conditions:
                region.require(each, is_where=False)
            return region
        if self._item.join_type == "RIGHT":
            left, right = right, left
        other, equal, residual = split(kind, left.columns, right.joined(), conditions)
        return Region([Outer(kind, left, other, equal, residual, self._span)], span=self._span)

    def _named(self, kind: JoinKind, region: Region, left: Scope, right: Scope) -> From:
        shared = list(dict.fromkeys(name.lower() for name in self._shared(left, right)))
        visible = list(left.visible)
        for name in shared:
            at = next(number for number, each in enumerate(visible) if each.name.lower() == name)
            other = self._column(right, name).columns[0]
            if kind is JoinKind.FULL:
                merged = self._environment.build.new_id(name)
                sql = f"coalesce({identifier(visible[at].id)}, {identifier(other)})"
                computed = Expression(sql, (visible[at].id, other), self._span, name)
                region = Region([Extend(region.joined(), ((merged, computed),))], span=self._span)
                visible[at] = Visible(visible[at].name, merged)
            elif self._item.join_type == "RIGHT":
                visible[at] = Visible(visible[at].name, other)
        rest = (each for each in right.visible if each.name.lower() not in shared)
        joined = left.joined(right)
        return region, replace(joined, visible=(*visible, *rest))

    def _safe(self, left: Region, scope: Scope, right: Region) -> From:
        """The left side so that a row of the result that is NULL in its whole identity lacks that side."""
        relation, other = left.joined(), right.joined()
        if any(set(side.identity) & never_null(side) for side in (relation, other)):
            return Region([relation], span=self._span), scope
        build = self._environment.build
        ids = {column: build.new_id(build.labels.get(column, "")) for column in relation.columns}
        identity = build.union_identity(len(relation.identity))
        sources = tuple((new, (old,)) for old, new in ids.items())
        union = Union((relation,), sources, identity, self._span)
        return Region([union], span=self._span), _renamed(scope, ids)


def _leaves(item: Item) -> Iterator[Item]:
    if item.kind != "JOIN":
        yield item
    for side in item.sides:
        yield from _leaves(side)


def _renamed(scope: Scope, ids: dict[str, str]) -> Scope:
    def columns(visible: tuple[Visible, ...]) -> tuple[Visible, ...]:
        return tuple(Visible(each.name, ids[each.id]) for each in visible)

    sources = tuple(replace(each, columns=columns(each.columns)) for each in scope.sources)
    return replace(scope, sources=sources, visible=columns(scope.visible))


def _named(environment: Environment, item: Item) -> tuple[Relation, Source]:
    common = environment.commons.get(item.name.lower()) if not item.schema else None
    if common is not None:
        return _common(environment, item, common)
    tables = environment.build.catalog.find(item.schema, item.name)
    name = f"{item.schema}.{item.name}" if item.schema else item.name
    view = item.name.lower() in environment.build.views and not item.schema
    if view and (not tables or item.name.lower() != environment.name):
        if tables:
            problem = f"{name} is a table and a view"
            raise _error(environment, item, problem, f"Write {tables[0].full_name}, or rename the view")
        return _view(environment, item)
    if len(tables) > 1:
        choices = " or ".join(table.full_name for table in tables)
        raise _error(environment, item, f"table {name} is ambiguous", f"Write {choices}")
    if not tables:
        likely = environment.build.catalog.similar_names(item.schema, item.name)
        hint = (
            f"Did you mean {' or '.join(likely)}?" if likely else "Declare it in tables.sql or schema/*.sql"
        )
        raise _error(environment, item, f"table {name} is not declared", hint)
    return _scan(environment, item, tables[0])


def _scan(environment: Environment, item: Item, table: Table) -> tuple[Relation, Source]:
    if not table.primary_key:
        hint = "Give it one: rows are told apart by it"
        raise _error(environment, item, f"table {table.full_name} has no primary key", hint)
    alias = item.alias or item.name
    supported = [column for column in table.columns if column.type.is_supported]
    if len({column.name.lower() for column in table.columns}) < len(table.columns):
        problem = f"table {table.full_name} has columns whose names differ only in upper and lower case"
        raise _error(environment, item, problem, "To DuckDB they are the same; rename one")
    ids = {column.name: environment.build.new_id(f"{alias}.{column.name}") for column in supported}
    for name in table.primary_key:
        if name not in ids:
            problem = f"the primary key of {table.full_name} has a type that is not supported"
            raise _error(environment, item, problem, "Rows are told apart by it")
    environment.build.make_table(table)
    _point_to(environment, item, f"{identifier(table.schema)}.{identifier(table.name)}")
    names = [column.name for column in table.columns]
    if item.columns:
        names[: len(item.columns)] = item.columns
    columns = tuple(
        Visible(name, ids[column.name])
        for name, column in zip(names, table.columns, strict=True)
        if column.name in ids
    )
    full_name = (table.schema.lower(), table.name.lower())
    qualifiers = ((alias.lower(),),) if item.alias else ((alias.lower(),), full_name)
    scan = Scan(table, ids, alias, environment.place(item.start, item.end))
    return scan, Source(alias, qualifiers, columns, table)


def _point_to(environment: Environment, item: Item, name: str) -> None:
    """Let DuckDB find the table under its full name."""
    if not item.schema and item.start >= 0:
        end = item.start + len(item.name)
        written = environment.text.code[item.start : end]
        if written.startswith('"'):
            end += 2
        environment.splices.append(Splice(item.start, end, name))


def _common(environment: Environment, item: Item, common: Common) -> tuple[Relation, Source]:
    result = environment.build.make_query(common.definition.query, common.environment)
    return _source(environment, item, result, common.definition.columns)


def _view(environment: Environment, item: Item) -> tuple[Relation, Source]:
    name = item.name.lower()
    if name in environment.reading:
        problem = f"view {item.name} reads itself"
        through = environment.reading[environment.reading.index(name) :]
        if len(through) > 1:
            problem += f" through {', '.join(through[1:])}"
        raise _error(environment, item, problem, "Views read each other in one direction")
    span = environment.place(item.start, item.end)
    result = environment.build.make_view(name, environment, span)
    _point_to(environment, item, f"__slackwater_views.{identifier(name)}")
    return _source(environment, item, result, ())


def _subquery(environment: Environment, item: Item, query: Query) -> tuple[Relation, Source]:
    result = environment.build.make_query(query, environment)
    return _source(environment, item, result, ())


def _source(
    environment: Environment, item: Item, result: Result, names: tuple[str, ...]
) -> tuple[Relation, Source]:
    alias = item.alias or item.name
    given = [each.name for each in result.columns]
    for replacement in (names, item.columns):
        given[: len(replacement)] = replacement
    columns = tuple(
        Visible(name, each.id) for name, each in zip(_told_apart(given), result.columns, strict=True)
    )
    return result.relation, Source(alias, ((alias.lower(),),), columns, None)


def _told_apart(names: list[str]) -> Iterator[str]:
    """As DuckDB names columns of a subquery that have one name: ``id``, ``id_1`` and so on."""
    seen: dict[str, int] = {}
    for name in names:
        lower = name.lower()
        if name and lower in seen:
            seen[lower] += 1
            name = f"{name}_{seen[lower] - 1}"
        seen.setdefault(name.lower(), 1)
        yield name


def _error(environment: Environment, item: Item, problem: str, hint: str) -> Exception:
    return environment.error(item.start, item.end, problem, hint)
