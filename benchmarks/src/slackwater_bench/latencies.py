"""From times to latencies, percentiles and spread. Pure."""

from collections.abc import Iterable, Iterator, Sequence
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


def summary(values: Sequence[float]) -> dict[str, float]:
    """``count, p50, p90, p99, max`` of values in any order."""
    ordered = sorted(values)
    shown = {f"p{percent}": round(percentile(ordered, percent), 1) for percent in (50, 90, 99)}
    return {"count": len(ordered), **shown, "max": round(ordered[-1], 1)}


def relative_spread(values: Sequence[float]) -> float:
    """``(max - min) / |median|``; 0 for a single value or a median of 0."""
    middle = median(values)
    return (max(values) - min(values)) / abs(middle) if middle else 0.0


def latencies_ms(
    due: Iterable[tuple[int, float]], seen: Sequence[tuple[int, float]], *, since: float
) -> Iterator[float]:
    """Computes the time from each transaction to the first commit record that covers it, in milliseconds.

    Args:
        due: Commit LSN and time at which the transaction was due, seconds, ascending by LSN.
        seen: Commit LSN of each commit record and when it was seen, ascending.
        since: Transactions due before this are left out (warm-up).

    Transactions that nothing covers yet are left out, too: wait for the last one first.
    """
    index = 0
    for lsn, time in due:
        while index < len(seen) and seen[index][0] < lsn:
            index += 1
        if index == len(seen):
            return
        if time >= since:
            yield 1000 * (seen[index][1] - time)
