"""The order in which a database commits a stream of transactions, and the log positions that come of it.

As in PostgreSQL: rows get their LSNs when they are written, transactions appear in the order of their
commits, each with its rows together. A transaction that is held open therefore has rows below the commits of
transactions that appear before it.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from slackwater_testing.generator.rows import key_changes
from slackwater_testing.workloads.workload import NO_CHANGES, Change, Transaction

FIRST_LSN = 22_270_008
FIRST_XID = 1_000
FIRST_COMMIT_US = 1_795_206_861_409_015
ROW_BYTES = 128
"""Log position from one row to the next."""
COMMIT_BYTES = 48
COMMIT_INTERVAL_US = 997


class Committed(NamedTuple):
    """A transaction at its place in the log."""

    xid: int
    changes: tuple[Change, ...]
    events: int
    begin_lsn: int
    """Of BEGIN and of the first row; later rows follow at intervals of ``ROW_BYTES``."""
    commit_lsn: int
    previous_commit_lsn: int | None
    commit_us: int


@dataclass(slots=True)
class _Open:
    xid: int
    changes: tuple[Change, ...]
    begin_lsn: int
    remaining: int


class SimulatedLog:
    """Log positions of a stream. Restartable nowhere: feed all transactions to one object, in order."""

    def __init__(self) -> None:
        self._xid, self._lsn, self._commit_us = FIRST_XID, FIRST_LSN, FIRST_COMMIT_US
        self._previous_commit: int | None = None
        self._open: deque[_Open] = deque()

    @property
    def last_commit_lsn(self) -> int:
        """The commit LSN of the newest transaction that was handed out; 0 before the first."""
        return self._previous_commit or 0

    def commits(self, transactions: Iterable[Transaction]) -> Iterator[Committed]:
        """Yields what appears in the log. Transactions that change nothing or roll back do not."""
        for transaction in transactions:
            if self._open:
                self._count_down()
            changes = tuple([each for each in transaction.operations if not isinstance(each, NO_CHANGES)])
            if changes:
                self._xid += 1
                begin = self._lsn
                self._lsn += ROW_BYTES * len(changes)
                if transaction.is_rolled_back:
                    pass
                elif transaction.held_open_for:
                    self._open.append(_Open(self._xid, changes, begin, transaction.held_open_for))
                else:
                    yield self._commit(self._xid, changes, begin)
            if self._open:
                yield from self._released()

    def rest(self) -> Iterator[Committed]:
        """Commits what is still open."""
        while self._open:
            each = self._open.popleft()
            yield self._commit(each.xid, each.changes, each.begin_lsn)

    def _count_down(self) -> None:
        for each in self._open:
            each.remaining -= 1

    def _released(self) -> Iterator[Committed]:
        ready = [each for each in self._open if each.remaining <= 0]
        for each in ready:
            self._open.remove(each)
            yield self._commit(each.xid, each.changes, each.begin_lsn)

    def _commit(self, xid: int, changes: tuple[Change, ...], begin_lsn: int) -> Committed:
        previous = self._previous_commit
        self._lsn += COMMIT_BYTES
        self._commit_us += COMMIT_INTERVAL_US
        self._previous_commit = self._lsn
        events = len(changes) + key_changes(changes)
        return Committed(xid, changes, events, begin_lsn, self._lsn, previous, self._commit_us)
