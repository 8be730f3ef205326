"""An inbox of filters alone: memory instead of rows, at the price of losing some messages."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg

from slackwater.protocol import Clock, SystemClock
from slackwater_messaging.errors import MessagingConfigError, MessagingStateError
from slackwater_messaging.exclusive import Exclusive
from slackwater_messaging.message import Place
from slackwater_messaging.receiving.filters import FilterPolicy, split_digests
from slackwater_messaging.receiving.receipt import (
    KeyOf,
    Receipt,
    ReceivedMessage,
    TakenOverError,
    new_receipts,
    require_idle,
)
from slackwater_messaging.receiving.statements import position_statements
from slackwater_messaging.receiving.stored_filters import SAVE_INTERVAL, StoredFilters, digests_by_place


class BloomInbox:
    """Implements :class:`Inbox` without a row per message; **loses messages at the policy's error rate**.

    Messages that Kafka delivers again are recognised exactly, by their offsets. Messages that a producer has
    written again are recognised by a filter. It finds every repeat within the time that it remembers, but it
    also mistakes a share of new messages for repeats, which are then not processed. :class:`FilteredInbox`
    checks such cases in a table, and loses no message.

    The next offset of each partition, the keys of the batch, and the effect are committed in one transaction.
    The offset is updated only if it still has the expected value, so a process that has lost the partition
    cannot commit.

    Args:
        name: ``name`` or ``schema.name``, the prefix of the tables ``_positions``, ``_journal`` and
            ``_filters``. Each kind of receiver has its own.
        key_of: Returns the key of a message. All messages with one key must be in one partition.
        policy: How much is remembered, and the maximum share of new messages that are lost.
        save_interval: How often filters are written.
        clock: Measures that interval, and limits the timestamps of messages.
    """

    keeps_answers = False

    def __init__(
        self,
        name: str,
        *,
        key_of: KeyOf,
        policy: FilterPolicy,
        save_interval: timedelta = SAVE_INTERVAL,
        clock: Clock | None = None,
    ) -> None:
        self._key_of = key_of
        self._use = Exclusive(f"the inbox {name}", "give each receiver its own, with the same tables")
        self._filters = StoredFilters(name, policy, clock or SystemClock(), save_interval)
        self._sql = position_statements(name)
        self._next: dict[Place, int] = {}
        """The offsets in the database of loaded partitions."""

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """See the protocol."""
        with connection.transaction():
            for statement in self._sql.create:
                connection.execute(statement)
            self._filters.create(connection)

    def load(self, connection: psycopg.Connection[Any], places: Sequence[Place]) -> Mapping[Place, int]:
        """See the protocol. Waits for transactions in which another process has locked a partition."""
        self.forget(places)
        require_idle(connection)
        with connection.transaction():
            for place in sorted(places):
                connection.execute(self._sql.begin, place)
                next_offset = self._lock(connection, place)
                chain = self._filters.load(connection, place)
                for time_ms, digests in connection.execute(self._sql.journal, place).fetchall():
                    chain.add(split_digests(digests), time_ms)
                self._filters.chains[place], self._next[place] = chain, next_offset
        return {place: self._next[place] for place in places if self._next[place] >= 0}

    @contextmanager
    def receive_batch(
        self, connection: psycopg.Connection[Any], messages: Sequence[ReceivedMessage]
    ) -> Iterator[list[Receipt]]:
        """See the protocol. After any failure, the partitions must be loaded again."""
        with self._use.held(), self._received(connection, messages) as receipts:
            yield receipts

    @contextmanager
    def _received(
        self, connection: psycopg.Connection[Any], messages: Sequence[ReceivedMessage]
    ) -> Iterator[list[Receipt]]:
        places = sorted({message.place for message in messages})
        require_idle(connection)
        self._require(places)
        receipts = new_receipts(messages, self._key_of, self._knows)
        ends = self._ends(messages)
        added = digests_by_place(receipt for receipt in receipts if not receipt.is_repeat)
        time_ms = self._filters.time_ms(messages) if messages else 0
        try:
            with connection.transaction():
                for place, end in sorted(ends.items()):
                    self._advance(connection, place, end)
                yield receipts
                _require_no_answers(receipts)
                for place, digests in added.items():
                    connection.execute(self._sql.note, [*place, ends[place], time_ms, b"".join(digests)])
        except BaseException:
            self.forget(places)  # only the database knows whether the transaction was committed
            raise
        self._next.update(ends)
        for place, digests in added.items():
            self._filters.chains[place].add(digests, time_ms)

    def maintain(self, connection: psycopg.Connection[Any]) -> None:
        """See the protocol. Writes filters if it is time."""
        self._filters.save_if_due(lambda places: self.save(connection, places))

    def save(self, connection: psycopg.Connection[Any], places: Sequence[Place]) -> None:
        """See the protocol.

        Raises:
            TakenOverError: Another process has taken over a partition; load it again.
        """
        self._require(places)
        require_idle(connection)
        for place in places:
            try:
                with connection.transaction():
                    if self._lock(connection, place) != self._next[place]:
                        raise _taken_over(place)
                    self._filters.store(connection, place)
                    connection.execute(self._sql.drop_journal, [*place, self._next[place]])
            except BaseException:
                self.forget([place])
                raise

    def forget(self, places: Sequence[Place]) -> None:
        """See the protocol."""
        self._filters.forget(places)
        for place in places:
            self._next.pop(place, None)

    def _lock(self, connection: psycopg.Connection[Any], place: Place) -> int:
        row = connection.execute(self._sql.lock, place).fetchone()
        if row is None:
            problem = f"the position of {place.topic}/{place.partition} was removed from the database"
            raise MessagingStateError(problem, "load the partition again, which creates a new position")
        return int(row[0])

    def _advance(self, connection: psycopg.Connection[Any], place: Place, end: int) -> None:
        """Advances the position unless another process has changed it, which fences this one."""
        if connection.execute(self._sql.advance, [end, *place, self._next[place]]).rowcount != 1:
            raise _taken_over(place)

    def _ends(self, messages: Sequence[ReceivedMessage]) -> dict[Place, int]:
        """Returns the positions after a batch, for partitions that it advances."""
        ends: dict[Place, int] = {}
        for message in messages:
            if message.offset >= self._next[message.place]:
                ends[message.place] = message.offset + 1
        return ends

    def _knows(self, message: ReceivedMessage, key: bytes) -> bool:
        return message.offset < self._next[message.place] or self._filters.knows(message, key)

    def _require(self, places: Sequence[Place]) -> None:
        missing = [place for place in places if place not in self._next]
        if missing:
            listed = ", ".join(f"{place.topic}/{place.partition}" for place in missing)
            raise MessagingStateError(
                f"the inbox has not loaded {listed}", "call load() when a partition is assigned"
            )


def _require_no_answers(receipts: Sequence[Receipt]) -> None:
    if any(receipt.answer is not None for receipt in receipts):
        problem = "a message was given an answer, but a BloomInbox does not store answers"
        raise MessagingConfigError(problem, "use a TableInbox or a FilteredInbox, or give no answer")


def _taken_over(place: Place) -> TakenOverError:
    problem = f"another process has taken over {place.topic}/{place.partition}"
    return TakenOverError(problem, "nothing was stored; load the partition again")
