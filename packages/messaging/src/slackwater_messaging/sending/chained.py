"""Way 3, chained best effort: one commit after the other. Cheap, and a crash between them is a loss."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum

from slackwater_messaging.errors import MessagingError
from slackwater_messaging.message import Message
from slackwater_messaging.sending.closing import Closing, in_thread
from slackwater_messaging.sending.kafka import SenderProducer
from slackwater_messaging.sending.outbox import AsyncDatabase, Database
from slackwater_messaging.sending.step import SenderSettings, SendProbe, SendStep, no_probe
from slackwater_messaging.sending.transaction import (
    HalfCommittedError,
    SendingTransaction,
    check_idle,
    check_name,
    check_whole,
    database_transaction,
    database_transaction_async,
)
from slackwater_protocol import KafkaSettings


class CommitOrder(StrEnum):
    """Which of the two commits first, and so what a crash between them costs."""

    DATABASE_FIRST = "database-first"
    """A crash in between loses messages: the database has rows of which Kafka never tells."""
    KAFKA_FIRST = "kafka-first"
    """A crash in between shows ghosts: Kafka tells of rows that the database never had."""


class ChainedSender(Closing):
    """Commits a database transaction and a Kafka transaction directly after each other.

    All that can be refused is tried before the first commit, but for deferred constraints: the records have
    arrived in Kafka. What remains is a crash, or a server that goes away, between the two commits: see
    :class:`CommitOrder`. Nothing is written about a message, so nothing can tell later: audit the topic.

    One thread, and one transaction at a time. Two processes need two names: a name is a transactional id.

    Args:
        kafka: The brokers.
        name: The sender's.
        order: Which commits first.
        settings: How long things may take.
        probe: Is told of each step.

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
        self._order, self._probe = order, probe
        self._producer = SenderProducer(kafka, check_name(name), settings or SenderSettings())

    @contextmanager
    def transaction(self, connection: Database) -> Iterator[SendingTransaction[Database]]:
        """Opens a transaction; commits both sides when the block ends.

        Raises:
            HalfCommittedError: One side has committed, the other not, or nobody knows.
            MessagingError: Kafka refuses the messages or does not answer: both sides are rolled back.
        """
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

    @asynccontextmanager
    async def transaction_async(
        self, connection: AsyncDatabase
    ) -> AsyncIterator[SendingTransaction[AsyncDatabase]]:
        """Does what :meth:`transaction` does; Kafka is waited for in a thread."""
        check_idle(connection)
        sending = SendingTransaction(connection)
        shown: list[Message] = []
        try:
            async with database_transaction_async(connection):
                yield sending
                check_whole(connection)
                shown += await in_thread(self._before_commit, sending.messages)
        except BaseException as error:
            await in_thread(self._give_up, error, shown)
            raise
        await in_thread(self._after_commit, sending.messages)

    def close(self) -> None:
        """Lets go of Kafka. Idempotent."""
        self._producer.close()

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
        """Goes on when the database has committed."""
        self._probe(SendStep.DATABASE_COMMITTED)
        if messages and self._order is CommitOrder.DATABASE_FIRST:
            try:
                self._producer.commit()
            except MessagingError as error:
                raise HalfCommittedError(str(error), "the database", tuple(messages)) from error
            self._probe(SendStep.KAFKA_COMMITTED)

    def _give_up(self, error: BaseException, shown: list[Message]) -> None:
        """Ends the Kafka transaction when the database's has failed, or says that it is too late for that."""
        if shown:
            raise HalfCommittedError(
                f"the database did not commit: {error}", "Kafka", tuple(shown)
            ) from error
        self._producer.abort()
