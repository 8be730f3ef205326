"""One transaction of a producer."""

import asyncio
import re
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from slackwater.client.broker import Writer
from slackwater.client.consumer import TransactionalConsumer
from slackwater.client.kafka import DROPPED, failure
from slackwater.client.transaction import Commit
from slackwater.client.written import Row, WrittenTransaction
from slackwater.kafka.transactions import DeliveredOffsets, Headers
from slackwater.protocol import (
    CommitPosition,
    CommitRecord,
    ConfigError,
    SlackwaterError,
    UnavailableError,
    encode_commit_record,
)
from slackwater.protocol.keys import commit_topic, transaction_topic

_SERVE_EVERY = 1000
"""The number of records between two checks of the delivery reports."""
_SHOWN_KEY = 200


class Owner(Protocol):
    """The producer of a transaction: it knows instances, positions and outcomes."""

    @property
    def source(self) -> str:
        """The name of its source."""
        ...

    def begin(self, transaction: "ProducerTransaction") -> tuple[Writer, WrittenTransaction]:
        """Begins it."""
        ...

    def commit(self, transaction: "ProducerTransaction") -> None:
        """Commits it, or aborts it and raises."""
        ...

    def abort(self, transaction: "ProducerTransaction") -> None:
        """Aborts it; never raises."""
        ...


