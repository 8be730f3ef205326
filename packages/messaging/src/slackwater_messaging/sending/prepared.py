"""Way 6, last resource commit: the database prepares, Kafka commits, and then the database commits.

Kafka's commit decides. An outcome record in the same Kafka transaction names the prepared transaction, so
after a crash the topic of these records shows the outcome.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg import sql

from slackwater.protocol import ConfigError, SlackwaterError, StateError, UnavailableError
from slackwater.protocol.keys import outcome_topic
from slackwater_messaging.database import Database, autocommit, check_whole, database_transaction
from slackwater_messaging.message import Message
from slackwater_messaging.sending.indoubt import (
    Outcome,
    decide,
    find_prepared,
    finish,
    gid_of,
    is_committed,
    outcome_record,
)
from slackwater_messaging.sending.transaction import (
    Sender,
    SendingTransaction,
    SendStep,
)
from slackwater_messaging.topics import ensure_compacted_topic

_PREPARED: Final = "PREPARE TRANSACTION"
_PREPARE: Final = "PREPARE TRANSACTION {}"


class InDoubtError(UnavailableError):
    """It is not known yet whether a transaction was committed, because Kafka has not answered.

    The database keeps it prepared, with its locks, until the sender's next transaction or
    ``slackwater indoubt resolve`` commits it or rolls it back.
    """

    def __init__(self, problem: str, gid: str) -> None:
        hint = "the sender's next transaction resolves it, and so does: slackwater indoubt resolve"
        super().__init__(f"transaction {gid!r} is in doubt: {problem}", hint)
        self.args = problem, gid
        self.gid = gid
        """The name under which the database keeps it."""


class PreparedSender(Sender):
    """Commits a database transaction and a Kafka transaction with PREPARE TRANSACTION.

    Readers of committed records see exactly once: both sides commit, or neither does. Messages become visible
    shortly before their data. If the service dies between the two commits, the data become visible only when
    the transaction is resolved, and the database keeps its locks until then.

    The database needs ``max_prepared_transactions`` above 0. The topic of the sender's outcomes is created if
    it does not exist.

    A transaction first resolves what an earlier process with this name has left prepared. It raises
    :class:`InDoubtError` if it is not known yet whether it was committed. If the connection breaks after
    Kafka's commit, the database commits when the transaction is resolved.
    """

    _has_topic = False

    @contextmanager
    def _transaction(self, connection: Database) -> Iterator[SendingTransaction[Database]]:
        if not self._is_settled:
            self._recover(connection)
        sending, gid = SendingTransaction(connection), gid_of(self.name, uuid.uuid4().hex)
        try:
            with database_transaction(connection):
                yield sending
                if sending.messages:
                    check_whole(connection)
                    self._write(sending.messages, gid)
                    self._check_prepared(
                        connection.execute(sql.SQL(_PREPARE).format(sql.Literal(gid))).statusmessage
                    )
        except BaseException as error:
            self._give_up()
            _explain(error)
            raise
        if sending.messages:
            failed = self._commit(gid)
            finish(connection, gid, is_commit=failed is None)
            self._end(failed)

    def recover(self, connection: Database) -> dict[str, Outcome]:
        """Takes over the sender's name, and resolves the transactions that are prepared under it.

        Raises:
            StateError: The topic of outcomes no longer exists.
            UnavailableError: Kafka does not answer.
            psycopg.Error: The database failed or did not answer.
            ConfigError: The sender is in use by another thread or task.
        """
        with self._use.held():
            return self._recover(connection)

    def waiting_senders(self, connection: Database) -> set[str]:
        """Returns the names of all senders that have transactions prepared in the connection's database."""
        with autocommit(connection):
            return {each.sender for each in find_prepared(connection) if each.sender and each.is_here}

    def _recover(self, connection: Database) -> dict[str, Outcome]:
        self._is_settled = False
        if not self._has_topic:
            ensure_compacted_topic(self._producer.kafka, outcome_topic(self.name))
            self._has_topic = True
        self._producer.open()
        decided = decide(connection, self._producer)
        self._is_settled = True
        return decided

    def _write(self, messages: list[Message], gid: str) -> None:
        records = [*messages, outcome_record(self.name, gid)]
        self._producer.write((message, None) for message in records)
        self._probe(SendStep.PRODUCED)
        self._is_settled = False

    def _check_prepared(self, status: str | None) -> None:
        """PREPARE TRANSACTION rolls back a transaction in which a statement has failed, without an error."""
        if status != _PREPARED:
            raise StateError(
                f"the database did not prepare the transaction, but answered {status}",
                "let errors of statements leave the with block",
            )
        self._probe(SendStep.PREPARED)

    def _give_up(self) -> None:
        """Aborts the Kafka transaction; the next transaction checks whether something was prepared."""
        self._producer.abort()
        self._is_settled = False

    def _commit(self, gid: str) -> SlackwaterError | None:
        """Commits in Kafka, or returns the reason once it is certain that Kafka has not committed.

        Raises:
            InDoubtError: The outcome is not known.
        """
        try:
            self._producer.commit()
        except SlackwaterError as error:
            try:
                self._producer.open()
                producer = self._producer
                if not is_committed(producer.kafka, self.name, gid, producer.settings.patience):
                    return error
            except SlackwaterError as later:
                raise InDoubtError(str(later), gid) from error
        self._probe(SendStep.KAFKA_COMMITTED)
        return None

    def _end(self, failed: SlackwaterError | None) -> None:
        if failed is not None:
            raise failed
        self._probe(SendStep.DATABASE_COMMITTED)
        self._is_settled = True


def _explain(error: BaseException) -> None:
    if isinstance(error, psycopg.errors.ObjectNotInPrerequisiteState):
        problem = f"the database cannot prepare transactions: {error}"
        hint = "set the server's max_prepared_transactions above 0, and restart the server"
        raise ConfigError(problem, hint) from error
