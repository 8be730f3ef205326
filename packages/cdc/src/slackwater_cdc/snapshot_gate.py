"""When may a snapshot pass? What has to be read before, and what may be shown before it."""

from slackwater_cdc.completeness import Completeness
from slackwater_cdc.ends import Ends
from slackwater_cdc.partitions import Partitions
from slackwater_cdc.snapshot import Snapshot, Snapshots
from slackwater_cdc.transaction import Obstacle, Pending, Transaction, Waiting
from slackwater_protocol import SourceTopics


class SnapshotGate:
    """Judges the snapshot that the frontier has come to.

    Args:
        topics: Names of the source's topics.
        snapshots: What was read of snapshots.
        ends: What was read of the transaction topic.
        completeness: Knows end offsets.
        partitions: All that are read.
    """

    def __init__(
        self,
        topics: SourceTopics,
        snapshots: Snapshots,
        ends: Ends,
        completeness: Completeness,
        partitions: Partitions,
    ) -> None:
        self._topics = topics
        self._snapshots = snapshots
        self._ends = ends
        self._completeness = completeness
        self._partitions = partitions
        self.notification_position = 0
        """The next offset to be read in the notification topic."""
        self.is_at_rest = False
        """Whether everything written was read and nothing has been written for long."""

    def may_pass(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot is complete and may be shown; settles whether its rows are late."""
        if not self._has_all_rows(snapshot):
            return False
        nothing_behind = self.is_at_rest and not self._ends.queue
        snapshot.is_late = self._snapshots.is_late(snapshot) and not nothing_behind
        is_settled = self.is_at_rest or self._snapshots.is_before(snapshot, self._ends.newest)
        if snapshot.is_late and not is_settled:
            return False
        return (
            self.has_read_notifications(snapshot)
            and self._has_read_commits_below(snapshot)
            and self._has_read_earlier_runs(snapshot)
        )

    def shows_before(
        self, head: Transaction | Obstacle | None, snapshot: Snapshot, *, is_beginning: bool
    ) -> bool:
        """Whether a commit below a snapshot is shown before it, for an earlier connector has written it.

        Not if nothing was shown yet and an earlier snapshot is void: the commits behind that are of no use
        without it, and the newer snapshot contains them.
        """
        if not isinstance(head, Transaction) or head.commit_lsn >= snapshot.lsn:
            return False
        return not (is_beginning and self._snapshots.is_late(snapshot))

    def has_read_notifications(self, pending: Pending) -> bool:
        """Whether every notification was read that stood there when something began to wait."""
        past = self._completeness.past(pending)
        topic = self._topics.notifications
        return past is not None and self.notification_position >= past.get((topic, 0), 0)

    def _has_all_rows(self, snapshot: Snapshot) -> bool:
        """By counts; where there are no notifications, because all that is written later has been read."""
        if self._snapshots.announced:
            return self._snapshots.is_counted(snapshot)
        past = self._completeness.past(snapshot)
        if past is None or (self._topics.notifications, 0) in past:
            return False
        if all(p.has_streamed_rows() for p in self._partitions):
            return True
        is_over = self.is_at_rest and self._snapshots.has_last(snapshot)
        if is_over or self._snapshots.is_long_over(snapshot, self._ends.newest_written_ms):
            snapshot.over = snapshot.over or Waiting()
            return self._completeness.is_read_past(snapshot.over, self._partitions)
        return False

    def _has_read_commits_below(self, snapshot: Snapshot) -> bool:
        """Whether every END below the snapshot was read: an earlier connector may have written some."""
        past = self._completeness.past(snapshot)
        topic = self._topics.transactions
        return self._ends.last_lsn > snapshot.lsn or (
            past is not None and self._ends.position >= past.get((topic, 0), 0)
        )

    def _has_read_earlier_runs(self, snapshot: Snapshot) -> bool:
        """Whether rows of interrupted runs would have been seen: they stand before all others."""
        undecided = [
            p for p in self._partitions if p not in snapshot.partitions and not p.has_streamed_rows()
        ]
        return self._completeness.is_read_past(snapshot, undecided)
