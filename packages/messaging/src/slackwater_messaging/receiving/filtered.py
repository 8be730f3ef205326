"""Inboxes with filters: before a table, where a new message costs one insert, or alone, losing messages."""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import LiteralString

import psycopg
from psycopg import sql

from slackwater.protocol import Clock, ConfigError, StateError, SystemClock, epoch_ms
from slackwater_messaging.database import Database, check_idle
from slackwater_messaging.message import Place, ReceivedMessage
from slackwater_messaging.receiving.filters import FilterChain, FilterPolicy, digest_of, split_digests
from slackwater_messaging.receiving.inbox import (
    Inbox,
    KeyOf,
    Receipt,
    TableInbox,
    TakenOverError,
    identifier,
    new_receipts,
)
from slackwater_messaging.running import Exclusive

_SAVE_INTERVAL = timedelta(minutes=1)
"""How often filters are written. Until then, a :class:`BloomInbox` keeps their keys in its journal."""
_PLACE = sql.SQL("topic = %s AND partition = %s")
_CREATE_FILTERS = """
CREATE TABLE IF NOT EXISTS {filters} (
    topic text, partition int, window_ms bigint, number int, filter bytea NOT NULL,
    PRIMARY KEY (topic, partition, window_ms, number)
)
"""
_NOT_COMPRESSED = "ALTER TABLE {filters} ALTER COLUMN filter SET STORAGE EXTERNAL"
"""A filter looks random, so that compressing it costs time and saves nothing."""
_LOAD_FILTERS = "SELECT filter FROM {filters} WHERE {place}"
_STORE_FILTER = """
INSERT INTO {filters} (topic, partition, window_ms, number, filter) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (topic, partition, window_ms, number) DO UPDATE SET filter = excluded.filter
"""
_DROP_FILTER = "DELETE FROM {filters} WHERE {place} AND window_ms = %s AND number = %s"

_CREATE_POSITIONS = """
CREATE TABLE IF NOT EXISTS {positions} (
    topic text, partition int, next_offset bigint NOT NULL, PRIMARY KEY (topic, partition)
)
"""
_CREATE_JOURNAL = """
CREATE TABLE IF NOT EXISTS {journal} (
    topic text, partition int, next_offset bigint, time_ms bigint NOT NULL, digests bytea NOT NULL,
    PRIMARY KEY (topic, partition, next_offset)
)
"""
_BEGIN_POSITION = """
INSERT INTO {positions} (topic, partition, next_offset) VALUES (%s, %s, -1) ON CONFLICT DO NOTHING
"""
_LOCK_POSITION = "SELECT next_offset FROM {positions} WHERE {place} FOR UPDATE"
_ADVANCE = "UPDATE {positions} SET next_offset = %s WHERE {place} AND next_offset = %s"
"""Changes no row if another process has changed the position."""
_READ_JOURNAL = "SELECT time_ms, digests FROM {journal} WHERE {place} ORDER BY next_offset"
_NOTE = """
INSERT INTO {journal} (topic, partition, next_offset, time_ms, digests) VALUES (%s, %s, %s, %s, %s)
"""
_DROP_JOURNAL = "DELETE FROM {journal} WHERE {place} AND next_offset <= %s"


