"""Appends transactions to Debezium-shaped topics: at intended times, or as fast as it goes."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater_bench.steady_orders import LINES, ORDERS, RowChange
from slackwater_protocol import Clock
from slackwater_protocol.keys import data_topic, transaction_topic
from slackwater_testing.errors import RunFailedError
from slackwater_testing.generator.debezium_records import (
    ConnectorIdentity,
    Headers,
    begin_record,
    end_record,
    row_renderer,
    stamp,
)
from slackwater_testing.pace import Pace

FIRST_LSN = 22_270_008
FIRST_XID = 1_000
NAP_SECONDS = 0.001
FLUSH_SECONDS = 60.0


class TransactionAppender:
    """Writes one transaction after another as a connector would; creates the topics.

    Args:
        bootstrap: The broker.
        source: The ``topic.prefix``.
        partitions: Of each data topic.
        append_time: Whether BEGIN and END bear the time at which the broker appended them.
    """

    def __init__(self, bootstrap: str, source: str, partitions: int, *, append_time: bool = False) -> None:
        self._connector = ConnectorIdentity(source)
        self._headers = self._connector.headers()
        self._topics = {name: data_topic(source, name) for name in (ORDERS, LINES)}
        self._render = {name: row_renderer(self._connector, *name.split(".")) for name in self._topics}
        self._transaction_topic = transaction_topic(source)
        self._lsn, self._xid = FIRST_LSN, FIRST_XID
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "compression.type": "lz4",
                "linger.ms": 2,
                "queue.buffering.max.messages": 500_000,
                "log_level": 2,  # a broker that is stopped under it is no news
            }
        )
        self._create_topics(bootstrap, partitions, append_time=append_time)

    def append(self, changes: Sequence[RowChange], ts_ms: int) -> int:
        """Hands a transaction to the producer; returns its commit LSN."""
        self._xid += 1
        xid, counts = self._xid, dict.fromkeys(self._topics, 0)
        at = stamp(self._connector, xid, 1_000 * ts_ms, self._lsn, 1_000_000 * ts_ms)
        self._produce(self._transaction_topic, *begin_record(xid, self._lsn + 8, ts_ms))
        for total, change in enumerate(changes, 1):
            self._lsn += 128
            table = change.table
            counts[table] += 1
            value = self._render[table](
                change.op, change.before, change.after, at, self._lsn, total, counts[table]
            )
            self._produce(self._topics[table], f'{{"id":{change.id}}}', value, self._headers)
        self._lsn += 128
        seen = [(table, count) for table, count in counts.items() if count]
        self._produce(self._transaction_topic, *end_record(xid, self._lsn, ts_ms, seen))
        return self._lsn

    def append_all(self, transactions: Iterable[Sequence[RowChange]], clock: Clock) -> int:
        """Appends them as fast as it goes and waits for the acknowledgements; returns the last commit LSN."""
        for changes in transactions:
            self.append(changes, int(clock.now().timestamp() * 1000))
            self._producer.poll(0)
        self.flush()
        return self._lsn

    def serve(self) -> None:
        """Lets the producer tell of deliveries."""
        self._producer.poll(0)

    def flush(self) -> None:
        """Waits for the acknowledgements.

        Raises:
            RunFailedError: they do not come.
        """
        if self._producer.flush(FLUSH_SECONDS):
            raise RunFailedError("the generator", f"Kafka did not acknowledge within {FLUSH_SECONDS:g} s")

    def _produce(self, topic: str, key: str, value: str, headers: Headers | None = None) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers or [])
            except BufferError:
                self._producer.poll(1)
            else:
                return

    def _create_topics(self, bootstrap: str, partitions: int, *, append_time: bool) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        topics = [NewTopic(topic, partitions, 1) for topic in self._topics.values()]
        config = {"message.timestamp.type": "LogAppendTime"} if append_time else {}
        topics.append(NewTopic(self._transaction_topic, 1, 1, config=config))
        for created in admin.create_topics(topics).values():
            created.result(30)


class Appender(Protocol):
    """The methods of an appender that an open loop needs."""

    def append(self, changes: Sequence[RowChange], ts_ms: int) -> int:
        """Hands a transaction over; returns its commit LSN."""
        ...

    def serve(self) -> None:
        """Called while there is nothing to append."""
        ...

    def flush(self) -> None:
        """Called once, at the end."""
        ...


class OpenLoop:
    """Appends transactions at intended times, whatever else happens, from a thread of its own.

    Transaction ``n`` is due at ``start + n / rate``. One that is late is appended as soon as possible and
    keeps its intended time: a system, or a generator, that stalls does not make its own latency look better.

    Args:
        appender: Used by nobody else meanwhile.
        transactions: What to append.
        per_second: Transactions per second.
        clock: The time.
    """

    def __init__(
        self,
        appender: Appender,
        transactions: Iterator[Sequence[RowChange]],
        per_second: float,
        clock: Clock,
    ) -> None:
        self.intended: list[tuple[int, float]] = []
        """Commit LSN and intended time, seconds of the monotonic clock, ascending."""
        self.latest_seconds = 0.0
        """How late the generator itself was at worst: a large value makes a run worthless."""
        self._appender = appender
        self._transactions = transactions
        self._per_second = per_second
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.run, name="open-loop", daemon=True)

    def start(self) -> None:
        """The first transaction is due now."""
        self._thread.start()

    def stop(self) -> None:
        """Stops after the last acknowledgement."""
        self._stop.set()
        self._thread.join()

    def run(self) -> None:
        """Appends until it is stopped or there are no more transactions; the thread runs this."""
        clock, pace = self._clock, Pace(self._per_second, self._clock)
        epoch_ms = 1000 * (clock.now().timestamp() - clock.monotonic())
        for changes in self._transactions:
            due = pace.next_due(1)
            while (early := due - clock.monotonic()) > 0 and not self._stop.is_set():
                self._appender.serve()
                self._stop.wait(max(NAP_SECONDS, early))
            if self._stop.is_set():
                break
            lsn = self._appender.append(changes, int(epoch_ms + 1000 * due))
            self.intended.append((lsn, due))
            self.latest_seconds = max(self.latest_seconds, clock.monotonic() - due)
        self._appender.flush()
