"""Lets a service write whole transactions to Kafka."""

import asyncio
import logging
import re
import threading
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta

from slackwater.client.consumer import TransactionalConsumer
from slackwater.client.errors import OutcomeUnknownError, TransactionLostError
from slackwater.client.finishing import finished
from slackwater.client.kafka import KafkaBroker
from slackwater.client.log import commit_log, read_between
from slackwater.client.transaction import Commit
from slackwater.client.writer import DROPPED, ProducerSettings, failure
from slackwater.client.written import Row, WrittenTransaction, commit_after
from slackwater.kafka.transactions import DeliveredOffsets, Headers, KafkaTransactions
from slackwater.protocol import (
    Clock,
    CommitPosition,
    CommitRecord,
    ConfigError,
    KafkaSettings,
    OvertakenError,
    SlackwaterError,
    StateError,
    SystemClock,
    UnavailableError,
    encode_commit_record,
    epoch_ms,
)
from slackwater.protocol.keys import commit_topic, data_topic, transaction_topic

_READ_AHEAD_BYTES = 1024 * 1024
_SERVE_EVERY = 1000
"""The number of records between two checks of the delivery reports."""
_SHOWN_KEY = 200
_MARGIN = timedelta(seconds=30)
"""How much later than its time-out Kafka may end an abandoned transaction."""

_log = logging.getLogger(__name__)


