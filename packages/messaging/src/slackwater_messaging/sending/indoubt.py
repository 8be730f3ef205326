"""Prepared transactions of senders, and what became of them: a topic per sender tells.

The newest record in that topic names the newest transaction that Kafka has committed for the sender. A sender
has one transaction at a time, so a prepared one was committed if and only if that record names it.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import psycopg
from psycopg import sql

from slackwater_messaging.message import Message
from slackwater_messaging.sending.kafka import SenderProducer
from slackwater_messaging.sending.outbox import AsyncDatabase, Database
from slackwater_messaging.sending.step import SenderSettings
from slackwater_messaging.sending.transaction import autocommit, autocommit_async, check_name
from slackwater_messaging.topics import TopicReader
from slackwater_protocol import KafkaSettings

_ANSWER: Final = timedelta(seconds=30)
_PREFIX: Final = "slackwater"
_FIND: Final = """
SELECT gid, prepared, owner, database = current_database(), database FROM pg_prepared_xacts ORDER BY prepared
"""


class Outcome(StrEnum):
    """What is done with a prepared transaction."""

    COMMITTED = "committed"
    """Kafka shows its messages."""
    ROLLED_BACK = "rolled back"
    """Kafka does not, and never will."""


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction that the database keeps, with its locks, until somebody decides about it."""

    gid: str
    sender: str | None
    """The name of the sender; None: somebody else's transaction."""
    prepared_at: datetime
    owner: str
    """The database user who may decide, besides superusers."""
    database: str
    is_here: bool
    """Whether it belongs to the database of the connection: decisions are possible only from there."""


def outcome_topic(sender: str) -> str:
    """The topic with the outcomes of a sender's transactions: one partition, compacted."""
    return f"{sender}.slackwater.outcomes"


def outcome_record(sender: str, gid: str) -> Message:
    """Returns the record that tells that a transaction was committed."""
    return Message(topic=outcome_topic(sender), key=sender.encode(), value=gid.encode())


def gid_of(sender: str, unique: str) -> str:
    """Returns the name under which the database keeps a prepared transaction."""
    return f"{_PREFIX}:{sender}:{unique}"


def sender_of(gid: str) -> str | None:
    """Returns the sender of a prepared transaction; None if it is no sender's."""
    prefix, _, rest = gid.partition(":")
    sender, colon, _ = rest.rpartition(":")
    return sender if prefix == _PREFIX and colon and sender else None


def find_prepared(connection: Database, sender: str | None = None) -> list[PreparedTransaction]:
    """Returns the prepared transactions of the server, oldest first; of a sender only those it can decide."""
    found = [
        PreparedTransaction(gid, sender_of(gid), prepared, owner, database, is_here)
        for gid, prepared, owner, is_here, database in connection.execute(_FIND)
    ]
    return [each for each in found if sender is None or (each.sender == sender and each.is_here)]


def is_committed(kafka: KafkaSettings, sender: str, gid: str, patience: timedelta | None = None) -> bool:
    """Returns whether the newest outcome record names a transaction. Final once the sender was taken over.

    Args:
        kafka: The brokers.
        sender: The sender's name.
        gid: The transaction.
        patience: How long an open Kafka transaction of the sender is waited for. None: not at all, since a
            sender that was taken over has none.

    Raises:
        MessagingStateError: The sender's topic of outcomes is gone: nobody can tell.
        MessagingUnavailableError: Kafka does not answer.
    """
    with TopicReader(kafka, patience or _ANSWER) as reader:
        newest = reader.newest(outcome_topic(sender), waits=patience is not None)
    return newest is not None and newest.value() == gid.encode()


def resolve(
    connection: Database, kafka: KafkaSettings, sender: str, settings: SenderSettings | None = None
) -> dict[str, Outcome]:
    """Decides about what a sender has left prepared. Takes its name over, as its next run would.

    A process that still works under the name is told so by Kafka, and rolls back or finds its transaction
    decided.

    Raises:
        MessagingConfigError: The connection is in a transaction.
        MessagingStateError: The sender's topic of outcomes is gone.
        MessagingUnavailableError: Kafka does not answer.
        psycopg.Error: The database does not, or the user may not decide.
    """
    producer = SenderProducer(kafka, check_name(sender), settings or SenderSettings())
    try:
        producer.open()
        return decide(connection, producer)
    finally:
        producer.close()


def decide(connection: Database, producer: SenderProducer) -> dict[str, Outcome]:
    """Does what :func:`resolve` does, with a producer that has just taken the sender's name over."""
    with autocommit(connection):
        left = find_prepared(connection, producer.name)
    decided: dict[str, Outcome] = {}
    for each in left:
        done = is_committed(producer.kafka, producer.name, each.gid, producer.settings.patience)
        decided[each.gid] = Outcome.COMMITTED if done else Outcome.ROLLED_BACK
        finish(connection, each.gid, is_commit=done)
    return decided


def finish(connection: Database, gid: str, *, is_commit: bool) -> None:
    """Commits or rolls back a prepared transaction, unless somebody else has decided about it."""
    with autocommit(connection), suppress(psycopg.errors.UndefinedObject):
        connection.execute(_ending(gid, is_commit=is_commit))


async def finish_async(connection: AsyncDatabase, gid: str, *, is_commit: bool) -> None:
    """Does what :func:`finish` does."""
    async with autocommit_async(connection):
        with suppress(psycopg.errors.UndefinedObject):
            await connection.execute(_ending(gid, is_commit=is_commit))


def _ending(gid: str, *, is_commit: bool) -> sql.Composed:
    form = "COMMIT PREPARED {}" if is_commit else "ROLLBACK PREPARED {}"
    return sql.SQL(form).format(sql.Literal(gid))
