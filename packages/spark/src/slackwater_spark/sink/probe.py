"""Fail-points: where a test may stop or kill a sink."""

from enum import StrEnum
from typing import Protocol


class SinkStep(StrEnum):
    """What a sink has just done, in this order."""

    COLLECTED = "collected"
    """The batch is in the driver; its transaction has not begun."""
    BEGUN = "begun"
    PRODUCED = "produced"
    FLUSHED = "flushed"
    """All documents are acknowledged, none is visible."""
    COMMIT_RECORDS = "commit_records"
    PROGRESS = "progress"
    """All records are produced; the next call commits."""
    COMMITTED = "committed"
    """Everything is visible; Spark does not know yet."""


class SinkProbe(Protocol):
    """Is told of every step of every batch."""

    def reached(self, step: SinkStep, batch_id: int) -> None:
        """Called in the thread that writes.

        May block; may raise, which ends the run like a crash at this step.
        """
        ...


class NoProbe:
    """Watches nothing."""

    def reached(self, step: SinkStep, batch_id: int) -> None:
        """Does nothing."""
