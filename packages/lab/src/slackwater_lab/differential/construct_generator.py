"""Views around one construct each: subqueries, grouping sets, duplicates, windows over all rows.

They have chances of their own, so that the other views of a seed do not depend on them.
"""

from collections.abc import Sequence

from slackwater_lab.differential.case import Choices, Feature
from slackwater_lab.differential.expression_generator import (
    FromClause,
    Relation,
    Term,
    aggregate,
    are_joinable,
    condition,
    table_relation,
    terms_of,
)
from slackwater_lab.differential.history import DrawnTable
from slackwater_lab.differential.query import View, nested, select, transactional
from slackwater_lab.differential.sql_types import Family

_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")


def make_constructs(choices: Choices, tables: Sequence[DrawnTable]) -> tuple[View, ...]:
    """At most one view, which reads tables only."""
    beside = choices.beside("constructs")
    maker = _Maker(beside, [table_relation(table) for table in tables])
    makers = (
        (Feature.QUANTIFIED, maker.membership),
        (Feature.CORRELATED, maker.aggregated),
        (Feature.NESTED_SUBQUERY, maker.nested_exists),
        (Feature.CONSTANT_KEY, maker.constant_key),
        (Feature.GROUPING_SETS, maker.grouping_sets),
        (Feature.DUPLICATES, maker.duplicates),
        (Feature.WHOLE_WINDOW, maker.whole_window),
    )
    for feature, make in sorted(makers, key=lambda _: beside.number(0, 1000)):
        if beside.may(feature, 0.1) and (query := make()):
            return (View("construct", transactional(query)),)
    return ()


