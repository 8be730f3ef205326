"""What senders need from Kafka: transactions, and batches that report the delivery of each message."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from slackwater.cdc.batch import Record
from slackwater.kafka.retry import ABSENT_CODES, is_transient
from slackwater.kafka.transactions import KafkaTransactions, is_fenced
from slackwater.protocol import (
    ConfigError,
    KafkaSettings,
    OvertakenError,
    SlackwaterError,
    StateError,
    UnavailableError,
)
from slackwater_messaging.errors import WRITING
from slackwater_messaging.message import HEADER_MESSAGE, Message
from slackwater_messaging.sending.outbox import SavedMessage
from slackwater_messaging.topics import quiet

_QUEUE_SECONDS = 0.05
_UNKNOWN_TOPIC_AFTER = "topic.metadata.propagation.max.ms"
"""A missing topic counts as a rejection of its messages, and not as a broker that does not answer."""
_librdkafka_log = logging.getLogger(f"{__name__}.librdkafka")


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderSettings:
    """The time limits of a sender."""

    request_timeout: timedelta = timedelta(seconds=30)
    """The limit for one request to Kafka, including retries of transient errors."""
    transaction_timeout: timedelta = timedelta(seconds=60)
    """Kafka aborts a transaction that is open for longer."""
    clock_margin: timedelta = timedelta(minutes=10)
    """The maximum difference between the clocks of database, services and brokers. Recovery begins to read
    topics this much before its oldest message."""
    patience: timedelta = timedelta(minutes=2)
    """How long recovery waits for open transactions of other producers, which hide later records."""
    retry_after: timedelta = timedelta(seconds=5)
    """The time between a failed delivery of saved messages and the next attempt."""


def _unknown_topic_ms(request_timeout: timedelta) -> int:
    return int(min(5.0, request_timeout.total_seconds() / 2) * 1000)


def failure(what: str, error: KafkaError) -> SlackwaterError:
    """Returns the error to raise for an error of Kafka in an operation."""
    problem = f"{what} failed: {error.str()} ({error.name()})"
    if is_fenced(error):
        hint = (
            "another process uses the same name, or a transaction was open for longer than its time-out; "
            "give each process its own name"
        )
        return OvertakenError(problem, hint)
    absent = "create the topic, or correct its name" if error.code() in ABSENT_CODES else None
    if advice := absent or WRITING.advice(error):
        return ConfigError(problem, advice)
    return UnavailableError(problem, "check that the brokers are up and reachable")


class MessageTransactions(KafkaTransactions):
    """Writes messages in Kafka transactions under a sender's name. Use it from one thread.

    Every method raises :class:`OvertakenError` if another process has taken over the name,
    :class:`ConfigError` for requests that Kafka would reject again, and
    :class:`UnavailableError` for all other failures.
    """

    def __init__(self, kafka: KafkaSettings, transactional_id: str, settings: SenderSettings) -> None:
        self.transactional_id, self._place = transactional_id, kafka.bootstrap
        self.undelivered: KafkaError | None = None
        """Why a message of the open transaction did not arrive; an error of the commit may not say it."""
        super().__init__(
            kafka,
            transactional_id,
            transaction_timeout=settings.transaction_timeout,
            request_timeout=settings.request_timeout,
            queue={_UNKNOWN_TOPIC_AFTER: _unknown_topic_ms(settings.request_timeout)},
        )

    def begin(self) -> None:
        """Starts a transaction, without a round trip."""
        self.undelivered = None
        super().begin()

    def send(self, message: Message, message_id: object = None) -> None:
        """Queues a message, with the header that identifies its row if it has one."""
        headers: list[tuple[str, str | bytes | None]] = list(message.headers)
        if message_id is not None:
            headers.append((HEADER_MESSAGE, str(message_id).encode()))
        self.produce(message.topic, message.key, message.value, headers, self._report)

    def arrive(self) -> None:
        """Waits until Kafka has all queued messages. They are not visible yet."""
        self.flush(lambda: self.undelivered is not None)
        if self.undelivered is not None:
            self.check()
            raise failure("writing messages", self.undelivered) from KafkaException(self.undelivered)

    def _report(self, error: KafkaError | None, _: Record) -> None:
        self.undelivered = self.undelivered or error

    def _meaning(self, what: str, error: KafkaException) -> SlackwaterError:
        return failure(f"{what} as {self.transactional_id} at {self._place}", error.args[0])


class SenderProducer:
    """The Kafka side of a sender: one transaction at a time, with a producer that is created on demand.

    After a failure or an abort, the next transaction uses a new producer, which guarantees that the previous
    transaction has been committed or aborted. Every method raises like :class:`MessageTransactions`.
    """

    def __init__(self, kafka: KafkaSettings, name: str, settings: SenderSettings) -> None:
        self.kafka, self.name, self.settings = quiet(kafka), name, settings
        self._producer: MessageTransactions | None = None
        self._is_begun = False

    @property
    def is_open(self) -> bool:
        """Whether the name is taken over, and no call has failed since."""
        return self._producer is not None

    def open(self) -> None:
        """Takes over the sender's name: earlier producers are fenced, and their transactions have ended."""
        self.close()
        producer = MessageTransactions(self.kafka, self.name, self.settings)
        try:
            producer.open()
        except BaseException:
            producer.discard()
            raise
        self._producer = producer

    def write(self, messages: Iterable[tuple[Message, object]]) -> None:
        """Begins a transaction, and waits until its messages, each with its id, have arrived in Kafka."""
        if self._producer is None:
            self.open()
        assert self._producer is not None  # noqa: S101 - open() has made it
        try:
            self._producer.begin()
            self._is_begun = True
            for message, message_id in messages:
                self._producer.send(message, message_id)
            self._producer.arrive()
        except BaseException:
            self.abort()
            self.close()  # also if it could not even begin, as after another process has taken over the name
            raise

    def send_offsets(self, offsets: list[TopicPartition], member: Any) -> None:
        """Adds a consumer's offsets to the transaction, so that they are committed with it."""
        self._begun("its offsets").send_offsets(offsets, member)

    def commit(self) -> None:
        """Commits the transaction. After an error, its outcome is not known until :meth:`open`.

        Raises:
            StateError: There is no open transaction, so nothing was committed.
        """
        producer = self._begun("its commit")
        try:
            producer.commit()
        except BaseException:
            self.close()
            raise
        self._is_begun = False

    def abort(self) -> None:
        """Aborts the transaction if Kafka answers. Never raises."""
        if self._producer is not None and self._is_begun:
            self._producer.abort()
            self.close()

    def _begun(self, what: str) -> MessageTransactions:
        if self._producer is None or not self._is_begun:
            problem = f"the Kafka transaction of sender {self.name} ended before {what}"
            raise StateError(problem, "use a sender from one thread or task at a time")
        return self._producer

    def close(self) -> None:
        """Closes the connection; the next :meth:`open` ends an open transaction. Idempotent."""
        if self._producer is not None:
            self._producer.discard()
        self._producer, self._is_begun = None, False


