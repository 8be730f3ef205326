"""Prepared transactions of senders, and their outcomes, which each sender records in a topic.

The newest record in that topic names the newest transaction that Kafka has committed for the sender. A sender
has one transaction at a time, so a prepared transaction was committed if and only if that record names it.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import psycopg
from psycopg import sql

from slackwater.protocol import KafkaSettings
from slackwater.protocol.keys import outcome_topic
from slackwater_messaging.database import Database, autocommit
from slackwater_messaging.message import Message
from slackwater_messaging.sending.kafka import SenderProducer, SenderSettings
from slackwater_messaging.sending.transaction import check_name
from slackwater_messaging.topics import topic_reader

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


def outcome_record(sender: str, gid: str) -> Message:
    """Returns the record that says that a transaction was committed."""
    return Message(topic=outcome_topic(sender), key=sender.encode(), value=gid.encode())


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

    Args:
        kafka: The brokers.
        sender: The sender's name.
        gid: The transaction.
        patience: How long to wait for an open Kafka transaction of the sender. None: do not wait, because
            there is none once the sender's name was taken over.

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
    """Commits or rolls back the transactions that a sender has left prepared, after taking over its name.

    Kafka fences a process that still uses the name. That process rolls back, or finds its transaction
    decided.

    Raises:
        ConfigError: The connection has an open transaction.
        StateError: The sender's topic of outcomes no longer exists.
        UnavailableError: Kafka does not answer.
        psycopg.Error: The database does not answer, or the user may not decide.
    """
    producer = SenderProducer(kafka, check_name(sender), settings or SenderSettings())
    try:
        producer.open()
        return decide(connection, producer)
    finally:
        producer.close()


def decide(connection: Database, producer: SenderProducer) -> dict[str, Outcome]:
    """Does what :func:`resolve` does, with a producer that has just taken over the sender's name."""
    with autocommit(connection):
        left = find_prepared(connection, producer.name)
    decided: dict[str, Outcome] = {}
    for each in left:
        done = is_committed(producer.kafka, producer.name, each.gid, producer.settings.patience)
        decided[each.gid] = Outcome.COMMITTED if done else Outcome.ROLLED_BACK
        finish(connection, each.gid, is_commit=done)
    return decided


def finish(connection: Database, gid: str, *, is_commit: bool) -> None:
    """Commits or rolls back a prepared transaction, unless another process has done so."""
    form = "COMMIT PREPARED {}" if is_commit else "ROLLBACK PREPARED {}"
    with autocommit(connection), suppress(psycopg.errors.UndefinedObject):
        connection.execute(sql.SQL(form).format(sql.Literal(gid)))
