"""One transaction of a producer, as a service writes it."""

import asyncio
import re
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from slackwater_client.broker import Writer
from slackwater_client.consumer import TransactionalConsumer
from slackwater_client.errors import ClientConfigError, ClientError, ClientUnavailableError
from slackwater_client.kafka_writer import DROPPED, failure
from slackwater_client.rows import Row
from slackwater_client.transaction import Commit
from slackwater_client.written import WrittenTransaction
from slackwater_markers.kafka_transactions import DeliveredOffsets, Headers
from slackwater_protocol import CommitPosition, CommitRecord, encode_commit_record
from slackwater_protocol.keys import commit_topic, transaction_topic

_SERVE_EVERY = 1000
"""Records between two looks at delivery reports."""
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
    """A transaction: begun and committed by a ``with`` block, aborted when that ends with an error.

    In ``async with``, beginning and committing do not block the event loop. Records are handed over without
    waiting for Kafka, unless the producer's memory for them (``max_bytes``) is full. What was handed over
    is not kept here: a transaction may be larger than the memory. An empty one is a commit, too.

    Not thread-safe. After an error of any method it cannot be committed.

    Args:
        owner: Its producer.
        given: The commit whose place it takes; None: the next one.
        consumer: The consumer whose offsets are committed with it.
    """

    def __init__(
        self, owner: Owner, given: Commit | None = None, consumer: TransactionalConsumer | None = None
    ) -> None:
        self._owner, self.given, self.consumer = owner, given, consumer
        self._begun: tuple[Writer, WrittenTransaction] | None = None
        self._broken: ClientError | None = None
        self._headers: Headers = []

    def __enter__(self) -> "ProducerTransaction":
        """Begins it.

        Raises:
            ProducerFencedError: Another instance of the producer has taken over.
            ClientConfigError: Its position is not above the newest one, or another one is open.
            ClientUnavailableError: Kafka refuses or does not answer.
        """
        self._begun = self._owner.begin(self)
        self._headers = self._begun[1].headers
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commits it; aborts it if there was an error, which is passed on.

        Raises:
            ProducerFencedError: Another instance has taken over; nothing is visible.
            TransactionLostError: The transaction that the consumer read went to another member; nothing is
                visible.
            OutcomeUnknownError: It is committed or not; nobody can tell yet.
            ClientError: Kafka has refused a record or does not answer; nothing is visible.
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
        """Its place in the source's commit order."""
        return self._writing[1].position

    def insert(self, table: str, key: Row, row: Row) -> None:
        """Writes that a row is new. Columns of the key need not be repeated in the row.

        Raises:
            ClientError: A value has no form, or Kafka refuses; the transaction cannot be committed any more.
        """
        self._change(table, key, None, row, b"c")

    def upsert(self, table: str, key: Row, row: Row, *, before: Row | None = None) -> None:
        """Writes that a row is now so, whether it was there or not; raises like :meth:`insert`.

        Args:
            table: As ``schema.table``.
            key: The columns of the primary key.
            row: The row.
            before: The row before. Readers that declare the table with ``REPLICA IDENTITY FULL`` need it, or
                :meth:`insert` for rows that are new.
        """
        self._change(table, key, before, row, b"u")

    def delete(self, table: str, key: Row, *, before: Row | None = None) -> None:
        """Writes that a row is gone; raises like :meth:`insert`.

        Args:
            table: As ``schema.table``.
            key: The columns of the primary key.
            before: The row before, see :meth:`upsert`; None: only its key is known.
        """
        self._change(table, key, {} if before is None else before, None, b"d")

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, str | bytes | None]] = (),
    ) -> None:
        """Writes a record that is no change of a row; raises like :meth:`insert`.

        The commit record names its offset; pipelines and sidecars do not read it.

        Args:
            topic: Not one that is named like a table's topic of the source.
            key: It decides about the partition.
            value: None: a tombstone.
            headers: Names and values; those of Slackwater come before.
        """
        written = self._writing[1]
        if not written.has(topic):
            self._check_plain(topic)
        self._produce(topic, key, value, [*self._headers, *headers])

    # --- for its producer

    @property
    def has_failed(self) -> bool:
        """Whether Kafka has refused something of it."""
        reports = {} if self._begun is None else self._begun[1].reports
        return self._broken is not None or any(each.first_error is not None for each in reports.values())

    def finish(self) -> tuple[CommitRecord, int]:
        """Writes BEGIN, END and, last, the commit record; all is taken by Kafka when this returns.

        Returns:
            The commit record, and its offset.
        """
        writer, written = self._writing
        if self._broken is not None:
            raise self._broken
        self._flush(writer, written, written.reports)
        source = self._owner.source
        topics = transaction_topic(source), commit_topic(source)
        told, log = DeliveredOffsets(), DeliveredOffsets()
        for _, key, value in written.boundaries(topics[0]):
            writer.produce(topics[0], key, value, self._headers, told.report)
        record = written.commit_record()
        writer.produce(topics[1], None, encode_commit_record(record), self._headers, log.report)
        written.handed_over += 3
        self._flush(writer, written, {**written.reports, topics[0]: told, topics[1]: log})
        return record, log.ranges()[0].first_offset

    @property
    def _writing(self) -> tuple[Writer, WrittenTransaction]:
        if self._begun is None:
            raise ClientConfigError("the transaction has not begun", "use it in a with block")
        return self._begun

    def _change(self, table: str, key: Row, before: Row | None, after: Row | None, op: bytes) -> None:
        try:
            topic, record_key, value = self._writing[1].change(table, key, before, after, op)
        except ClientError as error:
            self._broken = error
            raise
        self._produce(topic, record_key, value, self._headers)

    def _produce(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        writer, written = self._writing
        try:
            writer.produce(topic, key, value, headers, written.report_of(topic))
            written.handed_over += 1
            if not written.handed_over % _SERVE_EVERY:
                writer.serve()
        except ClientError as error:
            self._broken = error
            raise

    def _check_plain(self, topic: str) -> None:
        source = self._owner.source
        is_table = re.fullmatch(re.escape(source) + r"\.[^.]+\.[^.]+", topic) is not None
        if is_table or topic in (transaction_topic(source), commit_topic(source)):
            hint = "write changes of tables with insert, upsert and delete; name other topics otherwise"
            self._broken = ClientConfigError(f"{topic} is a topic in which sidecars expect changes", hint)
            raise self._broken

    def _flush(
        self, writer: Writer, written: WrittenTransaction, reports: dict[str, DeliveredOffsets]
    ) -> None:
        """Waits until Kafka has taken all records so far."""
        try:
            writer.flush(lambda: any(each.first_error is not None for each in reports.values()))
        except ClientUnavailableError:
            self._check_taken(writer, reports)
            raise
        self._check_taken(writer, reports)
        if sum(each.delivered for each in reports.values()) != written.handed_over:
            writer.check()
            raise ClientUnavailableError("Kafka's client has dropped records of the transaction", "try again")

    def _check_taken(self, writer: Writer, reports: dict[str, DeliveredOffsets]) -> None:
        """Raises if Kafka has refused a record, and names it; one that was dropped says nothing of why."""
        for topic, each in reports.items():
            if each.first_error is None:
                continue
            if each.first_error.code() in DROPPED:
                writer.check()
            size, key = each.largest_failed or (0, None)
            shown = (key or b"").decode(errors="backslashreplace")[:_SHOWN_KEY]
            what = f"writing a record of {size:,} bytes with key {shown} to topic {topic!r}"
            raise failure(self._owner.source, what, each.first_error)
