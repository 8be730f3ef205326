"""Cuts: what is on the frontier but in no cut yet, and the markers of partitions that are further ahead."""

from collections.abc import Collection, Iterable, Mapping

from slackwater.cdc.initial_snapshot import InitialSnapshot
from slackwater.cdc.partition_queues import Obstacle, PartitionQueue, Partitions
from slackwater.cdc.postgres import next_position_between_commits
from slackwater.cdc.transaction import Transaction
from slackwater.protocol import SNAPSHOT_XID, AheadMarkers, CommittedTransaction, Cut, Marker


class Barriers:
    """Chooses the last commit of each interval of commit time.

    Only commits and their times decide, so all sidecars of a source choose the same ones, and so does that of
    an output that is used as a source. Commit times may be slightly out of order, so a time in the previous
    interval does not make a barrier; a clock that goes back further does. A sidecar that starts in the middle
    may choose one more than others have. With an interval of 0 ms there are no barriers.
    """

    def __init__(self, interval_ms: int, start: Cut | None) -> None:
        self._interval_ms = interval_ms
        self.newest_lsn = 0 if start is None else start.barrier_lsn
        """The newest barrier; 0 if there is none yet."""
        self._lsn = 0
        self._interval: int | None = None
        if start is not None:
            self.pass_commit(start.lsn, start.commit_ts_ms)

    def is_before(self, commit_ts_ms: int) -> bool:
        """Returns whether the newest commit is a barrier, given the commit time of the next one."""
        if not self._interval_ms or self._interval is None:
            return False
        return not self._interval - 1 <= commit_ts_ms // self._interval_ms <= self._interval

    def mark(self) -> None:
        """Makes the newest commit a barrier."""
        self.newest_lsn = self._lsn

    def pass_commit(self, lsn: int, commit_ts_ms: int) -> None:
        """Takes the next commit, or the snapshot that contains all before it."""
        self._lsn = lsn
        if self._interval_ms and (self._interval is None or self.is_before(commit_ts_ms)):
            self._interval = commit_ts_ms // self._interval_ms


