"""Cuts: what the sidecar publishes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slackwater_protocol.commit_position import SNAPSHOT_XID, CommitPosition


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """One line of a cut's transaction table."""

    xid: int
    """Top-level transaction id, 32 bits; :data:`SNAPSHOT_XID` for the rows of an initial snapshot."""
    commit_lsn: int
    """LSN in the id of the transaction's END record; the snapshot's LSN for an initial snapshot."""
    commit_ts_ms: int
    """Commit time in the database, milliseconds since the epoch."""

    @property
    def is_snapshot(self) -> bool:
        """Whether this is the pseudo-transaction of an initial snapshot."""
        return self.xid == SNAPSHOT_XID


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A commit LSN on the frontier, with all that a reader needs to take everything up to it, no more.

    All records of commits at or below ``lsn`` lie below the end offsets; first occurrences of all later ones
    lie at or above them. Records of an earlier commit may be *repeated* above them (connector restarts).
    """

    source: str
    """The ``topic.prefix`` of the connector."""
    timeline: int
    lsn: int
    previous_lsn: int
    """The transaction table covers commits in ``(previous_lsn, lsn]``."""
    commit_ts_ms: int
    """Commit time of the newest transaction, milliseconds since the epoch."""
    event_count: int
    """Change events of the source in commits at or below ``lsn``; a running number, for choosing by size."""
    transactions: tuple[CommittedTransaction, ...]
    """Transactions with at least one change event, in commit order."""
    end_offsets: Mapping[str, tuple[int, ...]]
    """For each data topic the end offset of each partition, by partition number."""
    transaction_offset: int
    """End offset in the transaction topic (its partition 0)."""
    repeated: frozenset[int] = field(default=frozenset())
    """Commit LSNs (of this or earlier cuts) of which rows were read more than once since the previous cut."""
    late_snapshots: tuple[int, ...] = ()
    """``source.lsn`` of snapshots with rows in its range that are newer than that LSN: ad hoc ones that block
    the stream, and initial ones that were repeated after a crash."""
    has_incremental_rows: bool = False
    """Whether rows of an incremental snapshot stand in its range."""
    skipped: tuple[int, ...] = ()
    """Top-level xids that an operator let pass though rows were missing, with this cut; in commit order."""

    @property
    def position(self) -> CommitPosition:
        """The place of this cut in the source's commit order."""
        return CommitPosition(self.timeline, self.lsn)


@dataclass(frozen=True, slots=True)
class PublishedCut:
    """A cut together with where the cut log keeps it."""

    cut: Cut
    log_offset: int
    """Offset of the cut's record in the cut log."""
