"""What runs of pipelines and readers publish, in topics that keep the newest record of each key.

One has a registration and a report of each run (:data:`~slackwater.protocol.keys.PIPELINES_TOPIC`): the
pipeline, and the progress and the end of the run. The other has leases of readers, and the holds by which
pipelines answer (:data:`~slackwater.protocol.keys.LEASES_TOPIC`): a pipeline keeps its views readable at the
commit of a lease until its time, or until its record is removed. A third one has the revision to read.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from msgspec import Meta

from slackwater.protocol.codec import DeclaredRecords, dump
from slackwater.protocol.keys import hold_key, registration_key, report_key
from slackwater.protocol.records import CommitPosition, Count, Moment

_Number = Annotated[int, Meta(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredStage:
    """A stage of a pipeline."""

    number: _Number
    """From 1, ascending in the direction of the data."""
    level: _Number
    """From 1. Stages of one level send nothing to each other."""
    key: tuple[str, ...]
    """The columns that its rows are spread by."""
    tables: tuple[str, ...]
    stages: tuple[Count, ...]
    """Numbers of the stages whose results it takes."""
    why: str
    """The work that it does, for people."""
    identity: str = ""
    """Equal for stages that compute the same from tables of these names, also of other pipelines; empty: not
    known, as of older versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredView:
    """A view that is published, and where."""

    name: str
    output: str
    kind: str
    """The kind of output: ``kafka``, ``postgres``, ``delta``, ``iceberg``, or ``function``."""
    format: str
    """The form of documents in Kafka; empty elsewhere."""
    output_source: str
    """The name of the source that the output is a table of; empty if it is none."""
    tables: tuple[str, ...]
    """Full names of the tables that it is computed from."""
    stages: tuple[Count, ...]
    """Numbers of the stages that compute it; its documents come from the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRegistration:
    """A run of a pipeline has begun."""

    pipeline: str
    """The name with the revision."""
    base_name: str
    """The name without it, as in ``pipeline.toml``."""
    revision: _Number
    owner: str
    """Free text of ``pipeline.toml``; empty: nobody is named."""
    source: str
    timeline: Count
    """The timeline of the source that is read."""
    emit: str
    scope: str
    tables: Mapping[str, str]
    """Full name of each table that is read, with its topic."""
    stages: tuple[RegisteredStage, ...]
    views: tuple[RegisteredView, ...]
    query_id: str
    """The id that is kept in the checkpoint."""
    checkpoint: str
    """The address of the checkpoint, without credentials."""
    run: str
    host: str
    pid: Count
    version: str
    started_ms: Moment
    """The time at which the run began, milliseconds since the epoch."""
    revision_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Other pipelines that this is the same revision of: their names without it, each with its views here."""

    def as_revision_of(self, name: str) -> "PipelineRegistration | None":
        """Returns the revision of a pipeline that this is, with the views of that one; None: it is none."""
        views = self.revision_of.get(name)
        if name == self.base_name or views is None:
            return self if name == self.base_name else None
        return replace(self, views=tuple(view for view in self.views if view.name in views))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """What a stage has cost in a batch."""

    stage: _Number
    total_us: Count
    """Microseconds of all its tasks together."""
    tasks: Count
    """That had anything to do."""
    slowest_us: Count
    """Microseconds of the slowest of them."""
    slowest_task: Count
    """Its number, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """A run has ended."""

    ended_ms: Moment
    """The time of the end, milliseconds since the epoch."""
    failure: str
    """The error that ended it; empty if it was stopped properly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReport:
    """The newest visible batch of a run, what the run has done so far, and perhaps its end."""

    pipeline: str
    run: str
    """The run whose registration this belongs to."""
    batch_id: Annotated[int, Meta(ge=-1)]
    """-1: nothing is visible yet; the fields that speak of the batch then mean nothing."""
    timeline: Count
    commit_lsn: Count
    """The views show everything up to and including this commit."""
    commit_ts_ms: Moment | None = None
    """Commit time of the batch's newest transaction, milliseconds since the epoch; None: an earlier run made
    the batch visible."""
    visible_ms: Moment | None = None
    """The time at which the batch was visible, milliseconds since the epoch; None as before."""
    parts_us: Mapping[str, Count] = field(default_factory=dict)
    """Microseconds by part of the batch, one after the other; empty as before."""
    events: Count = 0
    documents: Count = 0
    run_events: Count = 0
    """Change events in all batches of the run."""
    run_documents: Count = 0
    end: RunEnd | None = None
    stage_work: tuple[StageWork, ...] = ()
    """What each stage has cost in the batch; empty: not known."""
    state_bytes: Mapping[str, Count] = field(default_factory=dict)
    """Bytes that each stage keeps, by its number, before compression; empty: not known."""
    processed_lsn: Count | None = None
    """The commit up to which the run has computed its views; they need not show all of that yet. None: it has
    computed nothing, or is of an older version."""
    withheld: Mapping[str, Count] = field(default_factory=dict)
    """By view, the number of keys that are withheld because they cannot be evaluated."""


