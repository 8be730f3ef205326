"""The records of the protocol: about a source, and about a pipeline.

A source has cuts, markers, refusals and decisions in its cut log, and open transactions. Sidecars write cuts,
markers and refusals, operators write decisions; all sidecars follow both because they are in the cut log.
:class:`Evidence` is chosen per table and determines when a transaction is complete. A pipeline has progress
records, commit records, and the headers of batches.

A *commit position* is an ``int`` of 64 bits that increases in commit order; 0 means "none". For PostgreSQL it
is the LSN in the connector's END records, which users know as the *commit LSN*. Code outside
``slackwater.cdc.postgres`` only compares, stores and prints positions: only the database's dialect knows
which numbers lie between two commits. Their text is PostgreSQL's for all databases, and follows from the
number.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from slackwater.protocol.clock import END_OF_TIME_MS
from slackwater.protocol.errors import MalformedRecordError

Count = Annotated[int, Meta(ge=0)]
"""A whole number that is not negative; its codec refuses one that 64 bits cannot hold."""
Moment = Annotated[int, Meta(ge=0, lt=END_OF_TIME_MS)]
"""Milliseconds since the epoch."""


SNAPSHOT_XID = 0
"""The xid of the pseudo-transaction that holds an initial snapshot; no database assigns 0."""


@dataclass(frozen=True, slots=True, order=True)
class CommitPosition:
    """The place of a transaction in a source's total commit order: timeline first, then commit LSN."""

    timeline: int
    lsn: int

    def __str__(self) -> str:
        return f"{self.timeline}/{format_position(self.lsn)}"


def format_position(position: int) -> str:
    """The text form: ``22270488`` becomes ``0/153D218``."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def commit_id(timeline: int, lsn: int) -> str:
    """Timeline and commit LSN as hexadecimal text of fixed width: ``00000001-000000000153D218``.

    Sorts as text in commit order, for timelines below 2**32 and LSNs of 64 bits.
    """
    return f"{timeline:08X}-{lsn:016X}"


def parse_commit_id(text: str) -> CommitPosition:
    """Reads what :func:`commit_id` writes; raises ValueError for other texts."""
    timeline, lsn = text.split("-")
    return CommitPosition(int(timeline, 16), int(lsn, 16))


def parse_position(text: str) -> int:
    """Reads the text form, ``0/153D218``, or a plain decimal number.

    Raises:
        MalformedRecordError: the text is neither.
    """
    high, slash, low = text.partition("/")
    try:
        return (int(high, 16) << 32) | int(low, 16) if slash else int(text)
    except ValueError:
        raise MalformedRecordError("LSN", f"got {text!r}, expected 0/153D218 or a decimal number") from None


class Evidence(StrEnum):
    """How the sidecar knows that all records of a transaction in the topic of a table have been read."""

    COUNTS = "counts"
    """All numbers 1 … n were read, with n from END. Requires that no record is dropped on the way."""
    OVERTAKEN = "overtaken"
    """A record of a later transaction was read in every partition. For topics where records are dropped (by a
    transform, by compaction); needs traffic in all partitions and a key in every record."""
    OFFSETS = "offsets"
    """Read past the end offsets asked for after END was readable. Only for exactly-once connectors."""


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """One line of a cut's transaction table."""

    xid: int
    """Top-level transaction id, 32 bits; :data:`SNAPSHOT_XID` for the rows of an initial snapshot."""
    commit_lsn: int
    """LSN in the id of the transaction's END record; the snapshot's LSN for an initial snapshot."""
    commit_ts_ms: int
    """Commit time in the database, milliseconds since the epoch."""

    @property
    def is_snapshot(self) -> bool:
        """True if this is the pseudo-transaction of an initial snapshot."""
        return self.xid == SNAPSHOT_XID


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A commit LSN on the frontier, with everything that a reader needs to read exactly up to it.

    All records of commits at or below ``lsn`` are below the end offsets; the first occurrences of all later
    ones are at or above them. Records of an earlier commit may be *repeated* above them (connector restarts).
    """

    source: str
    """The ``topic.prefix`` of the connector."""
    timeline: int
    lsn: int
    previous_lsn: int
    """The transaction table covers commits in ``(previous_lsn, lsn]``."""
    commit_ts_ms: int
    """Commit time of the newest transaction, milliseconds since the epoch."""
    event_count: int
    """Change events of the source in commits at or below ``lsn``; a running number, for choosing by size."""
    transactions: tuple[CommittedTransaction, ...]
    """Transactions with at least one change event, in commit order."""
    end_offsets: Mapping[str, tuple[int, ...]]
    """The end offsets of the partitions of each data topic, by partition number."""
    transaction_offset: int
    """End offset in the transaction topic (its partition 0)."""
    repeated: frozenset[int] = field(default=frozenset())
    """Commit LSNs (of this or earlier cuts) of which rows were read more than once since the previous cut."""
    late_snapshots: tuple[int, ...] = ()
    """``source.lsn`` of snapshots with rows in its range that are newer than that LSN: ad hoc ones that block
    the stream, and initial ones that were repeated after a crash."""
    has_incremental_rows: bool = False
    """Whether its range contains rows of an incremental snapshot."""
    skipped: tuple[int, ...] = ()
    """Top-level xids of skipped transactions that this cut releases, in commit order."""
    without_snapshot: tuple[str, ...] = ()
    """Topics of tables of which no snapshot is complete: nothing of them may be shown as of this cut."""
    barrier_lsn: int = 0
    """The newest barrier that is known with this cut, at most ``lsn``; a cut ends at each. 0: none is known,
    as in records of older versions."""
    ended_ms: int = field(default=0, compare=False)
    """The record timestamp of its newest transaction's END, milliseconds since the epoch: when the connector
    has written it. 0: not known, as in records of older versions. It says nothing of what the cut holds."""
    ends_ms: tuple[int, ...] = field(default=(), compare=False, repr=False)
    """The same for each of ``transactions``. Known only to the sidecar that found the cut; never written."""

    @property
    def position(self) -> CommitPosition:
        """The place of this cut in the source's commit order."""
        return CommitPosition(self.timeline, self.lsn)


