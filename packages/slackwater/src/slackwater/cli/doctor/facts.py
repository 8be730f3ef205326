"""Facts about a source from Redis and Kafka, the findings that follow from them, and the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from slackwater.cdc.envelope import End
from slackwater.control import PipelineNode
from slackwater.cuts import FrontierStatus
from slackwater.protocol import Cut, Evidence, OpenTransaction, SourceTopics, format_position

PartitionId = tuple[str, int]
"""Topic and partition."""


def partition_of(name: str) -> PartitionId:
    """Returns the partition that is meant by ``topic/partition``."""
    topic, _, number = name.rpartition("/")
    return topic, int(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """Describes one partition as Kafka has it now."""

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
        """Whether records are held back by an open Kafka transaction."""
        return self.stable_end < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """Everything that is known of a source at one moment."""

    topics: SourceTopics
    now_ms: int
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    """What proves a table complete, as the settings say; not listed: counts."""
    tables: frozenset[str] = frozenset()
    """Tables that the settings name; empty: all are followed."""
    redis_error: str | None = None
    """Why Redis could not be asked; what the sidecar says is then unknown."""
    redis_wrong: str | None = None
    """What Redis holds that the cut log does not confirm; None while it is right, as far as can be seen."""
    cut_log_error: str | None = None
    """What is wrong with the end of the cut log; None while it is right, or cannot be asked."""
    kafka_error: str | None = None
    """Why Kafka could not be asked; partitions are then unknown."""
    status: FrontierStatus | None = None
    cut: Cut | None = None
    """The newest one of the cut log; None: there is none, or the log could not be asked."""
    open: tuple[OpenTransaction, ...] = ()
    """Named by the sidecar, next first."""
    data_topics: frozenset[str] = frozenset()
    """Topics of tables that exist."""
    transactions: PartitionFacts | None = None
    """The transaction topic; None: it does not exist."""
    ends: tuple[tuple[int, End], ...] = ()
    """The last ENDs with their offsets, in the order of the transaction topic."""
    partitions: Mapping[PartitionId, PartitionFacts] = field(default_factory=dict)
    """Partitions of data topics."""
    pipelines: tuple[PipelineNode, ...] = ()
    """Pipelines that read the source, by name."""
    others: tuple[str, ...] = ()
    """Other sources, which pipelines read or write."""
    pipelines_error: str | None = None
    """Why the topic of pipelines could not be read; pipelines are then unknown."""

    @property
    def source(self) -> str:
        """The connector's ``topic.prefix``."""
        return self.topics.source

    @property
    def newest_end(self) -> End | None:
        """The newest END of the cut's timeline; one before the cut's last may be of an earlier timeline.

        The connector repeats ENDs behind newer ones, so the largest LSN counts.
        """
        first = self.cut.transaction_offset - 1 if self.cut else 0
        behind = [end for offset, end in self.ends if offset >= first]
        return max(behind or (end for _, end in self.ends[-1:]), key=lambda end: end.commit_lsn, default=None)

    @property
    def positions(self) -> dict[PartitionId, int]:
        """Where the sidecar reads next in the partitions of open transactions."""
        return {
            partition_of(name): position
            for transaction in self.open
            for name, (_, position) in transaction.places.items()
        }

    @property
    def named_topics(self) -> frozenset[str]:
        """Topics that the sidecar names: those of tables with dots in their names look like none."""
        counted = (table for transaction in self.open for table in transaction.expected)
        return frozenset(self.cut.end_offsets if self.cut else ()).union(map(self.topics.data, counted))

    @property
    def is_known(self) -> bool:
        """Whether anything is known of the source, or something could not be asked."""
        errors = (self.redis_error, self.redis_wrong, self.cut_log_error, self.kafka_error)
        found = (self.status, self.cut, self.data_topics, self.transactions, self.pipelines)
        return any(found) or any((*errors, self.pipelines_error))

    @property
    def without_topic(self) -> tuple[str, ...]:
        """Named tables that count as empty; none if Kafka could not be asked."""
        if self.kafka_error is not None:
            return ()
        return tuple(sorted(t for t in self.tables if self.topics.data(t) not in self.data_topics))


