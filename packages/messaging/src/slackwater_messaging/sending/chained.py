"""Way 3, chained: one commit after the other. It is cheap, but a crash between the two commits loses data."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from slackwater.protocol import KafkaSettings
from slackwater_messaging.database import Database, check_idle, check_whole, database_transaction
from slackwater_messaging.errors import MessagingError
from slackwater_messaging.message import Message
from slackwater_messaging.sending.kafka import SenderProducer
from slackwater_messaging.sending.transaction import (
    HalfCommittedError,
    Sender,
    SenderSettings,
    SendingTransaction,
    SendProbe,
    SendStep,
    no_probe,
)


class CommitOrder(StrEnum):
    """Which of the two commits first, and therefore the effect of a crash between the commits."""

    DATABASE_FIRST = "database-first"
    """A crash in between loses messages: the database has rows without messages."""
    KAFKA_FIRST = "kafka-first"
    """A crash in between leaves ghosts: Kafka has messages without rows."""


class ChainedSender(Sender):
    """Commits a database transaction and a Kafka transaction directly after each other.

    Everything that can be rejected is tried before the first commit, except for deferred constraints: at that
    point Kafka has all records. The remaining risk is a crash, or the failure of a server, between the two
    commits; see :class:`CommitOrder`. The outcome is not recorded anywhere, so audit the topic.

    One transaction at a time; requests that run at once share a :class:`SenderPool`. Each process needs its
    own name, because the name is a transactional id.

    Args:
        kafka: The brokers.
        name: The name of the sender.
        order: Which of the two commits first.
        settings: Time limits.
        probe: Called after each step.

    Raises:
        MessagingConfigError: The name cannot be used.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        name: str,
        *,
        order: CommitOrder = CommitOrder.DATABASE_FIRST,
        settings: SenderSettings | None = None,
        probe: SendProbe = no_probe,
    ) -> None:
        super().__init__(name)
        self._order, self._probe = order, probe
        self._producer = SenderProducer(kafka, name, settings or SenderSettings())

    @contextmanager
    def transaction(self, connection: Database) -> Iterator[SendingTransaction[Database]]:
        """Opens a transaction; commits both sides when the block ends.

        Raises:
            HalfCommittedError: One side has committed, and the other has not, or its outcome is not known.
            MessagingConfigError: The sender is in use by another thread or task.
            MessagingError: Kafka rejects the messages or does not answer; both sides are rolled back.
        """
        with self._use.held(), self._transaction(connection) as sending:
            yield sending

    def close(self) -> None:
        """Closes the connection to Kafka. Idempotent."""
        with self._use.held():
            self._producer.close()

    @contextmanager
    def _transaction(self, connection: Database) -> Iterator[SendingTransaction[Database]]:
        check_idle(connection)
        sending = SendingTransaction(connection)
        shown: list[Message] = []
        try:
            with database_transaction(connection):
                yield sending
                check_whole(connection)
                shown += self._before_commit(sending.messages)
        except BaseException as error:
            self._give_up(error, shown)
            raise
        self._after_commit(sending.messages)

    def _before_commit(self, messages: list[Message]) -> list[Message]:
        """Writes to Kafka before the database commits; returns the messages that are visible by then."""
        if not messages:
            return []
        self._producer.write((message, None) for message in messages)
        self._probe(SendStep.PRODUCED)
        if self._order is CommitOrder.DATABASE_FIRST:
            return []
        self._producer.commit()
        self._probe(SendStep.KAFKA_COMMITTED)
        return messages

    def _after_commit(self, messages: list[Message]) -> None:
        """Continues after the database's commit."""
        self._probe(SendStep.DATABASE_COMMITTED)
        if messages and self._order is CommitOrder.DATABASE_FIRST:
            try:
                self._producer.commit()
            except MessagingError as error:
                raise HalfCommittedError(str(error), "the database", tuple(messages)) from error
            self._probe(SendStep.KAFKA_COMMITTED)

    def _give_up(self, error: BaseException, shown: list[Message]) -> None:
        """Aborts the Kafka transaction after the database has failed; raises if Kafka has committed."""
        if shown:
            raise HalfCommittedError(
                f"the database did not commit: {error}", "Kafka", tuple(shown)
            ) from error
        self._producer.abort()