class _ChainInbox(Inbox):
    """What inboxes with filters have in common: a chain for each partition, in memory and in a table.

    The clock limits the timestamps of messages: one in the future must not make filters forget.
    """

    def __init__(
        self, name: str, policy: FilterPolicy, save_interval: timedelta, clock: Clock | None
    ) -> None:
        self._use = Exclusive(f"the inbox {name}", "give each receiver its own, with the same tables")
        self._policy, self._clock = policy, clock or SystemClock()
        self._names: dict[str, sql.Composable] = {"filters": identifier(name, "_filters"), "place": _PLACE}
        self._chains: dict[Place, FilterChain] = {}
        self._save_seconds = save_interval.total_seconds()
        self._save_at = self._clock.monotonic() + self._save_seconds

    @contextmanager
    def receive_batch(
        self, connection: Database, messages: Sequence[ReceivedMessage]
    ) -> Iterator[list[Receipt]]:
        """See the base class. After a failure, a :class:`BloomInbox` must load the partitions again."""
        with self._use.held(), self._received(connection, messages) as receipts:
            yield receipts

    @abstractmethod
    def _received(
        self, connection: Database, messages: Sequence[ReceivedMessage]
    ) -> AbstractContextManager[list[Receipt]]:
        """Does what :meth:`receive_batch` does, for the only caller."""

    def maintain(self, connection: Database) -> None:
        """See the base class. Writes filters if it is time, and again at the next call if that fails."""
        if self._clock.monotonic() >= self._save_at:
            self.save(connection, list(self._chains))
            self._save_at = self._clock.monotonic() + self._save_seconds

    def save(self, connection: Database, places: Sequence[Place]) -> None:
        """See the base class."""
        check_idle(connection)
        for place in places:
            try:
                with connection.transaction():
                    self._store(connection, place)
            except BaseException:
                self.forget([place])
                raise

    def forget(self, places: Sequence[Place]) -> None:
        """See the base class."""
        for place in places:
            self._chains.pop(place, None)

    def _create_filters(self, connection: Database) -> None:
        connection.execute(self._sql(_CREATE_FILTERS))
        connection.execute(self._sql(_NOT_COMPRESSED))

    def _loaded(self, connection: Database, place: Place) -> FilterChain:
        """Reads a partition's chain; requires a transaction."""
        packed = connection.execute(self._sql(_LOAD_FILTERS), place).fetchall()
        name = f"{place.topic}/{place.partition}".encode()
        return FilterChain.restore(self._policy, [row[0] for row in packed], name)

    def _store(self, connection: Database, place: Place) -> None:
        """Writes the changes of a partition's chain; requires a transaction.

        If the transaction fails, the chain must be loaded again.
        """
        changed, gone = self._chains[place].take_changes()
        for window_ms, number, packed in changed:
            connection.execute(self._sql(_STORE_FILTER), [*place, window_ms, number, packed])
        for window_ms, number in gone:
            connection.execute(self._sql(_DROP_FILTER), [*place, window_ms, number])

    def _is_in_filter(self, message: ReceivedMessage, key: bytes) -> bool:
        """Returns whether a key was seen in the message's partition, or appears to have been."""
        return digest_of(key) in self._chains[message.place]

    def _time_ms(self, messages: Sequence[ReceivedMessage]) -> int:
        """Returns the time of a batch according to its messages' timestamps, limited to the current time."""
        now = epoch_ms(self._clock.now())
        return max(min(now if m.timestamp_ms is None else m.timestamp_ms, now) for m in messages)

    def _sql(self, template: LiteralString) -> sql.Composed:
        return sql.SQL(template).format(**self._names)


