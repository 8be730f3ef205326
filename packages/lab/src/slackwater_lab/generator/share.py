"""A generator's simulated database: the order in which it commits, and the records of some of its topics.

As in PostgreSQL, rows get their log positions when they are written, and transactions appear in the order of
their commits, each with its rows together. A transaction that is held open therefore has rows below the
commits of transactions that appear before it. No I/O.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from slackwater_lab.generator.debezium_records import (
    ConnectorIdentity,
    Headers,
    begin_record,
    end_record,
    stamp,
)
from slackwater_lab.generator.rows import Put, TableRows, key_changes
from slackwater_lab.workloads.workload import NO_CHANGES, Change, Transaction, Workload

FIRST_LSN = 22_270_008
FIRST_XID = 1_000
_FIRST_COMMIT_US = 1_795_206_861_409_015
ROW_BYTES = 128
"""Log position from one row to the next."""
_COMMIT_BYTES = 48
_COMMIT_INTERVAL_US = 997
TRANSACTIONS = "transaction"
"""Name of the topic of BEGIN and END in a share, beside full names of tables."""
_NO_HEADERS: Headers = []


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
        self._xid, self._lsn, self._commit_us = FIRST_XID, FIRST_LSN, _FIRST_COMMIT_US
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
        self._lsn += _COMMIT_BYTES
        self._commit_us += _COMMIT_INTERVAL_US
        self._previous_commit = self._lsn
        events = len(changes) + key_changes(changes)
        return Committed(xid, changes, events, begin_lsn, self._lsn, previous, self._commit_us)


class Share:
    """Renders some topics of a workload.

    Args:
        workload: What happens in the database.
        connector: Whose records.
        topics: Full names of tables, perhaps :data:`TRANSACTIONS`.
        put: Takes the records.
    """

    def __init__(
        self, workload: Workload, connector: ConnectorIdentity, topics: Collection[str], put: Put
    ) -> None:
        tables = workload.tables
        self.tables: Mapping[str, TableRows] = {
            name: TableRows(connector, table, put) for name, table in tables.items() if name in topics
        }
        self.log = SimulatedLog()
        self._has_transactions = TRANSACTIONS in topics
        self._connector = connector
        self._put = put
        self._topic = f"{connector.prefix}.transaction"
        self._own = {name: rows.apply for name, rows in self.tables.items()}.get
        self._first: Iterator[Committed] = self.log.commits(workload.first())
        self._committed = self.log.commits(workload.transactions(0, 1))
        self.events = 0
        """Change events so far, of all topics."""

    def begin(self) -> tuple[int, int]:
        """Renders the first transactions, once.

        Returns:
            Change events and transactions, of all topics.
        """
        return self._take(self._first, None)

    def advance(self, events: int) -> tuple[int, int]:
        """Renders whole transactions with at least ``events`` change events; returns as :meth:`begin`."""
        return self._take(self._committed, events)

    def _take(self, commits: Iterator[Committed], events: int | None) -> tuple[int, int]:
        before, transactions = self.events, 0
        for committed in commits:
            self._render(committed)
            transactions += 1
            if events is not None and self.events - before >= events:
                break
        return self.events - before, transactions

    def _render(self, committed: Committed) -> None:
        xid, changes, events, lsn, _, previous, commit_us = committed
        self.events += events
        at = stamp(self._connector, xid, commit_us, previous, commit_us * 1000 + 2_500_000)
        if self._has_transactions:
            self._begin(committed)
        counts: dict[str, int] = {}
        own, has_key_changes = self._own, events != len(changes)
        total = 1
        for change in changes:
            name = change.table
            counts[name] = order = counts.get(name, 0) + 1
            apply = own(name)
            if apply is not None:
                apply(change, at, lsn, total, order)
            if has_key_changes and key_changes((change,)):
                counts[name] += 1
                total += 1
            total += 1
            lsn += ROW_BYTES
        if self._has_transactions:
            self._end(committed, counts)

    def _begin(self, committed: Committed) -> None:
        key, value = begin_record(committed.xid, committed.begin_lsn, committed.commit_us // 1000)
        self._put(self._topic, value, key, _NO_HEADERS)

    def _end(self, committed: Committed, counts: Mapping[str, int]) -> None:
        lsn = committed.commit_lsn
        key, value = end_record(committed.xid, lsn, committed.commit_us // 1000, counts.items())
        self._put(self._topic, value, key, _NO_HEADERS)
