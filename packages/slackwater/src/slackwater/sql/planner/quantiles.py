"""Medians and quantiles: which values they need, and their result over these values.

The values next to the quantile are taken from a multiset, and DuckDB computes the median of the two.
"""

import re
from dataclasses import dataclass
from typing import Final

from slackwater.sql.logical import AggregateCall, Expression
from slackwater.sql.plan import Quantile

_CONTINUOUS: Final = frozenset({"quantile_cont", "percentile_cont"})
_DISCRETE: Final = frozenset({"quantile", "quantile_disc", "percentile_disc"})
QUANTILES: Final = _CONTINUOUS | _DISCRETE | {"median"}

_FRACTION = r"(?:0?\.\d{1,12}|[01](?:\.0{1,12})?)"
_FRACTIONS: Final = re.compile(rf"\[?\s*{_FRACTION}(?:\s*,\s*{_FRACTION})*\s*\]?")
_HALVES: Final = (0.0, 0.5, 1.0)
"""Fractions for which the result is a value, or the median of two. For others, DuckDB rounds in a way that
depends on the processor, and it takes the fraction only as a constant, not for two values."""


@dataclass(frozen=True, slots=True)
class QuantileCall:
    """What a call computes.

    Attributes:
        fractions: Decimal numbers from 0 to 1.
        is_list: Whether it returns a list with a value per fraction.
    """

    value: Expression
    fractions: tuple[str, ...]
    is_discrete: bool
    is_descending: bool
    is_list: bool


def quantile_of(call: AggregateCall) -> QuantileCall | None:
    """Returns what a call of one of `QUANTILES` computes; None if it needs the rows of the group."""
    orders = call.orders
    if call.is_distinct or not call.arguments:
        return None
    if call.function == "median":
        is_plain = len(call.arguments) == 1 and not orders
        return QuantileCall(call.arguments[0], ("0.5",), False, False, False) if is_plain else None
    if (len(call.arguments), len(orders)) not in {(2, 0), (1, 1)}:
        return None
    text = call.arguments[-1].sql.strip()
    if not _FRACTIONS.fullmatch(text) or text.startswith("[") != text.endswith("]"):
        return None
    fractions = tuple(re.findall(_FRACTION, text))
    is_descending = bool(orders) and orders[0][1].startswith("DESC")
    value = orders[0][0] if orders else call.arguments[0]
    return QuantileCall(value, fractions, call.function in _DISCRETE, is_descending, text.startswith("["))


def interpolated(quantile: Quantile, of_type: str) -> str | None:
    """Returns SQL of a quantile over the columns ``#_lo`` and ``#_hi``; None if it needs all values."""
    low, high = f"CAST(#_lo AS {of_type})", f"CAST(#_hi AS {of_type})"
    if quantile.is_discrete:
        return low
    if float(quantile.fraction) not in _HALVES:
        return None
    between = f"a{quantile.counted} % 2 = 0" if float(quantile.fraction) == _HALVES[1] else "false"
    values = f"CASE WHEN {between} THEN [{low}, {high}] ELSE [{low}] END"
    return f"list_aggregate({values}, 'median')"
