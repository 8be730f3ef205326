"""Way 3, chained: one commit after the other. It is cheap, but a crash between the two commits loses data."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from slackwater.protocol import KafkaSettings, SlackwaterError
from slackwater_messaging.database import DURABLE, Database, check_whole, database_transaction
from slackwater_messaging.message import Message
from slackwater_messaging.sending.kafka import SenderSettings
from slackwater_messaging.sending.transaction import (
    HalfCommittedError,
    Sender,
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
    commits; see :class:`CommitOrder`. The outcome is not recorded anywhere, so audit the topic. If one side
    has committed, and the other has not, or its outcome is not known, a transaction raises
    :class:`HalfCommittedError`.

    Args:
        kafka: See :class:`Sender`.
        name: See :class:`Sender`.
        order: Which of the two commits first.
        settings: See :class:`Sender`.
        probe: See :class:`Sender`.
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
        super().__init__(kafka, name, settings=settings, probe=probe)
        self._order = order

    @property
    def is_settled(self) -> bool:
        """Always true: nothing is recovered."""
        return True

    @contextmanager
    def _transaction(self, connection: Database) -> Iterator[SendingTransaction[Database]]:
        sending = SendingTransaction(connection)
        shown: list[Message] = []
        try:
            with database_transaction(connection):
                yield sending
                check_whole(connection)
                if sending.messages:
                    connection.execute(f"SELECT {DURABLE}".encode())
                    shown += self._before_commit(sending.messages)
        except BaseException as error:
            self._give_up(error, shown)
            raise
        self._after_commit(sending.messages)

    def _before_commit(self, messages: list[Message]) -> list[Message]:
        """Writes to Kafka before the database commits; returns the messages that are visible by then."""
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
            except SlackwaterError as error:
                raise HalfCommittedError(str(error), "the database", tuple(messages)) from error
            self._probe(SendStep.KAFKA_COMMITTED)

    def _give_up(self, error: BaseException, shown: list[Message]) -> None:
        """Aborts the Kafka transaction after the database has failed; raises if Kafka has committed."""
        if shown:
            raise HalfCommittedError(
                f"the database did not commit: {error}", "Kafka", tuple(shown)
            ) from error
        self._producer.abort()
