"""Appends changes of orders and lines to Debezium-shaped topics: at intended times, or as fast as it goes.

The changes are a pure function of a running number, for scenarios that append records at a given pace, in
transactions of a given size, or over a given number of keys. After each whole order the documents keep the
invariant of the orders pipeline: ``line_count`` and ``total`` agree with the lines.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Protocol

from slackwater.protocol import Clock, epoch_ms
from slackwater.protocol.keys import data_topic, transaction_topic
from slackwater_lab.database.writers import Pace
from slackwater_lab.generator.debezium_records import (
    ConnectorIdentity,
    begin_record,
    end_record,
    row_renderer,
    stamp,
)
from slackwater_lab.generator.fill import TopicOutput, announce_empty_tables
from slackwater_lab.topics import make_topics
from slackwater_lab.watching import Background

ORDERS = "inventory.orders"
LINES = "inventory.order_lines"
CENTS = 1_234
STRIDE = 1_000_003
"""A prime: neighbours in time are no neighbours by key."""
FIRST_LSN = 22_270_008
FIRST_XID = 1_000
NAP_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class RowChange:
    """One change event: before and after as JSON, ``null`` where there is none."""

    table: str
    op: str
    id: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class SteadyOrders:
    """The first round inserts every order with its lines; every later round changes all those rows."""

    orders: int
    lines: int = 3
    """Of each order."""

    @property
    def rows_per_order(self) -> int:
        """Changes of one order's turn."""
        return 1 + self.lines

    def changes_of(self, number: int) -> list[RowChange]:
        """The changes of the order whose turn it is: one of the order, then one of each of its lines."""
        round_, index = divmod(number, self.orders)
        order, op = index * STRIDE % self.orders + 1, "u" if round_ else "c"
        first_line = (order - 1) * self.lines + 1
        return [
            self._change(ORDERS, op, order, self._order, round_),
            *(
                self._change(LINES, op, line, self._line, round_)
                for line in range(first_line, first_line + self.lines)
            ),
        ]

    def transactions(self, rows: int, first_order: int = 0) -> Iterator[list[RowChange]]:
        """The endless stream of changes, cut into transactions of this many rows.

        Args:
            rows: Of each transaction; a multiple of :attr:`rows_per_order` makes them whole orders.
            first_order: The running number of the first order whose turn it is.
        """
        changes = (change for number in count(first_order) for change in self.changes_of(number))
        while True:
            yield list(islice(changes, rows))

    @staticmethod
    def _change(table: str, op: str, row: int, render: Callable[[int, int], str], round_: int) -> RowChange:
        before = render(row, round_ - 1) if round_ else "null"
        return RowChange(table, op, row, before, render(row, round_))

    def _order(self, order: int, round_: int) -> str:
        total = self.lines * _quantity(round_) * CENTS
        return (
            f'{{"id":{order},"customer":"customer-{order % 997}","status":"open-{round_}",'
            f'"line_count":{self.lines},"total":"{total // 100}.{total % 100:02d}",'
            f'"created_at":"2026-01-02T03:04:05.678901Z"}}'
        )

    def _line(self, line: int, round_: int) -> str:
        return (
            f'{{"id":{line},"order_id":{(line - 1) // self.lines + 1},"product":"product-{line % 499}",'
            f'"quantity":{_quantity(round_)},"price":"{CENTS // 100}.{CENTS % 100:02d}"}}'
        )


def _quantity(round_: int) -> int:
    return 1 + round_ % 9


class TransactionAppender:
    """Writes one transaction after another as a connector would; creates the topics.

    Args:
        bootstrap: The broker.
        source: The ``topic.prefix``.
        partitions: Of each data topic.
        append_time: Whether BEGIN and END bear the time at which the broker appended them.
        tables: Full names of those that it writes.
    """

    def __init__(
        self,
        bootstrap: str,
        source: str,
        partitions: int,
        *,
        append_time: bool = False,
        tables: Sequence[str] = (ORDERS, LINES),
    ) -> None:
        self._connector = ConnectorIdentity(source)
        self._headers = self._connector.headers()
        self._topics = {name: data_topic(source, name) for name in tables}
        self._render = {name: row_renderer(self._connector, *name.split(".")) for name in self._topics}
        self._transaction_topic = transaction_topic(source)
        self._lsn, self._xid = FIRST_LSN, FIRST_XID
        self._output = TopicOutput(bootstrap, linger_ms=2)
        make_topics(bootstrap, [*self._topics.values()], partitions)
        config = {"message_timestamp_type": "LogAppendTime"} if append_time else {}
        make_topics(bootstrap, [self._transaction_topic], 1, **config)
        announce_empty_tables(bootstrap, source, self._topics)

    def append(self, changes: Sequence[RowChange], ts_ms: int) -> int:
        """Hands a transaction to the producer; returns its commit LSN."""
        self._xid += 1
        xid, counts = self._xid, dict.fromkeys(self._topics, 0)
        at = stamp(self._connector, xid, 1_000 * ts_ms, self._lsn, 1_000_000 * ts_ms)
        key, value = begin_record(xid, self._lsn + 8, ts_ms)
        self._output.put(self._transaction_topic, value, key, [])
        for total, change in enumerate(changes, 1):
            self._lsn += 128
            table = change.table
            counts[table] += 1
            value = self._render[table](
                change.op, change.before, change.after, at, self._lsn, total, counts[table]
            )
            self._output.put(self._topics[table], value, f'{{"id":{change.id}}}', self._headers)
        self._lsn += 128
        seen = [(table, count) for table, count in counts.items() if count]
        key, value = end_record(xid, self._lsn, ts_ms, seen)
        self._output.put(self._transaction_topic, value, key, [])
        return self._lsn

    def append_all(self, transactions: Iterable[Sequence[RowChange]], clock: Clock) -> int:
        """Appends them as fast as it goes and waits for the acknowledgements; returns the last commit LSN."""
        for changes in transactions:
            self.append(changes, epoch_ms(clock.now()))
            self.serve()
        self.flush()
        return self._lsn

    def serve(self) -> None:
        """Lets the producer tell of deliveries."""
        self._output.serve()

    def flush(self) -> None:
        """Waits for the acknowledgements; raises as :meth:`TopicOutput.flush`."""
        self._output.flush()


class Appender(Protocol):
    """The methods of an appender that an open loop needs."""

    def append(self, changes: Sequence[RowChange], ts_ms: int) -> int:
        """Hands a transaction over; returns its commit LSN."""

    def serve(self) -> None:
        """Called while there is nothing to append."""

    def flush(self) -> None:
        """Called once, at the end."""


class OpenLoop(Background):
    """Appends transactions at intended times, whatever else happens, from a thread of its own.

    Transaction ``n`` is due at ``start + n / rate``. One that is late is appended as soon as possible and
    keeps its intended time: a system, or a generator, that stalls does not make its own latency look better.
    """

    def __init__(
        self,
        appender: Appender,
        transactions: Iterator[Sequence[RowChange]],
        per_second: float,
        clock: Clock,
    ) -> None:
        super().__init__("open-loop")
        self.intended: list[tuple[int, float]] = []
        """Commit LSN and intended time, seconds of the monotonic clock, ascending."""
        self.latest_seconds = 0.0
        """How late the generator itself was at worst: a large value makes a run worthless."""
        self._appender = appender
        self._transactions = transactions
        self._per_second = per_second
        self._clock = clock

    def stop(self) -> None:
        """Stops after the last acknowledgement; raises what ended it before."""
        super().stop()
        self.raise_failure()

    def _work(self) -> None:
        """Appends until it is stopped or there are no more transactions; the first is due now."""
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
