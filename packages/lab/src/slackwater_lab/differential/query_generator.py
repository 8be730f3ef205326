"""Random queries of the kinds that views may be made of."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slackwater_lab.differential.case import Choices, Feature
from slackwater_lab.differential.construct_generator import make_constructs
from slackwater_lab.differential.expression_generator import (
    FromClause,
    Output,
    Relation,
    Term,
    Typed,
    aggregate,
    are_joinable,
    computed,
    condition,
    ranking,
    table_relation,
    terms_of,
    window,
)
from slackwater_lab.differential.history import DrawnTable
from slackwater_lab.differential.query import View, nested, select, transactional
from slackwater_lab.differential.sql_types import COUNT, Family

_JOINS = (
    (Feature.INNER_JOIN, "JOIN", 4.0),
    (Feature.LEFT_JOIN, "LEFT JOIN", 4.0),
    (Feature.RIGHT_JOIN, "RIGHT JOIN", 0.8),
    (Feature.FULL_JOIN, "FULL JOIN", 0.8),
    (Feature.SEMI_JOIN, "SEMI JOIN", 0.7),
    (Feature.ANTI_JOIN, "ANTI JOIN", 0.7),
    (Feature.CROSS_JOIN, "JOIN", 0.25),
)
_OUTER = (Feature.LEFT_JOIN, Feature.RIGHT_JOIN, Feature.FULL_JOIN)
_DEEPEST = 2


def make_views(choices: Choices, tables: Sequence[DrawnTable]) -> tuple[View, ...]:
    """One to three views, of which later ones may read earlier ones, and perhaps one around a construct."""
    maker = _Maker(choices, tables)
    views = [maker.view(f"view{n}") for n in range(1, choices.weighted([(1, 7), (2, 2), (3, 1)]) + 1)]
    return (*views, *make_constructs(choices, tables))


@dataclass(frozen=True, slots=True)
class _Made:
    query: str
    outputs: tuple[Output, ...]
    identity: tuple[str, ...] = ()
    is_grouped: bool = False
    named: str = ""
    """Named queries, before the query."""

    def relation(self, name: str | None = None) -> Relation:
        source = name or nested(self.named + self.query)
        return Relation(source, self.outputs, self.identity, is_grouped=self.is_grouped)


class _Maker:
    def __init__(self, choices: Choices, tables: Sequence[DrawnTable]) -> None:
        self._choices = choices
        self._tables = [table_relation(table) for table in tables]
        self._views: list[Relation] = []
        self._aliases = 0
        self._ctes = 0

    def view(self, name: str) -> View:
        made = self._query(0)
        self._views.append(replace(made.relation(name), is_view=True))
        return View(name, transactional(made.query, made.named))

    def _query(self, depth: int) -> _Made:
        made = self._rows(depth)
        return self._first(made) if self._choices.may(Feature.TOP, 0.1) else made

    def _first(self, made: _Made, distinct_on: int = 0) -> _Made:
        """The first rows, in an order in which only equal rows are equal; or of each of the first columns."""
        choices, places = self._choices, range(1, len(made.outputs) + 1)
        others = choices.some(places[distinct_on:], len(places), len(places))
        directions = ("", " DESC", " NULLS FIRST", " DESC NULLS FIRST")
        order = ", ".join(f"{each}{choices.one(directions)}" for each in (*places[:distinct_on], *others))
        query = f"{made.query}\nORDER BY {order}"
        if not distinct_on:
            query += f"\nLIMIT {choices.number(0, 5)}"
            query += choices.one(("", "", f" OFFSET {choices.number(0, 3)}"))
        return replace(made, query=query)

    def _rows(self, depth: int) -> _Made:
        if depth < _DEEPEST and self._choices.may(Feature.CTE, 0.12):
            return self._with(depth)
        if depth < _DEEPEST:
            for feature, operator in ((Feature.UNION, "UNION"), (Feature.UNION_ALL, "UNION ALL")):
                if self._choices.may(feature, 0.07):
                    return self._compound(depth, operator)
        return self._select(depth)

    def _with(self, depth: int) -> _Made:
        self._ctes += 1
        name = f"q{self._ctes}"
        named = self._select(depth + 1)
        relation = named.relation(name)
        body = self._select(depth + 1, first=relation)
        return replace(body, named=f"WITH {name} AS {nested(named.query)}\n")

    def _compound(self, depth: int, operator: str) -> _Made:
        is_union = operator == "UNION"
        first = self._select(depth + 1, for_union=True, is_groupable=is_union)
        others = range(self._choices.weighted([(1, 4), (2, 1)]))
        branches = (first.query, *(self._branch(depth + 1, first.outputs) for _ in others))
        return _Made(f"\n{operator}\n".join(branches), first.outputs, is_grouped=is_union)

    def _branch(self, depth: int, wanted: Sequence[Output]) -> str:
        from_clause = self._from(depth)
        items = []
        for output in wanted:
            alike = [t for t in from_clause.terms if t.type.duckdb == output.type.duckdb]
            preferred = [t for t in alike if t.is_reference == output.is_reference] or alike
            value = f"CAST(NULL AS {output.type.duckdb})"
            items.append(self._choices.one(preferred).sql if preferred else value)
        return select(items, from_clause.sql, self._where(from_clause))

    def _select(
        self,
        depth: int,
        *,
        first: Relation | None = None,
        for_union: bool = False,
        is_groupable: bool = False,
    ) -> _Made:
        from_clause = self._from(depth, first)
        where = self._where(from_clause)
        made = self._shape(from_clause, where)
        if for_union and any(
            not output.type.duckdb or (is_groupable and not output.type.is_groupable)
            for output in made.outputs
        ):
            return self._only_plain(from_clause, where)
        return made

    def _shape(self, from_clause: FromClause, where: tuple[str, ...]) -> _Made:
        choices = self._choices
        may_group = not from_clause.is_grouped or choices.may(Feature.NESTED_GROUP, 0.7)
        if may_group and choices.may(Feature.GLOBAL, 0.08):
            return self._global(from_clause, where)
        if may_group and choices.may(Feature.GROUP, 0.5):
            return self._grouped(from_clause, where)
        if choices.may(Feature.DISTINCT, 0.1):
            return replace(self._only_plain(from_clause, where, is_distinct=True), is_grouped=True)
        return self._plain(from_clause, where)

    # FROM

    def _from(self, depth: int, first: Relation | None = None) -> FromClause:
        relation = first or self._relation(depth)
        alias = self._alias()
        terms = terms_of(relation, alias)
        from_clause = FromClause(
            f"{relation.source} AS {alias}",
            ((alias, relation),),
            terms,
            tuple(f"{alias}.{name}" for name in relation.identity),
        )
        for _ in range(self._choices.weighted([(0, 3), (1, 4), (2, 2), (3, 1)])):
            from_clause = self._joined(from_clause, depth)
        return from_clause

    def _alias(self) -> str:
        self._aliases += 1
        return f"a{self._aliases}"

    def _relation(self, depth: int) -> Relation:
        if self._views and self._choices.may(Feature.VIEW_OVER_VIEW, 0.4):
            return self._choices.one(self._views)
        if depth < _DEEPEST and self._choices.may(Feature.DERIVED, 0.15):
            return self._query(depth + 1).relation()
        return self._choices.one(self._tables)

    def _joined(self, from_clause: FromClause, depth: int) -> FromClause:
        allowed = [
            ((feature, word), weight) for feature, word, weight in _JOINS if self._choices.is_allowed(feature)
        ]
        if not allowed:
            return from_clause
        feature, word = self._choices.weighted(allowed)
        right = self._partner(from_clause, depth)
        if right is None:
            return from_clause
        alias = self._alias()
        terms = terms_of(right, alias)
        conditions = () if feature is Feature.CROSS_JOIN else self._on(from_clause, terms)
        if not conditions and feature is not Feature.CROSS_JOIN:
            return from_clause
        self._choices.may(feature, 1)
        crossed = f"CROSS JOIN {right.source} AS {alias}"
        on = f"{word} {right.source} AS {alias} ON {' AND '.join(conditions)}"
        sql = f"{from_clause.sql}\n    {on if conditions else crossed}"
        if feature in {Feature.SEMI_JOIN, Feature.ANTI_JOIN}:
            return replace(from_clause, sql=sql)
        identity = tuple(f"{alias}.{name}" for name in right.identity)
        return FromClause(
            sql,
            (*from_clause.relations, (alias, right)),
            (*from_clause.terms, *terms),
            (*from_clause.identity, *identity) if from_clause.identity and identity else (),
            from_clause.is_outer or feature in _OUTER,
        )

    def _partner(self, from_clause: FromClause, depth: int) -> Relation | None:
        used = [relation for _, relation in from_clause.relations if "(" not in relation.source]
        if used and self._choices.may(Feature.SELF_JOIN, 0.15):
            return self._choices.one(used)
        right = self._relation(depth)
        others = [table for table in self._tables if table not in used]
        if right in used:
            return self._choices.one(others) if others else None
        return right

    def _on(self, from_clause: FromClause, terms: Sequence[Term]) -> tuple[str, ...]:
        pairs = _pairs(from_clause.terms, terms)
        if not pairs:
            return ()
        is_several = self._choices.may(Feature.SEVERAL_KEYS, 0.08)
        chosen = [self._choices.one(pairs)]
        if is_several:
            chosen += self._choices.some([pair for pair in pairs if pair not in chosen], 1, 1)
        parts = [
            f"{a.sql} = {b.sql}" if self._choices.chance(0.7) else f"{b.sql} = {a.sql}" for a, b in chosen
        ]
        if self._choices.may(Feature.RESIDUAL, 0.1):
            parts.append(self._residual(from_clause, terms))
        return tuple(parts)

    def _residual(self, from_clause: FromClause, terms: Sequence[Term]) -> str:
        comparable = [
            (a, b)
            for a in from_clause.terms
            for b in terms
            if a.type.is_ordered and a.type.duckdb == b.type.duckdb
        ]
        if comparable and self._choices.chance(0.7):
            left, right = self._choices.one(comparable)
            return f"{left.sql} {self._choices.one(('<', '<=', '<>', 'IS DISTINCT FROM'))} {right.sql}"
        return condition(self._choices, self._choices.one((terms, from_clause.terms)))

    # WHERE

    def _where(self, from_clause: FromClause) -> tuple[str, ...]:
        conditions = []
        if self._choices.may(Feature.WHERE, 0.3):
            count = self._choices.weighted([(1, 4), (2, 1)])
            conditions += [condition(self._choices, from_clause.terms) for _ in range(count)]
        makers = (
            (Feature.EXISTS, self._exists),
            (Feature.IN, self._in),
            (Feature.NOT_IN, self._not_in),
        )
        for feature, make in makers:
            if self._choices.may(feature, 0.05) and (made := make(from_clause)) is not None:
                conditions.append(made)
        if (
            self._choices.may(Feature.SCALAR, 0.03)
            and (made := self._scalar_condition(from_clause)) is not None
        ):
            conditions.append(made)
        return tuple(conditions)

    def _exists(self, from_clause: FromClause) -> str | None:
        relation, terms = self._inner()
        pairs = _pairs(from_clause.terms, terms)
        if not pairs:
            return None
        outer, inner = self._choices.one(pairs)
        where = [f"{inner.sql} = {outer.sql}"]
        if self._choices.chance(0.3):
            where.append(condition(self._choices, terms))
        if self._choices.may(Feature.RESIDUAL, 0.15):
            where.append(self._residual(from_clause, terms))
        query = nested(select(["1"], relation, where))
        return f"{self._choices.one(('EXISTS', 'EXISTS', 'NOT EXISTS'))} {query}"

    def _in(self, from_clause: FromClause) -> str | None:
        source, terms = self._inner()
        return self._membership("IN", source, _pairs(from_clause.terms, terms), terms)

    def _not_in(self, from_clause: FromClause) -> str | None:
        """Makes NOT IN of columns that are never NULL: with others it is no join."""
        source, terms = self._inner()
        columns = [term for term in terms if not term.nullable]
        return self._membership("NOT IN", source, _pairs(from_clause.never_null(), columns), terms)

    def _membership(
        self, word: str, source: str, pairs: Sequence[tuple[Term, Term]], terms: Sequence[Term]
    ) -> str | None:
        if not pairs:
            return None
        outer, inner = self._choices.one(pairs)
        where = (condition(self._choices, terms),) if self._choices.chance(0.5) else ()
        return f"{outer.sql} {word} {nested(select([inner.sql], source, where))}"

    def _inner(self) -> tuple[str, tuple[Term, ...]]:
        relation, alias = self._choices.one(self._tables), self._alias()
        return f"{relation.source} AS {alias}", terms_of(relation, alias)

    def _scalar(self, from_clause: FromClause) -> Typed | None:
        """A subquery as a value, correlated or not."""
        source, terms = self._inner()
        inner = FromClause(source, (), terms, ())
        value = aggregate(self._choices, inner)
        where: tuple[str, ...] = ()
        if self._choices.chance(0.75):
            pairs = _pairs(from_clause.terms, terms)
            if not pairs:
                return None
            outer, column = self._choices.one(pairs)
            where = (f"{column.sql} = {outer.sql}",)
        return Typed(nested(select([value.sql], source, where)), value.type)

    def _scalar_condition(self, from_clause: FromClause) -> str | None:
        made = self._scalar(from_clause)
        if made is None or made.type.family is not Family.INTEGER:
            return None
        numbers = [term for term in from_clause.terms if term.type.family is Family.INTEGER]
        left = self._choices.one(numbers).sql if numbers else "1"
        return f"{left} {self._choices.one(('<', '>=', '='))} {made.sql}"

    # SELECT

    def _plain(self, from_clause: FromClause, where: tuple[str, ...]) -> _Made:
        items = self._columns(from_clause, 1, 5)
        if self._choices.chance(0.3):
            items.append(computed(self._choices, from_clause.terms))
        if self._choices.may(Feature.SCALAR, 0.08) and (made := self._scalar(from_clause)) is not None:
            items.append(made)
        if (
            self._choices.may(Feature.RANKS, 0.1)
            and (rank := ranking(self._choices, from_clause)) is not None
        ):
            return self._ranked(from_clause, where, items, rank)
        if self._choices.may(Feature.DISTINCT_ON, 0.04):
            rows = self._finished(from_clause, where, items)
            query = rows.query.replace("SELECT", "SELECT DISTINCT ON (1)", 1)
            first = self._first(replace(rows, query=query), distinct_on=1)
            columns = [f"q.{output.name}" for output in first.outputs]
            return replace(first, query=select(columns, f"{nested(first.query)} AS q"))
        if self._choices.may(Feature.WINDOW, 0.2):
            calls = [window(self._choices, from_clause) for _ in range(self._choices.number(1, 2))]
            items += [call for call in calls if call is not None]
        return self._finished(from_clause, where, items)

    def _ranked(
        self, from_clause: FromClause, where: tuple[str, ...], items: Sequence[Typed], rank: str
    ) -> _Made:
        """Some ranks, in the spellings of DuckDB and PostgreSQL, and perhaps the rank itself."""
        choices = self._choices
        kept = choices.one(("<= 2", "<= 3", "< 2", "= 1", "= 2", "BETWEEN 2 AND 3"))
        if choices.chance(0.5):
            items = [*items, *([Typed(rank, COUNT)] if choices.chance(0.4) else [])]
            return self._finished(from_clause, where, items, qualify=(f"{rank} {kept}",))
        made = self._finished(from_clause, where, [*items, Typed(rank, COUNT)])
        outputs = made.outputs if choices.chance(0.4) else made.outputs[:-1]
        columns = [f"q.{output.name}" for output in outputs]
        query = select(columns, f"{nested(made.query)} AS q", (f"q.{made.outputs[-1].name} {kept}",))
        return replace(made, query=query, outputs=outputs)

    def _only_plain(
        self, from_clause: FromClause, where: tuple[str, ...], *, is_distinct: bool = False
    ) -> _Made:
        groupable = tuple(term for term in from_clause.terms if term.type.is_groupable)
        items = (
            self._columns(replace(from_clause, terms=groupable), 1, 3) if groupable else [Typed("1", COUNT)]
        )
        made = self._finished(from_clause, where, items, is_distinct=is_distinct)
        return replace(made, identity=tuple(o.name for o in made.outputs)) if is_distinct else made

    def _columns(self, from_clause: FromClause, least: int, most: int) -> list[Typed]:
        chosen = self._choices.some(from_clause.terms, least, most)
        if from_clause.identity and self._choices.chance(0.6):
            names = {term.sql for term in chosen}
            chosen += [t for t in from_clause.terms if t.sql in from_clause.identity and t.sql not in names]
        return [Typed(term.sql, term.type, term.is_reference) for term in chosen]

    def _finished(
        self,
        from_clause: FromClause,
        where: tuple[str, ...],
        items: Sequence[Typed],
        *,
        is_distinct: bool = False,
        qualify: Sequence[str] = (),
    ) -> _Made:
        outputs = _outputs(items)
        by_sql = {item.sql: o.name for item, o in zip(items, outputs, strict=True)}
        identity = tuple(by_sql.get(sql, "") for sql in from_clause.identity)
        columns = [item.sql for item in items]
        query = select(columns, from_clause.sql, where, qualify=qualify, is_distinct=is_distinct)
        return _Made(query, outputs, identity if all(identity) else ())

    def _global(self, from_clause: FromClause, where: tuple[str, ...]) -> _Made:
        items = [aggregate(self._choices, from_clause) for _ in range(self._choices.number(1, 4))]
        having, columns = self._having(from_clause), [item.sql for item in items]
        query = select(columns, from_clause.sql, where, having=having)
        return _Made(query, _outputs(items), is_grouped=True)

    def _grouped(self, from_clause: FromClause, where: tuple[str, ...]) -> _Made:
        groups, dependents = self._groups(from_clause)
        if not groups:
            return self._plain(from_clause, where)
        shown = [group for group in groups if self._choices.chance(0.85)]
        calls = [
            aggregate(self._choices, from_clause) for _ in range(self._choices.number(0 if shown else 1, 4))
        ]
        items = [*shown, *dependents, *calls]
        having = self._having(from_clause)
        parts, columns = [group.sql for group in groups], [item.sql for item in items]
        query = select(columns, from_clause.sql, where, groups=parts, having=having)
        outputs = _outputs(items)
        identity = tuple(o.name for o in outputs[: len(groups)]) if shown == groups else ()
        return _Made(query, outputs, identity, is_grouped=True)

    def _groups(self, from_clause: FromClause) -> tuple[list[Typed], list[Typed]]:
        tables = [(alias, r) for alias, r in from_clause.relations if r.is_table]
        if tables and self._choices.may(Feature.DEPENDENT, 0.25):
            alias, relation = self._choices.one(tables)
            return self._dependent_groups(alias, relation)
        groupable = [t for t in from_clause.terms if t.type.is_groupable]
        references = [t for t in groupable if t.is_reference]
        if not groupable:
            return [], []
        chosen = self._choices.some(
            references if references and self._choices.chance(0.6) else groupable, 1, 2
        )
        groups = [Typed(term.sql, term.type, term.is_reference) for term in chosen]
        if self._choices.chance(0.15):
            expression = computed(self._choices, from_clause.terms)
            if expression.type.is_groupable:
                groups.append(expression)
        return groups, []

    def _dependent_groups(self, alias: str, relation: Relation) -> tuple[list[Typed], list[Typed]]:
        terms = terms_of(relation, alias)
        key = {f"{alias}.{name}" for name in relation.identity}
        groups = [Typed(t.sql, t.type, t.is_reference) for t in terms if t.sql in key]
        others = [term for term in terms if term.sql not in key]
        dependents = [
            Typed(f"dependent({t.sql})", t.type, t.is_reference) for t in self._choices.some(others, 1, 3)
        ]
        return groups, dependents

    def _having(self, from_clause: FromClause) -> tuple[str, ...]:
        if not self._choices.may(Feature.HAVING, 0.15):
            return ()
        made = aggregate(self._choices, from_clause)
        if made.type.family in {Family.INTEGER, Family.DECIMAL, Family.FLOAT}:
            operator = self._choices.one((">", ">=", "<>", "<="))
            return (f"{made.sql} {operator} {self._choices.number(0, 2)}",)
        return (f"{made.sql} IS {self._choices.one(('', 'NOT ', 'NOT ', 'NOT '))}NULL",)


def _pairs(left: Sequence[Term], right: Sequence[Term]) -> list[tuple[Term, Term]]:
    """Lists the pairs that can be compared as a key; only those that refer, if any does."""
    joinable = [(a, b) for a in left for b in right if are_joinable(a, b)]
    return [(a, b) for a, b in joinable if a.is_reference and b.is_reference] or joinable


def _outputs(items: Sequence[Typed]) -> tuple[Output, ...]:
    return tuple(
        Output(f"c{number}", item.type, is_reference=item.is_reference) for number, item in enumerate(items)
    )
