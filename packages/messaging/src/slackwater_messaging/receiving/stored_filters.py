"""Chains of filters by partition, in memory and in a table."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import psycopg

from slackwater.protocol import Clock, epoch_ms
from slackwater_messaging.message import Place
from slackwater_messaging.receiving.filters import FilterChain, FilterPolicy, digest_of
from slackwater_messaging.receiving.receipt import Receipt, ReceivedMessage
from slackwater_messaging.receiving.statements import filter_statements

SAVE_INTERVAL = timedelta(minutes=1)
"""How often filters are written. Until then, a :class:`BloomInbox` keeps their keys in its journal."""


class StoredFilters:
    """The filter chains of the partitions that a process owns. Use it from one thread.

    Args:
        name: The prefix of the table ``_filters``.
        policy: How much the chains remember.
        clock: Limits the timestamps of messages, because a timestamp in the future must not make filters
            forget.
        save_interval: How often filters are written.
    """

    def __init__(self, name: str, policy: FilterPolicy, clock: Clock, save_interval: timedelta) -> None:
        self._policy = policy
        self._clock = clock
        self._sql = filter_statements(name)
        self.chains: dict[Place, FilterChain] = {}
        self._save_seconds = save_interval.total_seconds()
        self._save_at = clock.monotonic() + self._save_seconds

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """Creates the table unless it exists; requires a transaction."""
        for statement in self._sql.create:
            connection.execute(statement)

    def load(self, connection: psycopg.Connection[Any], place: Place) -> FilterChain:
        """Reads a partition's chain; requires a transaction.

        Raises:
            MessagingStateError: A filter is damaged, or belongs to another partition.
        """
        packed = connection.execute(self._sql.load, place).fetchall()
        name = f"{place[0]}/{place[1]}".encode()
        return FilterChain.restore(self._policy, [row[0] for row in packed], name)

    def store(self, connection: psycopg.Connection[Any], place: Place) -> None:
        """Writes the changes of a partition's chain; requires a transaction.

        If the transaction fails, the chain must be loaded again.
        """
        changed, gone = self.chains[place].take_changes()
        for window_ms, number, packed in changed:
            connection.execute(self._sql.store, [*place, window_ms, number, packed])
        for window_ms, number in gone:
            connection.execute(self._sql.drop, [*place, window_ms, number])

    def save_if_due(self, save: Callable[[Sequence[Place]], None]) -> None:
        """Calls a function with all partitions once per interval, and again at the next call if it raises."""
        if self._clock.monotonic() >= self._save_at:
            save(list(self.chains))
            self._save_at = self._clock.monotonic() + self._save_seconds

    def knows(self, message: ReceivedMessage, key: bytes) -> bool:
        """Returns whether a key was seen in the message's partition, or appears to have been."""
        return digest_of(key) in self.chains[message.place]

    def forget(self, places: Iterable[Place]) -> None:
        """Drops chains from memory."""
        for place in places:
            self.chains.pop(place, None)

    def time_ms(self, messages: Sequence[ReceivedMessage]) -> int:
        """Returns the time of a batch according to its messages' timestamps, limited to the current time."""
        now = epoch_ms(self._clock.now())
        return max(min(now if m.timestamp_ms is None else m.timestamp_ms, now) for m in messages)


def digests_by_place(receipts: Iterable[Receipt]) -> dict[Place, list[bytes]]:
    """Returns the digests of receipts' keys by the partition of their messages."""
    found: dict[Place, list[bytes]] = defaultdict(list)
    for receipt in receipts:
        if receipt.message is not None:
            found[receipt.message.place].append(digest_of(receipt.key))
    return found
