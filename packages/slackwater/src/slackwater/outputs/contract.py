"""The contract of a sink, which makes a pipeline's batches visible.

Each sink chooses how it keeps its progress, and how it prevents a superseded run from writing. Every sink
must make each batch visible exactly once, and as a whole.

To add a kind of sink, write a module beside ``kafka``, and extend three other places:

- its class implements the operations of ``exactly_once.py``. ``batch.py`` determines whether a batch
  continues what the output contains, which documents it has, and which commits they belong to;
- :class:`SinkKind` contains its name, which is the ``kind`` of an output in ``pipeline.toml``;
- ``pipeline/folder.py`` reads the keys of such an output;
- ``make_sink`` in ``pipeline/sinks.py`` creates it; until then, type checkers reject the new kind.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from slackwater.engine.documents import DocumentBatch
from slackwater.engine.settings import Scope
from slackwater.protocol import BatchHeader, CommitPosition, ProgressRecord

REQUEST_TIMEOUT = timedelta(seconds=30)
"""The default time-out of one call to an output's server."""


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
    """Each document as it is, after the id of its JSON Schema in a registry."""


class Emit(StrEnum):
    """Which states of a view are published."""

    LATEST = "latest"
    """The state at each cut: at most one document per key and batch."""
    TRANSACTIONS = "transactions"
    """The state after each source transaction that changes it."""


class KeyFormat(StrEnum):
    """The form of keys in Kafka."""

    JSON = "json"
    """A JSON object."""
    STRING = "string"
    """The text of the only column."""
    AVRO = "avro"
    JSON_SCHEMA = "json-schema"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """The pipeline, and how its outputs are written."""

    pipeline: str
    """The name of the pipeline, by which the output knows its progress."""
    emit: Emit = Emit.LATEST
    scope: Scope = Scope.STRICT
    """In ``aggregate``, documents of a batch have different commits, and a batch has one commit record."""
    accept_changed_output: bool = False
    """Whether to continue with outputs that were changed by others. What is missing in them stays missing."""
    request_timeout: timedelta = REQUEST_TIMEOUT
    """How long a run that begins waits for the server, and how long one call may take."""
    patience: timedelta = timedelta(minutes=2)
    """The time for which a batch is tried again while all errors are transient."""

    @property
    def has_versions(self) -> bool:
        """Whether a batch may have several documents of a key."""
        return self.emit is not Emit.LATEST or self.scope is not Scope.STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """The result of one call of :meth:`Sink.write`."""

    batch_id: int
    header: BatchHeader
    documents: int
    """The number of records in the outputs, including deletes; 0 for a batch that was already visible."""
    deletes: int
    was_covered: bool
    """Whether the output already contained the batch, because the answer to its commit was lost."""
    produce_seconds: float
    commit_seconds: float
    visible_at: datetime
    """When the batch was known to be visible."""


class Sink(Protocol):
    """Makes a pipeline's batches visible, each exactly once. Used by one thread at a time.

    Every method except ``close`` may block for the output's request time-out, and raises
    :class:`~slackwater.protocol.UnavailableError` if the output does not answer within it.
    """

    @property
    def place(self) -> str:
        """The name of the server in messages such as "asking Kafka at broker:9092"."""
        ...

    def check(self, query_id: str | None) -> None:
        """Refuses a pipeline if another checkpoint has written its progress to the output; changes nothing.

        It is called first, before Spark is started and before another run is affected.

        Args:
            query_id: The id of the checkpoint; None if the checkpoint is new.

        Raises:
            StateError: The output's progress belongs to another checkpoint.
        """
        ...

    def open(self) -> ProgressRecord | None:
        """Takes over the pipeline, so that no earlier run can write any more.

        Returns:
            The newest visible batch; None if there is none.

        Raises:
            StateError: The output was changed since the pipeline's last batch.
            ConfigError: The output cannot be used in its current form.
        """
        ...

    def write(self, query_id: str, batch: DocumentBatch) -> WriteReport:
        """Makes a batch visible, or finds that it is. Idempotent across runs. Blocks until it is certain.

        Args:
            query_id: The id of the checkpoint.
            batch: The batch after the newest visible one.

        Raises:
            OvertakenError: Another run has taken over; stop. All later calls raise it, too.
            OutputRefusedError: The output rejects the batch, and would reject it again.
            StateError: The batch does not continue what the output contains.
            UnavailableError: Nothing of the batch is visible, or the outcome is unknown.
            StateError: The batch was not written by a stage; nothing of it is visible.
        """
        ...

    def hold(self, commits: Mapping[CommitPosition, datetime]) -> Mapping[CommitPosition, str]:
        """Keeps the views readable at some commits, and no longer at those of earlier calls.

        Until the first call after :meth:`open`, nothing is removed that readers of an earlier state may need.

        Args:
            commits: For each commit, the time until which a reader needs it.

        Returns:
            The commits at which the views cannot be kept readable, each with a readable reason. For all other
            commits, nothing is removed from now on; readers have to check whether everything is there.

        Raises:
            OvertakenError: Another run has taken over; stop.
            OutputRefusedError: The output does not allow what has to be done.
        """
        ...

    def close(self) -> None:
        """Releases the output. Idempotent, never raises."""
        ...


class SinkStep(StrEnum):
    """The steps of a batch, in this order. A sink without one of these steps does not report it."""

    COLLECTED = "collected"
    """The batch is in the driver; its transaction has not begun."""
    BEGUN = "begun"
    PRODUCED = "produced"
    FLUSHED = "flushed"
    """All documents are acknowledged, and none is visible."""
    COMMIT_RECORDS = "commit_records"
    PROGRESS = "progress"
    """All records are produced; the next call commits."""
    COMMITTED = "committed"
    """Everything is visible, but the run has not recorded it yet."""


SinkProbe = Callable[[SinkStep, int], None]
"""Called with each step and the number of the batch, in the thread that writes, so that tests can stop a
sink.

It may block. It may raise, which ends the run like a crash at this step.
"""


class UnfitValueError(ValueError):
    """A name or a value that a form of documents, or a column, cannot represent; the message names it."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of documents or of keys."""

    name: str
    type: str
    """The type as DuckDB writes it."""
