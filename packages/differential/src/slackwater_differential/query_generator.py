"""Random queries of the kinds that views may be made of."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slackwater_differential.case import Feature
from slackwater_differential.dice import Dice
from slackwater_differential.expression_generator import Typed, aggregate, computed, condition, typed, window
from slackwater_differential.history import Table
from slackwater_differential.query import (
    Compound,
    Cte,
    Dual,
    Expression,
    Item,
    Query,
    Select,
    Source,
    View,
    With,
    written,
)
from slackwater_differential.scope import (
    Output,
    Relation,
    Scope,
    Term,
    are_joinable,
    table_relation,
    terms_of,
)
from slackwater_differential.sql_types import COUNT, Family

_JOINS = (
    (Feature.INNER_JOIN, "JOIN", 4.0),
    (Feature.LEFT_JOIN, "LEFT JOIN", 4.0),
    (Feature.RIGHT_JOIN, "RIGHT JOIN", 0.8),
    (Feature.FULL_JOIN, "FULL JOIN", 0.8),
    (Feature.SEMI_JOIN, "SEMI JOIN", 0.7),
    (Feature.ANTI_JOIN, "ANTI JOIN", 0.7),
    (Feature.CROSS_JOIN, "JOIN", 0.25),
)
_DEEPEST = 2


def make_views(dice: Dice, tables: Sequence[Table]) -> tuple[View, ...]:
    """One to three views; later ones may read earlier ones."""
    maker = _Maker(dice, tables)
    return tuple(maker.view(f"view{n}") for n in range(1, dice.weighted([(1, 7), (2, 2), (3, 1)]) + 1))


@dataclass(frozen=True, slots=True)
class _Made:
    query: Query
    outputs: tuple[Output, ...]
    identity: tuple[str, ...] = ()
    is_grouped: bool = False

    def relation(self, name: str | None = None) -> Relation:
        return Relation(name or self.query, self.outputs, self.identity, is_grouped=self.is_grouped)


class _Maker:
    def __init__(self, dice: Dice, tables: Sequence[Table]) -> None:
        self._dice = dice
        self._tables = [table_relation(table) for table in tables]
        self._views: list[Relation] = []
        self._aliases = 0
        self._ctes = 0

    def view(self, name: str) -> View:
        made = self._query(0)
        self._views.append(replace(made.relation(name), is_view=True))
        return View(name, made.query)

    def _query(self, depth: int) -> _Made:
        if depth < _DEEPEST and self._dice.may(Feature.CTE, 0.12):
            return self._with(depth)
        if depth < _DEEPEST:
            for feature, operator in ((Feature.UNION, "UNION"), (Feature.UNION_ALL, "UNION ALL")):
                if self._dice.may(feature, 0.07):
                    return self._compound(depth, operator)
        return self._select(depth)

    def _with(self, depth: int) -> _Made:
        self._ctes += 1
        name = f"q{self._ctes}"
        named = self._select(depth + 1)
        relation = named.relation(name)
        body = self._select(depth + 1, first=relation)
        return replace(body, query=With((Cte(name, named.query),), body.query))

    def _compound(self, depth: int, operator: str) -> _Made:
        is_union = operator == "UNION"
        first = self._select(depth + 1, for_union=True, is_groupable=is_union)
        others = range(self._dice.weighted([(1, 4), (2, 1)]))
        branches = (first.query, *(self._branch(depth + 1, first.outputs) for _ in others))
        return _Made(Compound(operator, branches), first.outputs, is_grouped=is_union)

    def _branch(self, depth: int, wanted: Sequence[Output]) -> Query:
        scope = self._from(depth)
        items = []
        for output in wanted:
            alike = [t for t in scope.terms if t.type.duckdb == output.type.duckdb]
            preferred = [t for t in alike if t.is_reference == output.is_reference] or alike
            value = f"CAST(NULL AS {output.type.duckdb})"
            items.append(Item(written(self._dice.one(preferred).sql if preferred else value), output.name))
        return Select(tuple(items), scope.sources, self._where(scope))

    def _select(
        self,
        depth: int,
        *,
        first: Relation | None = None,
        for_union: bool = False,
        is_groupable: bool = False,
    ) -> _Made:
        scope = self._from(depth, first)
        where = self._where(scope)
        made = self._shape(scope, where)
        if for_union and any(
            not output.type.duckdb or (is_groupable and not output.type.is_groupable)
            for output in made.outputs
        ):
            return self._only_plain(scope, where)
        return made

    def _shape(self, scope: Scope, where: tuple[Expression, ...]) -> _Made:
        dice = self._dice
        may_group = not scope.is_grouped or dice.may(Feature.NESTED_GROUP, 0.7)
        if may_group and dice.may(Feature.GLOBAL, 0.08):
            return self._global(scope, where)
        if may_group and dice.may(Feature.GROUP, 0.5):
            return self._grouped(scope, where)
        if dice.may(Feature.DISTINCT, 0.1):
            return replace(self._only_plain(scope, where, is_distinct=True), is_grouped=True)
        return self._plain(scope, where)

    # FROM

    def _from(self, depth: int, first: Relation | None = None) -> Scope:
        relation = first or self._relation(depth)
        alias = self._alias()
        terms = terms_of(relation, alias)
        scope = Scope(
            (Source(relation.source, alias),),
            ((alias, relation),),
            terms,
            tuple(f"{alias}.{name}" for name in relation.identity),
        )
        for _ in range(self._dice.weighted([(0, 3), (1, 4), (2, 2), (3, 1)])):
            scope = self._joined(scope, depth)
        return scope

    def _alias(self) -> str:
        self._aliases += 1
        return f"a{self._aliases}"

    def _relation(self, depth: int) -> Relation:
        if self._views and self._dice.may(Feature.VIEW_OVER_VIEW, 0.4):
            return self._dice.one(self._views)
        if depth < _DEEPEST and self._dice.may(Feature.DERIVED, 0.15):
            return self._query(depth + 1).relation()
        return self._dice.one(self._tables)

    def _joined(self, scope: Scope, depth: int) -> Scope:
        allowed = [
            ((feature, word), weight) for feature, word, weight in _JOINS if self._dice.is_allowed(feature)
        ]
        if not allowed:
            return scope
        feature, word = self._dice.weighted(allowed)
        right = self._partner(scope, depth)
        if right is None:
            return scope
        alias = self._alias()
        terms = terms_of(right, alias)
        conditions = () if feature is Feature.CROSS_JOIN else self._on(scope, terms)
        if not conditions and feature is not Feature.CROSS_JOIN:
            return scope
        self._dice.may(feature, 1)
        source = Source(right.source, alias, word, conditions)
        if feature in {Feature.SEMI_JOIN, Feature.ANTI_JOIN}:
            return replace(scope, sources=(*scope.sources, source))
        identity = tuple(f"{alias}.{name}" for name in right.identity)
        return Scope(
            (*scope.sources, source),
            (*scope.relations, (alias, right)),
            (*scope.terms, *terms),
            (*scope.identity, *identity) if scope.identity and identity else (),
        )

    def _partner(self, scope: Scope, depth: int) -> Relation | None:
        used = [relation for _, relation in scope.relations if isinstance(relation.source, str)]
        if used and self._dice.may(Feature.SELF_JOIN, 0.15):
            return self._dice.one(used)
        right = self._relation(depth)
        others = [table for table in self._tables if table not in used]
        if right in used:
            return self._dice.one(others) if others else None
        return right

    def _on(self, scope: Scope, terms: Sequence[Term]) -> tuple[Expression, ...]:
        pairs = _pairs(scope.terms, terms)
        if not pairs:
            return ()
        is_several = self._dice.may(Feature.SEVERAL_KEYS, 0.08)
        chosen = [self._dice.one(pairs)]
        if is_several:
            chosen += self._dice.some([pair for pair in pairs if pair not in chosen], 1, 1)
        parts = [f"{a.sql} = {b.sql}" if self._dice.chance(0.7) else f"{b.sql} = {a.sql}" for a, b in chosen]
        if self._dice.may(Feature.RESIDUAL, 0.1):
            parts.append(self._residual(scope, terms))
        return tuple(map(written, parts))

    def _residual(self, scope: Scope, terms: Sequence[Term]) -> str:
        comparable = [
            (a, b) for a in scope.terms for b in terms if a.type.is_ordered and a.type.duckdb == b.type.duckdb
        ]
        if comparable and self._dice.chance(0.7):
            left, right = self._dice.one(comparable)
            return f"{left.sql} {self._dice.one(('<', '<=', '<>', 'IS DISTINCT FROM'))} {right.sql}"
        return condition(self._dice, self._dice.one((terms, scope.terms)))

    # WHERE

    def _where(self, scope: Scope) -> tuple[Expression, ...]:
        conditions = []
        if self._dice.may(Feature.WHERE, 0.3):
            count = self._dice.weighted([(1, 4), (2, 1)])
            conditions += [written(condition(self._dice, scope.terms)) for _ in range(count)]
        makers = (
            (Feature.EXISTS, self._exists),
            (Feature.IN, self._in),
            (Feature.NOT_IN, self._not_in),
        )
        for feature, make in makers:
            if self._dice.may(feature, 0.05) and (made := make(scope)) is not None:
                conditions.append(made)
        if self._dice.may(Feature.SCALAR, 0.03) and (made := self._scalar_condition(scope)) is not None:
            conditions.append(made)
        return tuple(conditions)

    def _exists(self, scope: Scope) -> Expression | None:
        relation, terms = self._inner()
        pairs = _pairs(scope.terms, terms)
        if not pairs:
            return None
        outer, inner = self._dice.one(pairs)
        where = [written(f"{inner.sql} = {outer.sql}")]
        if self._dice.chance(0.3):
            where.append(written(condition(self._dice, terms)))
        if self._dice.may(Feature.RESIDUAL, 0.15):
            where.append(written(self._residual(scope, terms)))
        query = Select((Item(written("1"), "one"),), (relation,), tuple(where))
        return written(self._dice.one(("EXISTS ", "EXISTS ", "NOT EXISTS ")), query)

    def _in(self, scope: Scope) -> Expression | None:
        source, terms = self._inner()
        return self._membership("IN", source, _pairs(scope.terms, terms), terms)

    def _not_in(self, scope: Scope) -> Expression | None:
        """Of columns that are never NULL: with others it is no join."""
        source, terms = self._inner()
        columns = [term for term in terms if not term.nullable]
        return self._membership("NOT IN", source, _pairs(scope.never_null(), columns), terms)

    def _membership(
        self, word: str, source: Source, pairs: Sequence[tuple[Term, Term]], terms: Sequence[Term]
    ) -> Expression | None:
        if not pairs:
            return None
        outer, inner = self._dice.one(pairs)
        where = (written(condition(self._dice, terms)),) if self._dice.chance(0.5) else ()
        query = Select((Item(written(inner.sql), "c"),), (source,), where)
        return written(f"{outer.sql} {word} ", query)

    def _inner(self) -> tuple[Source, tuple[Term, ...]]:
        relation, alias = self._dice.one(self._tables), self._alias()
        return Source(relation.source, alias), terms_of(relation, alias)

    def _scalar(self, scope: Scope) -> Typed | None:
        """A subquery as a value, correlated or not."""
        source, terms = self._inner()
        inner = Scope((source,), (), terms, ())
        value = aggregate(self._dice, inner)
        where: tuple[Expression, ...] = ()
        if self._dice.chance(0.75):
            pairs = _pairs(scope.terms, terms)
            if not pairs:
                return None
            outer, column = self._dice.one(pairs)
            where = (written(f"{column.sql} = {outer.sql}"),)
        query = Select((Item(value.expression, "c"),), (source,), where)
        return Typed(written(query), value.type)

    def _scalar_condition(self, scope: Scope) -> Expression | None:
        made = self._scalar(scope)
        if made is None or made.type.family is not Family.INTEGER:
            return None
        numbers = [term for term in scope.terms if term.type.family is Family.INTEGER]
        left = self._dice.one(numbers).sql if numbers else "1"
        return written(f"{left} {self._dice.one(('<', '>=', '='))} ", *made.expression.parts)

    # SELECT

    def _plain(self, scope: Scope, where: tuple[Expression, ...]) -> _Made:
        items = self._columns(scope, 1, 5)
        if self._dice.chance(0.3):
            items.append(computed(self._dice, scope.terms))
        if self._dice.may(Feature.SCALAR, 0.08) and (made := self._scalar(scope)) is not None:
            items.append(made)
        if self._dice.may(Feature.WINDOW, 0.2):
            calls = [window(self._dice, scope) for _ in range(self._dice.number(1, 2))]
            items += [call for call in calls if call is not None]
        return self._finished(scope, where, items)

    def _only_plain(self, scope: Scope, where: tuple[Expression, ...], *, is_distinct: bool = False) -> _Made:
        groupable = tuple(term for term in scope.terms if term.type.is_groupable)
        items = self._columns(replace(scope, terms=groupable), 1, 3) if groupable else [typed("1", COUNT)]
        made = self._finished(scope, where, items)
        if is_distinct and isinstance(made.query, Select):
            names = tuple(output.name for output in made.outputs)
            made = replace(made, query=replace(made.query, is_distinct=True), identity=names)
        return made

    def _columns(self, scope: Scope, least: int, most: int) -> list[Typed]:
        chosen = self._dice.some(scope.terms, least, most)
        if scope.identity and self._dice.chance(0.6):
            names = {term.sql for term in chosen}
            chosen += [t for t in scope.terms if t.sql in scope.identity and t.sql not in names]
        return [Typed(written(term.sql), term.type, term.is_reference) for term in chosen]

    def _finished(self, scope: Scope, where: tuple[Expression, ...], items: Sequence[Typed]) -> _Made:
        outputs = _outputs(items)
        by_sql = {item.expression.parts: o.name for item, o in zip(items, outputs, strict=True)}
        identity = tuple(by_sql.get((sql,), "") for sql in scope.identity)
        query = Select(_items(items), scope.sources, where)
        return _Made(query, outputs, identity if all(identity) else ())

    def _global(self, scope: Scope, where: tuple[Expression, ...]) -> _Made:
        items = [aggregate(self._dice, scope) for _ in range(self._dice.number(1, 4))]
        query = Select(_items(items), scope.sources, where, having=self._having(scope))
        return _Made(query, _outputs(items), is_grouped=True)

    def _grouped(self, scope: Scope, where: tuple[Expression, ...]) -> _Made:
        groups, dependents = self._groups(scope)
        if not groups:
            return self._plain(scope, where)
        shown = [group for group in groups if self._dice.chance(0.85)]
        calls = [aggregate(self._dice, scope) for _ in range(self._dice.number(0 if shown else 1, 4))]
        items = [*shown, *dependents, *calls]
        having = self._having(scope)
        parts = tuple(group.expression for group in groups)
        query = Select(_items(items), scope.sources, where, parts, having)
        outputs = _outputs(items)
        identity = tuple(o.name for o in outputs[: len(groups)]) if shown == groups else ()
        return _Made(query, outputs, identity, is_grouped=True)

    def _groups(self, scope: Scope) -> tuple[list[Typed], list[Typed]]:
        tables = [(alias, r) for alias, r in scope.relations if r.is_table]
        if tables and self._dice.may(Feature.DEPENDENT, 0.25):
            alias, relation = self._dice.one(tables)
            return self._dependent_groups(alias, relation)
        groupable = [t for t in scope.terms if t.type.is_groupable]
        references = [t for t in groupable if t.is_reference]
        if not groupable:
            return [], []
        chosen = self._dice.some(references if references and self._dice.chance(0.6) else groupable, 1, 2)
        groups = [Typed(written(term.sql), term.type, term.is_reference) for term in chosen]
        if self._dice.chance(0.15):
            expression = computed(self._dice, scope.terms)
            if expression.type.is_groupable:
                groups.append(expression)
        return groups, []

    def _dependent_groups(self, alias: str, relation: Relation) -> tuple[list[Typed], list[Typed]]:
        terms = terms_of(relation, alias)
        key = {f"{alias}.{name}" for name in relation.identity}
        groups = [Typed(written(t.sql), t.type, t.is_reference) for t in terms if t.sql in key]
        others = [term for term in terms if term.sql not in key]
        dependents = [
            Typed(written(Dual(t.sql, f"any_value({t.sql})")), t.type, t.is_reference)
            for t in self._dice.some(others, 1, 3)
        ]
        return groups, dependents

    def _having(self, scope: Scope) -> tuple[Expression, ...]:
        if not self._dice.may(Feature.HAVING, 0.15):
            return ()
        made = aggregate(self._dice, scope)
        (sql,) = made.expression.parts
        if made.type.family in {Family.INTEGER, Family.DECIMAL, Family.FLOAT}:
            operator = self._dice.one((">", ">=", "<>", "<="))
            return (written(f"{sql} {operator} {self._dice.number(0, 2)}"),)
        return (written(f"{sql} IS {self._dice.one(('', 'NOT ', 'NOT ', 'NOT '))}NULL"),)


def _pairs(left: Sequence[Term], right: Sequence[Term]) -> list[tuple[Term, Term]]:
    """What can be compared as a key; what refers, if anything does."""
    joinable = [(a, b) for a in left for b in right if are_joinable(a, b)]
    return [(a, b) for a, b in joinable if a.is_reference and b.is_reference] or joinable


def _items(items: Sequence[Typed]) -> tuple[Item, ...]:
    return tuple(Item(item.expression, f"c{number}") for number, item in enumerate(items))


def _outputs(items: Sequence[Typed]) -> tuple[Output, ...]:
    return tuple(
        Output(f"c{number}", item.type, is_reference=item.is_reference) for number, item in enumerate(items)
    )
