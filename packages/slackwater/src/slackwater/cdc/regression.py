"""LSNs that go back without a new timeline: a failover, a restore, another cluster behind the same connector.

A connector repeats ENDs after a restart, with the xid, LSN and commit time of the first time. So an END at or
below the newest one is a regression if

1. its LSN is in the range in which this process has read every END, and it was not among them; or
2. it was committed clearly later than everything read before, which finds what is below that range.

An initial snapshot is a regression if it is at or below the frontier and was taken clearly later, or if it is
above it: the connector has lost its position, and rows deleted before the new snapshot will never be named.

Times, also those of initial snapshots below the frontier, are compared with a margin, because commit times
may be out of order by as much time as a commit takes.
"""

from dataclasses import dataclass

from slackwater.cdc.envelope import End
from slackwater.cdc.postgres import CLOCK_SKEW_MS, COMMIT_TIME_MARGIN_MS


@dataclass(slots=True)
class Regression:
    """The position at which LSNs went back, or a new snapshot began; no cut passes it."""

    transaction_offset: int
    """The offset of the first END that went back: where the new timeline begins in the transaction topic."""
    xid: int
    """The xid of that transaction; 0 for an initial snapshot."""
    commit_lsn: int
    newest_lsn: int
    """The newest LSN before."""
    has_snapshot: bool = False
    """Whether an initial snapshot was seen after it."""


class RegressionWatch:
    """Follows ENDs and snapshot rows.

    Args:
        newest_lsn: The newest END that earlier processes have seen.
        newest_ms: The latest commit time they have seen, milliseconds since the epoch.
    """

    def __init__(self, newest_lsn: int, newest_ms: int) -> None:
        self._all_known_above = self._newest_lsn = newest_lsn
        self._newest_ms = self._passed_ms = newest_ms
        self._snapshot_ms = 0
        self._first_unknown_offset: int | None = None
        self.transaction_position = 0
        """The next offset to be read in the transaction topic."""
        self.found: Regression | None = None
        self._found_ms: int | None = None

    def read_new_end(self, commit_lsn: int, commit_ts_ms: int) -> None:
        """Notes an END above all earlier ones."""
        self._newest_lsn = max(self._newest_lsn, commit_lsn)
        self._newest_ms = max(self._newest_ms, commit_ts_ms)
        self._first_unknown_offset = None

    def read_unknown_end(self, offset: int, end: End, known_from_lsn: int) -> bool:
        """Returns whether an END at or below the newest one, not read before, shows that LSNs went back.

        Args:
            offset: In the transaction topic.
            end: Its content.
            known_from_lsn: Every END above this that was read is remembered.
        """
        if self._first_unknown_offset is None:
            self._first_unknown_offset = offset
        is_new = max(self._all_known_above, known_from_lsn) < end.commit_lsn <= self._newest_lsn
        if is_new or end.commit_ts_ms > self._newest_ms + COMMIT_TIME_MARGIN_MS:
            self._find(self._first_unknown_offset, end.xid, end.commit_lsn)
            return True
        return False

    def pass_commit(self, commit_ts_ms: int) -> None:
        """Notes a commit, or a snapshot, that is on the frontier."""
        self._passed_ms = max(self._passed_ms, commit_ts_ms)

    def read_old_snapshot(self, lsn: int, ts_ms: int) -> None:
        """Takes a row of an initial snapshot at or below the frontier: a repeat, or LSNs that went back.

        Commits above the frontier prove nothing: they may follow the new snapshot.
        """
        if ts_ms > self._passed_ms + COMMIT_TIME_MARGIN_MS:
            self._find_snapshot(lsn, ts_ms)
        self.read_new_snapshot(ts_ms)

    def read_snapshot_after_commits(self, lsn: int, ts_ms: int) -> None:
        """Takes a start-up snapshot above what was published: deletes in between are unknown."""
        self._find_snapshot(lsn, ts_ms)
        self.read_new_snapshot(ts_ms)

    def read_new_snapshot(self, ts_ms: int) -> None:
        """Notes that a row of an initial snapshot was read, taken at a time."""
        self._snapshot_ms = max(self._snapshot_ms, ts_ms)
        if self.found is not None:
            self.found.has_snapshot = True

    def may_be_behind(self, commit_ts_ms: int) -> bool:
        """Returns whether a commit whose END was read before may nevertheless be of the new timeline."""
        return self._found_ms is not None and commit_ts_ms > self._found_ms - COMMIT_TIME_MARGIN_MS

    def begin_at(self, offset: int, commit_ts_ms: int) -> None:
        """Lets the new timeline begin with an END that was read before the snapshot, if that was taken first.

        What was committed before the snapshot is in it, or of the old timeline.
        """
        if self.found is None or self._found_ms is None or commit_ts_ms < self._found_ms - CLOCK_SKEW_MS:
            return
        self.found.transaction_offset = min(self.found.transaction_offset, offset)

    def _find_snapshot(self, lsn: int, ts_ms: int) -> None:
        if self.found is None:
            self._found_ms = ts_ms
        self._find(self.transaction_position, 0, lsn)

    def _find(self, offset: int, xid: int, lsn: int) -> None:
        if self.found is None:
            has_snapshot = self._snapshot_ms > self._newest_ms + COMMIT_TIME_MARGIN_MS
            self.found = Regression(offset, xid, lsn, self._newest_lsn, has_snapshot)
