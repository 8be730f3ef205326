# ruff: noqa: E501 - SQL on few lines
"""Quotients and aggregates of PostgreSQL."""

from typing import Final

from slackwater.sql.meaning.casts import FREE_SCALE
from slackwater.sql.meaning.code import Code, renamed
from slackwater.sql.meaning.rules import Call, Rewriting, builder
from slackwater.sql.meaning.types import decimals

QUOTIENT_SCALE: Final = 24
"""Decimals of a quotient. PostgreSQL gives at least 16 significant digits, at most these here."""
QUOTIENT: Final = f"DECIMAL(38,{QUOTIENT_SCALE})"
_ROUND_FIRST: Final = "The number of decimals of a quotient is not fixed: round it first, as in round(…, 2)"
_SUMMED: Final = "{0}"


def _let(*values: str, body: str) -> str:
    """Returns SQL that computes values once, each from the ones before; they are fields of ``v1``, ``v2``, …."""
    for number in range(len(values), 0, -1):
        body = f"list_transform([{{{values[number - 1]}}}], lambda v{number}: {body})[1]"
    return body


def _first_digit(number: str, scale: int) -> str:
    """Returns SQL for the position and the value of a number's first digit in base 10,000."""
    shift = -scale % 4
    text = f"CAST(abs({number}) * {10**shift} AS VARCHAR)"
    digits = f"((length({text}) - 1) // 4)"
    value = f"CAST(left({text}, CAST(length({text}) - 4 * {digits} AS BIGINT)) AS INTEGER)"
    return f"CASE WHEN {number} = 0 THEN [0, 0] ELSE [{digits} - {(scale + shift) // 4}, {value}] END"


def _written(number: str, scale: int) -> str:
    """Returns SQL for a number's own decimals, as far as they are known."""
    text = f"CAST({number} AS VARCHAR)"
    return f"{scale} - length({text}) + length(rtrim({text}, '0'))" if scale >= FREE_SCALE else str(scale)


def quotient(left: str, right: str, scales: tuple[int, int]) -> str:
    """Returns SQL for PostgreSQL's quotient of unscaled integers, with its number of decimals.

    PostgreSQL chooses the decimals from the operands' first digits in base 10,000, and rounds half away from
    zero. The decimals come in two halves, because an integer has 38 digits.
    """
    up, down = 10 ** max(scales[1] - scales[0], 0), 10 ** max(scales[0] - scales[1], 0)
    half, all_decimals = f"CAST({10 ** (QUOTIENT_SCALE // 2)} AS HUGEINT)", QUOTIENT_SCALE
    position = "v2.a[1] - v2.b[1] - CASE WHEN v2.a[2] <= v2.b[2] THEN 1 ELSE 0 END"
    unit = f"CAST('1' || repeat('0', {all_decimals} - least(v5.k, {all_decimals})) AS HUGEINT)"
    rounds_up = f"CASE WHEN v5.k >= {all_decimals} THEN v5.r * 2 >= v2.d ELSE (v5.f % v6.u) * 2 >= v6.u END"
    scale = f"greatest(16 - 4 * ({position}), {', '.join(map(_written, ('v1.n', 'v1.d'), scales))}, 0)"
    problem = f"error('this quotient has more than {all_decimals} decimals in PostgreSQL')"
    rounded = f"(v5.f // v6.u + CASE WHEN {rounds_up} THEN 1 ELSE 0 END) * v6.u"
    fraction = f"CASE WHEN v5.k > {all_decimals} AND v5.r <> 0 THEN {problem} ELSE {rounded} END"
    small = f"CAST('0.{'0' * (all_decimals - 1)}1' AS DECIMAL({all_decimals},{all_decimals}))"
    value = f"(CAST(v3.i AS {QUOTIENT}) + CAST(CAST({fraction} AS DECIMAL(38,0)) * {small} AS {QUOTIENT}))"
    sign = "CASE WHEN (v1.n < 0) <> (v1.d < 0) THEN -1 ELSE 1 END"
    return _let(
        f"'n': {left}, 'd': {right}",
        f"'n': abs(v1.n) * {up}, 'd': abs(v1.d) * {down}, "
        f"'a': {_first_digit('v1.n', scales[0])}, 'b': {_first_digit('v1.d', scales[1])}",
        f"'i': v2.n // v2.d, 'r': (v2.n % v2.d) * {half}",
        f"'f': v3.r // v2.d, 'r': (v3.r % v2.d) * {half}",
        f"'f': v4.f * {half} + v4.r // v2.d, 'r': v4.r % v2.d, 'k': {scale}",
        f"'u': {unit}",
        body=f"CAST({value} * {sign} AS {QUOTIENT})",
    )


def unscaled(operand: str, column_type: str) -> str:
    """Returns SQL for an exact number as an integer, without its decimal point."""
    if not decimals(column_type):
        return f"CAST({operand} AS HUGEINT)"
    return f"CAST(replace(CAST({operand} AS VARCHAR), '.', '') AS HUGEINT)"


@builder
def divide(call: Call) -> Rewriting:
    """Division of exact numbers."""
    left, right = (each.type for each in call.operands)
    if max(decimals(left), decimals(right)) >= QUOTIENT_SCALE:
        raise call.refused(_ROUND_FIRST)
    sql = quotient(unscaled("{0}", left), unscaled("{1}", right), (decimals(left), decimals(right)))
    return Rewriting(sql, probe=f"CAST(NULL AS {QUOTIENT})")


@builder
def average(call: Call) -> Rewriting:
    """The average of exact numbers: their exact sum by their number."""
    (operand,) = call.operands[:1]
    as_sum, as_count = renamed(call.with_operand(0, _SUMMED), "sum"), renamed(call.code, "count")
    sql = quotient(unscaled("{sum}", operand.type), "CAST({count} AS HUGEINT)", (decimals(operand.type), 0))
    parts: dict[str, str | Code] = {"sum": as_sum, "count": as_count}
    return Rewriting(f"CASE WHEN {{count}} <> 0 THEN {sql} END", parts, f"CAST(NULL AS {QUOTIENT})")


@builder
def total(call: Call) -> Rewriting:
    """A sum, which is numeric if it is of bigint, and bigint if it is of smaller integers."""
    if call.operands[0].kind == "int":
        return Rewriting("CAST({self} AS BIGINT)")
    summed = call.with_operand(0, "CAST({0} AS DECIMAL(38,0))")
    return Rewriting("{sum}", {"sum": summed}, "CAST(NULL AS DECIMAL(38,0))")
