"""What a doctor knows of a source: read from Redis and Kafka, judged elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slackwater_markers import FrontierStatus
from slackwater_protocol import Cut, Evidence, OpenTransaction, SourceTopics

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceFacts:
    """One partition as Kafka has it now."""

    low: int
    """The first offset that is kept."""
    stable_end: int
    """Where readers of committed records stop."""
    end: int
    """The high watermark: the offset after the last record, committed or not."""
    newest_row_lsn: int | None = None
    """LSN of the last readable row; None when there is none, or it is in a form the doctor does not read."""

    @property
    def hangs(self) -> bool:
        """Whether records stand behind an open Kafka transaction."""
        return self.stable_end < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFacts:
    """An END in the transaction topic."""

    offset: int
    xid: int
    commit_lsn: int
    commit_ts_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """Everything that is known of a source at one moment."""

    topics: SourceTopics
    now_ms: int
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    """What proves a table complete, as the settings say; not listed: counts."""
    tables: frozenset[str] = frozenset()
    """Those that the settings name; empty: all are followed."""
    redis_error: str | None = None
    """Why Redis could not be asked; what the sidecar says is then unknown."""
    redis_wrong: str | None = None
    """What Redis holds that the cut log does not confirm; None while it is right, as far as can be seen."""
    cut_log_error: str | None = None
    """What is wrong with the end of the cut log; None while it is right, or cannot be asked."""
    kafka_error: str | None = None
    """Why Kafka could not be asked; places are then unknown."""
    status: FrontierStatus | None = None
    cut: Cut | None = None
    """The newest one of the cut log; None: there is none, or the log could not be asked."""
    open: tuple[OpenTransaction, ...] = ()
    """Named by the sidecar, next first."""
    data_topics: frozenset[str] = frozenset()
    """Topics of tables that exist."""
    transactions: PlaceFacts | None = None
    """The transaction topic; None: it does not exist."""
    newest_end: EndFacts | None = None
    """On the timeline that is followed, as far as the last records of the topic show."""
    places: Mapping[Place, PlaceFacts] = field(default_factory=dict)
    """Partitions of data topics."""

    @property
    def source(self) -> str:
        """Whose facts these are."""
        return self.topics.source

    @property
    def without_topic(self) -> tuple[str, ...]:
        """Named tables that count as empty; none if Kafka could not be asked."""
        if self.kafka_error is not None:
            return ()
        return tuple(sorted(t for t in self.tables if self.topics.data(t) not in self.data_topics))