PipelineRecord = PipelineRegistration | PipelineReport


@dataclass(frozen=True, slots=True)
class PipelineEntry:
    """A record together with where and when it was written."""

    record: PipelineRecord
    offset: int
    """In the topic of pipelines: a later record has a larger one."""
    written_ms: int
    """The broker's time, milliseconds since the epoch; the writer's if the topic was made so."""


_ADDED = ("identity", "processed_lsn", "revision_of", "stage_work", "state_bytes", "withheld")
"""What later versions have added, and leave out where it is not known."""
_UNKNOWN: tuple[Any, ...] = ("", None, {}, ())
_RECORDS: DeclaredRecords[PipelineRecord] = DeclaredRecords(
    "record of the topic of pipelines",
    {"registration": PipelineRegistration, "report": PipelineReport},
    _ADDED,
)
decode_pipeline_record = _RECORDS.decode
"""Decodes a record of the topic of pipelines; raises like :func:`~slackwater.protocol.decode_cut`."""


def encode_pipeline_record(record: PipelineRecord) -> bytes:
    """Encodes the value of a record in the topic of pipelines."""
    members = _without_unknown(asdict(record))
    if "stages" in members:
        members["stages"] = [_without_unknown(stage) for stage in members["stages"]]
    return dump(members, _RECORDS.kind(record))


def pipeline_record_key(record: PipelineRecord) -> bytes:
    """Returns the key under which a record replaces the one before it."""
    key = registration_key if isinstance(record, PipelineRegistration) else report_key
    return key(record.pipeline, record.run).encode()


def _without_unknown(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if name not in _ADDED or value not in _UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A reader needs the views of some pipelines at one commit, for a while."""

    id: str
    """Random; holds no slash."""
    source: str
    timeline: Count
    commit_lsn: Count
    pipelines: tuple[str, ...]
    """Names with the revision, as in outputs."""
    holder: str
    """Who needs it: free text."""
    taken_ms: Moment
    """When it was taken, milliseconds since the epoch, by the reader's clock, as the next one."""
    expires_ms: Moment

    @property
    def position(self) -> CommitPosition:
        """The commit."""
        return CommitPosition(self.timeline, self.commit_lsn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A pipeline's answer to a lease: it keeps the state, or says why it does not."""

    lease: str
    pipeline: str
    until_ms: Moment
    """The end of the lease as the pipeline knows it, milliseconds since the epoch."""
    refusal: str = ""
    """Why the pipeline does not keep the state; empty if it does."""


LeaseRecord = Lease | Hold


def lease_record_key(record: LeaseRecord) -> bytes:
    """Returns the key under which a record replaces the one before it."""
    key = record.id if isinstance(record, Lease) else hold_key(record.lease, record.pipeline)
    return key.encode()


_LEASES: DeclaredRecords[LeaseRecord] = DeclaredRecords(
    "record of the topic of leases", {"lease": Lease, "hold": Hold}
)
encode_lease_record, decode_lease_record = _LEASES.encode, _LEASES.decode
"""The codec of the topic of leases; decoding raises like :func:`~slackwater.protocol.decode_cut`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSwitch:
    """Readers of a pipeline read this revision from a commit on. The newest such record is valid."""

    base_name: str
    pipeline: str
    revision: _Number
    source: str
    timeline: Count
    commit_lsn: Count
    """Readers read the previous revision up to this commit, where both revisions end a batch."""
    views: Mapping[str, str]
    """By view the name of its topic or table."""
    switched_ms: Moment
    """The time of the switch, milliseconds since the epoch."""

    @property
    def position(self) -> CommitPosition:
        """The commit, with its timeline."""
        return CommitPosition(self.timeline, self.commit_lsn)


_SWITCHES: DeclaredRecords[ReaderSwitch] = DeclaredRecords("switch of readers", {"": ReaderSwitch})
encode_reader_switch, decode_reader_switch = _SWITCHES.encode, _SWITCHES.decode
"""The codec of the values in the topic of a pipeline's readers; decoding raises like
:func:`~slackwater.protocol.decode_cut`."""
