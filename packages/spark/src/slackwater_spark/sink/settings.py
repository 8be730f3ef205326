"""What a Kafka sink must know."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from slackwater_engine.scope import Scope
from slackwater_protocol import KafkaSettings
from slackwater_protocol.keys import commit_topic, progress_topic

_SLOWEST_BYTES_PER_SECOND = 2_000_000
"""A twentieth of what one producer writes on two quiet cores."""
_LONGEST_TRANSACTION = timedelta(minutes=15)
"""What brokers allow by default (``transaction.max.timeout.ms``)."""


REQUEST_TIMEOUT = timedelta(seconds=30)
"""How long one call to Kafka may take, unless somebody sets another time."""


class Emit(StrEnum):
    """Which states of a view are published."""

    LATEST = "latest"
    """The state at each cut: at most one document per key and batch."""
    TRANSACTIONS = "transactions"
    """The state after each source transaction that changes it."""


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """Where the documents of one view go."""

    name: str
    partitions: int | None = None
    """None takes an existing topic as it is and creates one with four partitions."""

    keys_move: bool = False
    """Whether a document's key may move from one bucket to another, which sends its delete beside it."""

    view: str = ""
    """Its name, for people; empty: that of the topic."""

    @property
    def commits(self) -> str:
        """The topic of its commit records."""
        return commit_topic(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSinkSettings:
    """Where a pipeline writes and how."""

    pipeline: str
    """Name of the pipeline; the transactional id and the progress topic derive from it."""
    outputs: tuple[OutputTopic, ...]
    """By number of the view; no two are the same topic."""
    emit: Emit = Emit.LATEST
    scope: Scope = Scope.STRICT
    """``aggregate``: documents of a batch are of different commits, and a batch has one commit record."""
    kafka: KafkaSettings
    """Where the outputs are."""
    replication_factor: int = -1
    """Of topics that have to be created; -1 is the broker's default."""
    without_output: Callable[[], frozenset[int]] = frozenset
    """Says which batches are never written: those without input, as far as the checkpoint still has them."""
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

    @property
    def transactional_id(self) -> str:
        """One per pipeline: a new run fences the one before."""
        return f"slackwater-{self.pipeline}"

    def timeout_for(self, batch_bytes: int) -> timedelta:
        """How long the transaction of a batch of so many bytes may stand open."""
        writing = timedelta(seconds=batch_bytes / _SLOWEST_BYTES_PER_SECOND)
        return max(self.transaction_timeout, min(writing, _LONGEST_TRANSACTION))

    @property
    def progress_topic(self) -> str:
        """Where the progress records go."""
        return progress_topic(self.pipeline)
