"""The rules by which counts show that a transaction is complete.

The usual case costs nothing here: one numbering, one run, all of 1 … n read. The rules for the rest:

* One numbering over several runs (the connector continued it): all of 1 … n read, over all runs.
* More than one numbering (``is_renumbered``), any of

  1. END was read after a single BEGIN, so it has the true count n, and one run (known by its header) has
     written 1 … n: a later numbering only lowers numbers, hence cannot reach n.
  2. The last run that wrote rows (known by its header) has written exactly 1 … n of the last END (nothing, if
     that counts nothing), it is not older than the last BEGIN, for it wrote something later, and every
     partition was read past the end offsets asked for after the last END was read: rows of earlier runs were
     readable by then. Or the runs between the last BEGIN and the last END have done so together: the later
     ones went on with the numbers. The runs are known by the times of their newest records and by
     the start that a run id (UUID version 7) names.
  3. ``overtaken``: in every partition of the tables that a true END names (of all tables, if there is none) a
     row of a later transaction was read, and one run that is not older than the last END has written all of
     these. A row without a key may be repeated in another partition than the first one, and whether a row has
     a key is not known before it is read. Only where records do not name their run, and no row without a key
     was read, any rows of later transactions will do.

Rows without the header are kept as those of one run, though several may have written them: their numbers may
be those of several numberings, so together they prove nothing once there is more than one.
"""

from collections.abc import Collection, Mapping
from uuid import UUID

from slackwater_cdc.partition_queues import PartitionQueue
from slackwater_cdc.rows import RunRows, union
from slackwater_cdc.transaction import Transaction

_TIME_ORDERED = 7
"""The UUID version whose upper 48 bits are milliseconds since the epoch."""


def counts_are_complete(transaction: Transaction) -> bool:
    """Judges a transaction with one numbering by counts."""
    end = transaction.end
    if end is None:
        return False
    if not transaction.missing:
        return True
    if transaction.later is None:
        return False
    runs = transaction.runs
    return all(_covers(union(runs, table), count) for table, count in transaction.counted.items())


def original_numbering_is_complete(transaction: Transaction) -> bool:
    """Judges a renumbered transaction by rule 1."""
    end = transaction.end
    if end is None or transaction.begins_at_first_end > 1:
        return False
    return all(
        any(r.run and r.covers(table, count) for r in transaction.runs)
        for table, count in transaction.counted.items()
    )


def last_numbering_is_complete(transaction: Transaction, newest_ms: Mapping[str, int]) -> bool:
    """Judges a renumbered transaction by rule 2, without the end offsets.

    Args:
        transaction: A transaction with END.
        newest_ms: The newest record timestamp of each connector run.
    """
    end, counted, runs = transaction.last_end, transaction.last_counted, transaction.runs
    if end is None or not counted:
        return end is not None
    together = _runs_of_last_numbering(transaction, newest_ms)
    if len(together) > 1 and all(_is_exactly(union(together, t), n) for t, n in counted.items()):
        return True
    last = max(runs, key=lambda r: r.run)
    if not last.run or not newest_ms.get(last.run, 0) >= transaction.last_begin_ms > 0:
        return False
    return all(last.is_exactly(table, count) for table, count in counted.items())


def is_overtaken(
    transaction: Transaction, partitions: Collection[PartitionQueue], newest_ms: Mapping[str, int]
) -> bool:
    """Judges a renumbered transaction by rule 3; partitions are those of the transaction's tables."""
    sequence = transaction.sequence
    if sequence is None or not partitions:
        return False
    runs = [p.runs_after(sequence) for p in partitions]
    if not transaction.is_keyless and any("" in r for r in runs):
        return all(runs)
    in_all = frozenset.intersection(*runs)
    return any(r and newest_ms.get(r, 0) >= transaction.last_end_ms > 0 for r in in_all)


def _runs_of_last_numbering(transaction: Transaction, newest_ms: Mapping[str, int]) -> list[RunRows]:
    """Returns the runs alive between the last BEGIN and the last END; none if that cannot be known."""
    begin_ms, end_ms = transaction.last_begin_ms, transaction.last_end_ms
    starts = {r.run: _started_ms(r.run) for r in transaction.runs}
    if not begin_ms or None in starts.values():
        return []
    return [
        r for r in transaction.runs if newest_ms.get(r.run, 0) >= begin_ms and (starts[r.run] or 0) <= end_ms
    ]


def _started_ms(run: str) -> int | None:
    """Returns the time at which a run began, by its id; None if the id does not say."""
    try:
        parsed = UUID(run)
    except ValueError:
        return None
    return parsed.int >> 80 if parsed.version == _TIME_ORDERED else None


def _is_exactly(seen: bytes, count: int) -> bool:
    return _covers(seen, count) and not seen.count(1, count + 1)


def _covers(seen: bytes, count: int) -> bool:
    return len(seen) > count and seen.count(1, 1, count + 1) == count
