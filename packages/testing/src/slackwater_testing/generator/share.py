"""A share of a generator: it simulates the whole database and renders some of its topics. No I/O."""

from collections.abc import Collection, Iterator, Mapping

from slackwater_testing.generator.debezium_records import (
    ConnectorIdentity,
    Headers,
    begin_record,
    end_record,
    stamp,
)
from slackwater_testing.generator.log import ROW_BYTES, Committed, SimulatedLog
from slackwater_testing.generator.rows import Put, TableRows, key_changes
from slackwater_testing.workloads.workload import Workload

TRANSACTIONS = "transaction"
"""Name of the topic of BEGIN and END in a share, beside full names of tables."""
_NO_HEADERS: Headers = []


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