class _Maker:
    def __init__(self, choices: Choices, tables: Sequence[Relation]) -> None:
        self._choices = choices
        self._tables = tables
        self._outer = choices.one(tables)
        self._terms = terms_of(self._outer, "o")
        self._from = f"{self._outer.source} AS o"

    def membership(self) -> str:
        """IN, NOT IN, ANY, ALL, of values and of rows that may be NULL."""
        source, terms = self._inner("i")
        pairs = [pair for pair in _alike(self._terms, terms) if are_joinable(*pair)]
        return self._with(self._compared(source, terms, pairs)) if pairs else ""

    def _compared(self, source: str, terms: Sequence[Term], pairs: list[tuple[Term, Term]]) -> str:
        choices, where = self._choices, []
        left, right = choices.one(pairs)
        if choices.chance(0.4):
            where.append(condition(choices, terms))
        if choices.chance(0.2):
            second = choices.one(pairs)
            rows = select([right.sql, second[1].sql], source, where)
            return f"({left.sql}, {second[0].sql}) {choices.one(('IN', 'NOT IN'))} {nested(rows)}"
        if choices.chance(0.4):
            outer, inner = choices.one(pairs)
            where.append(f"{inner.sql} {choices.one(('=', '=', '<='))} {outer.sql}")
        rows = nested(select([right.sql], source, where))
        if choices.chance(0.5):
            return f"{left.sql} {choices.one(('IN', 'NOT IN', 'NOT IN'))} {rows}"
        return f"{left.sql} {choices.one(_COMPARISONS)} {choices.one(('ANY', 'ALL'))} {rows}"

    def aggregated(self) -> str:
        """An aggregate of the rows with a smaller value, or whether there are such rows."""
        source, terms = self._inner("i")
        pairs = _alike(self._terms, terms)
        if not pairs:
            return ""
        where = [
            f"{inner.sql} {self._choices.one(('<', '<=', '<>', '='))} {outer.sql}"
            for outer, inner in self._choices.some(pairs, 1, 2)
        ]
        if self._choices.chance(0.4):
            return self._with(f"EXISTS {nested(select(['1'], source, where))}")
        made = aggregate(self._choices, FromClause(source, (), terms, ()))
        value = nested(select([made.sql], source, where))
        return select([self._choices.one(self._terms).sql, value], self._from)

    def nested_exists(self) -> str:
        """A subquery within a subquery, which compares with both queries around it."""
        (source, terms), (inmost, others) = self._inner("i"), self._inner("j")
        near, far = _alike(terms, others), _alike(self._terms, others)
        if not near or not far:
            return ""
        (a, b), (c, d) = self._choices.one(near), self._choices.one(far)
        words = [self._choices.one(("EXISTS", "NOT EXISTS")) for _ in range(2)]
        within = [f"{b.sql} = {a.sql}", f"{d.sql} {self._choices.one(('=', '<', '<>'))} {c.sql}"]
        where = [f"{words[1]} {nested(select(['1'], inmost, within))}"]
        return self._with(f"{words[0]} {nested(select(['1'], source, where))}")

    def constant_key(self) -> str:
        """The value of one row."""
        relation = self._choices.one(self._tables)
        terms = terms_of(relation, "i")
        key = [term for term in terms if term.sql in {f"i.{name}" for name in relation.identity}]
        literals = [term.literals() for term in key]
        if not key or not all(literals):
            return ""
        where = [f"{t.sql} = {self._choices.one(each)}" for t, each in zip(key, literals, strict=True)]
        value = select([self._choices.one(terms).sql], f"{relation.source} AS i", where)
        return select([self._choices.one(self._terms).sql, nested(value)], self._from)

    def grouping_sets(self) -> str:
        """ROLLUP, CUBE or GROUPING SETS, with GROUPING."""
        keys = [t for t in self._terms if t.type.is_groupable and t.type.family is not Family.FLOAT]
        names = [term.sql for term in self._choices.some(keys, 1, 3)]
        if not names:
            return ""
        listed = ", ".join(names)
        groups = self._choices.one(
            (
                f"ROLLUP ({listed})",
                f"CUBE ({listed})",
                f"GROUPING SETS (({listed}), (), ({names[0]}), ({names[0]}))",
                f"{names[0]}, ROLLUP ({listed})",
            )
        )
        calls = [aggregate(self._choices, FromClause(self._from, (), self._terms, ())).sql for _ in range(2)]
        having = (f"grouping({names[0]}) = 0 OR count(*) > 1",) if self._choices.chance(0.3) else ()
        items = [*names, f"grouping({listed})", *calls]
        return select(items, self._from, groups=[groups], having=having)

    def duplicates(self) -> str:
        """EXCEPT ALL and INTERSECT ALL."""
        source, terms = self._inner("i")
        pairs = [(a, b) for a, b in _alike(self._terms, terms) if a.type.is_groupable]
        if not pairs:
            return ""
        chosen = self._choices.some(pairs, 1, 2)
        sides = (select([a.sql for a, _ in chosen], self._from), select([b.sql for _, b in chosen], source))
        return f"\n{self._choices.one(('EXCEPT ALL', 'INTERSECT ALL'))}\n".join(sides)

    def whole_window(self) -> str:
        """Windows without PARTITION BY."""
        ordered = [term for term in self._terms if term.type.is_ordered]
        if not ordered:
            return ""
        by = self._choices.one(ordered).sql
        calls = ["count(*) OVER ()", f"rank() OVER (ORDER BY {by})", f"max({by}) OVER (ORDER BY {by})"]
        return select([by, *self._choices.some(calls, 1, 3)], self._from)

    def _inner(self, alias: str) -> tuple[str, tuple[Term, ...]]:
        relation = self._choices.one(self._tables)
        return f"{relation.source} AS {alias}", terms_of(relation, alias)

    def _with(self, truth: str) -> str:
        """A query that uses a condition which may be NULL as a value, in WHERE, an aggregate or GROUP BY."""
        shown = self._choices.one(self._terms).sql
        case = f"CASE WHEN {truth} THEN 1 ELSE 0 END"
        return self._choices.one(
            (
                select([shown, truth, case], self._from),
                select([shown], self._from, [truth]),
                select([shown], self._from, [f"({truth} OR {condition(self._choices, self._terms)})"]),
                select([shown], self._from, [f"NOT ({truth})"]),
                select([f"sum({case})", f"count(*) FILTER (WHERE {truth})"], self._from),
                select(["count(*)", truth], self._from, groups=[truth]),
            )
        )


def _alike(left: Sequence[Term], right: Sequence[Term]) -> list[tuple[Term, Term]]:
    """Lists the pairs of one type whose values are in an order."""
    return [
        (a, b)
        for a in left
        for b in right
        if a.type.duckdb == b.type.duckdb and a.type.is_ordered and a.type.is_groupable
    ]
