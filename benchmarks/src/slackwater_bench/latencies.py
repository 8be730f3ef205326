"""From intended or commit times and what became visible to latencies. Pure."""

from collections.abc import Iterable, Iterator, Sequence


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
    index = 0
    for lsn, time in due:
        while index < len(seen) and seen[index][0] < lsn:
            index += 1
        if index == len(seen):
            return
        if time >= since:
            yield 1000 * (seen[index][1] - time)
