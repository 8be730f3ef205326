"""What the parts of the frontier share."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slackwater_cdc.transaction import Obstacle, Transaction
from slackwater_protocol import Evidence

if TYPE_CHECKING:
    from slackwater_cdc.partition import Partition
    from slackwater_cdc.snapshot import Snapshots

_WINDOW = 1_000_000
_MAX_OBSTACLES = 100


class DoneTransactions:
    """The commit LSNs of the newest transactions at or below the frontier, by xid.

    Keeps at least ``window``, at most twice as many: rows of older ones do not come again, since a connector
    goes back to the offset it stored last, at most minutes ago.
    """

    def __init__(self, window: int = _WINDOW) -> None:
        self._window = window
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self.known_from_lsn = 0
        """Every commit above this LSN of which END was read is remembered."""

    def add(self, xid: int, commit_lsn: int) -> None:
        """Remembers a transaction."""
        self._young[xid] = commit_lsn
        if len(self._young) >= self._window:
            if self._old:
                self.known_from_lsn = max(self.known_from_lsn, *self._old.values())
            self._old, self._young = self._young, {}

    def get(self, xid: int) -> int | None:
        """The commit LSN, None if the transaction is not known."""
        lsn = self._young.get(xid)
        return self._old.get(xid) if lsn is None else lsn


class Context:
    """The state that partitions, snapshots and the frontier work on."""

    def __init__(
        self,
        tables: frozenset[str] | None,
        snapshots: "Snapshots",
        exempt: Mapping[str, Evidence] | None = None,
    ) -> None:
        self.exempt = exempt or {}
        """Tables whose completeness is not judged by counts, with what judges it."""
        self.transactions: dict[int, Transaction] = {}
        """Read of, but above the frontier; by xid."""
        self.done = DoneTransactions()
        self.repeated: set[int] = set()
        """Commit LSNs of which rows were repeated since the last cut."""
        self.obstacles: list[Obstacle] = []
        """The first records that cannot be attributed; more than a hundred are not listed."""
        self.incremental_rows = 0
        """Rows of incremental snapshots since the last cut."""
        self.waiting_incremental: dict[Partition, int] = {}
        """Partitions with such rows that no cut has shown; the first one's offset or a lower bound of it."""
        self.snapshots = snapshots
        self.newest_ms: dict[str, int] = {}
        """The newest record timestamp of each connector run."""
        self._tables = tables
        self._names: dict[tuple[str, str], str | None] = {}
        self._marks = 0

    def is_subscribed(self, table: str) -> bool:
        """Whether rows of a table (``schema.table``) are read."""
        return self._tables is None or table in self._tables

    def table(self, place: tuple[str, str]) -> str | None:
        """``schema.table`` of a schema and a table; None when the table is not subscribed."""
        try:
            return self._names[place]
        except KeyError:
            name = ".".join(place)
            self._names[place] = result = name if place[1] and self.is_subscribed(name) else None
            return result

    def new_transaction(self, xid: int) -> Transaction | None:
        """A transaction of which a first row was read; None when the row repeats one that is done."""
        commit_lsn = self.done.get(xid)
        if commit_lsn is not None:
            self.repeated.add(commit_lsn)
            return None
        transaction = self.transactions[xid] = Transaction(xid)
        return transaction

    def drop(self, transaction: Transaction, commit_lsn: int) -> None:
        """Takes a transaction off the list of open ones: it is at or below the frontier, or given up."""
        transaction.is_done = True
        del self.transactions[transaction.xid]
        self.done.add(transaction.xid, commit_lsn)
        if transaction.is_repeated or (transaction.end is None and transaction.partitions):
            self.repeated.add(commit_lsn)

    def next_mark(self) -> int:
        """Numbers the partitions."""
        self._marks += 1
        return self._marks - 1

    def add_obstacle(self, obstacle: Obstacle) -> None:
        """Remembers a record that no cut may pass."""
        if len(self.obstacles) < _MAX_OBSTACLES:
            self.obstacles.append(obstacle)
