"""What a sidecar reads from the simulated broker."""

import random
from collections.abc import Callable, Iterable
from itertools import groupby

from slackwater_cdc import EndOffsets, Frontier, Partition
from slackwater_sidecar import SourceUnavailableError
from slackwater_simulator.broker import Broker, Key, Record
from slackwater_simulator.connector import NOTIFICATIONS, TRANSACTIONS

Starts = Callable[[str, int], int | None]


class SimulatedSourceReader:
    """Implements :class:`~slackwater_sidecar.reader.SourceReader`.

    Reads as much of each partition as chance has it, neglects one for a while, sees the ends of partitions
    late.

    Args:
        broker: Where records are.
        topics: The data topics to follow.
        starts: From where partitions are read.
        rng: Chance.
        is_away: Whether the broker does not answer now.
    """

    def __init__(
        self,
        broker: Broker,
        topics: frozenset[str],
        starts: Starts,
        rng: random.Random,
        is_away: Callable[[], bool],
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._starts = starts
        self._rng = rng
        self._is_away = is_away
        self._positions: dict[Key, int] = {}
        self._partitions: dict[Key, Partition] = {}
        self._neglected: Key | None = None
        self.is_eager = False
        """Whether a poll reads everything there is."""
        self.paused_partitions = 0

    def discover(self, frontier: Frontier) -> list[str]:
        """See the protocol."""
        self._answer("list topics")
        data = sorted({topic for topic, _ in self._broker.partitions if topic in self._topics})
        for key in self._broker.partitions:
            if key in self._positions or (
                key[0] not in self._topics and key not in (TRANSACTIONS, NOTIFICATIONS)
            ):
                continue
            self._positions[key] = start = self._starts(*key) or 0
            if key[0] in self._topics:
                self._partitions[key] = frontier.add_partition(*key, start)
        return data

    def poll(self, frontier: Frontier, timeout_seconds: float) -> int:
        """See the protocol."""
        self._answer("read")
        keys, rng = list(self._positions), self._rng
        rng.shuffle(keys)
        if keys and rng.random() < 0.1:
            self._neglected = rng.choice((None, keys[0]))
        return sum(
            self._read(frontier, key)
            for key in keys
            if self.is_eager or (key != self._neglected and rng.random() < 0.4)
        )

    def end_offsets(self) -> EndOffsets:
        """See the protocol."""
        self._answer("asking for offsets")
        return {key: self._broker.partitions[key].high_watermark for key in self._positions}

    def balance(self, frontier: Frontier) -> None:
        """See the protocol."""

    def close(self) -> None:
        """See the protocol."""

    def _answer(self, operation: str) -> None:
        if self._is_away():
            raise SourceUnavailableError(operation, "simulated", "away")

    def _read(self, frontier: Frontier, key: Key) -> int:
        partition, first = self._broker.partitions[key], self._positions[key]
        end = partition.readable_end
        last = end if self.is_eager else min(end, first + self._rng.choice((1, 3, 10, 100)))
        records = list(partition.read(first, last))
        self._positions[key] = last
        self._give(frontier, key, records)
        if last == end and (self.is_eager or self._rng.random() < 0.7):
            self._skip(frontier, key, end)
        return len(records)

    def _give(self, frontier: Frontier, key: Key, records: list[tuple[int, Record]]) -> None:
        if not records:
            return
        if key == TRANSACTIONS:
            frontier.read_transactions((offset, r.value, r.ts_ms) for offset, r in records)
        elif key == NOTIFICATIONS:
            frontier.read_notifications((offset, r.value) for offset, r in records)
        else:
            self._give_rows(self._partitions[key], records)

    def _give_rows(self, partition: Partition, records: list[tuple[int, Record]]) -> None:
        is_keyless = records[0][1].key is None and records[-1][1].key is None
        for run, group in groupby(records, key=lambda pair: pair[1].run):
            written = list(group)
            partition.read(_pairs(written), run, timestamp_ms=written[-1][1].ts_ms, is_keyless=is_keyless)

    def _skip(self, frontier: Frontier, key: Key, end: int) -> None:
        if key in self._partitions:
            self._partitions[key].skip_to(end)
        elif key == TRANSACTIONS:
            frontier.skip_transactions_to(end)
        else:
            frontier.skip_notifications_to(end)


def _pairs(records: Iterable[tuple[int, Record]]) -> Iterable[tuple[int, bytes | None]]:
    return ((offset, record.value) for offset, record in records)
