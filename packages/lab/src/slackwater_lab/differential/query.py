"""A query as a tree that can be written out, for the engine or for the reference, and made smaller."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Dual:
    """Text that the reference needs in another form: it lacks a rule that views have."""

    view: str
    reference: str


@dataclass(frozen=True, slots=True)
class Expression:
    """Scalar SQL, perhaps with subqueries in it."""

    parts: tuple["str | Dual | Query", ...]


@dataclass(frozen=True, slots=True)
class Item:
    """A column of a SELECT."""

    expression: Expression
    name: str


@dataclass(frozen=True, slots=True)
class Source:
    """Something in FROM.

    Attributes:
        relation: Name of a table, CTE or view; or a query.
        alias: What it is called.
        join: How it is joined; empty for the first.
        conditions: What its ON demands; all must hold.
    """

    relation: "str | Query"
    alias: str
    join: str = ""
    conditions: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class Select:
    """SELECT."""

    items: tuple[Item, ...]
    sources: tuple[Source, ...]
    where: tuple[Expression, ...] = ()
    groups: tuple[Expression, ...] = ()
    having: tuple[Expression, ...] = ()
    is_distinct: bool = False


@dataclass(frozen=True, slots=True)
class Compound:
    """UNION or UNION ALL."""

    operator: str
    branches: tuple["Query", ...]


@dataclass(frozen=True, slots=True)
class Cte:
    """A named query."""

    name: str
    query: "Query"


@dataclass(frozen=True, slots=True)
class With:
    """A query with named queries."""

    ctes: tuple[Cte, ...]
    body: "Query"


@dataclass(frozen=True, slots=True)
class Text:
    """A query as text; the word TRANSACTIONALLY may be in it."""

    sql: str


Query = Select | Compound | With | Text


@dataclass(frozen=True, slots=True)
class View:
    """A view of a pipeline."""

    name: str
    query: Query

    def sql(self) -> str:
        """The SQL that a user would write."""
        return _Writer(is_reference=False).view(self.query)

    def reference_sql(self) -> str:
        """The same for the reference."""
        return _Writer(is_reference=True).view(self.query)


def written(*parts: "str | Dual | Query") -> Expression:
    """An expression."""
    return Expression(parts)


class _Writer:
    """Writes queries, one clause per line."""

    def __init__(self, *, is_reference: bool) -> None:
        self._is_reference = is_reference

    def view(self, query: Query) -> str:
        if isinstance(query, Text):
            return query.sql.replace(" TRANSACTIONALLY", "") if self._is_reference else query.sql
        return self._query(query, "" if self._is_reference else " TRANSACTIONALLY")

    def _query(self, query: Query, word: str = "") -> str:
        match query:
            case Text(sql=sql):
                return sql
            case With(ctes=ctes, body=body):
                named = ",\n".join(f"{cte.name} AS {self._nested(cte.query)}" for cte in ctes)
                return f"WITH {named}\n{self._query(body, word)}" if ctes else self._query(body, word)
            case Compound(operator=operator, branches=branches):
                first, *others = branches
                return f"\n{operator}\n".join([self._query(first, word), *map(self._query, others)])
            case Select():
                return self._select(query, word)

    def _select(self, select: Select, word: str) -> str:
        distinct = " DISTINCT" if select.is_distinct else ""
        items = ",\n    ".join(f"{self._expression(i.expression)} AS {i.name}" for i in select.items)
        lines = [
            f"SELECT{word}{distinct} {items}",
            "FROM " + "\n    ".join(map(self._source, select.sources)),
        ]
        lines += self._clause("WHERE ", " AND ", select.where)
        lines += self._clause("GROUP BY ", ", ", select.groups)
        lines += self._clause("HAVING ", " AND ", select.having)
        return "\n".join(lines)

    def _clause(self, word: str, between: str, parts: tuple[Expression, ...]) -> Iterator[str]:
        if parts:
            yield word + between.join(map(self._expression, parts))

    def _source(self, source: Source) -> str:
        is_name = isinstance(source.relation, str)
        relation = source.relation if is_name else self._nested(source.relation)  # type: ignore[arg-type]
        conditions = " AND ".join(map(self._expression, source.conditions))
        if not source.join:
            return f"{relation} AS {source.alias}"
        if not conditions and source.join == "JOIN":
            return f"CROSS JOIN {relation} AS {source.alias}"
        return f"{source.join} {relation} AS {source.alias} ON {conditions or 'true'}"

    def _nested(self, query: Query) -> str:
        return "(\n" + _indented(self._query(query)) + "\n)"

    def _expression(self, expression: Expression) -> str:
        return "".join(map(self._part, expression.parts))

    def _part(self, part: "str | Dual | Query") -> str:
        if isinstance(part, str):
            return part
        if isinstance(part, Dual):
            return part.reference if self._is_reference else part.view
        return self._nested(part)


def _indented(text: str) -> str:
    # Text values may hold line breaks, which must stay as they are.
    return text if "'" in text else "    " + text.replace("\n", "\n    ")


def smaller_queries(query: Query) -> Iterator[Query]:
    """Queries with one thing left out or one thing simplified; they need not be valid."""
    match query:
        case Text():
            return
        case With(ctes=ctes, body=body):
            yield from _simplified_with(ctes, body)
        case Compound(operator=operator, branches=branches):
            yield from branches
            for fewer in _fewer(branches, smaller_queries, least=2):
                yield Compound(operator, fewer)
        case Select():
            yield from _smaller_selects(query)


def _simplified_with(ctes: tuple[Cte, ...], body: Query) -> Iterator[Query]:
    yield body
    for cte in ctes:
        yield cte.query
    for fewer in _fewer(ctes, lambda cte: (Cte(cte.name, q) for q in smaller_queries(cte.query))):
        yield With(fewer, body)
    for smaller in smaller_queries(body):
        yield With(ctes, smaller)


def _smaller_selects(select: Select) -> Iterator[Query]:
    for source in select.sources:
        if not isinstance(source.relation, str):
            yield source.relation
    if select.is_distinct:
        yield replace(select, is_distinct=False)
    fewer: dict[str, Iterator[Any]] = {
        "sources": _fewer_sources(select.sources),
        "where": _fewer(select.where, _smaller_expressions),
        "having": _fewer(select.having, _smaller_expressions),
        "items": _fewer(select.items, _smaller_items, least=1),
        "groups": _fewer(select.groups, _smaller_expressions),
    }
    for clause, found in fewer.items():
        for parts in found:
            yield replace(select, **{clause: parts})


def _fewer_sources(sources: tuple[Source, ...]) -> Iterator[tuple[Source, ...]]:
    for fewer in _fewer(sources, _smaller_sources, least=1):
        first, *others = fewer
        yield (Source(first.relation, first.alias), *others)


def _smaller_sources(source: Source) -> Iterator[Source]:
    relation = source.relation
    if not isinstance(relation, str):
        for smaller in smaller_queries(relation):
            yield replace(source, relation=smaller)
        if isinstance(relation, Select) and isinstance(relation.sources[0].relation, str):
            yield replace(source, relation=relation.sources[0].relation)
    for fewer in _fewer(source.conditions, _smaller_expressions):
        yield replace(source, conditions=fewer)
    if source.join not in {"", "JOIN"}:
        yield replace(source, join="JOIN")


def _smaller_items(item: Item) -> Iterator[Item]:
    for smaller in _smaller_expressions(item.expression):
        yield Item(smaller, item.name)


def _smaller_expressions(expression: Expression) -> Iterator[Expression]:
    parts = expression.parts
    for number, part in enumerate(parts):
        if not isinstance(part, (str, Dual)):
            for smaller in smaller_queries(part):
                yield Expression((*parts[:number], smaller, *parts[number + 1 :]))


def _fewer(
    parts: tuple[T, ...], smaller: Callable[[T], Iterator[T]], *, least: int = 0
) -> Iterator[tuple[T, ...]]:
    """A half or one part left out, or one made smaller."""
    if len(parts) // 2 > least:
        yield parts[: len(parts) // 2]
        yield parts[len(parts) // 2 :]
    if len(parts) > least:
        for number in reversed(range(len(parts))):
            yield (*parts[:number], *parts[number + 1 :])
    for number, part in enumerate(parts):
        for simpler in smaller(part):
            yield (*parts[:number], simpler, *parts[number + 1 :])
