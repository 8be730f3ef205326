"""The connector's producers: each partition is written by itself, in batches, at its own time."""

import random
from collections import deque
from collections.abc import Callable
from typing import Protocol

from slackwater_testing.simulator.kafka import Broker, KafkaTransaction, Key, Record

OnWritten = Callable[[Record, int], None]
"""Told of each record that stays in Kafka, with its offset."""


class Producer(Protocol):
    """Takes records in the order of the connector and writes them per partition."""

    def send(self, record: Record) -> None:
        """Takes a record."""
        ...

    def work(self, rng: random.Random) -> str:
        """Does one thing, if there is anything to do; says what."""
        ...

    def kill(self) -> None:
        """Loses what was not written; the next producer may start."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether everything taken is written."""
        ...


class PlainProducer:
    """A producer that writes at least once: a batch may be written twice in a row.

    A record counts as acknowledged when it is readable.
    """

    def __init__(self, broker: Broker, on_written: OnWritten) -> None:
        self._broker = broker
        self._on_written = on_written
        self._queues: dict[Key, deque[Record]] = {}
        self.doubles = 0
        """How many of the next batches are written twice."""

    def send(self, record: Record) -> None:
        """See the protocol."""
        self._queues.setdefault(record.target, deque()).append(record)

    def work(self, rng: random.Random) -> str:
        """See the protocol."""
        ready = [key for key, queue in self._queues.items() if queue]
        if not ready:
            return ""
        key = rng.choice(ready)
        queue = self._queues[key]
        batch = [queue.popleft() for _ in range(min(len(queue), rng.choice((1, 2, 5, 50))))]
        times = 1 + (self.doubles > 0)
        self.doubles -= times - 1
        for record in batch * times:
            self._on_written(record, self._broker.partitions[key].append(record))
        twice = " twice" if times > 1 else ""
        return f"{len(batch)} records to {key[0]}/{key[1]}{twice}"

    def kill(self) -> None:
        """See the protocol."""
        self._queues.clear()

    @property
    def is_done(self) -> bool:
        """See the protocol."""
        return not any(self._queues.values())


class TransactionalProducer:
    """Exactly once: what is written between two decisions becomes readable together, or never."""

    def __init__(self, broker: Broker, on_written: OnWritten) -> None:
        self._broker = broker
        self._on_written = on_written
        self._queues: dict[Key, deque[Record]] = {}
        self._transaction = KafkaTransaction()
        self._written: list[tuple[Record, int]] = []
        """What the open transaction holds, with offsets."""
        self._undecided: list[Key] = []
        """Partitions that wait for the marker of a decided transaction."""
        self.doubles = 0

    def send(self, record: Record) -> None:
        """See the protocol."""
        self._queues.setdefault(record.target, deque()).append(record)

    def work(self, rng: random.Random) -> str:
        """See the protocol."""
        if self._undecided:
            return self._write_marker(rng.randrange(len(self._undecided)))
        ready = [key for key, queue in self._queues.items() if queue]
        if ready:
            key = rng.choice(ready)
            record = self._queues[key].popleft()
            offset = self._broker.partitions[key].append(record, self._transaction)
            self._written.append((record, offset))
            return f"a record to {key[0]}/{key[1]}"
        partitions = self._broker.partitions
        if not self._written or any(
            o >= partitions[r.target].high_watermark for r, o in reversed(self._written)
        ):
            return ""
        self._decide(is_committed=True)
        return f"commits {len(self._written)} records"

    def kill(self) -> None:
        """See the protocol. Whoever starts next waits until the old transaction is decided everywhere."""
        self._queues.clear()
        if not self._undecided and self._written:
            self._decide(is_committed=False)
        while self._undecided:
            self._write_marker(0)

    @property
    def is_done(self) -> bool:
        """See the protocol."""
        return not self._written and not any(self._queues.values())

    def _decide(self, *, is_committed: bool) -> None:
        self._transaction.is_committed = is_committed
        self._undecided = list(self._transaction.first_offsets)
        if is_committed:
            for record, offset in self._written:
                record.is_acknowledged = True
                self._on_written(record, offset)

    def _write_marker(self, index: int) -> str:
        key = self._undecided.pop(index)
        self._broker.partitions[key].decide(self._transaction)
        if not self._undecided:
            self._transaction, self._written = KafkaTransaction(), []
        return f"marker in {key[0]}/{key[1]}"
