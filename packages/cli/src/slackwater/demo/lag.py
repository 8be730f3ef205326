"""Delay from the source commit to visibility, per source transaction."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slackwater.demo.history import SourceTransaction
from slackwater.demo.observers import SeenCommit


@dataclass(frozen=True, slots=True)
class LagSummary:
    """Percentiles in milliseconds."""

    transactions: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def transaction_lags(
    transactions: Iterable[SourceTransaction], seen: Sequence[SeenCommit], *, since_ms: int
) -> Iterator[int]:
    """How long each transaction committed since then took to its first commit record.

    Stricter than a commit record's own time, which is that of the newest transaction in it.
    """
    index = 0
    for transaction in transactions:
        while index < len(seen) and seen[index].record.commit_lsn < transaction.commit_lsn:
            index += 1
        if index == len(seen):
            return
        if transaction.commit_ts_ms >= since_ms:
            yield seen[index].seen_ms - transaction.commit_ts_ms


def summary(lags: Iterable[int]) -> LagSummary | None:
    """None when there is nothing to summarise."""
    ordered = sorted(lags)
    if not ordered:
        return None
    return LagSummary(len(ordered), _percentile(ordered, 50), _percentile(ordered, 99), ordered[-1])


def _percentile(ordered: Sequence[int], percent: int) -> float:
    """The smallest value that is not exceeded by ``percent`` of the values."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
