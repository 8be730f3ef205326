"""From the times at which a transaction was seen on its way to what each step of the way took. Pure."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

from slackwater_bench.latencies import summary
from slackwater_bench.usage import LoggedBatch
from slackwater_lab.watching import SeenCommit, SeenCut

PARTS: Final = ("plan", "read", "evaluate", "schedule", "state", "produce", "commit")
"""The parts of a batch, one after the other, as the line of the command names them."""
HOPS: Final = ("end", "cut", "wait", *PARTS, "visible")
"""The steps from the commit in the database to a reader, in the order of the way.

``end``: until the connector hands END to Kafka; ``cut``: until the sidecar hands the cut that covers the
transaction to Kafka; ``wait``: until the batch begins that takes it, mostly for the end of the batch before;
then the parts of that batch; ``visible``: until a ``read_committed`` consumer sees the commit record.
"""


def hops_ms(
    cuts: Sequence[SeenCut],
    ends_ms: Mapping[int, float],
    batches: Sequence[LoggedBatch],
    seen: Sequence[SeenCommit],
    *,
    since: float,
) -> dict[str, dict[str, float]]:
    """Sums up over transactions, for each of :data:`HOPS` in that order, how many milliseconds it took.

    The steps of a transaction add up to its latency: a batch that began before the cut was published, and
    found it while it planned, is charged from the cut on. A part that the command does not show counts as
    nothing, and as waiting.

    Args:
        cuts: All cuts, ascending.
        ends_ms: When END was handed to Kafka by commit LSN, milliseconds since the epoch.
        batches: What the command said of its batches.
        seen: The commit records of an output that has one for each batch, ascending.
        since: Transactions committed before this are left out (warm-up); seconds since the epoch.

    Returns:
        Nothing when of no transaction the whole way is known; others than those are left out.
    """
    ways = list(_ways(cuts, ends_ms, batches, seen, 1000 * since))
    if not ways:
        return {}
    return {hop: summary(took) for hop, took in zip(HOPS, zip(*ways, strict=True), strict=True)}


def _ways(
    cuts: Sequence[SeenCut],
    ends_ms: Mapping[int, float],
    batches: Sequence[LoggedBatch],
    seen: Sequence[SeenCommit],
    since_ms: float,
) -> Iterator[tuple[float, ...]]:
    """Yields what each step took, for each transaction."""
    by_lsn = {batch.commit_lsn: batch for batch in batches}
    stations = [_batch_stations(by_lsn.get(commit.commit_lsn), commit) for commit in seen]
    visible = [commit.commit_lsn for commit in seen]
    for cut in cuts:
        for transaction in cut.cut.transactions:
            lsn, committed_ms = transaction.commit_lsn, transaction.commit_ts_ms
            number = bisect_left(visible, lsn)
            if committed_ms < since_ms or lsn not in ends_ms or number == len(seen) or not stations[number]:
                continue
            reached = accumulate((committed_ms, ends_ms[lsn], cut.at_ms, *stations[number]), max)
            yield tuple(after - before for before, after in pairwise(reached))


def _batch_stations(batch: LoggedBatch | None, commit: SeenCommit) -> tuple[float, ...]:
    """Returns when a batch began, when each part of it ended, and when a reader saw it; none: not known."""
    if batch is None:
        return ()
    took = [1000 * batch.seconds.get(part, 0.0) for part in PARTS]
    began = commit.record.commit_ts_ms + batch.lag_ms - sum(took)
    return (*accumulate(took, initial=began), commit.wall_ms)
