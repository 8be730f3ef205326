"""The inbox table: the key of each message, in the transaction of its effect."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg

from slackwater_messaging.message import Place
from slackwater_messaging.receiving.receipt import (
    KeyOf,
    Receipt,
    ReceivedMessage,
    as_key,
    new_receipts,
    offset_key,
)
from slackwater_messaging.receiving.statements import CLEAN_AT_ONCE, check_remember, table_statements


class TableInbox:
    """Implements :class:`Inbox` with a row for each message.

    The key is inserted before the effect, in the same transaction. A second transaction with the key waits
    for the first one's end: if that commits, it is a repeat; if not, it is the first.

    Args:
        table: ``table`` or ``schema.table``. Each kind of receiver (consumer group, service) has its own.
        remember: Keys that are older are deleted, and a repeat that comes later is processed again. Longer
            than any message can be repeated: than the topic keeps it, and than its producer tries.
        key_of: Tells messages of a batch apart.
        shards: Partitions of the table, by the key's hash: fixed when the table is made.
    """

    keeps_answers = True

    def __init__(
        self,
        table: str,
        *,
        remember: timedelta = timedelta(days=30),
        key_of: KeyOf = offset_key,
        shards: int = 16,
    ) -> None:
        self.table = table
        """The name."""
        self._remember = check_remember(table, remember)
        self.key_of = key_of
        """Tells messages of a batch apart."""
        self._sql = table_statements(table, shards)

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """See the protocol."""
        with connection.transaction():
            for statement in self._sql.create:
                connection.execute(statement)

    @contextmanager
    def receive(self, connection: psycopg.Connection[Any], key: bytes | str) -> Iterator[Receipt]:
        """Says whether a request came before; its effect and its answer belong into the block.

        The block is a transaction, or, where one is open already, a part of it (a savepoint). An error in the
        block takes the key back together with the effect.

        Raises:
            MessagingConfigError: The key cannot be used.
            psycopg.Error: The database refuses.
        """
        with connection.transaction():
            receipt = Receipt(as_key(key))
            self.mark(connection, [receipt])
            yield receipt
            self.store(connection, [receipt])

    @contextmanager
    def receive_batch(
        self, connection: psycopg.Connection[Any], messages: Sequence[ReceivedMessage]
    ) -> Iterator[list[Receipt]]:
        """See the protocol. The connection may be in a transaction: the block is a part of it then."""
        receipts = new_receipts(messages, self.key_of, lambda message, key: False)
        with connection.transaction():
            firsts = [receipt for receipt in receipts if not receipt.is_repeat]
            self.mark(connection, firsts)
            yield receipts
            self.store(connection, firsts)

    def mark(self, connection: psycopg.Connection[Any], receipts: Sequence[Receipt]) -> None:
        """Inserts the keys of receipts, each another one; those that were there are repeats then."""
        left = {receipt.key: receipt for receipt in receipts}
        while left:
            inserted = connection.execute(self._sql.insert, [sorted(left)]).fetchall()
            for (key,) in inserted:
                del left[key]
            if not left:
                return
            # What is neither inserted nor found was deleted in between, and is tried again.
            for key, answer in connection.execute(self._sql.answers, [list(left)]).fetchall():
                left.pop(key).become_repeat(answer)

    def store(self, connection: psycopg.Connection[Any], receipts: Sequence[Receipt]) -> None:
        """Stores the answers of messages that were processed."""
        given = {r.key: r.answer for r in receipts if not r.is_repeat and r.answer is not None}
        if given:
            connection.execute(self._sql.store_answers, [list(given), list(given.values())])

    def insert(self, connection: psycopg.Connection[Any], receipts: Sequence[Receipt]) -> None:
        """Inserts keys that are believed to be new together with their answers, in one statement.

        Raises:
            psycopg.errors.UniqueViolation: One of them is there.
        """
        if receipts:
            rows = [receipt.key for receipt in receipts], [receipt.answer for receipt in receipts]
            connection.execute(self._sql.insert_answered, rows)

    def clean(self, connection: psycopg.Connection[Any], *, at_most: int = CLEAN_AT_ONCE) -> int:
        """Deletes the oldest keys that need not be remembered any more, so many at most.

        Call it until it returns less. Rows that others hold are passed over, so that nobody waits.

        Returns:
            How many were deleted.
        """
        with connection.transaction():
            return connection.execute(self._sql.clean, [self._remember, at_most]).rowcount

    def load(self, connection: psycopg.Connection[Any], places: Sequence[Place]) -> Mapping[Place, int]:
        """See the protocol: the table is not of partitions, so the consumer group's offsets count."""
        return {}

    def maintain(self, connection: psycopg.Connection[Any]) -> None:
        """See the protocol: deletes some old keys."""
        self.clean(connection)

    def save(self, connection: psycopg.Connection[Any], places: Sequence[Place]) -> None:
        """See the protocol: everything is in the table."""

    def forget(self, places: Sequence[Place]) -> None:
        """See the protocol: there is nothing in memory."""