class ProducerTransaction:
    """A transaction that a ``with`` block begins and commits, or aborts if the block ends with an error.

    In ``async with``, beginning and committing do not block the event loop. Records are queued without
    waiting for Kafka, unless the producer's memory for them (``max_bytes``) is full. They are not kept
    afterwards, so a transaction may be larger than the memory. A transaction without records is a commit,
    too.

    Not thread-safe. After an error of any method, the transaction cannot be committed.

    Args:
        owner: The producer.
        given: The commit whose position it takes; None: the next position.
        consumer: The consumer whose offsets are committed with it.
    """

    def __init__(
        self, owner: Owner, given: Commit | None = None, consumer: TransactionalConsumer | None = None
    ) -> None:
        self._owner, self.given, self.consumer = owner, given, consumer
        self._begun: tuple[Writer, WrittenTransaction] | None = None
        self.broken: SlackwaterError | None = None
        """What broke it: it can no longer be committed."""
        self._headers: Headers = []

    def __enter__(self) -> "ProducerTransaction":
        """Begins it.

        Raises:
            OvertakenError: Another instance of the producer has taken over.
            ConfigError: Its position is not above the newest commit, or another transaction is open.
            UnavailableError: Kafka rejects a request or does not answer.
        """
        self._begun = self._owner.begin(self)
        self._headers = self._begun[1].headers
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commits the transaction, or aborts it if the block raised an error, which is passed on.

        Raises:
            OvertakenError: Another instance has taken over; nothing is visible.
            TransactionLostError: The consumer's transaction was handed to another member; nothing is visible.
            OutcomeUnknownError: It is not known yet whether the transaction was committed.
            SlackwaterError: Kafka rejected a record or did not answer; nothing is visible.
        """
        if kind is None:
            self._owner.commit(self)
        else:
            self._owner.abort(self)

    async def __aenter__(self) -> "ProducerTransaction":
        """Begins it, in another thread."""
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commits it, or aborts it, in another thread."""
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    @property
    def position(self) -> CommitPosition:
        """Its position in the source's commit order."""
        return self._writing[1].position

    def insert(self, table: str, key: Row, row: Row) -> None:
        """Writes the insertion of a row. The row need not repeat the columns of the key.

        Raises:
            SlackwaterError: A value cannot be written, or Kafka rejects it. Nothing can be committed then.
        """
        self._change(table, key, None, row, b"c")

    def upsert(self, table: str, key: Row, row: Row, *, before: Row | None = None) -> None:
        """Writes the new state of a row, whether or not it existed; raises like :meth:`insert`.

        Args:
            table: The table as ``schema.table``.
            key: The columns of the primary key.
            row: The new state.
            before: The previous state. Readers that declare the table with ``REPLICA IDENTITY FULL`` need it;
                use :meth:`insert` for new rows then.
        """
        self._change(table, key, before, row, b"u")

    def delete(self, table: str, key: Row, *, before: Row | None = None) -> None:
        """Writes the deletion of a row; raises like :meth:`insert`.

        Args:
            table: The table as ``schema.table``.
            key: The columns of the primary key.
            before: The previous state, see :meth:`upsert`; None: only the key is known.
        """
        self._change(table, key, {} if before is None else before, None, b"d")

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, str | bytes | None]] = (),
    ) -> None:
        """Writes a record that is not a change of a row; raises like :meth:`insert`.

        The commit record lists its offset. Pipelines and sidecars do not read the record.

        Args:
            topic: The topic. Its name must not be that of a topic of a table of the source.
            key: Determines the partition.
            value: The value; None: a tombstone.
            headers: Names and values. They follow the headers that Slackwater adds.
        """
        written = self._writing[1]
        if not written.has(topic):
            self._check_plain(topic)
        self._produce(topic, key, value, [*self._headers, *headers])

    # --- for its producer

    @property
    def has_failed(self) -> bool:
        """Whether Kafka has rejected one of its records."""
        reports = {} if self._begun is None else self._begun[1].reports
        return self.broken is not None or any(each.first_error is not None for each in reports.values())

    def finish(self) -> tuple[CommitRecord, int]:
        """Writes BEGIN, END and finally the commit record; Kafka has acknowledged all when it returns.

        Returns:
            The commit record and its offset.
        """
        writer, written = self._writing
        if self.broken is not None:
            raise self.broken
        self._flush(writer, written, written.reports)
        source = self._owner.source
        topics = transaction_topic(source), commit_topic(source)
        told, log = DeliveredOffsets(), DeliveredOffsets()
        key, begin, end = written.boundaries()
        for value in (begin, end):
            writer.produce(topics[0], key, value, self._headers, told.report)
        record = written.commit_record()
        writer.produce(topics[1], None, encode_commit_record(record), self._headers, log.report)
        written.handed_over += 3
        self._flush(writer, written, {**written.reports, topics[0]: told, topics[1]: log})
        return record, log.ranges()[0].first_offset

    @property
    def _writing(self) -> tuple[Writer, WrittenTransaction]:
        if self._begun is None:
            raise ConfigError("the transaction has not been started", "use it in a with block")
        return self._begun

    def _change(self, table: str, key: Row, before: Row | None, after: Row | None, op: bytes) -> None:
        try:
            topic, record_key, value = self._writing[1].change(table, key, before, after, op)
        except SlackwaterError as error:
            self.broken = error
            raise
        self._produce(topic, record_key, value, self._headers)

    def _produce(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        writer, written = self._writing
        try:
            writer.produce(topic, key, value, headers, written.report_of(topic))
            written.handed_over += 1
            if not written.handed_over % _SERVE_EVERY:
                writer.serve()
        except SlackwaterError as error:
            self.broken = error
            raise

    def _check_plain(self, topic: str) -> None:
        source = self._owner.source
        is_table = re.fullmatch(re.escape(source) + r"\.[^.]+\.[^.]+", topic) is not None
        if is_table or topic in (transaction_topic(source), commit_topic(source)):
            hint = "write changes of tables with insert, upsert and delete; choose another name for the topic"
            self.broken = ConfigError(f"{topic} is reserved for changes and transactions", hint)
            raise self.broken

    def _flush(
        self, writer: Writer, written: WrittenTransaction, reports: dict[str, DeliveredOffsets]
    ) -> None:
        """Waits until Kafka has acknowledged all records so far."""
        try:
            writer.flush(lambda: any(each.first_error is not None for each in reports.values()))
        except UnavailableError:
            self._check_taken(writer, reports)
            raise
        self._check_taken(writer, reports)
        if sum(each.delivered for each in reports.values()) != written.handed_over:
            writer.check()
            raise UnavailableError("the Kafka client dropped records of the transaction", "try again")

    def _check_taken(self, writer: Writer, reports: dict[str, DeliveredOffsets]) -> None:
        """Raises if Kafka has rejected a record, and names it; dropped records do not carry the reason."""
        for topic, each in reports.items():
            if each.first_error is None:
                continue
            if each.first_error.code() in DROPPED:
                writer.check()
            size, key = each.largest_failed or (0, None)
            shown = (key or b"").decode(errors="backslashreplace")[:_SHOWN_KEY]
            what = f"writing a record of {size:,} bytes with key {shown} to topic {topic!r}"
            raise failure(self._owner.source, what, each.first_error)
