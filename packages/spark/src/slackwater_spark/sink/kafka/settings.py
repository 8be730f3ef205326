"""The settings of a Kafka sink."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from slackwater_engine.settings import Scope
from slackwater_protocol import KafkaSettings, RegistrySettings, SourceTopics
from slackwater_protocol.keys import commit_topic, progress_topic
from slackwater_spark.sink.batch import Emit
from slackwater_spark.sink.contract import REQUEST_TIMEOUT
from slackwater_spark.sink.formats.form import OutputForm

_SLOWEST_BYTES_PER_SECOND = 2_000_000
"""A twentieth of what one producer writes on two quiet cores."""
_LONGEST_TRANSACTION = timedelta(minutes=15)
"""Brokers allow this by default (``transaction.max.timeout.ms``)."""


@dataclass(frozen=True, slots=True)
class OutputTable:
    """A view as a table whose changes a connector seems to write."""

    schema: str
    name: str
    columns: tuple[tuple[str, str], ...]
    """Names of the view's columns and their DuckDB types."""
    key: tuple[str, ...]
    """Names of the columns of its key."""

    @property
    def full_name(self) -> str:
        """``schema.name``, as END records name it."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class RecordBegin:
    """What keys and values begin with: the ids of their schemas; empty where there is none."""

    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """The topic of one view's documents."""

    name: str
    partitions: int | None = None
    """None takes an existing topic as it is and creates one with four partitions."""

    keys_move: bool = False
    """True if a document's key may move from one bucket to another, which sends its delete beside it."""

    view: str = ""
    """Its name, for people; empty: that of the topic."""

    schema: str = ""
    """The name of its documents' schema in commit records; empty: the view's name."""

    cloudevents: bool = False
    """Whether headers have the attributes of a CloudEvent."""

    form: OutputForm | None = None
    """The form in which its documents and keys are handed over; None: they are JSON."""

    begin: RecordBegin = RecordBegin()
    """What its records begin with; set once their schemas are registered."""

    table: OutputTable | None = None
    """The table whose changes the topic seems to have; None: it has plain documents."""

    @property
    def schema_name(self) -> str:
        """What commit records call the schema of the documents."""
        return self.schema or self.view or self.name

    @property
    def commits(self) -> str:
        """The topic of the view's commit records."""
        return commit_topic(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSinkSettings:
    """The pipeline, its topics, and how they are written."""

    pipeline: str
    """Name of the pipeline; the transactional id and the progress topic derive from it."""
    outputs: tuple[OutputTopic, ...]
    """By number of the view; no two are the same topic."""
    prefix: str = ""
    """The ``topic.prefix`` of outputs that are tables; empty: there are none."""
    emit: Emit = Emit.LATEST
    scope: Scope = Scope.STRICT
    """``aggregate``: documents of a batch are of different commits, and a batch has one commit record."""
    kafka: KafkaSettings
    """The cluster of the outputs."""
    registry: RegistrySettings | None = None
    """The registry of the outputs' schemas; None: no output has one."""
    replication_factor: int = -1
    """Replicas of topics that have to be created; -1 is the broker's default."""
    keep: timedelta = timedelta(minutes=10)
    """How long, at least, topics of ``latest`` that have to be created keep documents that were replaced: so
    views can be read where recent batches ended."""
    accept_changed_output: bool = False
    """Go on with topics that are not as the pipeline left them: what is missing in them stays missing."""
    transaction_timeout: timedelta = timedelta(seconds=60)
    """How long a transaction may stand open: so long do readers wait for a run that died and stays dead.
    Longer for a large batch, see :meth:`timeout_for`."""
    request_timeout: timedelta = REQUEST_TIMEOUT
    """How long one call (initialise, flush, commit) may take before its attempt counts as failed."""
    attempts: int = 3
    """How often a batch is tried before the run gives up."""
    patience: timedelta = timedelta(minutes=2)
    """So long a batch is tried again, however often, while all that happens are errors that pass."""
    pause: Callable[[float], None] = field(default=time.sleep, compare=False)
    """Waits for so many seconds between two attempts; what it raises ends them."""

    @property
    def transactional_id(self) -> str:
        """The producer's id, one per pipeline: a new run fences the one before."""
        return f"slackwater-{self.pipeline}"

    def timeout_for(self, batch_bytes: int) -> timedelta:
        """Returns how long the transaction of a batch of so many bytes may stand open."""
        writing = timedelta(seconds=batch_bytes / _SLOWEST_BYTES_PER_SECOND)
        return max(self.transaction_timeout, min(writing, _LONGEST_TRANSACTION))

    @property
    def source_topics(self) -> SourceTopics | None:
        """The topics of the source that outputs which are tables make up; None: there are none."""
        return SourceTopics(self.prefix) if self.prefix else None

    @property
    def order_topics(self) -> tuple[str, ...]:
        """Those of them that tell of transactions and of the initial snapshot."""
        topics = self.source_topics
        return () if topics is None else (topics.transactions, topics.notifications)

    @property
    def written_topics(self) -> tuple[str, ...]:
        """All topics but that of the progress."""
        outputs = (name for output in self.outputs for name in (output.commits, output.name))
        return (*outputs, *self.order_topics)

    @property
    def progress_topic(self) -> str:
        """The topic of the progress records."""
        return progress_topic(self.pipeline)
