"""The inbox table: stores the key of each message in the transaction of its effect."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from slackwater.protocol import ConfigError
from slackwater_messaging.bridge import bridge, in_thread, in_threads
from slackwater_messaging.message import ReceivedMessage
from slackwater_messaging.receiving.receipt import Inbox, KeyOf, Receipt, as_key, new_receipts, offset_key

CLEAN_AT_ONCE = 1_000
"""The maximum number of keys that one cleaning deletes: a transaction of some milliseconds."""
_MAX_SHARDS = 1024
_CREATE = """
CREATE TABLE IF NOT EXISTS {table} (
    key bytea PRIMARY KEY,
    received_at timestamptz NOT NULL DEFAULT now(),
    answer bytea
) PARTITION BY HASH (key)
"""
_CREATE_SHARD = """
CREATE TABLE IF NOT EXISTS {shard} PARTITION OF {table} FOR VALUES WITH (MODULUS {shards}, REMAINDER {number})
"""
_CREATE_INDEX = "CREATE INDEX IF NOT EXISTS {index} ON {table} (received_at)"
_INSERT = """
INSERT INTO {table} (key) SELECT key FROM unnest(%s::bytea[]) AS key ORDER BY key
ON CONFLICT DO NOTHING RETURNING key
"""
"""Inserts keys in their order, so that transactions do not wait in a circle; returns the new ones."""
_INSERT_ANSWERED = """
INSERT INTO {table} (key, answer)
SELECT key, answer FROM unnest(%s::bytea[], %s::bytea[]) AS new (key, answer) ORDER BY key
"""
_ANSWERS = "SELECT key, answer FROM {table} WHERE key = ANY (%s::bytea[])"
_STORE_ANSWERS = """
UPDATE {table} AS inbox SET answer = given.answer
FROM unnest(%s::bytea[], %s::bytea[]) AS given (key, answer) WHERE inbox.key = given.key
"""
_CLEAN = """
DELETE FROM {table} WHERE key = ANY (ARRAY (
    SELECT key FROM {table} WHERE received_at < now() - %s::interval
    ORDER BY received_at LIMIT %s FOR UPDATE SKIP LOCKED
))
"""


def identifier(name: str, suffix: str = "") -> sql.Identifier:
    """Returns ``schema.table`` or ``table`` as an identifier.

    Raises:
        ConfigError: It is not one or two names, or too long.
    """
    parts = f"{name}{suffix}".split(".")
    if len(parts) > 2 or not all(0 < len(part.encode()) <= 63 for part in parts):
        problem = f"{name}{suffix!s} is not a valid name of a table"
        raise ConfigError(problem, "expected table or schema.table, at most 63 bytes each")
    return sql.Identifier(*parts)


class TableInbox(Inbox):
    """An inbox with a row for each message. The consumer group stores the offsets.

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
        if remember <= timedelta(0):
            raise ConfigError(f"{table}: remember is {remember}", "expected a positive duration")
        if not 1 <= shards <= _MAX_SHARDS:
            raise ConfigError(f"{table}: shards is {shards}", f"expected 1 to {_MAX_SHARDS}")
        self._remember, self._shards = remember, shards
        self.key_of = key_of
        """Returns the key of a message of a batch."""
        self._names = {"table": identifier(table)}

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """See the base class."""
        with connection.transaction():
            connection.execute(self._sql(_CREATE))
            for number in range(self._shards):
                shard = identifier(self.table, f"_{number}")
                numbers = {"shards": sql.Literal(self._shards), "number": sql.Literal(number)}
                connection.execute(self._sql(_CREATE_SHARD, shard=shard, **numbers))
            index = sql.Identifier(f"{self.table.rpartition('.')[2]}_received_at")
            connection.execute(self._sql(_CREATE_INDEX, index=index))

    @contextmanager
    def receive(self, connection: psycopg.Connection[Any], key: bytes | str) -> Iterator[Receipt]:
        """Returns whether a request was received before; produce its effect and its answer inside the block.

        The block is a transaction, or a savepoint if a transaction is already open. An error in the block
        rolls back the key together with the effect.

        Raises:
            ConfigError: The key is not valid.
            psycopg.Error: The database rejects a statement.
        """
        with connection.transaction():
            receipt = Receipt(as_key(key))
            self.mark(connection, [receipt])
            yield receipt
            self.store(connection, [receipt])

    async def create_async(self, connection: object) -> None:
        """Does what :meth:`create` does, over a ``psycopg.AsyncConnection`` or a connection of asyncpg."""
        await in_thread(self.create, bridge(connection))

    @asynccontextmanager
    async def receive_async(self, connection: object, key: bytes | str) -> AsyncIterator[Receipt]:
        """Does what :meth:`receive` does, over a ``psycopg.AsyncConnection`` or a connection of asyncpg."""
        async with in_threads(self.receive(bridge(connection), key)) as receipt:
            yield receipt

    async def clean_async(self, connection: object, *, at_most: int = CLEAN_AT_ONCE) -> int:
        """Does what :meth:`clean` does, over a ``psycopg.AsyncConnection`` or a connection of asyncpg."""
        return await in_thread(partial(self.clean, at_most=at_most), bridge(connection))

    @contextmanager
    def receive_batch(
        self, connection: psycopg.Connection[Any], messages: Sequence[ReceivedMessage]
    ) -> Iterator[list[Receipt]]:
        """See the base class. If the connection has an open transaction, the block is a savepoint in it."""
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
            inserted = connection.execute(self._sql(_INSERT), [list(left)]).fetchall()
            for (key,) in inserted:
                del left[key]
            if not left:
                return
            # A key that is neither inserted nor found was deleted in between, and is tried again.
            for key, answer in connection.execute(self._sql(_ANSWERS), [list(left)]).fetchall():
                left.pop(key).become_repeat(answer)

    def store(self, connection: psycopg.Connection[Any], receipts: Sequence[Receipt]) -> None:
        """Stores the answers of processed messages."""
        given = {r.key: r.answer for r in receipts if not r.is_repeat and r.answer is not None}
        if given:
            connection.execute(self._sql(_STORE_ANSWERS), [list(given), list(given.values())])

    def insert(self, connection: psycopg.Connection[Any], receipts: Sequence[Receipt]) -> None:
        """Inserts keys that appear to be new, together with their answers, in one statement.

        Raises:
            psycopg.errors.UniqueViolation: One of the keys exists.
        """
        if receipts:
            rows = [receipt.key for receipt in receipts], [receipt.answer for receipt in receipts]
            connection.execute(self._sql(_INSERT_ANSWERED), rows)

    def knows_any(self, connection: psycopg.Connection[Any], receipts: Sequence[Receipt]) -> bool:
        """Returns whether one of the keys exists."""
        keys = [receipt.key for receipt in receipts]
        return connection.execute(self._sql(_ANSWERS), [keys]).fetchone() is not None

    def clean(self, connection: psycopg.Connection[Any], *, at_most: int = CLEAN_AT_ONCE) -> int:
        """Deletes the oldest expired keys, at most ``at_most`` of them.

        Call it until it returns less. Rows that others have locked are skipped, so the call does not wait.

        Returns:
            The number of deleted keys.
        """
        with connection.transaction():
            return connection.execute(self._sql(_CLEAN), [self._remember, at_most]).rowcount

    def maintain(self, connection: psycopg.Connection[Any]) -> None:
        """See the base class. Deletes some expired keys."""
        self.clean(connection)

    def _sql(self, template: LiteralString, **names: sql.Composable) -> sql.Composed:
        return sql.SQL(template).format(**self._names, **names)
