"""Writes a workload into topics as a connector would have: the input of the catch-up benchmark."""

import sys
from bisect import bisect_right
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater_bench.debezium_records import (
    CONNECTOR_HEADERS,
    Place,
    RunHeaders,
    SourceTable,
    begin_record,
    end_record,
    row_renderer,
)
from slackwater_bench.workloads.orders import (
    FIRST_LSN,
    FIRST_TS_MS,
    FIRST_XID,
    LINES,
    ORDERS,
    OrdersWorkload,
    RowChange,
)
from slackwater_protocol.keys import transaction_topic

TABLES = {name: SourceTable("inv", "inventory", *name.split(".")) for name in (ORDERS, LINES)}
POLL_EVERY = 1_000


@dataclass(frozen=True, slots=True)
class Filled:
    """What was written."""

    events: int
    transactions: int
    last_commit_lsn: int


class TopicFiller:
    """Renders transactions and produces them; keeps the log position between calls."""

    def __init__(self, bootstrap: str, prefix: str, partitions: int) -> None:
        self._tables = {
            name: SourceTable(prefix, table.database, table.schema, table.name)
            for name, table in TABLES.items()
        }
        self._transaction_topic = transaction_topic(prefix)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "compression.type": "lz4",
                "linger.ms": 20,
                "queue.buffering.max.messages": 500_000,
            }
        )
        self._render = {name: row_renderer(table) for name, table in self._tables.items()}
        self._xid, self._lsn, self._ts_ms = FIRST_XID, FIRST_LSN, FIRST_TS_MS
        self._progress: list[tuple[int, int]] = [(0, 0)]
        self._create_topics(bootstrap, partitions)

    def events_at(self, lsn: int) -> int:
        """Change events in transactions up to ``lsn``, to within a thousand transactions."""
        return self._progress[bisect_right(self._progress, (lsn, sys.maxsize)) - 1][1]

    def lsn_at(self, events: int) -> int:
        """The commit LSN at which ``events`` change events were written, equally coarse."""
        return next((lsn for lsn, count in self._progress if count >= events), self._lsn)

    def write(self, workload: OrdersWorkload, events: int) -> Filled:
        """Writes whole transactions with at least ``events`` change events; waits for the acks."""
        written = transactions = 0
        for changes in workload.transactions():
            self._transaction(changes)
            written += len(changes)
            transactions += 1
            if transactions % POLL_EVERY == 0:
                self._producer.poll(0)
                self._progress.append((self._lsn, written))
            if written >= events:
                break
        self._producer.flush()
        self._progress.append((self._lsn, written))
        return Filled(written, transactions, self._lsn)

    def _transaction(self, changes: list[RowChange]) -> None:
        self._xid, self._ts_ms = self._xid + 1, self._ts_ms + 1
        xid, ts_ms, counts = self._xid, self._ts_ms, dict.fromkeys(self._tables, 0)
        self._produce(self._transaction_topic, *begin_record(xid, self._lsn + 8, ts_ms))
        for total_order, change in enumerate(changes, 1):
            self._lsn += 128
            counts[change.table] += 1
            place = Place(xid, self._lsn, total_order, counts[change.table], ts_ms)
            value = self._render[change.table](change.op, change.before, change.after, place)
            key = f'{{"id":{change.id}}}'.encode()
            topic = self._tables[change.table].topic
            self._produce(topic, key, value, CONNECTOR_HEADERS)
            if change.op == "d":
                self._produce(topic, key, None, CONNECTOR_HEADERS)
        self._lsn += 128
        self._produce(
            self._transaction_topic,
            *end_record(xid, self._lsn, ts_ms, {t: n for t, n in counts.items() if n}),
        )

    def _produce(
        self, topic: str, key: bytes, value: bytes | None, headers: RunHeaders | None = None
    ) -> None:
        try:
            self._producer.produce(topic, value, key, headers=headers or [])
        except BufferError:
            self._producer.poll(1)
            self._produce(topic, key, value, headers)

    def _create_topics(self, bootstrap: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        topics = [NewTopic(table.topic, partitions, 1) for table in self._tables.values()]
        topics.append(NewTopic(self._transaction_topic, 1, 1))
        for created in admin.create_topics(topics).values():
            created.result(30)
