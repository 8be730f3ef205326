"""The terms a clause can refer to, and random conditions, values, aggregates and windows made of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater_lab.differential.case import Choices, Feature
from slackwater_lab.differential.history import DrawnTable, quoted
from slackwater_lab.differential.history_generator import is_reference, key_values
from slackwater_lab.differential.sql_types import (
    AVERAGE,
    BOOLEAN,
    COUNT,
    FLOAT_SUM,
    HUGEINT,
    TEXT,
    Family,
    SqlType,
    decimal_sum,
    nested,
)


@dataclass(frozen=True, slots=True)
class Output:
    """A column of a relation.

    Attributes:
        name: As SQL writes it.
        type: Its type.
        nullable: May be NULL.
        is_reference: Has the few values by which rows find each other.
    """

    name: str
    type: SqlType
    nullable: bool = True
    is_reference: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """Something that can be in FROM.

    Attributes:
        source: A name, or a nested query.
        outputs: Its columns.
        identity: Names of columns that tell its rows apart; empty if there are none, or none are known.
        is_table: It is a table and `identity` its primary key.
        is_grouped: It has a GROUP BY.
        is_view: It is another view.
    """

    source: str
    outputs: tuple[Output, ...]
    identity: tuple[str, ...] = ()
    is_table: bool = False
    is_grouped: bool = False
    is_view: bool = False


def table_relation(table: DrawnTable) -> Relation:
    """A table as FROM has it."""
    outputs = tuple(Output(quoted(c.name), c.type, c.nullable, is_reference(table, c)) for c in table.columns)
    return Relation(table.name, outputs, tuple(map(quoted, table.primary_key)), is_table=True)


@dataclass(frozen=True, slots=True)
class Term:
    """A column within reach.

    Attributes:
        sql: How it is written.
        type: Its type.
        is_reference: As of `Output`.
        alias: Whose it is.
        nullable: It may be NULL, outer joins aside.
    """

    sql: str
    type: SqlType
    is_reference: bool
    alias: str
    nullable: bool = True

    def literals(self) -> list[str]:
        """Values that it is likely to have, as SQL."""
        values = key_values(self.type) if self.is_reference else self.type.values
        return [value.sql for value in values if len(value.sql) < 200] if self.type.is_groupable else []


def terms_of(relation: Relation, alias: str) -> tuple[Term, ...]:
    """The columns of a relation that is called so."""
    return tuple(
        Term(f"{alias}.{o.name}", o.type, o.is_reference, alias, o.nullable) for o in relation.outputs
    )


@dataclass(frozen=True, slots=True)
class FromClause:
    """The sources that a SELECT has in FROM, and their columns.

    Attributes:
        sql: The sources.
        relations: What they are, by alias; without those of which no column can be used.
        terms: Their columns.
        identity: Columns that tell the joined rows apart; empty if unknown.
        is_outer: Whether a join adds rows of NULLs.
    """

    sql: str
    relations: tuple[tuple[str, Relation], ...]
    terms: tuple[Term, ...]
    identity: tuple[str, ...]
    is_outer: bool = False

    def never_null(self) -> tuple[Term, ...]:
        """Columns that are not NULL in any row."""
        return () if self.is_outer else tuple(term for term in self.terms if not term.nullable)

    @property
    def is_grouped(self) -> bool:
        """Something in FROM has a GROUP BY."""
        return any(relation.is_grouped for _, relation in self.relations)


def are_joinable(one: Term, other: Term) -> bool:
    """`one = other` is a comparison of keys."""
    families = one.type.family, other.type.family
    if Family.FLOAT in families or not (one.type.is_groupable and other.type.is_groupable):
        return False
    are_of_one_family = families[0] is families[1] and "HUGEINT" not in {one.type.duckdb, other.type.duckdb}
    return one.type.duckdb == other.type.duckdb or (
        are_of_one_family and families[0] in {Family.INTEGER, Family.TEXT}
    )


_COMPARISONS = ("=", "<>", "<>", "<", "<=", "<=", ">", ">=", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression and what it gives."""

    sql: str
    type: SqlType
    is_reference: bool = False


def condition(choices: Choices, terms: Sequence[Term], depth: int = 0) -> str:
    """A condition on some of the columns."""
    if depth < 2 and choices.chance(0.2):
        operator = choices.one(("OR", "OR", "AND"))
        left, right = (condition(choices, terms, depth + 1) for _ in range(2))
        negation = "NOT " if choices.chance(0.3) else ""
        return f"{negation}({left} {operator} {right})"
    term = choices.one(terms)
    literals = term.literals()
    if not literals or choices.chance(0.2):
        return f"{term.sql} IS {choices.weighted([('', 1), ('NOT ', 3)])}NULL"
    return _condition_on(choices, term, literals, terms)


