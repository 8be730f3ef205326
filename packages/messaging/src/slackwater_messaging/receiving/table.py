"""The inbox table: stores the key of each message in the transaction of its effect."""

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

    The key is inserted before the effect, in the same transaction. A second transaction with the same key
    waits for the end of the first. If the first one commits, the second message is a repeat; if not, it is
    processed.

    Args:
        table: ``table`` or ``schema.table``. Each kind of receiver (consumer group, service) has its own.
        remember: Older keys are deleted, and a repeat that arrives later is processed again. Choose more than
            the time for which a message can be repeated: the retention of its topic, and the retries of its
            producer.
        key_of: Returns the key of a message of a batch.
        shards: The number of partitions of the table, by the hash of the key; fixed when the table is
            created.
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
        """Returns the key of a message of a batch."""
        self._sql = table_statements(table, shards)

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """See the protocol."""
        with connection.transaction():
            for statement in self._sql.create:
                connection.execute(statement)

    @contextmanager
    def receive(self, connection: psycopg.Connection[Any], key: bytes | str) -> Iterator[Receipt]:
        """Returns whether a request was received before; produce its effect and its answer inside the block.

        The block is a transaction, or a savepoint if a transaction is already open. An error in the block
        rolls back the key together with the effect.

        Raises:
            MessagingConfigError: The key is not valid.
            psycopg.Error: The database rejects a statement.
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
        """See the protocol. If the connection has an open transaction, the block is a savepoint in it."""
        receipts = new_receipts(messages, self.key_of, lambda message, key: False)
        with connection.transaction():
            firsts = [receipt for receipt in receipts if not receipt.is_repeat]
            self.mark(connection, firsts)
            yield receipts
            self.store(connection, firsts)

    def mark(self, connection: psycopg.Connection[Any], receipts: Sequence[Receipt]) -> None:
        """Inserts the keys of receipts, which must be distinct; receipts of existing keys become repeats."""
        left = {receipt.key: receipt for receipt in receipts}
        while left:
            inserted = connection.execute(self._sql.insert, [sorted(left)]).fetchall()
            for (key,) in inserted:
                del left[key]
            if not left:
                return
            # A key that is neither inserted nor found was deleted in between, and is tried again.
            for key, answer in connection.execute(self._sql.answers, [list(left)]).fetchall():
                left.pop(key).become_repeat(answer)

    def store(self, connection: psycopg.Connection[Any], receipts: Sequence[Receipt]) -> None:
        """Stores the answers of processed messages."""
        given = {r.key: r.answer for r in receipts if not r.is_repeat and r.answer is not None}
        if given:
            connection.execute(self._sql.store_answers, [list(given), list(given.values())])

    def insert(self, connection: psycopg.Connection[Any], receipts: Sequence[Receipt]) -> None:
        """Inserts keys that appear to be new, together with their answers, in one statement.

        Raises:
            psycopg.errors.UniqueViolation: One of the keys exists.
        """
        if receipts:
            rows = [receipt.key for receipt in receipts], [receipt.answer for receipt in receipts]
            connection.execute(self._sql.insert_answered, rows)

    def knows_any(self, connection: psycopg.Connection[Any], receipts: Sequence[Receipt]) -> bool:
        """Returns whether one of the keys exists."""
        keys = [receipt.key for receipt in receipts]
        return connection.execute(self._sql.answers, [keys]).fetchone() is not None

    def clean(self, connection: psycopg.Connection[Any], *, at_most: int = CLEAN_AT_ONCE) -> int:
        """Deletes the oldest expired keys, at most ``at_most`` of them.

        Call it until it returns less. Rows that others have locked are skipped, so the call does not wait.

        Returns:
            The number of deleted keys.
        """
        with connection.transaction():
            return connection.execute(self._sql.clean, [self._remember, at_most]).rowcount

    def load(self, connection: psycopg.Connection[Any], places: Sequence[Place]) -> Mapping[Place, int]:
        """See the protocol. The table does not store offsets, so the consumer group's offsets apply."""
        return {}

    def maintain(self, connection: psycopg.Connection[Any]) -> None:
        """See the protocol. Deletes some expired keys."""
        self.clean(connection)

    def save(self, connection: psycopg.Connection[Any], places: Sequence[Place]) -> None:
        """See the protocol. Everything is in the table already."""

    def forget(self, places: Sequence[Place]) -> None:
        """See the protocol. Nothing is kept in memory."""