@dataclass(frozen=True, slots=True)
class PublishedCut:
    """A cut together with its place in the cut log."""

    cut: Cut
    log_offset: int
    written_ms: int = field(default=0, compare=False)
    """The timestamp of that record, milliseconds since the epoch; 0: not known."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The place up to which one partition may be processed."""

    safe_commit_lsn: int
    """Every record of a commit at or below this LSN is in the partition, below ``safe_offset``."""
    safe_offset: int
    """First offset that may belong to a later commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadMarkers:
    """Markers of partitions that are further than the frontier, while a sibling holds it back.

    Order within a partition is commit order, so all before the newest transaction seen in a partition is
    complete there. Sound for one partition at a time: for scope ``aggregate``, never for a whole view.
    """

    source: str
    timeline: int
    previous_lsn: int
    """The transaction table covers commits in ``(previous_lsn, lsn]``; not below the frontier at the time."""
    lsn: int
    transactions: tuple[CommittedTransaction, ...]
    markers: Mapping[tuple[str, int], Marker]
    """The markers by topic and partition; only those that are ahead of the frontier."""
    repeated: frozenset[int] = field(default=frozenset())
    """Commit LSNs with rows that may be in Kafka more than once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipDecision:
    """An operator releases everything up to a commit LSN, complete or not."""

    source: str
    timeline: Count
    to_lsn: Count
    """Incomplete transactions up to this commit LSN are released and listed in ``Cut.skipped``."""
    wall_ms: Moment
    """The time of the decision, milliseconds since the epoch."""
    decided_by: str
    """The operator: free text, e.g. user@host."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineDecision:
    """An operator begins a new timeline: the source's LSNs have started over."""

    source: str
    timeline: Count
    """The new one; larger than every timeline before."""
    transaction_offset: Count
    """Its beginning in the transaction topic; data topics are read on from the newest cut."""
    wall_ms: Moment
    decided_by: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassDecision:
    """An operator instructs readers to skip a damaged record of the cut log: its content is lost."""

    source: str
    log_offset: Count
    """The record's offset in the cut log."""
    wall_ms: Moment
    decided_by: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A sidecar saw a fault of the connector: values may be wrong, so no sidecar publishes a cut.

    It ends with a newer timeline, or with a later :class:`SkipDecision` up to ``newest_lsn`` or beyond.
    """

    source: str
    timeline: Count
    since_lsn: Count
    """Values of commits above this LSN may be wrong; 0: of all."""
    newest_lsn: Count
    """The newest commit that had been read while the fault was there; 0: none, only rows of a snapshot."""
    reason: str
    """The setting and what is wrong with it."""


LogRecord = Cut | AheadMarkers | SkipDecision | TimelineDecision | PassDecision | Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that the frontier waits for, as an operator sees it."""

    xid: int
    commit_lsn: int | None
    """None while the END record has not been read."""
    since_ms: int
    """The time at which the sidecar first saw it, milliseconds since the epoch."""
    expected: dict[str, int]
    """Change events per table that END announced; empty before END."""
    received: dict[str, int]
    """Change events per table that were read."""
    hint: str = ""
    """Likely cause, where one is known."""
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The offset of its first row (-1: none was read) and the next offset to be read, by
    ``<topic>/<partition>`` of its tables."""


class CommitFormat(StrEnum):
    """The forms of commit records in Kafka."""

    JSON = "json"
    AVRO = "avro"
    """In a topic of their own, with the id of their schema in a registry; those of outputs also in JSON."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one output partition that belong together."""

    count: int
    first_offset: int
    last_offset: int
    """Inclusive. ``last - first + 1`` may exceed ``count``: transaction markers take offsets too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """Lists which source transactions an output contains, and where.

    With ``emit = transactions`` there is one per source transaction; with ``emit = latest`` there is one per
    batch, which covers all transactions in ``(previous_lsn, commit_lsn]``.
    """

    pipeline: str
    source: str
    timeline: int
    commit_lsn: int
    previous_lsn: int
    xid: int | None
    """None if the record covers a batch."""
    commit_ts_ms: int
    """Commit time of the (newest) transaction, milliseconds since the epoch."""
    offsets: Mapping[str, Mapping[int, OffsetRange]]
    """Output topic, then partition. Partitions without a record are absent."""
    skipped: tuple[int, ...] = ()
    """Xids of transactions in it that an operator let pass though rows were missing."""
    commit_ts_ns: int | None = None
    """The same time as ``commit_ts_ms`` in nanoseconds since the epoch, as exact as the source told it; None
    in records of older versions, which have neither id nor counts on the wire."""
    schemas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By output topic the names of the schemas of its documents: ``<view>:<revision>`` for plain JSON. Empty
    in records of older versions."""

    @property
    def commit_id(self) -> str:
        """Timeline and commit LSN as one text, see :func:`commit_id`."""
        return commit_id(self.timeline, self.commit_lsn)

    @property
    def record_counts(self) -> dict[str, int]:
        """Documents by output topic; topics without one are absent."""
        return {topic: sum(r.count for r in ranges.values()) for topic, ranges in self.offsets.items()}

    @property
    def record_count(self) -> int:
        """Documents in all topics."""
        return sum(self.record_counts.values())