class TransactionalProducer:
    """Writes transactions, each with its own commit position, so that readers receive them whole.

    Together they form a source: the topics of tables contain change events in the format of Debezium's
    connector, ``<source>.transaction`` contains the BEGIN and END of each transaction, and
    ``<source>.commits`` contains a commit record for each, which also lists the offsets of records that are
    not changes. All records of a transaction become visible in one Kafka transaction.

    Only one instance writes at a time: a new one fences all earlier ones, and continues after the newest
    commit. After :class:`OvertakenError` and :class:`OutcomeUnknownError`, the instance can no longer
    write. After all other errors, the transaction was aborted, and the next one can be tried.

    Not thread-safe. Only one transaction can be open at a time.

    All topics begin with the name of the source.

    Raises:
        ConfigError: The transaction topic or the commit topic has several partitions.
        StateError: The commit topic no longer contains the newest commit.
        UnavailableError: Kafka rejects a request or does not answer.
    """

    def __init__(
        self,
        kafka: KafkaSettings | KafkaBroker,
        source: str,
        *,
        settings: ProducerSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.source = source
        self.transactional_id = f"slackwater-producer-{source}"
        """The id by which Kafka fences earlier instances."""
        self._settings, self._clock = settings or ProducerSettings(), clock or SystemClock()
        if isinstance(kafka, KafkaSettings):
            kafka = KafkaBroker(kafka, self.transactional_id, _READ_AHEAD_BYTES)
        self._broker: KafkaBroker = kafka
        self._newest: CommitRecord | None = None
        self._open: ProducerTransaction | None = None
        self._beginning = threading.Lock()
        self._over: SlackwaterError | None = None
        """The error that ended the instance."""
        for topic in (self.transaction_topic, self.commit_topic):
            self._broker.ensure_topic(topic, 1, exactly=True)
        self._writer: KafkaTransactions | None = self._opened_writer()
        self._newest = self._read_newest()

    def __enter__(self) -> "TransactionalProducer":
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    @property
    def transaction_topic(self) -> str:
        """The topic with BEGIN and END."""
        return transaction_topic(self.source)

    @property
    def commit_topic(self) -> str:
        """The topic with the commit records of all topics."""
        return commit_topic(self.source)

    @property
    def position(self) -> CommitPosition | None:
        """The position of the newest commit, by this instance or an earlier one; None: there is none."""
        newest = self._newest
        return None if newest is None else CommitPosition(newest.timeline, newest.commit_lsn)

    def make_table(self, table: str) -> str:
        """Creates the topic of a table, unless it exists; returns its name.

        The topic keeps its records forever, because readers count the changes of a transaction.

        Raises:
            UnavailableError: Kafka rejects the request or does not answer.
        """
        topic = data_topic(self.source, table)
        self._broker.ensure_topic(topic, self._settings.partitions, exactly=False)
        return topic

    def transaction(
        self, commit: Commit | None = None, *, consumer: TransactionalConsumer | None = None
    ) -> "ProducerTransaction":
        """Returns a transaction, for use in a ``with`` or an ``async with`` block.

        It gets the position, xid and time of a commit of the source from which it is derived; positions must
        increase. Without one, it gets the next position and the current time. The offsets of a consumer,
        including its newest transaction, are committed together with this transaction; the consumer must be
        created with ``stores_positions=False``.
        """
        return ProducerTransaction(self, commit, consumer)

    def close(self) -> None:
        """Aborts an open transaction, and closes the connections. Never raises."""
        if self._open is not None:
            self.abort(self._open)
        self._give_up(None)

    # --- for its transactions

    def begin(self, transaction: "ProducerTransaction") -> tuple[KafkaTransactions, WrittenTransaction]:
        """Begins a Kafka transaction at the next position, or at that of a given commit."""
        with self._beginning:  # tasks of one event loop begin in threads
            if self._open is not None:
                hint = "end it first; in asyncio, hold an asyncio.Lock during each transaction"
                raise ConfigError(f"a transaction of producer {self.source} is already open", hint)
            self._open = transaction
        try:
            return self._begin(transaction.given)
        except BaseException:
            self._open = None
            raise

    def _begin(self, given: Commit | None) -> tuple[KafkaTransactions, WrittenTransaction]:
        writer = self._ready_writer()
        now_ms = epoch_ms(self._clock.now())
        commit = commit_after(self.source, self._newest, given, now_ms)
        try:
            writer.begin()
        except SlackwaterError as error:
            self._give_up(error)
            raise
        return writer, WrittenTransaction(self.source, commit, self.position, now_ms)

    def commit(self, transaction: "ProducerTransaction") -> None:
        """Commits, or aborts and raises."""
        if self._open is not transaction:
            problem = f"the transaction of producer {self.source} has already ended; nothing was committed"
            raise StateError(problem, "do not close the producer inside the block")
        try:
            self._newest = self._commit(transaction)
        except SlackwaterError as error:
            self._note(error)
            self._abort(is_reusable=False)
            raise
        self._open = None

    def abort(self, transaction: "ProducerTransaction") -> None:
        """Aborts; never raises."""
        if self._open is transaction:
            self._note(transaction.broken)
            self._abort(is_reusable=not transaction.has_failed)

    def _abort(self, *, is_reusable: bool) -> None:
        """Aborts. A writer is not used again after Kafka has rejected one of its records.

        librdkafka may otherwise drop records that are queued right after such a transaction.
        """
        self._open = None
        error = None if self._writer is None else self._writer.abort()
        if error is not None or not is_reusable:
            self._give_up(error)

    def _commit(self, transaction: "ProducerTransaction") -> CommitRecord:
        writer = self._ready_writer()
        record, offset = transaction.finish()
        if (consumer := transaction.consumer) is not None:
            offsets = consumer.offsets()
            if not offsets:
                hint = "poll the consumer for a transaction first, and do not close it before the commit"
                raise TransactionLostError("the consumer has no transaction whose offsets to commit", hint)
            writer.send_offsets(offsets, consumer.group_metadata())
        try:
            writer.commit()
        except OutcomeUnknownError as error:
            reason = error.__cause__
            self._give_up(reason)
            if not self._is_visible(offset, error):
                raise (reason if isinstance(reason, SlackwaterError) else error) from error
        return record

    # --- instances

    def _ready_writer(self) -> KafkaTransactions:
        """Returns the writer, or a new one if it has failed and no other instance has committed since."""
        if self._over is not None:
            raise self._over
        if self._writer is None:
            self._check_newest()
            self._writer = self._opened_writer()
            self._check_newest()
        return self._writer

    def _check_newest(self) -> None:
        """Raises if another instance has committed in the meantime."""
        newest = self._read_newest()
        if newest != self._newest:
            found = None if newest is None else newest.commit_id
            problem = f"another instance of producer {self.source} has written: the newest commit is {found}"
            error = OvertakenError(problem, "to write from this process again, create a new producer")
            self._give_up(error)
            raise error

    def _opened_writer(self) -> KafkaTransactions:
        writer = self._broker.writer(self.transactional_id, self._settings)
        try:
            writer.open()
        except SlackwaterError:
            writer.discard()
            raise
        return writer

    def _read_newest(self) -> CommitRecord | None:
        """Returns the newest commit record."""
        with closing(commit_log(self._broker, self.commit_topic, self._clock)) as log:
            low, found = log.bounds()[0], log.newest()
        if found:
            return found[-1].record
        if low > 0:
            problem = (
                f"{self.commit_topic} has lost the newest commit: it begins at offset {low}, with nothing"
            )
            hint = (
                "the topic must be kept forever (retention.ms=-1), because new positions must be above all "
                "earlier ones"
            )
            raise StateError(problem, hint)
        return None

    def _is_visible(self, offset: int, error: OutcomeUnknownError) -> bool:
        """Returns whether the commit record at an offset is visible, once its transaction has ended."""
        patience = self._settings.transaction_timeout + _MARGIN
        _log.warning("%s; checking for up to %s whether it was committed", error, patience)
        span = {(self.commit_topic, 0): (offset, offset + 1)}
        try:
            with closing(self._broker.reader()) as reader:
                found = list(read_between(reader, span, self._clock, patience.total_seconds()))
        except SlackwaterError as reason:
            hint = "create a new producer; its position, that of the newest commit, shows the outcome"
            self._over = OutcomeUnknownError(
                f"it is not known yet whether a transaction was committed: {reason}", hint
            )
            raise self._over from error
        return any(portion.records for portion in found)

    def _note(self, error: BaseException | None) -> None:
        if isinstance(error, OvertakenError):
            self._over = error

    def _give_up(self, error: BaseException | None) -> None:
        """Discards a writer that has failed."""
        self._note(error)
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.discard()


class ProducerTransaction:
    """A transaction that a ``with`` block begins and commits, or aborts if the block ends with an error.

    In ``async with``, beginning and committing do not block the event loop. Records are queued without
    waiting for Kafka, unless the producer's memory for them (``max_bytes``) is full. They are not kept
    afterwards, so a transaction may be larger than the memory. A transaction without records is a commit,
    too.

    Not thread-safe. After an error of any method, the transaction cannot be committed.
    """

    def __init__(
        self,
        producer: TransactionalProducer,
        given: Commit | None = None,
        consumer: TransactionalConsumer | None = None,
    ) -> None:
        self._producer, self.given, self.consumer = producer, given, consumer
        self._begun: tuple[KafkaTransactions, WrittenTransaction] | None = None
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
        self._begun = self._producer.begin(self)
        self._headers = self._begun[1].headers
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Commits the transaction, or aborts it if the block raised an error, which is passed on.

        Raises:
            OvertakenError: Another instance has taken over; nothing is visible.
            TransactionLostError: The consumer's transaction was handed to another member; nothing is visible.
            OutcomeUnknownError: It is not known yet whether the transaction was committed.
            SlackwaterError: Kafka rejected a record or did not answer; nothing is visible.
        """
        if kind is None:
            self._producer.commit(self)
        else:
            self._producer.abort(self)

    async def __aenter__(self) -> "ProducerTransaction":
        """Begins it, in another thread. A task that is cancelled meanwhile leaves nothing open."""
        try:
            return await finished(asyncio.ensure_future(asyncio.to_thread(self.__enter__)))
        except asyncio.CancelledError as error:
            if self._begun is not None:
                await self.__aexit__(type(error))
            raise

    async def __aexit__(self, kind: object, *_: object) -> None:
        """Commits it, or aborts it, in another thread. A cancellation takes effect afterwards."""
        ending = asyncio.to_thread(self.__exit__, kind)
        await finished(asyncio.ensure_future(ending))

    @property
    def position(self) -> CommitPosition:
        """Its position in the source's commit order."""
        return self._writing[1].commit.position

    def insert(self, table: str, key: Row, row: Row) -> None:
        """Writes the insertion of a row of ``schema.table``. It need not repeat the columns of its key.

        Raises:
            SlackwaterError: A value cannot be written, or Kafka rejects it. Nothing can be committed then.
        """
        self._change(table, key, None, row, b"c")

    def upsert(self, table: str, key: Row, row: Row, *, before: Row | None = None) -> None:
        """Writes the new state of a row, whether or not it existed; raises like :meth:`insert`.

        Readers that declare the table with ``REPLICA IDENTITY FULL`` need the state ``before``; use
        :meth:`insert` for new rows then.
        """
        self._change(table, key, before, row, b"u")

    def delete(self, table: str, key: Row, *, before: Row | None = None) -> None:
        """Writes the deletion of a row; raises like :meth:`insert`. For ``before``, see :meth:`upsert`."""
        self._change(table, key, {} if before is None else before, None, b"d")

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, str | bytes | None]] = (),
    ) -> None:
        """Writes a record that is not a change of a row; raises like :meth:`insert`.

        The commit record lists its offset. Pipelines and sidecars do not read the record. The name of the
        topic must not be that of a topic of a table of the source. The key determines the partition; without
        a value, it is a tombstone. The headers follow those that Slackwater adds.
        """
        if topic not in self._writing[1].reports:
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
        source = self._producer.source
        topics = transaction_topic(source), commit_topic(source)
        told, log = DeliveredOffsets(), DeliveredOffsets()
        key, begin, end = written.changes.boundaries()
        for value in (begin, end):
            writer.produce(topics[0], key, value, self._headers, told.report)
        record = written.commit_record()
        writer.produce(topics[1], None, encode_commit_record(record), self._headers, log.report)
        written.handed_over += 3
        self._flush(writer, written, {**written.reports, topics[0]: told, topics[1]: log})
        return record, log.ranges()[0].first_offset

    @property
    def _writing(self) -> tuple[KafkaTransactions, WrittenTransaction]:
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
            writer.produce(topic, key, value, headers, written.reports[topic].report)
            written.handed_over += 1
            if not written.handed_over % _SERVE_EVERY:
                writer.serve()
        except SlackwaterError as error:
            self.broken = error
            raise

    def _check_plain(self, topic: str) -> None:
        source = self._producer.source
        is_table = re.fullmatch(re.escape(source) + r"\.[^.]+\.[^.]+", topic) is not None
        if is_table or topic in (transaction_topic(source), commit_topic(source)):
            hint = "write changes of tables with insert, upsert and delete; choose another name for the topic"
            self.broken = ConfigError(f"{topic} is reserved for changes and transactions", hint)
            raise self.broken

    def _flush(
        self, writer: KafkaTransactions, written: WrittenTransaction, reports: dict[str, DeliveredOffsets]
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

    def _check_taken(self, writer: KafkaTransactions, reports: dict[str, DeliveredOffsets]) -> None:
        """Raises if Kafka has rejected a record, and names it; dropped records do not carry the reason."""
        for topic, each in reports.items():
            if each.first_error is None:
                continue
            if each.first_error.code() in DROPPED:
                writer.check()
            size, key = each.largest_failed or (0, None)
            shown = (key or b"").decode(errors="backslashreplace")[:_SHOWN_KEY]
            what = f"writing a record of {size:,} bytes with key {shown} to topic {topic!r}"
            raise failure(self._producer.source, what, each.first_error)