def _condition_on(choices: Choices, term: Term, literals: Sequence[str], terms: Sequence[Term]) -> str:
    alike = [other for other in terms if other.type.duckdb == term.type.duckdb and other != term]
    if alike and choices.chance(0.3):
        return f"{term.sql} {choices.one(_COMPARISONS)} {choices.one(alike).sql}"
    if choices.chance(0.15):
        chosen = ", ".join(choices.some(literals, 1, 3))
        return f"{term.sql} {choices.one(('', 'NOT ', 'NOT '))}IN ({chosen})"
    family = term.type.family
    if family is Family.BOOLEAN:
        return choices.one((term.sql, f"NOT {term.sql}", f"{term.sql} IS TRUE"))
    if family is Family.TEXT and choices.chance(0.4):
        return choices.one((f"{term.sql} LIKE '%a%'", f"length({term.sql}) > 1", f"lower({term.sql}) = 'a'"))
    if family is Family.INTEGER and choices.chance(0.3):
        return f"{term.sql} % {choices.number(2, 3)} = {choices.number(0, 1)}"
    return f"{term.sql} {choices.one(_COMPARISONS)} {choices.one(literals)}"


def computed(choices: Choices, terms: Sequence[Term]) -> Typed:
    """A value computed from columns of one row."""
    term = choices.one(terms)
    literals = term.literals()
    if choices.chance(0.2):
        other = choices.one(terms)
        if choices.may(Feature.STRUCT, 0.6):
            return Typed(f"{{'a': {term.sql}, 'b': {other.sql}}}", nested())
    if literals and choices.chance(0.4):
        return Typed(f"coalesce({term.sql}, {choices.one(literals)})", term.type, term.is_reference)
    if literals and choices.chance(0.4):
        when = condition(choices, terms)
        return Typed(
            f"CASE WHEN {when} THEN {term.sql} ELSE {choices.one(literals)} END",
            term.type,
            term.is_reference,
        )
    match term.type.family:
        case Family.INTEGER:
            return Typed(f"{term.sql} % 3", term.type)
        case Family.TEXT:
            return choices.one(
                (
                    Typed(f"{term.sql} || '!'", TEXT),
                    Typed(f"length({term.sql})", COUNT),
                    Typed(f"lower({term.sql})", TEXT),
                )
            )
        case Family.TIMESTAMP:
            return Typed(f"date_trunc('day', {term.sql})", term.type)
        case Family.DATE:
            return Typed(f"year({term.sql})", COUNT)
        case Family.ARRAY:
            return Typed(f"len({term.sql})", COUNT)
    return Typed(f"{term.sql} IS NULL", BOOLEAN)


def aggregate(choices: Choices, from_clause: FromClause) -> Typed:
    """An aggregate over the rows of a group."""
    terms = from_clause.terms
    made = _ordered_aggregate(choices, terms) or _plain_aggregate(choices, choices.one(terms))
    sql = made.sql
    if choices.may(Feature.FILTER, 0.2):
        sql += f" FILTER (WHERE {condition(choices, terms)})"
    if made.type is AVERAGE:
        # DuckDB divides decimals in one of two ways, by what else it computes: the last bit is open.
        sql = f"round({sql}, 4)"
    return Typed(sql, made.type, made.is_reference)


def _plain_aggregate(choices: Choices, term: Term) -> Typed:
    calls: list[Typed] = [Typed("count(*)", COUNT), Typed(f"count({term.sql})", COUNT)]
    if term.type.is_groupable and choices.may(Feature.COUNT_DISTINCT, 0.15):
        return Typed(f"count(DISTINCT {term.sql})", COUNT)
    if term.type.is_ordered:
        function = choices.one(("min", "max"))
        calls += [Typed(f"{function}({term.sql})", term.type, term.is_reference)] * 2
    if term.type.is_summable:
        calls += [Typed(f"sum({term.sql})", sum_type(term.type))] * 2
        calls.append(Typed(f"avg({term.sql})", AVERAGE))
    if term.type.family is Family.BOOLEAN:
        calls.append(Typed(f"{choices.one(('bool_and', 'bool_or'))}({term.sql})", BOOLEAN))
        calls.append(Typed(f"sum(CASE WHEN {term.sql} THEN 1 ELSE 0 END)", HUGEINT))
    return choices.one(calls)