class FilteredInbox(_ChainInbox):
    """An inbox with a table that is queried only for keys that a filter appears to know.

    Keys that the filter does not know are written once, with their answers, after the effect. A
    :class:`TableInbox`, in contrast, writes them before the effect, checks whether they were new, and writes
    the answers later. The table's unique key decides in any case, so an outdated or lost filter costs only
    time.

    Args:
        policy: How much filters remember. The error rate is the share of new messages that are looked up.
    """

    def __init__(
        self,
        table: TableInbox,
        *,
        policy: FilterPolicy,
        save_interval: timedelta = _SAVE_INTERVAL,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(table.table, policy, save_interval, clock)
        self._table = table
        self._suspects: set[bytes] = set()
        """Digests of keys that the table knew, but the filter did not; kept until they are received."""

    def create(self, connection: Database) -> None:
        """See the base class."""
        with connection.transaction():
            self._table.create(connection)
            self._create_filters(connection)

    def load(self, connection: Database, places: Sequence[Place]) -> Mapping[Place, int]:
        """See the base class. The consumer group's offsets apply."""
        check_idle(connection)
        with connection.transaction():
            for place in places:
                self._chains[place] = self._loaded(connection, place)
        return {}

    @contextmanager
    def _received(self, connection: Database, messages: Sequence[ReceivedMessage]) -> Iterator[list[Receipt]]:
        """Partitions that are not loaded have no filter, so the table is queried."""
        check_idle(connection)
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

    def store(self, connection: Database, receipts: Sequence[Receipt]) -> None:
        """See the base class."""
        self._table.store(connection, receipts)

    def maintain(self, connection: Database) -> None:
        """See the base class. Deletes some expired keys, and writes filters if it is time."""
        self._table.maintain(connection)
        super().maintain(connection)

    def _may_be_known(self, receipt: Receipt) -> bool:
        message = receipt.message
        if message is None or message.place not in self._chains:
            return True
        return digest_of(receipt.key) in self._suspects or self._is_in_filter(message, receipt.key)

    def _insert(self, connection: Database, new: Sequence[Receipt]) -> None:
        try:
            self._table.insert(connection, new)
        except psycopg.errors.UniqueViolation as error:
            raise self._taken_over(new) from error

    def _check_new(self, connection: Database, new: Sequence[Receipt], error: Exception) -> None:
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
        for place, digests in _digests_by_place(firsts).items():
            self._suspects.difference_update(digests)
            chain = self._chains.get(place)
            if chain is not None:
                chain.add([d for d in digests if d not in chain], self._time_ms(messages))


class BloomInbox(_ChainInbox):
    """An inbox without a row per message; **loses messages at the policy's error rate**.

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
    """

    keeps_answers = False

    def __init__(
        self,
        name: str,
        *,
        key_of: KeyOf,
        policy: FilterPolicy,
        save_interval: timedelta = _SAVE_INTERVAL,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(name, policy, save_interval, clock)
        self._key_of = key_of
        for table in ("positions", "journal"):
            self._names[table] = identifier(name, f"_{table}")
        self._next: dict[Place, int] = {}
        """The offsets in the database of loaded partitions."""

    def create(self, connection: Database) -> None:
        """See the base class."""
        with connection.transaction():
            connection.execute(self._sql(_CREATE_POSITIONS))
            connection.execute(self._sql(_CREATE_JOURNAL))
            self._create_filters(connection)

    def load(self, connection: Database, places: Sequence[Place]) -> Mapping[Place, int]:
        """See the base class. Waits for transactions in which another process has locked a partition."""
        self.forget(places)
        check_idle(connection)
        with connection.transaction():
            for place in sorted(places):
                connection.execute(self._sql(_BEGIN_POSITION), place)
                next_offset = self._lock(connection, place)
                chain = self._loaded(connection, place)
                for time_ms, digests in connection.execute(self._sql(_READ_JOURNAL), place).fetchall():
                    chain.add(split_digests(digests), time_ms)
                self._chains[place], self._next[place] = chain, next_offset
        return {place: self._next[place] for place in places if self._next[place] >= 0}

    @contextmanager
    def _received(self, connection: Database, messages: Sequence[ReceivedMessage]) -> Iterator[list[Receipt]]:
        places = sorted({message.place for message in messages})
        check_idle(connection)
        self._require(places)
        receipts = new_receipts(messages, self._key_of, self._knows)
        ends = self._ends(messages)
        added = _digests_by_place(receipt for receipt in receipts if not receipt.is_repeat)
        time_ms = self._time_ms(messages) if messages else 0
        try:
            with connection.transaction():
                for place, end in sorted(ends.items()):
                    self._advance(connection, place, end)
                yield receipts
                _require_no_answers(receipts)
                for place, digests in added.items():
                    connection.execute(self._sql(_NOTE), [*place, ends[place], time_ms, b"".join(digests)])
        except BaseException:
            self.forget(places)  # only the database knows whether the transaction was committed
            raise
        self._next.update(ends)
        for place, digests in added.items():
            self._chains[place].add(digests, time_ms)

    def forget(self, places: Sequence[Place]) -> None:
        """See the base class."""
        super().forget(places)
        for place in places:
            self._next.pop(place, None)

    def _store(self, connection: Database, place: Place) -> None:
        """Writes a partition's chain, and drops the keys in the journal that it contains."""
        self._require([place])
        if self._lock(connection, place) != self._next[place]:
            raise _taken_over(place)
        super()._store(connection, place)
        connection.execute(self._sql(_DROP_JOURNAL), [*place, self._next[place]])

    def _lock(self, connection: Database, place: Place) -> int:
        row = connection.execute(self._sql(_LOCK_POSITION), place).fetchone()
        if row is None:
            problem = f"the position of {place.topic}/{place.partition} was removed from the database"
            raise StateError(problem, "load the partition again, which creates a new position")
        return int(row[0])

    def _advance(self, connection: Database, place: Place, end: int) -> None:
        """Advances the position unless another process has changed it, which fences this one."""
        if connection.execute(self._sql(_ADVANCE), [end, *place, self._next[place]]).rowcount != 1:
            raise _taken_over(place)

    def _ends(self, messages: Sequence[ReceivedMessage]) -> dict[Place, int]:
        """Returns the positions after a batch, for partitions that it advances."""
        ends: dict[Place, int] = {}
        for message in messages:
            if message.offset >= self._next[message.place]:
                ends[message.place] = message.offset + 1
        return ends

    def _knows(self, message: ReceivedMessage, key: bytes) -> bool:
        return message.offset < self._next[message.place] or self._is_in_filter(message, key)

    def _require(self, places: Sequence[Place]) -> None:
        missing = [place for place in places if place not in self._next]
        if missing:
            listed = ", ".join(f"{place.topic}/{place.partition}" for place in missing)
            raise StateError(f"the inbox has not loaded {listed}", "call load() when a partition is assigned")


def _require_no_answers(receipts: Sequence[Receipt]) -> None:
    if any(receipt.answer is not None for receipt in receipts):
        problem = "a message was given an answer, but a BloomInbox does not store answers"
        raise ConfigError(problem, "use a TableInbox or a FilteredInbox, or give no answer")


def _taken_over(place: Place) -> TakenOverError:
    problem = f"another process has taken over {place.topic}/{place.partition}"
    return TakenOverError(problem, "nothing was stored; load the partition again")


def _digests_by_place(receipts: Iterable[Receipt]) -> dict[Place, list[bytes]]:
    """Returns the digests of receipts' keys by the partition of their messages."""
    found: dict[Place, list[bytes]] = defaultdict(list)
    for receipt in receipts:
        if receipt.message is not None:
            found[receipt.message.place].append(digest_of(receipt.key))
    return found
