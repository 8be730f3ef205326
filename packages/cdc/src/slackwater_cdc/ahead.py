"""Markers of partitions that are further than the frontier."""

from collections.abc import Iterable, Mapping

from slackwater_cdc.context import Context
from slackwater_cdc.partition import Partition
from slackwater_cdc.partitions import Partitions
from slackwater_cdc.transaction import Obstacle, Transaction
from slackwater_protocol import AheadMarkers, CommittedTransaction, Marker


class Ahead:
    """Remembers what was told before, so that each transaction is told once.

    All are told, also those without a change event: rows may come that END did not count.

    Args:
        source: The connector's ``topic.prefix``.
        timeline: Of the LSNs.
    """

    def __init__(self, source: str, timeline: int) -> None:
        self._source = source
        self._timeline = timeline
        self._told_lsn = 0
        self._told: dict[tuple[str, int], Marker] = {}

    def markers(
        self,
        cut_lsn: int,
        queue: Iterable[Transaction | Obstacle],
        partitions: Partitions,
        context: Context,
    ) -> AheadMarkers | None:
        """The markers above a cut, None when none has risen since the last call.

        Args:
            cut_lsn: The newest cut.
            queue: What is above it, in commit order.
            partitions: Where rows were read.
            context: Knows the rows since the cut that were repeated, and those of incremental snapshots.
        """
        waiting = _until_obstacle(queue)
        markers = _markers(cut_lsn, waiting, partitions, context.waiting_incremental)
        lsn = max((m.safe_commit_lsn for m in markers.values()), default=0)
        if lsn <= cut_lsn or markers == self._told:
            return None
        previous = min(max(cut_lsn, self._told_lsn), lsn)
        above = [t for t in waiting if t.commit_lsn <= lsn]
        self._told, self._told_lsn = markers, max(lsn, self._told_lsn)
        return AheadMarkers(
            source=self._source,
            timeline=self._timeline,
            previous_lsn=previous,
            lsn=lsn,
            transactions=tuple(_committed(t) for t in above if t.commit_lsn > previous),
            markers=markers,
            repeated=frozenset(context.repeated) | {t.commit_lsn for t in above if t.is_repeated},
        )


def _until_obstacle(queue: Iterable[Transaction | Obstacle]) -> list[Transaction]:
    result = []
    for item in queue:
        if not isinstance(item, Transaction):
            break
        result.append(item)
    return result


def _markers(
    cut_lsn: int,
    waiting: list[Transaction],
    partitions: Partitions,
    incremental: Mapping[Partition, int],
) -> dict[tuple[str, int], Marker]:
    """By partition; those of tables without keys never run ahead: a repeat may come in any of them.

    Nor does one beyond a row of an incremental snapshot: only a cut says that there is one.
    """
    before, lsn = dict[int, int](), cut_lsn
    for transaction in waiting:
        before[transaction.sequence or 0] = lsn
        lsn = transaction.commit_lsn
    result = {}
    for partition in partitions:
        newest = None if partition.has_keyless_rows else partition.newest_certain()
        if newest is None or incremental.get(partition, newest[1]) < newest[1]:
            continue
        if before.get(newest[0].sequence or 0, 0) > cut_lsn:
            result[partition.key] = Marker(before[newest[0].sequence or 0], newest[1])
    return result


def _committed(transaction: Transaction) -> CommittedTransaction:
    end = transaction.end
    ts_ms = 0 if end is None else end.commit_ts_ms
    return CommittedTransaction(transaction.xid, transaction.commit_lsn, ts_ms)
