"""The settings of a Kafka sink."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from slackwater.outputs.contract import OutputTable, SinkSettings
from slackwater.outputs.form import OutputForm
from slackwater.protocol import KafkaSettings, RegistrySettings, SourceTopics
from slackwater.protocol.keys import commit_topic, progress_topic

_SLOWEST_BYTES_PER_SECOND = 2_000_000
"""A twentieth of the rate at which one producer writes on two idle cores."""
_LONGEST_TRANSACTION = timedelta(minutes=15)
"""The broker's default limit (``transaction.max.timeout.ms``)."""


@dataclass(frozen=True, slots=True)
class RecordBegin:
    """The beginning of keys and values: the ids of their schemas; empty if they have none."""

    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """The topic of one view's documents."""

    name: str
    partitions: int | None = None
    """The number of partitions. None accepts an existing topic, and creates a new one with four."""

    keys_move: bool = False
    """Whether a document's key may move from one bucket to another, which sends a delete in addition."""

    view: str = ""
    """The name of the view for messages; empty for the name of the topic."""

    schema: str = ""
    """The name of the documents' schema in commit records; empty for the name of the view."""

    cloudevents: bool = False
    """Whether the headers contain the attributes of a CloudEvent."""

    form: OutputForm | None = None
    """The form in which documents and keys are passed; None for JSON."""

    begin: RecordBegin = RecordBegin()
    """The beginning of records; set after their schemas were registered."""

    table: OutputTable | None = None
    """The table whose changes the topic appears to contain; None if it has plain documents."""

    @property
    def schema_name(self) -> str:
        """The name of the documents' schema in commit records."""
        return self.schema or self.view or self.name

    @property
    def commits(self) -> str:
        """The topic of the view's commit records."""
        return commit_topic(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSinkSettings(SinkSettings):
    """The topics of a pipeline.

    The transactional id and the progress topic are derived from the pipeline's name.
    """

    outputs: tuple[OutputTopic, ...]
    """The outputs by number of the view, each with a different topic."""
    prefix: str = ""
    """The ``topic.prefix`` of outputs that are tables; empty if there are none."""
    kafka: KafkaSettings
    """The cluster of the outputs."""
    registry: RegistrySettings | None = None
    """The registry of the outputs' schemas; None if no output has one."""
    replication_factor: int = -1
    """The number of replicas of topics that have to be created; -1 for the broker's default."""
    keep: timedelta = timedelta(minutes=10)
    """The minimum time for which topics of ``latest`` that have to be created keep replaced documents, so
    that views can be read at the ends of recent batches."""
    transaction_timeout: timedelta = timedelta(seconds=60)
    """The time-out of a transaction, which is how long readers wait for a run that died and is not restarted.
    It is longer for a large batch, see :meth:`timeout_for`."""
    attempts: int = 3
    """The number of attempts at a batch before the run ends, even if they take longer than its patience."""
    pause: Callable[[float], None] = field(default=time.sleep, compare=False)
    """Waits between two attempts, for a number of seconds. An error that it raises ends the attempts."""

    @property
    def transactional_id(self) -> str:
        """The producer's id, of which each pipeline has one, so that a new run fences the previous one."""
        return f"slackwater-{self.pipeline}"

    def timeout_for(self, batch_bytes: int) -> timedelta:
        """Returns the time-out for the transaction of a batch of this size."""
        writing = timedelta(seconds=batch_bytes / _SLOWEST_BYTES_PER_SECOND)
        return max(self.transaction_timeout, min(writing, _LONGEST_TRANSACTION))

    @property
    def source_topics(self) -> SourceTopics | None:
        """The topics of the source that consists of the outputs that are tables; None if there are none."""
        return SourceTopics(self.prefix) if self.prefix else None

    @property
    def order_topics(self) -> tuple[str, ...]:
        """Those of them that contain transactions and the initial snapshot."""
        topics = self.source_topics
        return () if topics is None else (topics.transactions, topics.notifications)

    @property
    def written_topics(self) -> tuple[str, ...]:
        """All topics except the progress topic."""
        outputs = (name for output in self.outputs for name in (output.commits, output.name))
        return (*outputs, *self.order_topics)

    @property
    def progress_topic(self) -> str:
        """The topic of the progress records."""
        return progress_topic(self.pipeline)
