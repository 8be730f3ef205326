"""What runs of pipelines publish to the cluster: a registration at their start, and reports while they run.

Both are in one compacted topic (:data:`~slackwater.protocol.keys.PIPELINES_TOPIC`), one record of each kind
per run. A registration describes the pipeline; a report contains the progress of the run, and finally how it
ended.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredStage:
    """A stage of a pipeline."""

    number: int
    """From 1, ascending in the direction of the data."""
    level: int
    """From 1. Stages of one level send nothing to each other."""
    key: tuple[str, ...]
    """The columns that its rows are spread by."""
    tables: tuple[str, ...]
    """Full names of the tables that it reads."""
    stages: tuple[int, ...]
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
    """The name of the topic or the table."""
    kind: str
    """The kind of output: ``kafka``, ``postgres``, ``delta``, ``iceberg``, or ``function``."""
    format: str
    """The form of documents in Kafka; empty elsewhere."""
    output_source: str
    """The name of the source that the output is a table of; empty if it is none."""
    tables: tuple[str, ...]
    """Full names of the tables that it is computed from."""
    stages: tuple[int, ...]
    """Numbers of the stages that compute it; its documents come from the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRegistration:
    """A run of a pipeline has begun."""

    pipeline: str
    """The name with the revision."""
    base_name: str
    """The name without it, as in ``pipeline.toml``."""
    revision: int
    owner: str
    """Free text of ``pipeline.toml``; empty: nobody is named."""
    source: str
    timeline: int
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
    """A random id of this run."""
    host: str
    pid: int
    """The process of the run."""
    version: str
    """Of Slackwater."""
    started_ms: int
    """The time at which the run began, milliseconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """What a stage has cost in a batch."""

    stage: int
    total_us: int
    """Microseconds of all its tasks together."""
    tasks: int
    """That had anything to do."""
    slowest_us: int
    """Microseconds of the slowest of them."""
    slowest_task: int
    """Its number, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """A run has ended."""

    ended_ms: int
    """The time of the end, milliseconds since the epoch."""
    failure: str
    """The error that ended it; empty if it was stopped properly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReport:
    """The newest visible batch of a run, what the run has done so far, and perhaps its end."""

    pipeline: str
    run: str
    """The run whose registration this belongs to."""
    batch_id: int
    """-1: nothing is visible yet; the fields that speak of the batch then mean nothing."""
    timeline: int
    commit_lsn: int
    """The views show everything up to and including this commit."""
    commit_ts_ms: int | None = None
    """Commit time of the batch's newest transaction, milliseconds since the epoch; None: an earlier run made
    the batch visible."""
    visible_ms: int | None = None
    """The time at which the batch was visible, milliseconds since the epoch; None as before."""
    parts_us: Mapping[str, int] = field(default_factory=dict)
    """Microseconds by part of the batch, one after the other; empty as before."""
    events: int = 0
    """Change events of the source in the batch."""
    documents: int = 0
    """Documents written with the batch, deletes included."""
    run_events: int = 0
    """Change events in all batches of the run."""
    run_documents: int = 0
    """Documents of all batches of the run."""
    end: RunEnd | None = None
    """None while the run continues."""
    stage_work: tuple[StageWork, ...] = ()
    """What each stage has cost in the batch; empty: not known."""
    state_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes that each stage keeps, by its number, before compression; empty: not known."""
    processed_lsn: int | None = None
    """The commit up to which the run has computed its views; they need not show all of that yet. None: it has
    computed nothing, or is of an older version."""


PipelineRecord = PipelineRegistration | PipelineReport
"""All kinds of records in the topic of pipelines."""


@dataclass(frozen=True, slots=True)
class PipelineEntry:
    """A record together with where and when it was written."""

    record: PipelineRecord
    offset: int
    """In the topic of pipelines: a later record has a larger one."""
    written_ms: int
    """The broker's time, milliseconds since the epoch; the writer's if the topic was made so."""
