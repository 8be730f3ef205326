"""What senders need from Kafka: transactions, and batches that report the delivery of each message."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from slackwater.cdc.batch import Record
from slackwater.kafka.retry import ABSENT_CODES, NeededRights
from slackwater.kafka.transactions import KafkaTransactions, is_fenced
from slackwater.protocol import (
    ConfigError,
    KafkaSettings,
    OvertakenError,
    SlackwaterError,
    StateError,
    UnavailableError,
)
from slackwater_messaging.message import HEADER_MESSAGE, Message
from slackwater_messaging.reading import quiet

WRITING = NeededRights(
    user="the service's user",
    on_topics="Write on the topic",
    on_group="Read on the consumer's group",
    on_id="Write on its transactional id",
)


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


def unknown_topic_limit(request_timeout: timedelta) -> dict[str, int]:
    """Returns the setting by which a missing topic is a rejection, and not a broker that does not answer."""
    return {"topic.metadata.propagation.max.ms": int(min(5.0, request_timeout.total_seconds() / 2) * 1000)}


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
            queue=unknown_topic_limit(settings.request_timeout),
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
