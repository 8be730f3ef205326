"""From intended or commit times and what became visible to latencies. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from slackwater_bench.percentiles import percentile

BUCKET_SECONDS = 5


def latencies_ms(
    due: Iterable[tuple[int, float]], seen: Sequence[tuple[int, float]], *, since: float
) -> Iterator[float]:
    """How long each transaction took to the first commit record that covers it, in milliseconds.

    Args:
        due: Commit LSN and time at which the transaction was due, seconds, ascending by LSN.
        seen: Commit LSN of each commit record and when it was seen, ascending.
        since: Transactions due before this are left out (warm-up).

    Transactions that nothing covers yet are left out, too: wait for the last one first.
    """
    return (latency for time, latency in _timed(due, seen) if time >= since)


def latency_timeline(
    due: Iterable[tuple[int, float]], seen: Sequence[tuple[int, float]], *, since: float
) -> list[tuple[int, float, float]]:
    """``(seconds, p50, max)`` for each five seconds after ``since``, in milliseconds: shows the warm-up."""
    buckets: dict[int, list[float]] = {}
    for time, latency in _timed(due, seen):
        if time >= since:
            buckets.setdefault(int((time - since) // BUCKET_SECONDS) * BUCKET_SECONDS, []).append(latency)
    ordered = {start: sorted(buckets[start]) for start in sorted(buckets)}
    return [(start, round(percentile(each, 50), 1), round(each[-1], 1)) for start, each in ordered.items()]


def _timed(
    due: Iterable[tuple[int, float]], seen: Sequence[tuple[int, float]]
) -> Iterator[tuple[float, float]]:
    index = 0
    for lsn, time in due:
        while index < len(seen) and seen[index][0] < lsn:
            index += 1
        if index == len(seen):
            return
        yield time, 1000 * (seen[index][1] - time)
