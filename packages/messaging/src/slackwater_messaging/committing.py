"""Ways 3 and 6: the database and Kafka commit directly after each other.

Way 3, chained, is cheap, but a crash between the two commits loses data.

Way 6 is last resource commit: the database prepares, Kafka commits, and then the database commits. Kafka's
commit decides. An outcome record in the same Kafka transaction names the prepared transaction. The newest
record in the sender's topic of outcomes therefore names the newest transaction that Kafka has committed for
it. A sender has one transaction at a time, so a prepared transaction was committed if and only if that record
names it.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import psycopg
from psycopg import sql

from slackwater.protocol import ConfigError, KafkaSettings, SlackwaterError, StateError, UnavailableError
from slackwater.protocol.keys import outcome_topic
from slackwater_messaging.database import DURABLE, Database, autocommit, check_whole, database_transaction
from slackwater_messaging.kafka import SenderSettings
from slackwater_messaging.message import Message
from slackwater_messaging.reading import ensure_compacted_topic, topic_reader
from slackwater_messaging.sender import (
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
        sending, is_shown = SendingTransaction(connection), False
        try:
            with database_transaction(connection):
                yield sending
                check_whole(connection)
                if sending.messages:
                    connection.execute(f"SELECT {DURABLE}".encode())
                    self._producer.write((message, None) for message in sending.messages)
                    self._probe(SendStep.PRODUCED)
                    is_shown = self._commits(CommitOrder.KAFKA_FIRST)
        except BaseException as error:
            if is_shown:
                problem = f"the database did not commit: {error}"
                raise HalfCommittedError(problem, "Kafka", tuple(sending.messages)) from error
            self._producer.abort()
            raise
        self._probe(SendStep.DATABASE_COMMITTED)
        if sending.messages:
            try:
                self._commits(CommitOrder.DATABASE_FIRST)
            except SlackwaterError as error:
                raise HalfCommittedError(str(error), "the database", tuple(sending.messages)) from error

    def _commits(self, order: CommitOrder) -> bool:
        """Commits in Kafka if that is due in an order; returns whether it is."""
        if self._order is not order:
            return False
        self._producer.commit()
        self._probe(SendStep.KAFKA_COMMITTED)
        return True


_PREPARED: Final = "PREPARE TRANSACTION"
_PREPARE: Final = "PREPARE TRANSACTION {}"
_ANSWER: Final = timedelta(seconds=30)
_PREFIX: Final = "slackwater"
_FIND: Final = """
SELECT gid, prepared, owner, database = current_database(), database FROM pg_prepared_xacts ORDER BY prepared
"""


class Outcome(StrEnum):
    """The decision about a prepared transaction."""

    COMMITTED = "committed"
    """Its messages are visible in Kafka."""
    ROLLED_BACK = "rolled back"
    """Its messages are not visible in Kafka, and never will be."""


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction that the database keeps, with its locks, until it is committed or rolled back."""

    gid: str
    sender: str | None
    """The name of the sender; None: the transaction does not belong to a sender."""
    prepared_at: datetime
    owner: str
    """The database user who may decide about it, besides superusers."""
    database: str
    is_here: bool
    """Whether it belongs to the connection's database, which is required for a decision."""


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
        if not self._has_topic:
            ensure_compacted_topic(self._producer.kafka, outcome_topic(self.name))
            self._has_topic = True
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
        except psycopg.errors.ObjectNotInPrerequisiteState as error:
            self._give_up()
            problem = f"the database cannot prepare transactions: {error}"
            hint = "set the server's max_prepared_transactions above 0, and restart the server"
            raise ConfigError(problem, hint) from error
        except BaseException:
            self._give_up()
            raise
        if sending.messages:
            failed = self._commit(gid)
            finish(connection, gid, is_commit=failed is None)
            if failed is not None:
                raise failed
            self._probe(SendStep.DATABASE_COMMITTED)
            self._is_settled = True

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
        self._producer.open()
        with autocommit(connection):
            left = find_prepared(connection, self.name)
        decided: dict[str, Outcome] = {}
        for each in left:
            done = self._is_committed(each.gid)
            decided[each.gid] = Outcome.COMMITTED if done else Outcome.ROLLED_BACK
            finish(connection, each.gid, is_commit=done)
        self._is_settled = True
        return decided

    def _is_committed(self, gid: str) -> bool:
        return is_committed(self._producer.kafka, self.name, gid, self._settings.patience)

    def _write(self, messages: list[Message], gid: str) -> None:
        outcome = Message(topic=outcome_topic(self.name), key=self.name.encode(), value=gid.encode())
        self._producer.write((message, None) for message in (*messages, outcome))
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
        """Commits in Kafka, or returns the reason once it is certain that Kafka has not committed."""
        try:
            self._producer.commit()
        except SlackwaterError as error:
            try:
                self._producer.open()
                if not self._is_committed(gid):
                    return error
            except SlackwaterError as later:
                raise InDoubtError(str(later), gid) from error
        self._probe(SendStep.KAFKA_COMMITTED)
        return None


def gid_of(sender: str, unique: str) -> str:
    """Returns the name under which the database keeps a prepared transaction."""
    return f"{_PREFIX}:{sender}:{unique}"


def sender_of(gid: str) -> str | None:
    """Returns the sender of a prepared transaction; None if it does not belong to a sender."""
    prefix, _, rest = gid.partition(":")
    sender, colon, _ = rest.rpartition(":")
    return sender if prefix == _PREFIX and colon and sender else None


def find_prepared(connection: Database, sender: str | None = None) -> list[PreparedTransaction]:
    """Returns the server's prepared transactions, oldest first; for a sender, those that it can decide."""
    found = [
        PreparedTransaction(gid, sender_of(gid), prepared, owner, database, is_here)
        for gid, prepared, owner, is_here, database in connection.execute(_FIND)
    ]
    return [each for each in found if sender is None or (each.sender == sender and each.is_here)]


def is_committed(kafka: KafkaSettings, sender: str, gid: str, patience: timedelta | None = None) -> bool:
    """Returns whether the newest outcome record names a transaction. Final after a takeover of the sender.

    It waits for an open Kafka transaction of the sender, but not without ``patience``: there is none once the
    sender's name was taken over.

    Raises:
        StateError: The sender's topic of outcomes no longer exists, so the outcome is not known.
        UnavailableError: Kafka does not answer.
    """
    with topic_reader(kafka, patience or _ANSWER) as reader:
        newest = reader.newest(reader.places(outcome_topic(sender))[0], waits=patience is not None)
    return [record.value() for record in newest] == [gid.encode()]


def resolve(
    connection: Database, kafka: KafkaSettings, sender: str, settings: SenderSettings | None = None
) -> dict[str, Outcome]:
    """Commits or rolls back the transactions that a sender has left prepared; see its ``recover``.

    Kafka fences a process that still uses the name. That process rolls back, or finds its transaction
    decided.
    """
    with PreparedSender(kafka, sender, settings=settings) as one:
        return one.recover(connection)


def finish(connection: Database, gid: str, *, is_commit: bool) -> None:
    """Commits or rolls back a prepared transaction, unless another process has done so."""
    form = "COMMIT PREPARED {}" if is_commit else "ROLLBACK PREPARED {}"
    with autocommit(connection), suppress(psycopg.errors.UndefinedObject):
        connection.execute(sql.SQL(form).format(sql.Literal(gid)))
