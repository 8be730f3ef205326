"""Percentiles and spread of a few or many measured values."""

from collections.abc import Sequence
from statistics import median


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest of the ascending values that at least ``percent`` of them do not exceed (nearest rank).

    Raises:
        ValueError: there are no values.
    """
    if not ordered:
        raise ValueError("no values: a percentile needs at least one")
    rank = -(-len(ordered) * percent // 100)
    return ordered[min(len(ordered), max(1, int(rank))) - 1]


def summary(values: Sequence[float], digits: int = 1) -> dict[str, float]:
    """``count, p50, p90, p99, max`` of values in any order."""
    ordered = sorted(values)
    shown = {f"p{percent}": round(percentile(ordered, percent), digits) for percent in (50, 90, 99)}
    return {"count": len(ordered), **shown, "max": round(ordered[-1], digits)}


def relative_spread(values: Sequence[float]) -> float:
    """``(max - min) / |median|``; 0 for a single value or a median of 0."""
    middle = median(values)
    return (max(values) - min(values)) / abs(middle) if middle else 0.0