class Cuts:
    """Collects transactions in commit order and forms cuts."""

    def __init__(
        self, source: str, timeline: int, start: Cut | None, partitions: Partitions, barriers: Barriers
    ) -> None:
        self._source = source
        self._partitions = partitions
        self._barriers = barriers
        self.timeline = timeline if start is None else start.timeline
        self.lsn = 0 if start is None else start.lsn
        self.cut_lsn = self.lsn
        self.transaction_offset = 0 if start is None else start.transaction_offset
        """The offset up to which the next cut contains the transaction topic."""
        self.passed = 0
        """The sequence of the newest transaction on the frontier."""
        self.ready_events = 0
        """Change events on the frontier that were not yet returned."""
        self.ready: list[CommittedTransaction] = []
        """Transactions on the frontier that are in no cut."""
        self._ends_ms: list[int] = []
        """The record timestamps of their ENDs; 0 for a snapshot, which has none."""
        self._commit_ts_ms = 0 if start is None else start.commit_ts_ms
        self._ended_ms = 0 if start is None else start.ended_ms
        self._event_count = 0 if start is None else start.event_count
        self._skipped: list[int] = []
        self._late: set[int] = set()
        self._whole_at = 0
        self._finished: list[Cut] = []
        self._marked_lsn = 0
        self._markers: dict[tuple[str, int], Marker] = {}

    # --- what passes the frontier

    def add(self, transaction: Transaction) -> None:
        """Takes the next complete transaction."""
        end = transaction.end
        if end is None:
            return
        self.transaction_offset = transaction.end_offset
        events = sum(end.counts.values())
        if end.counts or transaction.partitions:
            self.ready.append(CommittedTransaction(end.xid, end.commit_lsn, end.commit_ts_ms))
            self._ends_ms.append(transaction.last_end_ms)
        self._count(events)
        self._ended_ms = transaction.last_end_ms
        self._move(end.commit_lsn, end.commit_ts_ms)

    def add_snapshot(self, snapshot: InitialSnapshot, row_count: int) -> None:
        """Takes a complete snapshot with this many rows."""
        if snapshot.is_late:
            self.add_late({snapshot.lsn})
        else:
            self.ready.append(CommittedTransaction(SNAPSHOT_XID, snapshot.lsn, snapshot.ts_ms))
            self._ends_ms.append(0)
        self._count(row_count)
        self._move(snapshot.lsn, snapshot.ts_ms)

    def add_late(self, snapshots: set[int]) -> None:
        """Notes LSNs of snapshots with rows that are newer than them."""
        self._late |= snapshots

    def add_skipped(self, xid: int) -> None:
        """Notes that a transaction was passed although rows of it are missing."""
        self._skipped.append(xid)

    def keep_whole_to(self, sequence: int) -> None:
        """Notes that no cut may end before the frontier is at a sequence."""
        self._whole_at = max(self._whole_at, sequence)

    # --- cuts

    @property
    def may_end(self) -> bool:
        """Whether a cut may end at the present frontier."""
        return self.passed >= self._whole_at

    @property
    def has_late(self) -> bool:
        """Whether late rows of a snapshot are to be shown."""
        return bool(self._late)

    @property
    def has_moved(self) -> bool:
        """Whether the frontier is above the newest cut, or a cut was not yet returned."""
        return bool(self._finished) or self.lsn > self.cut_lsn

    def step_between_commits(self) -> bool:
        """Moves the frontier to an LSN that no commit has; returns False if there is none left."""
        position = next_position_between_commits(self.lsn)
        if position is None:
            return False
        self.lsn = position
        return True

    def end(
        self,
        *,
        repeated: Iterable[int],
        incremental_rows: int,
        has_incremental_rows: bool,
        without_snapshot: tuple[str, ...],
    ) -> Cut:
        """Ends a cut at the present frontier."""
        self._event_count += incremental_rows
        cut = Cut(
            source=self._source,
            timeline=self.timeline,
            lsn=self.lsn,
            previous_lsn=self.cut_lsn,
            commit_ts_ms=self._commit_ts_ms,
            event_count=self._event_count,
            transactions=tuple(self.ready),
            end_offsets=self._partitions.end_offsets(),
            transaction_offset=self.transaction_offset,
            repeated=frozenset(repeated),
            skipped=tuple(self._skipped),
            late_snapshots=tuple(sorted(self._late)),
            has_incremental_rows=has_incremental_rows,
            without_snapshot=without_snapshot,
            barrier_lsn=self._barriers.newest_lsn,
            ended_ms=self._ended_ms,
            ends_ms=tuple(self._ends_ms),
        )
        self.ready, self._ends_ms, self._skipped, self._late = [], [], [], set()
        self.cut_lsn = self.lsn
        self._finished.append(cut)
        return cut

    def take(self) -> list[Cut]:
        """Returns the cuts since the last call, in order."""
        cuts, self._finished = self._finished, []
        self.ready_events = 0
        return cuts

    def _move(self, lsn: int, commit_ts_ms: int) -> None:
        self.lsn, self._commit_ts_ms = lsn, commit_ts_ms
        self._barriers.pass_commit(lsn, commit_ts_ms)

    def _count(self, events: int) -> None:
        self.ready_events += events
        self._event_count += events

    # --- markers

    def markers_ahead(
        self,
        queue: Iterable[Transaction | Obstacle],
        repeated: Iterable[int],
        incremental: Mapping[PartitionQueue, int],
        without_snapshot: Collection[str],
    ) -> AheadMarkers | None:
        """Returns the markers above the newest cut; None if none has risen since the last call.

        Each transaction is named once, also one without change events: rows may come that END did not count.
        The queue is what is above the cut, in commit order; `repeated` are the commit LSNs with rows that
        were repeated since the cut, and `incremental` are the offsets of the first rows of incremental
        snapshots that no cut has shown.
        """
        cut_lsn = self.cut_lsn
        if not cut_lsn or self.ready or self.has_late or self._finished:
            return None
        waiting = _until_obstacle(queue)
        found = self._markers_by_partition(waiting, incremental)
        markers = {key: marker for key, marker in found.items() if key[0] not in without_snapshot}
        lsn = max((m.safe_commit_lsn for m in markers.values()), default=0)
        if lsn <= cut_lsn or markers == self._markers:
            return None
        previous = min(max(cut_lsn, self._marked_lsn), lsn)
        above = [t for t in waiting if t.commit_lsn <= lsn]
        self._markers, self._marked_lsn = markers, max(lsn, self._marked_lsn)
        return AheadMarkers(
            source=self._source,
            timeline=self.timeline,
            previous_lsn=previous,
            lsn=lsn,
            transactions=tuple(_committed(t) for t in above if t.commit_lsn > previous),
            markers=markers,
            repeated=frozenset(repeated) | {t.commit_lsn for t in above if t.is_repeated},
        )

    def _markers_by_partition(
        self, waiting: list[Transaction], incremental: Mapping[PartitionQueue, int]
    ) -> dict[tuple[str, int], Marker]:
        """Returns the markers above the newest cut.

        Those of tables without keys never run ahead, because any of their partitions may contain a repeat.
        Nor does one beyond a row of an incremental snapshot: only a cut announces it.
        """
        before, lsn = dict[int, int](), self.cut_lsn
        for transaction in waiting:
            before[transaction.sequence or 0] = lsn
            lsn = transaction.commit_lsn
        result = {}
        for partition in self._partitions:
            newest = None if partition.has_keyless_rows else partition.newest_certain()
            if newest is None or incremental.get(partition, newest[1]) < newest[1]:
                continue
            if before.get(newest[0], 0) > self.cut_lsn:
                result[partition.key] = Marker(before[newest[0]], newest[1])
        return result


def _until_obstacle(queue: Iterable[Transaction | Obstacle]) -> list[Transaction]:
    result = []
    for item in queue:
        if not isinstance(item, Transaction):
            break
        result.append(item)
    return result


def _committed(transaction: Transaction) -> CommittedTransaction:
    end = transaction.end
    ts_ms = 0 if end is None else end.commit_ts_ms
    return CommittedTransaction(transaction.xid, transaction.commit_lsn, ts_ms)
