"""What a pipeline asks of the place where its batches become visible.

How a sink keeps its progress, and how it keeps a run that was overtaken from writing, is its own business;
that a batch becomes visible exactly once, and all at once, is not.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from slackwater_engine.documents import DocumentBatch
from slackwater_protocol import BatchHeader, ProgressRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """What one call of :meth:`Sink.write` did."""

    batch_id: int
    header: BatchHeader
    documents: int
    """Records in the output topics, deletes included; 0 for a batch that was visible already."""
    deletes: int
    was_covered: bool
    """Whether the output held the batch already (the run before ended between Kafka's commit and Spark's)."""
    produce_seconds: float
    commit_seconds: float
    visible_at: datetime
    """When the transaction was known to be committed."""


class Sink(Protocol):
    """Makes a pipeline's batches visible, each exactly once; used by one thread at a time."""

    def check(self, query_id: str | None) -> None:
        """Refuses a pipeline of which the output holds what another checkpoint has written; changes nothing.

        Args:
            query_id: Spark's query id from the checkpoint; None: the checkpoint is new.

        Raises:
            PipelineNameTakenError: the output's progress is of another checkpoint.
            SinkError: the output cannot be read.
        """
        ...

    def open(self) -> ProgressRecord | None:
        """Takes the pipeline over, so that no earlier run can write any more; gives what is visible.

        Raises:
            SinkError: the output is not as the pipeline left it, or cannot be used.
        """
        ...

    def write(self, query_id: str, batch: DocumentBatch) -> WriteReport:
        """Makes a batch visible, or finds that it is. Idempotent over runs; blocks until it is certain.

        Args:
            query_id: Spark's query id from the checkpoint.
            batch: With the same content each time its number is repeated.

        Raises:
            ProducerFencedError: another run took over; stop. All later calls raise it, too.
            SinkError: nothing of the batch is visible, or nobody can tell.
        """
        ...

    def close(self) -> None:
        """Lets go of the output. Idempotent, never raises."""
        ...
