"""One process's share of a generator: it simulates everything and renders some of the topics."""

import gc
import threading
from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple

from slackwater_protocol import Clock, SystemClock
from slackwater_testing.generator.debezium_records import (
    Connector,
    Headers,
    begin_record,
    end_record,
    stamp,
)
from slackwater_testing.generator.log import ROW_BYTES, Committed, SimulatedLog
from slackwater_testing.generator.output import HoldBack, TopicOutput
from slackwater_testing.generator.rows import Put, TableRows, key_changes
from slackwater_testing.workloads.pipelines import tables_of
from slackwater_testing.workloads.workload import Workload

TRANSACTIONS = "transaction"
"""Name of the topic of BEGIN and END in a share, beside full names of tables."""
_NO_HEADERS: Headers = []


class Progress(NamedTuple):
    """Commit LSNs and the number of change events up to each."""

    lsns: "array[int]"
    events: "array[int]"


class Share:
    """Renders some topics of a workload.

    Args:
        workload: What happens in the database.
        connector: Whose records.
        topics: Full names of tables, perhaps :data:`TRANSACTIONS`.
        put: Takes the records.
    """

    def __init__(self, workload: Workload, connector: Connector, topics: Collection[str], put: Put) -> None:
        tables = tables_of(workload)
        self.tables: Mapping[str, TableRows] = {
            name: TableRows(connector, table, put) for name, table in tables.items() if name in topics
        }
        self.log = SimulatedLog()
        self.progress = Progress(array("q"), array("q"))
        self._has_transactions = TRANSACTIONS in topics
        self._connector = connector
        self._put = put
        self._topic = f"{connector.prefix}.transaction"
        self._own = {name: rows.apply for name, rows in self.tables.items()}.get
        self._first: Iterator[Committed] = self.log.commits(workload.first())
        self._committed = self.log.commits(workload.transactions(0, 1))
        self._events = 0

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
        before, transactions = self._events, 0
        for committed in commits:
            self._render(committed)
            transactions += 1
            if events is not None and self._events - before >= events:
                break
        return self._events - before, transactions

    def _render(self, committed: Committed) -> None:
        xid, changes, events, lsn, _, previous, commit_us = committed
        self._events += events
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
        self.progress.lsns.append(lsn)
        self.progress.events.append(self._events)


_STEP = 2_000
"""Change events between two looks at the clock while a partition is held back."""


class ShareError(Exception):
    """A process of the generator failed.

    Attributes:
        reason: Its error.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"a process of the generator failed: {self.reason}"


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """The task of a process."""

    bootstrap: str
    workload: Workload
    connector: Connector
    partitions: int
    topics: Collection[str]


@dataclass(frozen=True, slots=True)
class Filling:
    """The answer of a process."""

    events: int
    transactions: int
    last_commit_lsn: int
    progress: Progress
    """Since the last answer; empty without the topic of transactions."""


def serve_share(connection: Connection, settings: ShareSettings) -> None:
    """Fills whenever it is asked to, until the connection is closed."""
    gc.disable()  # rows and texts make no cycles; looking for them takes a third of the time
    try:
        output = TopicOutput(settings.bootstrap, settings.partitions)
        share = Share(settings.workload, settings.connector, settings.topics, output.put)
        while True:
            events, hold = connection.recv()
            connection.send(fill(share, output, events, hold, SystemClock()))
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - the other process raises it
        connection.send(f"{type(error).__name__}: {error}")


def fill(share: Share, output: TopicOutput, events: int, hold: HoldBack | None, clock: Clock) -> Filling:
    """One call's records, those that were held back included."""
    due = clock.monotonic() + (hold.seconds if hold else 0.0)
    output.hold(hold)
    done, transactions = share.begin()
    wanted = done + events
    while done < wanted:
        if clock.monotonic() >= due:
            output.hold(None)
        more = share.advance(min(_STEP, wanted - done) if hold else wanted - done)
        done, transactions = done + more[0], transactions + more[1]
    output.flush()
    if hold is not None:
        threading.Event().wait(max(0.0, due - clock.monotonic()))
        output.hold(None)
        output.flush()
    progress, share.progress = share.progress, Progress(array("q"), array("q"))
    return Filling(done, transactions, share.log.last_commit_lsn, progress)
