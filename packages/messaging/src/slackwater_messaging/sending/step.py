"""The steps of sending, for probes; and how long things may take."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class SendStep(StrEnum):
    """What has just been done. A way without such a step does not report it; the order depends on the way."""

    SAVED = "saved"
    """The messages are rows of the open database transaction."""
    TAKEN = "taken"
    """A relay has locked rows, or has read transactions, that it is going to send."""
    PRODUCED = "produced"
    """Kafka has all records; those of a Kafka transaction are not visible."""
    PREPARED = "prepared"
    """The database has prepared the transaction: it survives a crash and is not committed."""
    DATABASE_COMMITTED = "database_committed"
    KAFKA_COMMITTED = "kafka_committed"
    REMOVED = "removed"
    """The rows are removed; with a relay in a transaction that is not committed yet."""


SendProbe = Callable[[SendStep], None]
"""Lets a test stop or kill a sender: is told of each step, in the thread that sends. May block or raise."""


def no_probe(_: SendStep) -> None:
    """Looks at nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderSettings:
    """How long a sender waits, and for what."""

    request_timeout: timedelta = timedelta(seconds=30)
    """For one request to Kafka, repeated while its errors are of a kind that passes."""
    transaction_timeout: timedelta = timedelta(seconds=60)
    """Kafka ends a transaction that stands open for longer."""
    clock_margin: timedelta = timedelta(minutes=10)
    """The most by which clocks of database, services and brokers differ. Recovery reads topics from so
    long before its oldest message on."""
    patience: timedelta = timedelta(minutes=2)
    """How long recovery waits for open transactions of other producers, behind which nobody can read."""
    retry_after: timedelta = timedelta(seconds=5)
    """Time from a failed delivery of saved messages to the next attempt."""
