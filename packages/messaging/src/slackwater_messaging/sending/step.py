"""The steps of sending, for probes, and the time limits."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class SendStep(StrEnum):
    """The step that was just completed. Each way reports only the steps that it has, in its own order."""

    SAVED = "saved"
    """The messages are rows of the open database transaction."""
    TAKEN = "taken"
    """A relay has locked the rows or read the transactions that it will send next."""
    PRODUCED = "produced"
    """Kafka has all records; those of a Kafka transaction are not visible."""
    PREPARED = "prepared"
    """The database has prepared the transaction, which now survives a crash, but is not committed."""
    DATABASE_COMMITTED = "database_committed"
    KAFKA_COMMITTED = "kafka_committed"
    REMOVED = "removed"
    """The rows were removed; by a relay in a transaction that is not committed yet."""


SendProbe = Callable[[SendStep], None]
"""Lets a test stop or kill a sender. Called after each step in the sending thread; may block or raise."""


def no_probe(_: SendStep) -> None:
    """Does nothing."""


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