@dataclass(frozen=True, slots=True)
class TopicState:
    """The state in which a pipeline left one of its topics, to detect changes by others."""

    topic_id: str
    """Kafka's; empty where the broker gives none."""
    start: tuple[int, ...]
    """The first offset of each partition when the pipeline first wrote to the topic."""
    end: tuple[int, ...]
    """The offset behind the pipeline's newest document in each partition; in a commit topic the end
    offset when the run began."""
    lag_ms: int | None = None
    """The ``min.compaction.lag.ms`` that the topic had before it was raised for leases, and has again
    afterwards; None: it is not raised."""
    raised_ms: int = 0
    """The time at which it was raised, milliseconds since the epoch. What had been replaced for longer than
    :attr:`lag_ms` then may be gone, however long the topic keeps records since."""
    views: tuple[str, ...] = ()
    """The views whose documents it has, if there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRecord:
    """The newest batch that a pipeline has made visible; written in the same Kafka transaction as the output.

    Each run begins by writing it again with its own id: only the run that wrote the newest one may write.
    """

    pipeline: str
    query_id: str
    """The id in the checkpoint, which distinguishes pipelines with the same name."""
    batch_id: int
    """-1: nothing is visible yet; the fields that speak of the batch then mean nothing."""
    source: str
    timeline: int
    commit_lsn: int
    run: str = ""
    """The run that wrote this; empty in records of older versions."""
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    """Output and commit topics by name; empty in records of older versions."""
    state: str = ""
    """The name of the manifest of the state after the batch; empty in records of older versions."""
    root: str = ""
    """The source at the beginning of the chain that the pipeline is in, whose commits its outputs show; empty
    in records of older versions."""
    first_lsn: int = 0
    """The commit at which its first batch ended; 0: not known, as in records of older versions."""


def nothing_visible(pipeline: str) -> ProgressRecord:
    """Returns the progress of a pipeline that has made no batch visible."""
    return ProgressRecord(pipeline=pipeline, query_id="", batch_id=-1, source="", timeline=0, commit_lsn=0)


def visible_progress(record: ProgressRecord | None) -> ProgressRecord | None:
    """Returns the record if it describes a visible batch; None if it only states which run may write."""
    return None if record is None or record.batch_id < 0 else record


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """The facts of a batch for its sink."""

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
