"""When is a transaction complete?

The usual case costs nothing here: one numbering, one run, all of 1 … n read. The rules for the rest:

* One numbering over several runs (the connector continued it): all of 1 … n read, over all runs.
* More than one numbering (``is_renumbered``), any of

  1. END was read after a single BEGIN, so it has the true count n, and one run has written 1 … n: a later
     numbering only lowers numbers, hence cannot reach n.
  2. The last run that wrote rows has written exactly 1 … n of the last END and starts a numbering, it is the run
     that wrote the last BEGIN (as many numberings as BEGINs were seen, or it wrote something later than that
     BEGIN), and every partition was read past the end offsets asked for after the last END was read: rows of
     earlier runs were readable by then.
  3. ``overtaken``: in every partition of the transaction's tables a row of a later transaction was read.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from slackwater_cdc.transaction import Transaction, union

if TYPE_CHECKING:
    from slackwater_cdc.partition import Partition


def counts_are_complete(transaction: Transaction) -> bool:
    """Evidence ``counts`` for a transaction with one numbering."""
    end = transaction.end
    if end is None:
        return False
    if not transaction.first.incomplete:
        return True
    if transaction.later is None:
        return False
    runs = transaction.runs
    return all(
        _covers(union([r.tracks[table] for r in runs if table in r.tracks]), count)
        for table, count in end.counts.items()
    )


def original_numbering_is_complete(transaction: Transaction) -> bool:
    """Rule 1 for renumbered transactions."""
    end = transaction.end
    if end is None or transaction.begins_at_first_end > 1:
        return False
    return all(
        any(table in r.tracks and r.tracks[table].covers(count) for r in transaction.runs)
        for table, count in end.counts.items()
    )


def last_numbering_is_complete(transaction: Transaction, newest_ms: Mapping[str, int]) -> bool:
    """Rule 2 for renumbered transactions, without the end offsets.

    Args:
        transaction: A transaction with END.
        newest_ms: The newest record timestamp of each connector run.
    """
    end, runs = transaction.last_end, transaction.runs
    last = max(runs, key=lambda r: r.run)
    if end is None or not last.has_first:
        return False
    wrote_later = bool(last.run) and newest_ms.get(last.run, 0) >= transaction.last_begin_ms > 0
    if not wrote_later and sum(r.has_first for r in runs) < transaction.begins_at_last_end:
        return False
    return all(
        table in last.tracks and last.tracks[table].is_exactly(count) for table, count in end.counts.items()
    )


def is_overtaken(transaction: Transaction, partitions: Collection["Partition"]) -> bool:
    """Rule 3 for renumbered transactions; partitions are those of all the transaction's tables."""
    sequence = transaction.sequence
    return sequence is not None and bool(partitions) and all(p.has_row_after(sequence) for p in partitions)


def _covers(seen: bytes, count: int) -> bool:
    return len(seen) > count and seen.count(1, 1, count + 1) == count
