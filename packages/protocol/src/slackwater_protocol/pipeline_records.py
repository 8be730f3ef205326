"""Records about a pipeline: its progress, the commits in its output, and the header of a batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one output partition that belong together."""

    count: int
    first_offset: int
    last_offset: int
    """Inclusive. ``last - first + 1`` may exceed ``count``: transaction markers take offsets too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """Says which source transactions an output holds and where.

    With ``emit = transactions`` there is one per source transaction; with ``emit = latest`` one per batch,
    standing for all transactions in ``(previous_lsn, commit_lsn]``.
    """

    pipeline: str
    source: str
    timeline: int
    commit_lsn: int
    previous_lsn: int
    xid: int | None
    """None when the record stands for a batch."""
    commit_ts_ms: int
    """Commit time of the (newest) transaction, milliseconds since the epoch."""
    offsets: Mapping[str, Mapping[int, OffsetRange]]
    """Output topic, then partition. Partitions without a record are absent."""
    skipped: tuple[int, ...] = ()
    """Xids of transactions in it that an operator let pass though rows were missing."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """One of a pipeline's topics, as the pipeline left it; by this it sees whether others have changed it."""

    topic_id: str
    """Kafka's; empty where the broker gives none."""
    start: tuple[int, ...]
    """The first offset of each partition when the pipeline first wrote to the topic."""
    end: tuple[int, ...]
    """The offset behind the pipeline's newest document in each partition; in a commit topic the end
    offset when the run began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRecord:
    """The newest batch a pipeline has made visible; written in the same Kafka transaction as the output.

    Each run begins by writing it again in its own name: who wrote the newest one is the run that may write.
    """

    pipeline: str
    query_id: str
    """Spark's query id, kept in the checkpoint: tells two pipelines of one name apart."""
    batch_id: int
    """-1: nothing is visible yet; the fields that speak of the batch then mean nothing."""
    source: str
    timeline: int
    commit_lsn: int
    run: str = ""
    """The run that wrote this; empty in records of older versions."""
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    """Output and commit topics by name; empty in records of older versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """The facts of a batch for its sink; travels through the query beside the data."""

    source: str
    timeline: int
    from_lsn: int
    """Exclusive."""
    to_lsn: int
    commit_ts_ms: int
    """Commit time of the newest transaction, milliseconds since the epoch."""
    event_count: int
    """Change events of the source in ``(from_lsn, to_lsn]``, all tables."""
    transactions: tuple[tuple[int, int, int], ...]
    """``(xid, commit LSN, commit time in ms)`` of every transaction with a change event, in commit order."""
    skipped: tuple[int, ...] = ()
    """Xids of transactions in it that an operator let pass though rows were missing."""
