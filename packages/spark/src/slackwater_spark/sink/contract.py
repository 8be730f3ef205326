"""The contract of a sink, the place where a pipeline's batches become visible.

How a sink keeps its progress, and how it keeps a run that was overtaken from writing, is its own business;
that a batch becomes visible exactly once, and all at once, is not.

A further kind of sink is one module beside ``kafka``, and three lines elsewhere:

- its class has the methods of :class:`Sink`; ``batch.py`` says whether a batch continues what the output
  holds, which documents it has and which commits they belong to;
- :class:`SinkKind` names it, as ``kind`` of an output in ``pipeline.toml`` does;
- ``pipeline/folder.py`` reads the keys of such an output;
- ``make_sink`` in ``pipeline/sinks.py`` makes it; until then type checkers refuse the new kind.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from slackwater_engine.documents import DocumentBatch
from slackwater_protocol import BatchHeader, CommitPosition, ProgressRecord

REQUEST_TIMEOUT = timedelta(seconds=30)
"""How long one call to an output's server may take, unless somebody sets another time."""


class SinkKind(StrEnum):
    """The kinds of outputs that views can be published to."""

    KAFKA = "kafka"
    POSTGRES = "postgres"
    DELTA = "delta"
    ICEBERG = "iceberg"


class Format(StrEnum):
    """The form of documents in Kafka."""

    JSON = "json"
    """Each document as it is."""
    DEBEZIUM = "debezium"
    """Each change of a document, as Debezium writes the changes of a table's rows."""
    AVRO = "avro"
    """Each document in Avro, with the id of its schema in a registry."""
    JSON_SCHEMA = "json-schema"
    """Each document as it is, behind the id of its JSON Schema in a registry."""


class KeyFormat(StrEnum):
    """The form of keys in Kafka."""

    JSON = "json"
    """A JSON object."""
    STRING = "string"
    """The text of the only column."""
    AVRO = "avro"
    JSON_SCHEMA = "json-schema"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """The result of one call of :meth:`Sink.write`."""

    batch_id: int
    header: BatchHeader
    documents: int
    """Records in the outputs, deletes included; 0 for a batch that was visible already."""
    deletes: int
    was_covered: bool
    """True if the output held the batch already: the answer to its commit was lost."""
    produce_seconds: float
    commit_seconds: float
    visible_at: datetime
    """When the batch was known to be visible."""


class Sink(Protocol):
    """Makes a pipeline's batches visible, each exactly once; used by one thread at a time.

    Every method but ``close`` may block for the output's request time-out, and raises
    :class:`~slackwater_spark.errors.PipelineUnavailableError` when the output does not answer meanwhile.
    """

    @property
    def place(self) -> str:
        """Names the server for people, as in "asking Kafka at broker:9092"."""
        ...

    def check(self, query_id: str | None) -> None:
        """Refuses a pipeline of which the output holds what another checkpoint has written; changes nothing.

        Called first, before Spark is started and before another run is disturbed.

        Args:
            query_id: of the checkpoint; None: the checkpoint is new.

        Raises:
            PipelineStateError: the output's progress is of another checkpoint.
        """
        ...

    def open(self) -> ProgressRecord | None:
        """Takes the pipeline over, so that no earlier run can write any more.

        Returns:
            The newest batch that is visible; None when there is none.

        Raises:
            PipelineStateError: the output is not as the pipeline left it.
            PipelineConfigError: the output cannot be used as it is.
        """
        ...

    def write(self, query_id: str, batch: DocumentBatch) -> WriteReport:
        """Makes a batch visible, or finds that it is. Idempotent over runs; blocks until it is certain.

        Args:
            query_id: of the checkpoint.
            batch: The one after the newest that is visible.

        Raises:
            RunOvertakenError: another run took over; stop. All later calls raise it, too.
            OutputRefusedError: the output will not take the batch, however often it is tried.
            PipelineStateError: the batch does not continue what the output holds.
            PipelineUnavailableError: nothing of the batch is visible, or nobody can tell.
            EngineStateError: the batch is not what a stage writes; nothing of it is visible.
        """
        ...

    def hold(self, commits: Mapping[CommitPosition, datetime]) -> Mapping[CommitPosition, str]:
        """Keeps the views readable at some commits; those that it was told before no longer count.

        Until the first call after :meth:`open`, nothing is removed that readers of an earlier state may need.

        Args:
            commits: By commit the time until which a reader needs it.

        Returns:
            The commits at which the views cannot be kept readable, each with the reason, for people. Of the
            others nothing is removed from now on; whether all of it is there is for the reader to see.

        Raises:
            RunOvertakenError: another run took over; stop.
            OutputRefusedError: the output does not allow what has to be done.
        """
        ...

    def close(self) -> None:
        """Lets go of the output. Idempotent, never raises."""
        ...


class SinkStep(StrEnum):
    """The steps of a batch, in this order; a sink without such a step does not report it."""

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
    """Everything is visible; the run has not noted it yet."""


SinkProbe = Callable[[SinkStep, int], None]
"""Lets a test stop or kill a sink: is told, in the thread that writes, of each step and the batch's number.

May block; may raise, which ends the run like a crash at this step.
"""
