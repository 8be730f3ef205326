"""Lets a service write whole transactions to Kafka."""

import logging
import threading
from contextlib import closing
from datetime import timedelta
from types import TracebackType

from slackwater.client.broker import Broker, ProducerSettings, Writer
from slackwater.client.consumer import TransactionalConsumer
from slackwater.client.errors import OutcomeUnknownError, TransactionLostError
from slackwater.client.kafka import KafkaBroker
from slackwater.client.log import commit_log
from slackwater.client.producer_transaction import ProducerTransaction
from slackwater.client.transaction import Commit
from slackwater.client.written import CommitPlace, WrittenTransaction, place_after, place_of
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
    epoch_ms,
)
from slackwater.protocol.keys import commit_topic, data_topic, transaction_topic

_READ_AHEAD_BYTES = 1024 * 1024
_WAIT_SECONDS = 0.1
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

    Args:
        kafka: The brokers; in tests any :class:`~slackwater.client.broker.Broker`.
        source: The name of the source. All topics begin with it.
        settings: The producer's settings.
        clock: Provides commit times, and measures deadlines.

    Raises:
        ConfigError: The transaction topic or the commit topic has several partitions.
        StateError: The commit topic no longer contains the newest commit.
        UnavailableError: Kafka rejects a request or does not answer.
    """

    def __init__(
        self,
        kafka: KafkaSettings | Broker,
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
        self._broker: Broker = kafka
        self._newest: CommitRecord | None = None
        self._open: ProducerTransaction | None = None
        self._beginning = threading.Lock()
        self._over: SlackwaterError | None = None
        """The error that ended the instance."""
        for topic in (self.transaction_topic, self.commit_topic):
            self._broker.ensure_topic(topic, 1, exactly=True)
        self._writer: Writer | None = self._opened_writer()
        self._newest = self._read_newest()

    def __enter__(self) -> "TransactionalProducer":
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    ) -> ProducerTransaction:
        """Returns a transaction, for use in a ``with`` or an ``async with`` block.

        Args:
            commit: A commit of the source from which the transaction is derived. The transaction gets the
                same position, xid and time. Positions must increase. None: the next position and the current
                time.
            consumer: A consumer whose offsets, including its newest transaction, are committed together with
                this transaction. It must be created with ``stores_positions=False``.
        """
        return ProducerTransaction(self, commit, consumer)

    def close(self) -> None:
        """Aborts an open transaction, and closes the connections. Never raises."""
        if self._open is not None:
            self.abort(self._open)
        self._give_up(None)

    # --- for its transactions

    def begin(self, transaction: ProducerTransaction) -> tuple[Writer, WrittenTransaction]:
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

    def _begin(self, given: Commit | None) -> tuple[Writer, WrittenTransaction]:
        writer = self._ready_writer()
        now_ms = epoch_ms(self._clock.now())
        place = self._next_place(now_ms) if given is None else place_of(given, self.position)
        try:
            writer.begin()
        except SlackwaterError as error:
            self._give_up(error)
            raise
        return writer, WrittenTransaction(self.source, place, self.position, now_ms)

    def commit(self, transaction: ProducerTransaction) -> None:
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

    def abort(self, transaction: ProducerTransaction) -> None:
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

    def _commit(self, transaction: ProducerTransaction) -> CommitRecord:
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

    def _ready_writer(self) -> Writer:
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

    def _opened_writer(self) -> Writer:
        writer = self._broker.writer(self.transactional_id, self._settings)
        try:
            writer.open()
        except SlackwaterError:
            writer.discard()
            raise
        return writer

    def _read_newest(self) -> CommitRecord | None:
        """Returns the newest commit record.

        Raises:
            StateError: The record existed, but was removed.
        """
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
        """Returns whether the commit record at an offset is visible, once its transaction has ended.

        Raises:
            OutcomeUnknownError: The transaction has not ended in time, or Kafka does not answer.
        """
        patience = self._settings.transaction_timeout + _MARGIN
        deadline = self._clock.monotonic() + patience.total_seconds()
        _log.warning("%s; checking for up to %s whether it was committed", error, patience)
        reader = self._broker.reader()
        reader.begin({(self.commit_topic, 0): offset})
        try:
            while self._clock.monotonic() < deadline:
                for portion in reader.read(_WAIT_SECONDS):
                    if any(record.offset() == offset for record in portion.records):
                        return True
                    if portion.position > offset:
                        return False
        except SlackwaterError as reason:
            raise self._unknown(reason) from error
        finally:
            reader.close()
        raise self._unknown(error)

    def _unknown(self, reason: SlackwaterError) -> OutcomeUnknownError:
        hint = "create a new producer; its position, that of the newest commit, shows the outcome"
        error = OutcomeUnknownError(
            f"it is not known yet whether a transaction was committed: {reason}", hint
        )
        self._over = error
        return error

    def _next_place(self, now_ms: int) -> CommitPlace:
        newest = self._newest
        return place_after(self.position, 0 if newest is None else newest.commit_ts_ms, now_ms)

    def _note(self, error: BaseException | None) -> None:
        if isinstance(error, OvertakenError):
            self._over = error

    def _give_up(self, error: BaseException | None) -> None:
        """Discards a writer that has failed."""
        self._note(error)
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.discard()
