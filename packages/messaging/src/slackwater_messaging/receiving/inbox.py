"""Inboxes and their receipts, and the inbox that is a table: keys are stored with their effects."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from typing import LiteralString

from psycopg import sql

from slackwater.protocol import ConfigError, StateError
from slackwater_messaging.database import Database, bridge
from slackwater_messaging.message import Place, ReceivedMessage
from slackwater_messaging.running import in_thread, in_threads

_MAX_KEY_BYTES = 1024
"""An index entry of PostgreSQL has to fit a third of a page."""


KeyOf = Callable[[ReceivedMessage], bytes | str]
"""Returns the key of a message. Messages with equal keys are the same message and its repeats."""


def offset_key(message: ReceivedMessage) -> bytes:
    """Returns topic, partition and offset. They identify repeated deliveries, but not repeated sends."""
    return f"{message.topic}/{message.partition}/{message.offset}".encode()


def header_key(name: str) -> KeyOf:
    """Returns a function that uses a header as key, for example ``slackwater-message`` of an outbox's relay.

    This key also recognises messages that a sender has sent again. A message without the header is an error.
    """

    def key_of(message: ReceivedMessage) -> bytes:
        found = next((value for each, value in reversed(message.headers) if each == name), b"")
        if not found:
            raise ConfigError(
                f"it lacks the header {name}", "use another key, or let its sender add the header"
            )
        return found

    return key_of


def as_key(key: bytes | str) -> bytes:
    """Returns a key as bytes.

    Raises:
        ConfigError: It is empty or too long.
    """
    found = key.encode() if isinstance(key, str) else bytes(key)
    if not 0 < len(found) <= _MAX_KEY_BYTES:
        problem = f"a key has {len(found)} bytes, expected 1 to {_MAX_KEY_BYTES}: {found[:40]!r}"
        raise ConfigError(problem, "use a digest of the key, such as hashlib.sha256(key).digest()")
    return found


class TakenOverError(StateError):
    """Another process has taken over a partition of this inbox, or has processed messages of this batch.

    The transaction was rolled back. Load the partitions again, and receive the same messages again; they will
    be recognised as repeats.
    """


class Receipt:
    """Says whether a message was processed before, and holds its answer.

    ``message`` is None for a request that did not arrive through Kafka. ``first`` is the receipt with the
    same key in the same batch that is not a repeat.
    """

    __slots__ = ("_answer", "_first", "is_repeat", "key", "message")

    def __init__(
        self,
        key: bytes,
        message: ReceivedMessage | None = None,
        *,
        is_repeat: bool = False,
        answer: bytes | None = None,
        first: "Receipt | None" = None,
    ) -> None:
        self.key = key
        self.message = message
        self.is_repeat = is_repeat or first is not None
        """True if its effect is already in the database, so that it must not be processed."""
        self._answer = answer
        self._first = first

    @property
    def answer(self) -> bytes | None:
        """The answer to the message, either stored with its effect or to be stored.

        None: no answer is stored. Set it after the message was processed.

        Raises:
            StateError: The answer is set on a repeat, whose answer is already stored.
        """
        return self._answer if self._first is None else self._first.answer

    @answer.setter
    def answer(self, answer: bytes | None) -> None:
        if self.is_repeat:
            problem = f"the message with key {self.key!r} is a repeat, and its answer is already stored"
            raise StateError(problem, "check is_repeat before you process the message")
        self._answer = answer

    def become_repeat(self, answer: bytes | None) -> None:
        """Called by the inbox when it has found the key."""
        self.is_repeat, self._answer = True, answer

    def __repr__(self) -> str:
        return f"Receipt({self.key!r}, is_repeat={self.is_repeat})"


class Inbox(ABC):
    """Knows which messages were processed, by a table, filters, or both.

    Use an inbox from one thread. Everything that it keeps in memory is also in the database, so a process may
    end at any moment.
    """

    keeps_answers = True
    """True if a repeat has the answer of the original message."""

    @abstractmethod
    def create(self, connection: Database) -> None:
        """Creates the tables unless they exist, in the open transaction or in a separate one."""

    def load(self, connection: Database, places: Sequence[Place]) -> Mapping[Place, int]:
        """Takes over partitions. Called when they are assigned, and again after each failed batch.

        Returns:
            The offsets at which reading must continue, for partitions whose offsets the inbox stores. For the
            others, the consumer group stores them.

        Raises:
            StateError: The stored data are damaged, or were written with other settings.
            psycopg.Error: The database rejects a statement.
        """
        return {}

    @abstractmethod
    def receive_batch(
        self, connection: Database, messages: Sequence[ReceivedMessage]
    ) -> AbstractContextManager[list[Receipt]]:
        """Begins a transaction, returns which messages are repeats, and commits at the end of the block.

        An error in the block rolls everything back and is passed on. Messages of a partition must be in the
        order of their offsets. Blocks while another process has one of the messages in an open transaction.

        Raises:
            TakenOverError: Another process has processed some of the messages; nothing was stored.
            ConfigError: A key is not valid, or the connection already has an open transaction, whose
                end the inbox would not control.
            psycopg.Error: The database rejects a statement.
        """

    def store(self, connection: Database, receipts: Sequence[Receipt]) -> None:  # noqa: B027
        """Stores the answers of processed messages whose keys the inbox knows, in the open transaction."""

    @abstractmethod
    def maintain(self, connection: Database) -> None:
        """Does a small part of the periodic work, if it is due, in separate transactions."""

    def save(self, connection: Database, places: Sequence[Place]) -> None:  # noqa: B027
        """Stores data that make the next :meth:`load` of partitions fast. Called when they are revoked."""

    def forget(self, places: Sequence[Place]) -> None:  # noqa: B027
        """Drops the memory of these partitions, because others own them now or they will be loaded again."""


def new_receipts(
    messages: Sequence[ReceivedMessage], key_of: KeyOf, known: Callable[[ReceivedMessage, bytes], bool]
) -> list[Receipt]:
    """Returns a receipt for each message. All but the first with one key in the batch are repeats."""
    receipts: list[Receipt] = []
    first: dict[bytes, Receipt] = {}
    for message in messages:
        try:
            key = as_key(key_of(message))
        except ConfigError as error:
            place = f"{message.topic}/{message.partition}, offset {message.offset}"
            raise ConfigError(f"message at {place}: {error.problem}", error.hint) from error
        if key in first:
            receipts.append(Receipt(key, message, first=first[key]))
            continue
        first[key] = Receipt(key, message, is_repeat=known(message, key))
        receipts.append(first[key])
    return receipts


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

    def create(self, connection: Database) -> None:
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
    def receive(self, connection: Database, key: bytes | str) -> Iterator[Receipt]:
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
        self, connection: Database, messages: Sequence[ReceivedMessage]
    ) -> Iterator[list[Receipt]]:
        """See the base class. If the connection has an open transaction, the block is a savepoint in it."""
        receipts = new_receipts(messages, self.key_of, lambda message, key: False)
        with connection.transaction():
            firsts = [receipt for receipt in receipts if not receipt.is_repeat]
            self.mark(connection, firsts)
            yield receipts
            self.store(connection, firsts)

    def mark(self, connection: Database, receipts: Sequence[Receipt]) -> None:
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

    def store(self, connection: Database, receipts: Sequence[Receipt]) -> None:
        """See the base class."""
        given = {r.key: r.answer for r in receipts if not r.is_repeat and r.answer is not None}
        if given:
            connection.execute(self._sql(_STORE_ANSWERS), [list(given), list(given.values())])

    def insert(self, connection: Database, receipts: Sequence[Receipt]) -> None:
        """Inserts keys that appear to be new, together with their answers, in one statement.

        Raises:
            psycopg.errors.UniqueViolation: One of the keys exists.
        """
        if receipts:
            rows = [receipt.key for receipt in receipts], [receipt.answer for receipt in receipts]
            connection.execute(self._sql(_INSERT_ANSWERED), rows)

    def knows_any(self, connection: Database, receipts: Sequence[Receipt]) -> bool:
        """Returns whether one of the keys exists."""
        keys = [receipt.key for receipt in receipts]
        return connection.execute(self._sql(_ANSWERS), [keys]).fetchone() is not None

    def clean(self, connection: Database, *, at_most: int = CLEAN_AT_ONCE) -> int:
        """Deletes the oldest expired keys, at most ``at_most`` of them.

        Call it until it returns less. Rows that others have locked are skipped, so the call does not wait.

        Returns:
            The number of deleted keys.
        """
        with connection.transaction():
            return connection.execute(self._sql(_CLEAN), [self._remember, at_most]).rowcount

    def maintain(self, connection: Database) -> None:
        """See the base class. Deletes some expired keys."""
        self.clean(connection)

    def _sql(self, template: LiteralString, **names: sql.Composable) -> sql.Composed:
        return sql.SQL(template).format(**self._names, **names)
