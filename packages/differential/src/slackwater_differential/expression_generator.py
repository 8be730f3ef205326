"""Random conditions, computed values, aggregates and window calls over given columns."""

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater_differential.case import Feature
from slackwater_differential.dice import Dice
from slackwater_differential.query import Expression, written
from slackwater_differential.scope import Scope, Term
from slackwater_differential.sql_types import (
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

_COMPARISONS = ("=", "<>", "<>", "<", "<=", "<=", ">", ">=", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression and what it gives."""

    expression: Expression
    type: SqlType
    is_reference: bool = False


def typed(sql: str, of_type: SqlType) -> Typed:
    """An expression that is plain text."""
    return Typed(written(sql), of_type)


def condition(dice: Dice, terms: Sequence[Term], depth: int = 0) -> str:
    """A condition on some of the columns."""
    if depth < 2 and dice.chance(0.2):
        operator = dice.one(("OR", "OR", "AND"))
        left, right = (condition(dice, terms, depth + 1) for _ in range(2))
        negation = "NOT " if dice.chance(0.3) else ""
        return f"{negation}({left} {operator} {right})"
    term = dice.one(terms)
    literals = term.literals()
    if not literals or dice.chance(0.2):
        return f"{term.sql} IS {dice.weighted([('', 1), ('NOT ', 3)])}NULL"
    return _condition_on(dice, term, literals, terms)


def _condition_on(dice: Dice, term: Term, literals: Sequence[str], terms: Sequence[Term]) -> str:
    alike = [other for other in terms if other.type.duckdb == term.type.duckdb and other != term]
    if alike and dice.chance(0.3):
        return f"{term.sql} {dice.one(_COMPARISONS)} {dice.one(alike).sql}"
    if dice.chance(0.15):
        chosen = ", ".join(dice.some(literals, 1, 3))
        return f"{term.sql} {dice.one(('', 'NOT ', 'NOT '))}IN ({chosen})"
    family = term.type.family
    if family is Family.BOOLEAN:
        return dice.one((term.sql, f"NOT {term.sql}", f"{term.sql} IS TRUE"))
    if family is Family.TEXT and dice.chance(0.4):
        return dice.one((f"{term.sql} LIKE '%a%'", f"length({term.sql}) > 1", f"lower({term.sql}) = 'a'"))
    if family is Family.INTEGER and dice.chance(0.3):
        return f"{term.sql} % {dice.number(2, 3)} = {dice.number(0, 1)}"
    return f"{term.sql} {dice.one(_COMPARISONS)} {dice.one(literals)}"


def computed(dice: Dice, terms: Sequence[Term]) -> Typed:
    """A value computed from columns of one row."""
    term = dice.one(terms)
    literals = term.literals()
    if dice.chance(0.2):
        other = dice.one(terms)
        if dice.may(Feature.STRUCT, 0.6):
            return typed(f"{{'a': {term.sql}, 'b': {other.sql}}}", nested())
    if literals and dice.chance(0.4):
        return Typed(written(f"coalesce({term.sql}, {dice.one(literals)})"), term.type, term.is_reference)
    if literals and dice.chance(0.4):
        when = condition(dice, terms)
        return Typed(
            written(f"CASE WHEN {when} THEN {term.sql} ELSE {dice.one(literals)} END"),
            term.type,
            term.is_reference,
        )
    match term.type.family:
        case Family.INTEGER:
            return Typed(written(f"{term.sql} % 3"), term.type)
        case Family.TEXT:
            return dice.one(
                (
                    typed(f"{term.sql} || '!'", TEXT),
                    typed(f"length({term.sql})", COUNT),
                    typed(f"lower({term.sql})", TEXT),
                )
            )
        case Family.TIMESTAMP:
            return typed(f"date_trunc('day', {term.sql})", term.type)
        case Family.DATE:
            return typed(f"year({term.sql})", COUNT)
        case Family.ARRAY:
            return typed(f"len({term.sql})", COUNT)
    return typed(f"{term.sql} IS NULL", BOOLEAN)


def aggregate(dice: Dice, scope: Scope) -> Typed:
    """An aggregate over the rows of a group."""
    terms = scope.terms
    made = _ordered_aggregate(dice, terms) or _plain_aggregate(dice, dice.one(terms))
    sql = "".join(part for part in made.expression.parts if isinstance(part, str))
    if dice.may(Feature.FILTER, 0.2):
        sql += f" FILTER (WHERE {condition(dice, terms)})"
    return Typed(written(sql), made.type, made.is_reference)


def _plain_aggregate(dice: Dice, term: Term) -> Typed:
    choices: list[Typed] = [typed("count(*)", COUNT), typed(f"count({term.sql})", COUNT)]
    if term.type.is_groupable and dice.may(Feature.COUNT_DISTINCT, 0.15):
        return typed(f"count(DISTINCT {term.sql})", COUNT)
    if term.type.is_ordered:
        function = dice.one(("min", "max"))
        choices += [Typed(written(f"{function}({term.sql})"), term.type, term.is_reference)] * 2
    if term.type.is_summable:
        choices += [typed(f"sum({term.sql})", sum_type(term.type))] * 2
        choices.append(typed(f"avg({term.sql})", AVERAGE))
    if term.type.family is Family.BOOLEAN:
        choices.append(typed(f"{dice.one(('bool_and', 'bool_or'))}({term.sql})", BOOLEAN))
        choices.append(typed(f"sum(CASE WHEN {term.sql} THEN 1 ELSE 0 END)", HUGEINT))
    return dice.one(choices)


def sum_type(of: SqlType) -> SqlType:
    """What SUM gives."""
    if of.family is Family.DECIMAL:
        return decimal_sum(of)
    return FLOAT_SUM if of.family is Family.FLOAT else HUGEINT


def _ordered_aggregate(dice: Dice, terms: Sequence[Term]) -> Typed | None:
    """Ordered by all that is put together, so that equal places hold equal things."""
    ordered = [term for term in terms if term.type.is_ordered]
    if not ordered or not dice.chance(0.25):
        return None
    term = dice.one(ordered)
    direction = dice.one(("", "", " DESC", " NULLS FIRST"))
    if term.type.family is Family.TEXT and dice.may(Feature.STRING_AGG, 0.5):
        return typed(f"string_agg({term.sql}, ',' ORDER BY {term.sql}{direction})", TEXT)
    if not dice.may(Feature.LIST, 0.7):
        return None
    if dice.may(Feature.STRUCT, 0.4):
        fields = dice.some(ordered, 1, 3)
        parts = ", ".join(f"'f{number}': {field.sql}" for number, field in enumerate(fields))
        order = ", ".join(field.sql for field in fields)
        return typed(f"list({{{parts}}} ORDER BY {order}{direction})", nested())
    distinct = "DISTINCT " if dice.chance(0.2) else ""
    return typed(f"list({distinct}{term.sql} ORDER BY {term.sql}{direction})", nested())


def window(dice: Dice, scope: Scope) -> Typed | None:
    """A window call, None if there is nothing to partition by."""
    keys = [term for term in scope.terms if term.type.is_groupable and term.type.family is not Family.FLOAT]
    if not keys:
        return None
    references = [term for term in keys if term.is_reference]
    first = dice.one(references or keys)
    partition = ", ".join(dict.fromkeys([first.sql, *(t.sql for t in dice.some(keys, 0, 1))]))
    ordered = [term for term in scope.terms if term.type.is_ordered]
    if ordered and dice.chance(0.7):
        return _ordered_window(dice, scope, partition, dice.one(ordered))
    call = _plain_aggregate(dice, dice.one(scope.terms))
    if any("DISTINCT" in str(part) for part in call.expression.parts):
        call = typed("count(*)", COUNT)
    sql = "".join(str(part) for part in call.expression.parts)
    return Typed(written(f"{sql} OVER (PARTITION BY {partition})"), call.type, call.is_reference)


def _ordered_window(dice: Dice, scope: Scope, partition: str, by: Term) -> Typed:
    over = f"PARTITION BY {partition} ORDER BY {by.sql}{dice.one(('', ' DESC', ' NULLS FIRST'))}"
    if not scope.identity or dice.chance(0.3):
        return typed(f"{dice.one(('rank', 'dense_rank'))}() OVER ({over})", COUNT)
    full = f"{over}, {', '.join(scope.identity)}"
    value = dice.one(scope.terms)
    shown: Typed = Typed(
        written(f"{dice.one(('lag', 'lead', 'first_value', 'last_value'))}({value.sql}) OVER ({full})"),
        value.type,
        value.is_reference,
    )
    choices = [typed(f"row_number() OVER ({full})", COUNT), shown]
    if value.type.is_summable:
        frame = dice.one(("", " ROWS BETWEEN 1 PRECEDING AND CURRENT ROW", " ROWS UNBOUNDED PRECEDING"))
        choices.append(typed(f"sum({value.sql}) OVER ({full}{frame})", sum_type(value.type)))
    return dice.one(choices)