class BatchProducer:
    """Writes batches without Kafka transactions, with an idempotent producer that does not repeat messages.

    Use it from one thread.

    Args:
        kafka: The brokers.
        request_timeout: How long the messages of a batch may take to arrive.
    """

    def __init__(self, kafka: KafkaSettings, request_timeout: timedelta) -> None:
        self._seconds, self._place = request_timeout.total_seconds(), kafka.bootstrap
        self._config: dict[str, str | int | float | bool] = {
            "linger.ms": 5,
            "compression.type": "lz4",
            "message.max.bytes": 100_000_000,
            **quiet(kafka).client_config,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "message.timeout.ms": int(self._seconds * 1000),
            _UNKNOWN_TOPIC_AFTER: _unknown_topic_ms(request_timeout),
        }
        self._producer: Producer | None = None

    def deliver(self, batch: Sequence[SavedMessage]) -> dict[int, SlackwaterError]:
        """Writes a batch; returns when each message has arrived or was rejected.

        Returns:
            The error of each rejected message, by its index in the batch. A retry would be rejected, too.

        Raises:
            UnavailableError: Kafka does not answer. Some messages may have arrived.
        """
        producer = self._producer = self._producer or Producer(self._config, logger=_librdkafka_log)
        reports = _Reports(len(batch))
        try:
            for place, saved in enumerate(batch):
                self._produce(producer, saved, partial(reports.note, place))
            producer.flush(self._seconds + 1)
        except KafkaException as error:
            self.discard()
            raise failure("writing messages", error.args[0]) from error
        unclear = next((e for e in reports.refused.values() if e.fatal() or is_transient(e)), None)
        if reports.left or unclear is not None:
            self.discard()
            reason = unclear or KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001 - it has no other name
            count = reports.left + len(reports.refused)
            problem = f"{count} of {len(batch)} messages did not arrive at {self._place}: {reason.str()}"
            raise UnavailableError(problem, "they will be sent again")
        return {place: failure("writing a message", error) for place, error in reports.refused.items()}

    def discard(self) -> None:
        """Drops queued messages; the next batch uses a new producer."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _produce(
        self,
        producer: Producer,
        saved: SavedMessage,
        report: Callable[[KafkaError | None, Record | None], None],
    ) -> None:
        message = saved.message
        headers: list[tuple[str, str | bytes | None]] = [*message.headers, (HEADER_MESSAGE, str(saved.id))]
        while True:
            try:
                producer.produce(
                    message.topic, message.value, message.key, headers=headers, on_delivery=report
                )
            except BufferError:
                producer.poll(_QUEUE_SECONDS)
            except KafkaException as error:
                if is_transient(error.args[0]) or error.args[0].fatal():
                    raise
                report(error.args[0], None)
                return
            else:
                return


class _Reports:
    """The delivery reports of one batch; a late one of an earlier batch has its own."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.refused: dict[int, KafkaError] = {}

    def note(self, place: int, error: KafkaError | None, _: Record | None) -> None:
        self.left -= 1
        if error is not None:
            self.refused[place] = error
