"""What one task of a batch is told."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from slackwater_engine.records.plan import MAX_LSN, OffsetSpan
from slackwater_protocol import CommittedTransaction


@dataclass(frozen=True, slots=True)
class BatchContent:
    """The transactions of a batch."""

    transactions: tuple[CommittedTransaction, ...]
    """In commit order."""
    repeated: frozenset[int]
    """Commit LSNs of those with rows that may stand in Kafka twice."""
    commit_ts_ms: int
    """Commit time of the newest."""
    skipped: tuple[int, ...] = ()
    """Xids of those that an operator let pass though rows were missing."""

    late_snapshots: frozenset[int] = frozenset()
    """``source.lsn`` of snapshots whose rows in it are newer than that."""
    has_incremental_rows: bool = False
    """Whether rows of an incremental snapshot stand in it."""

    @property
    def may_split(self) -> bool:
        """Whether a partition may be divided between tasks.

        Not when repeated rows have to be found, nor when it matters what stands behind a snapshot's row.
        """
        return not (self.repeated or self.late_snapshots or self.has_incremental_rows)


class TransactionTable:
    """Which commit a row belongs to; small when pickled, quick to look up after :meth:`by_xid`."""

    __slots__ = ("_data", "_snapshots")

    def __init__(self, transactions: Iterable[CommittedTransaction]) -> None:
        import zlib

        streamed = array("q")
        snapshots = []
        xid = lsn = 0
        for transaction in transactions:
            if transaction.is_snapshot:
                snapshots.append(transaction.commit_lsn)
                continue
            streamed.extend((transaction.xid - xid, transaction.commit_lsn - lsn))
            xid, lsn = transaction.xid, transaction.commit_lsn
        self._data = zlib.compress(streamed.tobytes(), 1)
        self._snapshots = tuple(snapshots)

    @property
    def snapshot_lsns(self) -> frozenset[int]:
        """LSNs of the initial snapshots whose rows belong to the batch."""
        return frozenset(self._snapshots)

    def by_xid(self) -> dict[int, int]:
        """Commit LSN of each transaction of the batch."""
        import zlib
        from itertools import accumulate

        steps = array("q")
        steps.frombytes(zlib.decompress(self._data))
        return dict(zip(accumulate(steps[0::2]), accumulate(steps[1::2]), strict=True))

    def __getstate__(self) -> Any:
        return self._data, self._snapshots

    def __setstate__(self, state: Any) -> None:
        self._data, self._snapshots = state


@dataclass(frozen=True, slots=True)
class BatchTask:
    """One task: stretches of partitions, and which transactions count. Holds no secrets."""

    spans: tuple[OffsetSpan, ...]
    table: TransactionTable = field(repr=False)
    repeated: frozenset[int] = frozenset()
    header: bytes | None = field(default=None, repr=False)
    """Encoded batch header, to be handed on before the rows; in one task of a packed batch."""
    may_start_late: bool = False
    """Whether records below the earliest of a partition may be missing."""
    late_snapshots: frozenset[int] = frozenset()
    has_incremental_rows: bool = False
    end_lsn: int = MAX_LSN
    """The commit LSN at which the batch ends."""
    has_whole_topics: bool = False
    """Whether all of the batch that a topic has is in this task: rows without keys may repeat anywhere."""

    @property
    def needs_look_ahead(self) -> bool:
        """Whether it matters what stands behind rows of snapshots; then its partitions are whole."""
        return bool(self.late_snapshots) or self.has_incremental_rows
