"""A filter first, and a table on a hit: a new message costs one insert, and none is lost."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg

from slackwater.protocol import Clock, SystemClock
from slackwater_messaging.exclusive import Exclusive
from slackwater_messaging.message import Place
from slackwater_messaging.receiving.filters import FilterPolicy, digest_of
from slackwater_messaging.receiving.receipt import (
    Receipt,
    ReceivedMessage,
    TakenOverError,
    new_receipts,
    require_idle,
)
from slackwater_messaging.receiving.stored_filters import SAVE_INTERVAL, StoredFilters, digests_by_place
from slackwater_messaging.receiving.table import TableInbox


class FilteredInbox:
    """Implements :class:`Inbox` with a table that is queried only for keys that a filter appears to know.

    Keys that the filter does not know are written once, with their answers, after the effect. A
    :class:`TableInbox`, in contrast, writes them before the effect, checks whether they were new, and writes
    the answers later. The table's unique key decides in any case, so an outdated or lost filter costs only
    time.

    Args:
        table: The table.
        policy: How much filters remember. The error rate is the share of new messages that are looked up.
        save_interval: How often filters are written.
        clock: Measures that interval, and limits the timestamps of messages.
    """

    keeps_answers = True

    def __init__(
        self,
        table: TableInbox,
        *,
        policy: FilterPolicy,
        save_interval: timedelta = SAVE_INTERVAL,
        clock: Clock | None = None,
    ) -> None:
        self._table = table
        self._use = Exclusive(f"the inbox {table.table}", "give each receiver its own, with the same tables")
        self._filters = StoredFilters(table.table, policy, clock or SystemClock(), save_interval)
        self._suspects: set[bytes] = set()
        """Digests of keys that the table knew, but the filter did not; kept until they are received."""

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """See the protocol."""
        with connection.transaction():
            self._table.create(connection)
            self._filters.create(connection)

    def load(self, connection: psycopg.Connection[Any], places: Sequence[Place]) -> Mapping[Place, int]:
        """See the protocol. The consumer group's offsets apply."""
        require_idle(connection)
        with connection.transaction():
            for place in places:
                self._filters.chains[place] = self._filters.load(connection, place)
        return {}

    @contextmanager
    def receive_batch(
        self, connection: psycopg.Connection[Any], messages: Sequence[ReceivedMessage]
    ) -> Iterator[list[Receipt]]:
        """See the protocol. Partitions that are not loaded have no filter, so the table is queried."""
        with self._use.held(), self._received(connection, messages) as receipts:
            yield receipts

    @contextmanager
    def _received(
        self, connection: psycopg.Connection[Any], messages: Sequence[ReceivedMessage]
    ) -> Iterator[list[Receipt]]:
        require_idle(connection)
        receipts = new_receipts(messages, self._table.key_of, lambda message, key: False)
        firsts = [receipt for receipt in receipts if not receipt.is_repeat]
        hits: list[Receipt] = []
        new: list[Receipt] = []
        for receipt in firsts:
            (hits if self._may_be_known(receipt) else new).append(receipt)
        try:
            with connection.transaction():
                if hits:
                    self._table.mark(connection, hits)
                yield receipts
                self._table.store(connection, hits)
                self._insert(connection, new)
        except TakenOverError:
            raise
        except Exception as error:
            self._check_new(connection, new, error)
            raise
        self._note(firsts, messages)

    def maintain(self, connection: psycopg.Connection[Any]) -> None:
        """See the protocol. Deletes some expired keys, and writes filters if it is time."""
        self._table.maintain(connection)
        self._filters.save_if_due(lambda places: self.save(connection, places))

    def save(self, connection: psycopg.Connection[Any], places: Sequence[Place]) -> None:
        """See the protocol."""
        require_idle(connection)
        for place in places:
            try:
                with connection.transaction():
                    self._filters.store(connection, place)
            except BaseException:
                self.forget([place])
                raise

    def forget(self, places: Sequence[Place]) -> None:
        """See the protocol."""
        self._filters.forget(places)

    def _may_be_known(self, receipt: Receipt) -> bool:
        message = receipt.message
        if message is None or message.place not in self._filters.chains:
            return True
        return digest_of(receipt.key) in self._suspects or self._filters.knows(message, receipt.key)

    def _insert(self, connection: psycopg.Connection[Any], new: Sequence[Receipt]) -> None:
        try:
            self._table.insert(connection, new)
        except psycopg.errors.UniqueViolation as error:
            raise self._taken_over(new) from error

    def _check_new(
        self, connection: psycopg.Connection[Any], new: Sequence[Receipt], error: Exception
    ) -> None:
        """Raises if the error may be caused by an effect that was repeated because the filter is outdated."""
        try:
            with connection.transaction():
                is_outdated = self._table.knows_any(connection, new)
        except psycopg.Error:
            return  # the connection is lost, too
        if is_outdated:
            raise self._taken_over(new) from error

    def _taken_over(self, new: Sequence[Receipt]) -> TakenOverError:
        self._suspects.update(digest_of(receipt.key) for receipt in new)
        problem = f"{self._table.table}: another process has processed one of {len(new)} messages"
        return TakenOverError(problem, "nothing was stored; receive the messages again")

    def _note(self, firsts: Sequence[Receipt], messages: Sequence[ReceivedMessage]) -> None:
        """Adds committed keys to the filters."""
        for place, digests in digests_by_place(firsts).items():
            self._suspects.difference_update(digests)
            chain = self._filters.chains.get(place)
            if chain is not None:
                chain.add([d for d in digests if d not in chain], self._filters.time_ms(messages))
