"""A model of Debezium's PostgreSQL connector: what it writes over crashes and restarts.

The model keeps to what was measured on the real one: emission in commit order; rows, BEGIN and END repeated
after a crash from some acknowledged position on; counters that go on or start again; ENDs with lower counts;
lost ends of what was written to a partition before a crash.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from slackwater_cdc.testing.records import begin_value, change_value, end_value, partition_of

TRANSACTION_TOPIC = ("", 0)


@dataclass(frozen=True, slots=True)
class SimulatedTransaction:
    """A committed transaction: its rows as (table, key)."""

    xid: int
    first_lsn: int
    rows: tuple[tuple[str, int], ...]

    @property
    def commit_lsn(self) -> int:
        """The LSN in the END record."""
        return self.first_lsn + 10 * len(self.rows) + 5


@dataclass(frozen=True, slots=True)
class Emitted:
    """A record as the connector handed it to the producer."""

    target: tuple[str, int]
    """Table and partition; :data:`TRANSACTION_TOPIC` for BEGIN and END."""
    value: bytes
    place: tuple[int, int]
    """Index of the transaction and of the row; -1 for BEGIN, number of rows for END."""
    run: str


@dataclass(frozen=True, slots=True)
class Loss:
    """How a run ends: killed after so many records; so many of the last ones per target are lost."""

    after: int
    lost: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the connector."""

    name: str
    start: tuple[int, int]
    """The stored offset: transaction and number of its rows that need not come again."""
    renumbers: bool = False
    """Whether the counters of an open transaction start again."""
    replays: int = 0
    """Of how many finished transactions BEGIN and END (count 0) come again first; needs ``renumbers``."""


class SimulatedConnector:
    """Writes transactions to tables.

    Args:
        transactions: In commit order.
        partitions: Number of partitions of every table.
        keyless: Where rows without keys go; None: rows have keys and a key always goes to the same partition.
    """

    def __init__(
        self,
        transactions: Sequence[SimulatedTransaction],
        partitions: int,
        keyless: random.Random | None = None,
    ) -> None:
        self.transactions = transactions
        self.partitions = partitions
        self.keyless = keyless

    def emit(self, run: Run) -> Iterator[Emitted]:
        """Everything a run writes if nothing stops it."""
        first, done = run.start
        if run.renumbers:
            for index in range(max(0, first - run.replays), first):
                yield self._begin(index, run)
                yield self._end(index, run, {})
        for index in range(first, len(self.transactions)):
            yield from self._transaction(index, done if index == first else 0, run)

    def survivors(self, run: Run, loss: Loss | None) -> tuple[list[Emitted], tuple[int, int]]:
        """What a run leaves in Kafka, and the last place from which the next run may start."""
        records = list(self.emit(run))
        if loss is None:
            return records, (len(self.transactions), 0)
        records = records[: loss.after]
        limit = records[-1].place if records else (run.start[0], run.start[1] - 1)
        kept, lost = [], dict(loss.lost)
        for record in reversed(records):
            if lost.get(record.target, 0) > 0:
                lost[record.target] -= 1
                before = record.place[0], record.place[1] - 1
                limit = min(limit, before)
            else:
                kept.append(record)
        kept.reverse()
        return kept, max(run.start, (limit[0], max(0, limit[1] + 1)))

    def _transaction(self, index: int, done: int, run: Run) -> Iterator[Emitted]:
        transaction = self.transactions[index]
        starts_again = run.renumbers or done == 0
        if starts_again:
            yield self._begin(index, run)
        counts: dict[str, int] = {}
        total = 0
        for number, (table, key) in enumerate(transaction.rows):
            if number < done and starts_again:
                continue
            counts[table] = counts.get(table, 0) + 1
            total += 1
            if number < done:
                continue
            position = transaction.xid, transaction.first_lsn + 10 * number
            value = change_value(
                table, "c", position=position, orders=(counts[table], total), after={"id": key}
            )
            yield Emitted((table, self._partition(key)), value, (index, number), run.name)
        yield self._end(index, run, counts)

    def _partition(self, key: int) -> int:
        if self.keyless is not None:
            return self.keyless.randrange(self.partitions)
        return partition_of(str(key).encode(), self.partitions)

    def _begin(self, index: int, run: Run) -> Emitted:
        transaction = self.transactions[index]
        value = begin_value(transaction.xid, transaction.first_lsn)
        return Emitted(TRANSACTION_TOPIC, value, (index, -1), run.name)

    def _end(self, index: int, run: Run, counts: dict[str, int]) -> Emitted:
        transaction = self.transactions[index]
        value = end_value(transaction.xid, transaction.commit_lsn, counts)
        return Emitted(TRANSACTION_TOPIC, value, (index, len(transaction.rows)), run.name)
