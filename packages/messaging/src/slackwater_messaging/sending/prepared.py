"""Way 6, last resource commit: the database prepares, Kafka commits, the database commits what it prepared.

Kafka's commit decides. An outcome record in the same Kafka transaction names the prepared transaction, so
after a crash the topic of these records says what became of it.
"""

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import psycopg
from psycopg import sql

from slackwater_messaging.errors import (
    MessagingConfigError,
    MessagingError,
    MessagingStateError,
    MessagingUnavailableError,
)
from slackwater_messaging.message import Message
from slackwater_messaging.sending.closing import Closing, in_thread
from slackwater_messaging.sending.indoubt import (
    Outcome,
    decide,
    finish,
    finish_async,
    gid_of,
    is_committed,
    outcome_record,
    outcome_topic,
)
from slackwater_messaging.sending.kafka import SenderProducer
from slackwater_messaging.sending.outbox import AsyncDatabase, Database
from slackwater_messaging.sending.step import SenderSettings, SendProbe, SendStep, no_probe
from slackwater_messaging.sending.transaction import (
    SendingTransaction,
    check_idle,
    check_name,
    check_whole,
    database_transaction,
    database_transaction_async,
)
from slackwater_messaging.topics import ensure_compacted_topic
from slackwater_protocol import KafkaSettings

_PREPARED = "PREPARE TRANSACTION"


class InDoubtError(MessagingUnavailableError):
    """Nobody can tell yet whether a transaction was committed: Kafka has not answered.

    The database keeps it prepared, with its locks, until the sender's next transaction or
    ``slackwater indoubt resolve`` decides about it.
    """

    def __init__(self, problem: str, gid: str) -> None:
        hint = "the sender's next transaction decides about it, or: slackwater indoubt resolve"
        super().__init__(f"transaction {gid!r} is in doubt: {problem}", hint)
        self.args = problem, gid
        self.gid = gid
        """The name under which the database keeps it."""


class PreparedSender(Closing):
    """Commits a database transaction and a Kafka transaction with PREPARE TRANSACTION.

    Exactly once for readers of committed records: both sides commit or neither does. Messages become visible
    just before their data: between the two commits, or, if the service dies between them, until the
    transaction is decided. Until then the database keeps its locks.

    The database needs ``max_prepared_transactions`` above 0, and the broker a topic for the sender's
    outcomes, which is made when it is missing.

    One thread, and one transaction at a time. Two processes need two names.

    Args:
        kafka: The brokers.
        name: The sender's.
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
        settings: SenderSettings | None = None,
        probe: SendProbe = no_probe,
    ) -> None:
        self._name, self._probe = check_name(name), probe
        self._producer = SenderProducer(kafka, name, settings or SenderSettings())
        self._is_settled = False
        self._has_topic = False

    @contextmanager
    def transaction(self, connection: Database) -> Iterator[SendingTransaction[Database]]:
        """Opens a transaction; commits both sides when the block ends.

        Decides first about what an earlier process of this name has left.

        Raises:
            InDoubtError: Nobody can tell yet whether it was committed.
            MessagingConfigError: The database does not prepare transactions, or Kafka refuses the messages.
            MessagingError: Kafka does not do its part: both sides are rolled back.
            psycopg.OperationalError: The connection broke. If that was after Kafka's commit, the database
                commits when the transaction is decided.
        """
        check_idle(connection)
        if not self._is_settled:
            self.recover(connection)
        sending, gid = SendingTransaction(connection), gid_of(self._name, uuid.uuid4().hex)
        try:
            with database_transaction(connection):
                yield sending
                if sending.messages:
                    check_whole(connection)
                    self._write(sending.messages, gid)
                    self._check_prepared(connection.execute(_prepare(gid)).statusmessage)
        except BaseException as error:
            self._give_up()
            _explain(error)
            raise
        if sending.messages:
            failed = self._commit(gid)
            finish(connection, gid, is_commit=failed is None)
            self._end(failed)

    @asynccontextmanager
    async def transaction_async(
        self, connection: AsyncDatabase
    ) -> AsyncIterator[SendingTransaction[AsyncDatabase]]:
        """Does what :meth:`transaction` does; Kafka is waited for in a thread, recovery in another one."""
        check_idle(connection)
        if not self._is_settled:
            await in_thread(self._recover_apart, connection)
        sending, gid = SendingTransaction(connection), gid_of(self._name, uuid.uuid4().hex)
        try:
            async with database_transaction_async(connection):
                yield sending
                if sending.messages:
                    check_whole(connection)
                    await in_thread(self._write, sending.messages, gid)
                    self._check_prepared((await connection.execute(_prepare(gid))).statusmessage)
        except BaseException as error:
            await in_thread(self._give_up)
            _explain(error)
            raise
        if sending.messages:
            failed = await in_thread(self._commit, gid)
            await finish_async(connection, gid, is_commit=failed is None)
            self._end(failed)

    def recover(self, connection: Database) -> dict[str, Outcome]:
        """Takes the sender's name over, and decides about what is prepared under it.

        Raises:
            MessagingStateError: The topic of outcomes is gone.
            MessagingUnavailableError: Kafka does not answer.
            psycopg.Error: The database does not do its part.
        """
        self._is_settled = False
        if not self._has_topic:
            ensure_compacted_topic(self._producer.kafka, outcome_topic(self._name))
            self._has_topic = True
        self._producer.open()
        decided = decide(connection, self._producer)
        self._is_settled = True
        return decided

    def close(self) -> None:
        """Lets go of Kafka. Idempotent."""
        self._producer.close()
        self._is_settled = False

    def _recover_apart(self, connection: AsyncDatabase) -> None:
        """Recovers over a connection of its own: it is rare, and not worth being written twice."""
        info = connection.info
        with psycopg.connect(info.dsn, password=info.password, autocommit=True) as own:
            self.recover(own)

    def _write(self, messages: list[Message], gid: str) -> None:
        records = [*messages, outcome_record(self._name, gid)]
        self._producer.write((message, None) for message in records)
        self._probe(SendStep.PRODUCED)
        self._is_settled = False

    def _check_prepared(self, status: str | None) -> None:
        """PREPARE TRANSACTION rolls back a transaction in which a statement has failed, and calls it done."""
        if status != _PREPARED:
            raise MessagingStateError(f"the database did not prepare the transaction, but said {status}", "")
        self._probe(SendStep.PREPARED)

    def _give_up(self) -> None:
        """Ends the Kafka transaction; whether something was prepared is looked up before the next one."""
        self._producer.abort()
        self._is_settled = False

    def _commit(self, gid: str) -> MessagingError | None:
        """Commits in Kafka; returns why it has not, once that is final.

        Raises:
            InDoubtError: Nobody can tell.
        """
        try:
            self._producer.commit()
        except MessagingError as error:
            try:
                self._producer.open()
                producer = self._producer
                if not is_committed(producer.kafka, self._name, gid, producer.settings.patience):
                    return error
            except MessagingError as later:
                raise InDoubtError(str(later), gid) from error
        self._probe(SendStep.KAFKA_COMMITTED)
        return None

    def _end(self, failed: MessagingError | None) -> None:
        if failed is not None:
            raise failed
        self._probe(SendStep.DATABASE_COMMITTED)
        self._is_settled = True


def _prepare(gid: str) -> sql.Composed:
    return sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(gid))


def _explain(error: BaseException) -> None:
    if isinstance(error, psycopg.errors.ObjectNotInPrerequisiteState):
        problem = f"the database does not prepare transactions: {error}"
        hint = "set max_prepared_transactions of the server above 0, which needs a restart"
        raise MessagingConfigError(problem, hint) from error
