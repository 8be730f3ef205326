"""What is on the frontier and in no cut yet."""

from slackwater_cdc.context import Context
from slackwater_cdc.partitions import Partitions
from slackwater_cdc.snapshot import Snapshot
from slackwater_cdc.transaction import Transaction
from slackwater_protocol import SNAPSHOT_XID, CommittedTransaction, Cut

_LSN_STEP = 8
"""PostgreSQL aligns the ends of its log records to so many bytes: LSNs in between belong to no commit."""


class CutBuilder:
    """Collects transactions in commit order and makes cuts of them.

    Args:
        source: The connector's ``topic.prefix``.
        timeline: Of the cuts; that of ``start``, if there is one.
        start: The cut to go on from.
    """

    def __init__(self, source: str, timeline: int, start: Cut | None) -> None:
        self._source = source
        self.timeline = timeline if start is None else start.timeline
        self.lsn = 0 if start is None else start.lsn
        """The commit LSN of the frontier."""
        self.cut_lsn = self.lsn
        """The LSN of the newest cut."""
        self.transaction_offset = 0 if start is None else start.transaction_offset
        self.ready_events = 0
        """Change events on the frontier that no cut has."""
        self.ready: list[CommittedTransaction] = []
        self._commit_ts_ms = 0 if start is None else start.commit_ts_ms
        self._event_count = 0 if start is None else start.event_count
        self._skipped: list[int] = []
        self._late: set[int] = set()

    def add(self, transaction: Transaction) -> None:
        """Takes the next complete transaction."""
        end = transaction.end
        if end is None:
            return
        self.transaction_offset = transaction.end_offset
        events = sum(end.counts.values())
        if end.counts or transaction.partitions:
            self.ready.append(CommittedTransaction(end.xid, end.commit_lsn, end.commit_ts_ms))
        self._count(events)
        self.lsn, self._commit_ts_ms = end.commit_lsn, end.commit_ts_ms

    def add_snapshot(self, snapshot: Snapshot, row_count: int) -> None:
        """Takes a complete snapshot of so many rows."""
        if snapshot.is_late:
            self.add_late({snapshot.lsn})
        else:
            self.ready.append(CommittedTransaction(SNAPSHOT_XID, snapshot.lsn, snapshot.ts_ms))
        self._count(row_count)
        self.lsn, self._commit_ts_ms = snapshot.lsn, snapshot.ts_ms

    @property
    def has_late(self) -> bool:
        """Whether late rows of a snapshot are to be shown."""
        return bool(self._late)

    def add_late(self, snapshots: set[int]) -> None:
        """Notes LSNs of snapshots with rows that are newer."""
        self._late |= snapshots

    def add_skipped(self, xid: int) -> None:
        """Notes that a transaction was passed though rows of it are missing."""
        self._skipped.append(xid)

    def step_between_commits(self) -> bool:
        """Moves the frontier to an LSN that no commit has; False when there is none left."""
        if (self.lsn + 1) % _LSN_STEP == 0:
            return False
        self.lsn += 1
        return True

    def cut(self, partitions: Partitions, context: Context) -> Cut:
        """A cut at the present frontier."""
        self._event_count += context.incremental_rows
        cut = Cut(
            source=self._source,
            timeline=self.timeline,
            lsn=self.lsn,
            previous_lsn=self.cut_lsn,
            commit_ts_ms=self._commit_ts_ms,
            event_count=self._event_count,
            transactions=tuple(self.ready),
            end_offsets=partitions.end_offsets(),
            transaction_offset=self.transaction_offset,
            repeated=frozenset(context.repeated),
            skipped=tuple(self._skipped),
            late_snapshots=tuple(sorted(self._late)),
            has_incremental_rows=_shows_incremental_rows(context),
        )
        context.repeated.clear()
        context.incremental_rows = 0
        self.ready, self._skipped, self._late = [], [], set()
        self.cut_lsn = self.lsn
        return cut

    def _count(self, events: int) -> None:
        self.ready_events += events
        self._event_count += events


def _shows_incremental_rows(context: Context) -> bool:
    """Whether a cut now has rows of incremental snapshots below its end offsets; takes them off the list."""
    waiting = context.waiting_incremental
    shown = {p: end for p, first in waiting.items() if first < (end := p.end_offset())}
    for partition, end in shown.items():
        if partition.incremental_offset < end:
            del waiting[partition]
        else:
            waiting[partition] = end
    return bool(shown)