class Cause(StrEnum):
    """The reason why a source does not advance, as far as the facts show."""

    KAFKA_AWAY = "kafka_away"
    """Kafka does not answer."""
    REDIS_AWAY = "redis_away"
    """Redis does not answer; pipelines continue with the cut log."""
    REDIS_WRONG = "redis_wrong"
    """It holds what no sidecar published."""
    CUT_LOG = "cut_log"
    """It has lost its cuts, or one cannot be read."""
    NO_SIDECAR = "no_sidecar"
    """None has reported, or the last one has stopped, failed or fallen silent."""
    REGRESSED = "regressed"
    """The database's LSNs went back, or an initial snapshot came after commits."""
    BAD_INPUT = "bad_input"
    """A record cannot be read or attributed."""
    MISCONFIGURED = "misconfigured"
    """The connector or a topic is not set up as reading needs it."""
    NO_SNAPSHOT = "no_snapshot"
    """Tables have had no complete snapshot, so pipelines that read them are refused."""
    WAITING = "waiting"
    """The source waits for something that comes by itself; the status says for what."""
    SNAPSHOT = "snapshot"
    """An initial snapshot is being written, or its notifications are missing."""
    TRANSACTION_TOPIC_MISSING = "transaction_topic_missing"
    """There is no topic with BEGIN and END."""
    TOPIC_MISSING = "topic_missing"
    """A table has no topic."""
    TOPIC_RECREATED = "topic_recreated"
    """A topic was deleted and made again under its name."""
    RETENTION = "retention"
    """Records were deleted before they were read."""
    HANGING = "hanging"
    """A Kafka transaction of an exactly-once connector is open."""
    SIDECAR_BEHIND = "sidecar_behind"
    """The sidecar has not read all that is in the topics."""
    CONNECTOR_DOWN = "connector_down"
    """The connector does not run, or all that is in the topics was read and nothing later comes."""
    CONNECT_AWAY = "connect_away"
    """Kafka Connect does not answer."""
    DATABASE_AWAY = "database_away"
    """The database does not answer."""
    END_LOST = "end_lost"
    """The END of a transaction is missing, and later ones have theirs."""
    DROPPED = "dropped"
    """Records were lost between the connector and the topic."""
    NOT_OVERTAKEN = "not_overtaken"
    """A table is judged by later rows in every partition, and one has none yet."""
    RENUMBERED = "renumbered"
    """The connector was restarted within the transaction."""
    WAITS_FOR_OTHERS = "waits_for_others"
    """A transaction is complete and waits for an earlier one."""
    CATALOGUE = "catalogue"
    """The topic of a table cannot have all its rows."""
    PIPELINE_FAILED = "pipeline_failed"
    """The newest run of a pipeline ended with an error."""
    PIPELINE_VANISHED = "pipeline_vanished"
    """A run of a pipeline is silent and did not say that it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, the facts that show it, and what helps."""

    cause: Cause
    what: str
    evidence: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    """Commands and settings, most likely first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedPartition:
    """A partition that rows of an open transaction are read from."""

    first: int | None
    """Offset of the first row that was read of it; None: there is none yet."""
    next: int
    """The next offset that the sidecar reads."""
    end: int | None
    """Where readers of committed records stop now; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedTransaction:
    """A transaction that is incomplete for longer than the sidecar's threshold."""

    xid: int
    commit_lsn: str | None
    """As PostgreSQL writes it; None: its END was not read."""
    since_ms: int
    """Since when it is waited for, milliseconds since the epoch."""
    expected: Mapping[str, int]
    """Rows by table, as END counts them."""
    received: Mapping[str, int]
    """Rows by table."""
    partitions: Mapping[str, AwaitedPartition]
    """By topic/partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """All that can be learnt of a source at one moment, and what is wrong with it."""

    source: str
    is_healthy: bool
    """Nothing was found."""
    state: str | None
    """As its sidecar says; None: no sidecar has said anything, or Redis cannot be asked."""
    timeline: int | None
    """Of the newest cut."""
    frontier: str | None
    """Commit LSN of the newest cut, as PostgreSQL writes it; None: there is none."""
    delay_ms: int | None
    """By how much the newest cut's commit is older than the time of the report."""
    newest_end: str | None
    """Commit LSN of the newest END in the transaction topic."""
    without_topic: tuple[str, ...]
    """Tables that count as empty, since they have no topic."""
    open_transactions: tuple[AwaitedTransaction, ...]
    """The one that is waited for first; its successors behind it."""
    pipelines: tuple[PipelineNode, ...]
    """Pipelines that read the source."""
    findings: tuple[Finding, ...]
    """The most fundamental first."""


def make_report(facts: SourceFacts, findings: Sequence[Finding]) -> SourceReport:
    """Puts the facts and what was found into the form that programs get."""
    cut, status = facts.cut, facts.status
    return SourceReport(
        source=facts.source,
        is_healthy=not findings,
        state=str(status.state) if status else None,
        timeline=cut.timeline if cut else None,
        frontier=format_position(cut.lsn) if cut else None,
        delay_ms=facts.now_ms - cut.commit_ts_ms if cut else None,
        newest_end=format_position(facts.newest_end.commit_lsn) if facts.newest_end else None,
        without_topic=facts.without_topic,
        open_transactions=tuple(_awaited(transaction, facts) for transaction in facts.open),
        pipelines=facts.pipelines,
        findings=tuple(findings),
    )


def _awaited(transaction: OpenTransaction, facts: SourceFacts) -> AwaitedTransaction:
    return AwaitedTransaction(
        xid=transaction.xid,
        commit_lsn=format_position(transaction.commit_lsn) if transaction.commit_lsn else None,
        since_ms=transaction.since_ms,
        expected=transaction.expected,
        received=transaction.received,
        partitions={
            name: AwaitedPartition(
                first=first if first >= 0 else None, next=position, end=end_of(name, facts)
            )
            for name, (first, position) in sorted(transaction.places.items())
        },
    )


def end_of(name: str, facts: SourceFacts) -> int | None:
    """Returns where readers of committed records stop in ``topic/partition``; None: it is not known."""
    known = facts.partitions.get(partition_of(name))
    return None if known is None else known.stable_end
