"""Whole transactions of a service, written to Kafka by the service itself."""

import logging
from datetime import timedelta
from types import TracebackType

from slackwater_client.broker import Broker, ProducerSettings, Writer
from slackwater_client.consumer import TransactionalConsumer
from slackwater_client.errors import (
    ClientConfigError,
    ClientError,
    ClientStateError,
    OutcomeUnknownError,
    ProducerFencedError,
    TransactionLostError,
)
from slackwater_client.kafka import KafkaBroker
from slackwater_client.log import commit_log
from slackwater_client.producer_transaction import ProducerTransaction
from slackwater_client.transaction import Commit
from slackwater_client.written import CommitPlace, WrittenTransaction, place_after, place_of
from slackwater_protocol import Clock, CommitPosition, CommitRecord, KafkaSettings, SystemClock, epoch_ms
from slackwater_protocol.keys import commit_topic, data_topic, transaction_topic

_LOOK_BACK = 64
"""Offsets of the commit topic in which its newest record is looked for first."""
_READ_AHEAD_BYTES = 1024 * 1024
_WAIT_SECONDS = 0.1
_MARGIN = timedelta(seconds=30)
"""So much later than its time-out, a transaction that nobody ends is ended by Kafka."""

_log = logging.getLogger(__name__)


class TransactionalProducer:
    """Writes transactions, each with a commit position of its own, so that readers get them whole.

    What it writes is a source: the topics of tables hold change events as Debezium's connector writes them,
    ``<source>.transaction`` tells of the transactions, and ``<source>.commits`` holds a commit record for
    each, also with the offsets of records that are no changes. All records of a transaction become visible in
    one Kafka transaction.

    One instance writes at a time: a new one fences all earlier ones, and goes on behind the newest commit.
    After :class:`ProducerFencedError` and :class:`OutcomeUnknownError` nothing can be written any more; after
    all other errors the transaction was aborted, and the next one may be tried.

    Not thread-safe, and one transaction is open at a time.

    Args:
        kafka: The brokers; in tests a :class:`slackwater_client.memory.MemoryBroker`.
        source: The name of the source, which topics begin with.
        settings: How it works.
        clock: For commit times and deadlines.

    Raises:
        ClientConfigError: A topic that tells of transactions has several partitions.
        ClientStateError: The commit topic no longer has the newest commit.
        ClientUnavailableError: Kafka refuses or does not answer.
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
        self._over: ClientError | None = None
        """Why nothing can be written any more."""
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
        """The newest commit, of this instance or of earlier ones; None: there is none."""
        newest = self._newest
        return None if newest is None else CommitPosition(newest.timeline, newest.commit_lsn)

    def make_table(self, table: str) -> str:
        """Makes the topic of a table, if it does not exist; returns its name.

        It keeps everything for ever: readers count the changes of a transaction.

        Raises:
            ClientUnavailableError: Kafka refuses or does not answer.
        """
        topic = data_topic(self.source, table)
        self._broker.ensure_topic(topic, self._settings.partitions, exactly=False)
        return topic

    def transaction(
        self, commit: Commit | None = None, *, consumer: TransactionalConsumer | None = None
    ) -> ProducerTransaction:
        """Returns a transaction, to be used in a ``with`` or an ``async with`` block.

        Args:
            commit: The commit whose position, xid and time it takes: those of the source that it is made
                from. They rise. None: the next position, and the time of now.
            consumer: Its offsets, with the newest transaction that it has handed out, are committed with this
                one. It has to be made with ``stores_positions=False``.
        """
        return ProducerTransaction(self, commit, consumer)

    def close(self) -> None:
        """Aborts what is open, and frees connections. Never raises."""
        if self._open is not None:
            self.abort(self._open)
        self._give_up(None)

    # --- for its transactions

    def begin(self, transaction: ProducerTransaction) -> tuple[Writer, WrittenTransaction]:
        """Begins a Kafka transaction, at the next position or that of a commit."""
        if self._open is not None:
            hint = "end it first, or make another producer, with a source of its own"
            raise ClientConfigError(f"a transaction of producer {self.source} is open", hint)
        writer = self._ready_writer()
        now_ms = epoch_ms(self._clock.now())
        given = transaction.given
        place = self._next_place(now_ms) if given is None else place_of(given, self.position)
        try:
            writer.begin()
        except ClientError as error:
            self._give_up(error)
            raise
        self._open = transaction
        return writer, WrittenTransaction(self.source, place, self.position, now_ms)

    def commit(self, transaction: ProducerTransaction) -> None:
        """Commits, or aborts and raises."""
        try:
            self._newest = self._commit(transaction)
        except ClientError as error:
            self._note(error)
            self._abort(is_reusable=False)
            raise
        self._open = None

    def abort(self, transaction: ProducerTransaction) -> None:
        """Aborts; never raises."""
        if self._open is transaction:
            self._abort(is_reusable=not transaction.has_failed)

    def _abort(self, *, is_reusable: bool) -> None:
        """Aborts. A writer that Kafka has refused something is not used again.

        Of what is handed to librdkafka right after such a transaction, records may be dropped with it.
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
                hint = "it has handed out none, or was closed"
                raise TransactionLostError("the consumer has no transaction to commit", hint)
            writer.send_offsets(offsets, consumer.group_metadata())
        try:
            writer.commit()
        except OutcomeUnknownError as error:
            reason = error.__cause__
            self._give_up(reason)
            if not self._is_visible(offset, error):
                raise (reason if isinstance(reason, ClientError) else error) from error
        return record

    # --- instances

    def _ready_writer(self) -> Writer:
        """Returns the writer; a new one if the one before has failed and no other instance has committed."""
        if self._over is not None:
            raise self._over
        if self._writer is None:
            self._check_newest()
            self._writer = self._opened_writer()
            self._check_newest()
        return self._writer

    def _check_newest(self) -> None:
        """Refuses to go on where another instance has committed meanwhile."""
        newest = self._read_newest()
        if newest != self._newest:
            found = None if newest is None else newest.commit_id
            problem = f"another instance of producer {self.source} has written: the newest commit is {found}"
            error = ProducerFencedError(problem, "make a new producer if it is to be this one that writes")
            self._give_up(error)
            raise error

    def _opened_writer(self) -> Writer:
        writer = self._broker.writer(self.transactional_id, self._settings)
        try:
            writer.open()
        except ClientError:
            writer.discard()
            raise
        return writer

    def _read_newest(self) -> CommitRecord | None:
        """Returns the newest commit record.

        Raises:
            ClientStateError: There was one, and it is gone.
        """
        log = commit_log(self._broker, self.commit_topic, self._clock)
        try:
            low, end = log.bounds()
            start, step = end, _LOOK_BACK
            while start > low:
                end, start, step = start, max(low, start - step), step * 16
                found = list(log.entries(start, end))
                if found:
                    return found[-1].record
        finally:
            log.close()
        if low > 0:
            problem = (
                f"{self.commit_topic} has lost the newest commit: it begins at offset {low}, with nothing"
            )
            hint = (
                "it has to be kept for ever (retention.ms=-1): positions would begin anew below earlier ones"
            )
            raise ClientStateError(problem, hint)
        return None

    def _is_visible(self, offset: int, error: OutcomeUnknownError) -> bool:
        """Returns whether the commit record at an offset is visible, once its transaction has ended.

        Raises:
            OutcomeUnknownError: It has not ended in time, or Kafka does not answer.
        """
        patience = self._settings.transaction_timeout + _MARGIN
        deadline = self._clock.monotonic() + patience.total_seconds()
        _log.warning("%s; looking whether it is committed, for %s at most", error, patience)
        reader = self._broker.reader()
        reader.begin({(self.commit_topic, 0): offset})
        try:
            while self._clock.monotonic() < deadline:
                for portion in reader.read(_WAIT_SECONDS):
                    if any(record.offset() == offset for record in portion.records):
                        return True
                    if portion.position > offset:
                        return False
        except ClientError as reason:
            raise self._unknown(reason) from error
        finally:
            reader.close()
        raise self._unknown(error)

    def _unknown(self, reason: ClientError) -> OutcomeUnknownError:
        hint = "a new producer knows: its position is that of the newest commit"
        error = OutcomeUnknownError(f"a transaction is committed or not, nobody can tell yet: {reason}", hint)
        self._over = error
        return error

    def _next_place(self, now_ms: int) -> CommitPlace:
        newest = self._newest
        return place_after(self.position, 0 if newest is None else newest.commit_ts_ms, now_ms)

    def _note(self, error: BaseException | None) -> None:
        if isinstance(error, ProducerFencedError):
            self._over = error

    def _give_up(self, error: BaseException | None) -> None:
        """Lets go of a writer that has failed."""
        self._note(error)
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.discard()