def sum_type(of: SqlType) -> SqlType:
    """The type that SUM gives."""
    if of.family is Family.DECIMAL:
        return decimal_sum(of)
    return FLOAT_SUM if of.family is Family.FLOAT else HUGEINT


def _ordered_aggregate(choices: Choices, terms: Sequence[Term]) -> Typed | None:
    """Ordered by all that is put together, so that equal places hold equal things."""
    ordered = [term for term in terms if term.type.is_ordered]
    if not ordered or not choices.chance(0.25):
        return None
    term = choices.one(ordered)
    direction = choices.one(("", "", " DESC", " NULLS FIRST"))
    if term.type.family is Family.TEXT and choices.may(Feature.STRING_AGG, 0.5):
        return Typed(f"string_agg({term.sql}, ',' ORDER BY {term.sql}{direction})", TEXT)
    if not choices.may(Feature.LIST, 0.7):
        return None
    if choices.may(Feature.STRUCT, 0.4):
        fields = choices.some(ordered, 1, 3)
        parts = ", ".join(f"'f{number}': {field.sql}" for number, field in enumerate(fields))
        order = ", ".join(field.sql for field in fields)
        return Typed(f"list({{{parts}}} ORDER BY {order}{direction})", nested())
    distinct = "DISTINCT " if choices.chance(0.2) else ""
    return Typed(f"list({distinct}{term.sql} ORDER BY {term.sql}{direction})", nested())


def window(choices: Choices, from_clause: FromClause) -> Typed | None:
    """A window call, None if there is nothing to partition by."""
    keys = [
        term for term in from_clause.terms if term.type.is_groupable and term.type.family is not Family.FLOAT
    ]
    if not keys:
        return None
    references = [term for term in keys if term.is_reference]
    first = choices.one(references or keys)
    partition = ", ".join(dict.fromkeys([first.sql, *(t.sql for t in choices.some(keys, 0, 1))]))
    ordered = [term for term in from_clause.terms if term.type.is_ordered]
    if ordered and choices.chance(0.7):
        return _ordered_window(choices, from_clause, partition, choices.one(ordered))
    call = _plain_aggregate(choices, choices.one(from_clause.terms))
    if "DISTINCT" in call.sql:
        call = Typed("count(*)", COUNT)
    return Typed(f"{call.sql} OVER (PARTITION BY {partition})", call.type, call.is_reference)


def ranking(choices: Choices, from_clause: FromClause) -> str | None:
    """A rank among rows, without ties if they can be told apart; None if there is no order."""
    ordered = [term for term in from_clause.terms if term.type.is_ordered]
    keys = [term for term in from_clause.terms if term.type.is_groupable]
    if not ordered:
        return None
    by = f"{choices.one(ordered).sql}{choices.one(('', ' DESC', ' NULLS FIRST', ' DESC NULLS FIRST'))}"
    partition = f"PARTITION BY {choices.one(keys).sql} " if keys and choices.chance(0.7) else ""
    if from_clause.identity and choices.chance(0.6):
        return f"row_number() OVER ({partition}ORDER BY {by}, {', '.join(from_clause.identity)})"
    return f"{choices.one(('rank', 'dense_rank'))}() OVER ({partition}ORDER BY {by})"


def _ordered_window(choices: Choices, from_clause: FromClause, partition: str, by: Term) -> Typed:
    over = f"PARTITION BY {partition} ORDER BY {by.sql}{choices.one(('', ' DESC', ' NULLS FIRST'))}"
    if not from_clause.identity or choices.chance(0.3):
        return Typed(f"{choices.one(('rank', 'dense_rank'))}() OVER ({over})", COUNT)
    full = f"{over}, {', '.join(from_clause.identity)}"
    value = choices.one(from_clause.terms)
    shown: Typed = Typed(
        f"{choices.one(('lag', 'lead', 'first_value', 'last_value'))}({value.sql}) OVER ({full})",
        value.type,
        value.is_reference,
    )
    calls = [Typed(f"row_number() OVER ({full})", COUNT), shown]
    if value.type.is_summable:
        frame = choices.one(("", " ROWS BETWEEN 1 PRECEDING AND CURRENT ROW", " ROWS UNBOUNDED PRECEDING"))
        calls.append(Typed(f"sum({value.sql}) OVER ({full}{frame})", sum_type(value.type)))
    return choices.one(calls)
