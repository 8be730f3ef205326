"""The spans of a batch's sampled transactions, from their cut to their visibility."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from slackwater.protocol import SNAPSHOT_XID, epoch_ms
from slackwater.protocol.tracing import TracedTransaction, TransactionSpan, pipeline_spans

if TYPE_CHECKING:  # it loads what plans batches
    from slackwater.pipeline.progress import BatchProgress

_PARTS: Final = (("plan",), ("read", "evaluate", "schedule"), ("state",), ("produce", "commit"))
"""The parts of a batch that belong to each step after the wait for it."""

_lsn = attrgetter("lsn")


def batch_spans(batch: "BatchProgress", ratio: float) -> Iterator[TransactionSpan]:
    """Yields the spans of a batch's sampled transactions.

    Args:
        batch: The batch, which is visible.
        ratio: The share of all transactions that is traced, from 0 to 1.
    """
    for xid, lsn, _ in batch.commits:
        traced = TracedTransaction(batch.source, batch.timeline, xid, lsn)
        if xid == SNAPSHOT_XID or not traced.is_sampled(ratio):
            continue
        place = bisect_left(batch.cuts, lsn, key=_lsn)
        if place < len(batch.cuts) and (cut_ms := batch.cuts[place].written_ms):
            yield from pipeline_spans(traced, batch.pipeline, cut_ms, _ends_ms(batch))


def _ends_ms(batch: "BatchProgress") -> list[int]:
    """Returns when the wait for a batch, and each of its steps, ended, counted back from its visibility."""
    seconds = [sum(batch.seconds.get(part, 0.0) for part in parts) for parts in _PARTS]
    visible_ms = epoch_ms(batch.visible_at)
    left = accumulate(reversed(seconds), initial=0.0)
    return [visible_ms - round(each * 1000) for each in left][::-1]
