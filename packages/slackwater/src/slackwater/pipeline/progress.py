"""The progress of a run, batch by batch, and its reports to the cluster."""

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import Final

from slackwater.control import HELD_FOR, KnownRun, first_source, holder_of, known_pipelines, superseded
from slackwater.cuts import PipelineLog, TopicUnavailableError
from slackwater.engine.state.manifest import State
from slackwater.observe.repeating import Repeating
from slackwater.outputs.batch import starting_over
from slackwater.outputs.contract import SinkKind
from slackwater.pipeline.definition import PipelineDefinition, ViewOutput, table_inputs
from slackwater.pipeline.settings import RunSettings
from slackwater.pipeline.source.planner import PlannedCut
from slackwater.protocol import (
    Clock,
    OvertakenError,
    PipelineEntry,
    PipelineRegistration,
    PipelineReport,
    ProgressRecord,
    RegisteredStage,
    RegisteredView,
    RunEnd,
    StageWork,
    StateError,
    epoch_ms,
    from_epoch_ms,
    hide,
    secret_options,
)
from slackwater.sql.plan import EnginePlan, PublishedView

_REPORT_SECONDS: Final = 1.0
"""The time between two reports while there is news."""
_SILENT_SECONDS: Final = 3.0
"""The time between two reports while there is no news; after thirty seconds a run counts as vanished."""
_LONGEST_FAILURE: Final = 2_000
"""The maximum number of characters of a reported error."""
_FUNCTION: Final = "function"
"""The kind of an output that passes documents to a function; a folder cannot specify it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """A batch that is visible."""

    pipeline: str
    source: str
    timeline: int
    batch_id: int
    commit_lsn: int
    """The newest commit that the view shows."""
    committed_at: datetime
    """When the newest transaction of the batch was committed in the database."""
    visible_at: datetime
    """When a ``read_committed`` reader of the output could see it."""
    events: int
    """The number of change events of the source in the batch, over all tables."""
    transactions: int
    """The number of source transactions with a change event."""
    documents: int
    """The number of records written to the output, including deletes."""
    deletes: int
    was_covered: bool
    """Whether the output already contained the batch, because the answer to its commit was lost."""
    seconds: Mapping[str, float]
    """The seconds of the consecutive parts: ``plan`` (choosing and dividing the batch), ``read`` and
    ``evaluate`` (the slowest task of each kind), ``schedule`` (everything else that Spark does in the
    meantime), ``state`` (writing it), ``produce`` and ``commit`` (the sink)."""
    stage_work: tuple[StageWork, ...] = ()
    """The cost of each stage."""
    state_bytes: Mapping[int, int] = field(default_factory=dict)
    """The size of each stage's state after the batch, by the number of the stage, before compression, in
    bytes."""
    withheld: Mapping[str, int] = field(default_factory=dict)
    """By view, the number of keys that are withheld after the batch; views that never withhold are not in
    it."""
    commits: tuple[tuple[int, int, int], ...] = field(default=(), repr=False)
    """``(xid, commit LSN, commit time in ms since the epoch)`` of these transactions, in commit order."""
    cuts: tuple[PlannedCut, ...] = field(default=(), repr=False)
    """The cuts that contained the transactions, ascending; empty if they are not known."""

    @property
    def delay(self) -> timedelta:
        """The time from the database's commit of the newest transaction until it is visible in the output."""
        return self.visible_at - self.committed_at


def withheld_keys(plan: EnginePlan, state: State) -> dict[str, int]:
    """Returns how many keys are withheld in a state, by view; all views that may withhold some."""
    views = enumerate(plan.views)
    return {view.withheld_of: state.withheld.get(number, 0) for number, view in views if view.withheld_of}


class RunReporter:
    """Reports a run to the cluster: its pipeline, its progress and its end; refuses a name that is taken.

    A problem with the topic of pipelines is logged once and has no other effect on the run; a run that could
    not register is not shown. A separate thread reports once a second if there is news, and otherwise every
    three seconds. Reported errors do not contain the `secrets`.
    """

    def __init__(
        self,
        log: PipelineLog,
        registration: PipelineRegistration,
        clock: Clock,
        secrets: Collection[str] = (),
    ) -> None:
        self._log = log
        self._secrets = secrets
        self._registration = registration
        self._clock = clock
        self._reports = Repeating("run-reporter", self._report_news, _REPORT_SECONDS)
        self._lock = threading.Lock()
        self._report: PipelineReport | None = None
        self._is_new = False
        self._reported_at = 0.0

    @classmethod
    def connect(
        cls,
        definition: PipelineDefinition,
        settings: RunSettings,
        checkpoint: str,
        clock: Clock,
        *,
        calls_function: bool = False,
    ) -> "RunReporter":
        """Returns a reporter for the Kafka of the settings; nothing is requested yet."""
        registration = make_registration(
            definition,
            timeline=settings.timeline,
            checkpoint=checkpoint,
            calls_function=calls_function,
            clock=clock,
        )
        kafka = settings.servers.kafka
        log = PipelineLog(kafka, replication_factor=settings.replication_factor)
        secrets = settings.servers.secrets | secret_options(settings.spark_conf)
        return cls(log, registration, clock, secrets)

    def check(self, query_id: str | None, *, makes_topic: bool = True) -> None:
        """Refuses the run if its name is taken; writes nothing, unless it `makes_topic` of pipelines.

        Raises:
            StateError: Another checkpoint holds the name.
        """
        self._registration = with_checkpoint(self._registration, query_id or "")
        with self._tolerated("its name is not compared with those of others"):
            self._refuse_if_taken(self._log.read())
            if makes_topic:
                self._log.ensure()

    def register(self, query_id: str) -> None:
        """Registers the run and begins to report.

        Raises:
            StateError: Another run took the name at the same moment; this one is not registered.
        """
        self._registration = with_checkpoint(self._registration, query_id)
        with self._tolerated("it is not shown in the topology"):
            offset = self._log.register(self._registration)
            entries = self._log.read()
            try:
                self._refuse_if_taken(entries, offset)
            except StateError:
                with suppress(TopicUnavailableError):  # it then looks like a run that has vanished
                    self._log.forget(self._registration.pipeline, self._registration.run)
                raise
            self._report = PipelineReport(
                pipeline=self._registration.pipeline,
                run=self._registration.run,
                batch_id=-1,
                timeline=self._registration.timeline,
                commit_lsn=0,
            )
            self._reports.begin()
            with suppress(TopicUnavailableError):  # the next run does it
                for other in superseded(self._registration, entries, self._now_ms(), offset):
                    self._log.forget(other.registration.pipeline, other.registration.run)

    def find_root(self, known: str) -> str:
        """Returns the source at the beginning of the pipeline's chain, as the pipelines have registered.

        What is known so far is returned if nobody has registered the pipeline that writes the source, if that
        one reads another timeline, so that commits have another order there, or if it cannot be read.
        """
        own, found = self._registration, self._registration.source
        with self._tolerated(f"it is not known whether another pipeline writes source {own.source}"):
            with self._lock:  # the thread that reports uses the log, too
                entries = self._log.read()
            runs = known_pipelines(entries, self._now_ms())
            of_timeline = [run for run in runs if run.registration.timeline == own.timeline]
            found = first_source(of_timeline, own.source)
        return known if found == own.source else found

    def report_start(
        self, progress: ProgressRecord | None, withheld: Mapping[str, int] | None = None
    ) -> None:
        """Records what is visible, and how much is withheld, at the start; None: nothing is visible yet."""
        if progress is not None:
            self._note(
                lambda report: replace(
                    report,
                    batch_id=progress.batch_id,
                    timeline=progress.timeline,
                    commit_lsn=progress.commit_lsn,
                    withheld=withheld or {},
                )
            )

    def report_computed(self, commit_lsn: int) -> None:
        """Records up to which commit the views are computed. Does not block."""
        self._note(lambda report: replace(report, processed_lsn=commit_lsn))

    def report_batch(self, batch: BatchProgress) -> None:
        """Records a batch that has become visible. Does not block."""
        self._note(
            lambda report: replace(
                report,
                batch_id=batch.batch_id,
                timeline=batch.timeline,
                commit_lsn=batch.commit_lsn,
                commit_ts_ms=epoch_ms(batch.committed_at),
                visible_ms=epoch_ms(batch.visible_at),
                parts_us={part: round(seconds * 1_000_000) for part, seconds in batch.seconds.items()},
                stage_work=batch.stage_work,
                state_bytes={str(stage): size for stage, size in batch.state_bytes.items()},
                events=batch.events,
                documents=batch.documents,
                withheld=batch.withheld,
                run_events=report.run_events + batch.events,
                run_documents=report.run_documents + batch.documents,
            )
        )

    @contextmanager
    def reporting_end(self) -> Iterator[None]:
        """Reports how the block ends, and closes the connection.

        A superseded run reports nothing, because the pipeline has not ended: the other run continues.
        """
        try:
            yield
        except OvertakenError:
            raise
        except BaseException as error:
            text = hide(f"{type(error).__name__}: {error}", self._secrets)
            self._report_end(text[:_LONGEST_FAILURE])
            raise
        else:
            self._report_end("")
        finally:
            self.close()

    def close(self) -> None:
        """Stops reporting and closes the connection. Idempotent."""
        self._reports.close()
        self._log.close()

    def _report_news(self) -> None:
        with self._lock:
            now = self._clock.monotonic()
            if self._report is not None and (self._is_new or now - self._reported_at >= _SILENT_SECONDS):
                self._log.report(self._report)
                self._reported_at, self._is_new = now, False

    def _note(self, change: Callable[[PipelineReport], PipelineReport]) -> None:
        with self._lock:
            if self._report is not None:
                self._report, self._is_new = change(self._report), True

    def _report_end(self, failure: str) -> None:
        with self._lock:
            if self._report is not None:
                text = failure.encode(errors="replace").decode()
                end = RunEnd(ended_ms=self._now_ms(), failure=text)
                self._log.report(replace(self._report, end=end))
                self._report = None

    def _refuse_if_taken(self, entries: Sequence[PipelineEntry], before: int | None = None) -> None:
        now_ms = self._now_ms()
        holder = holder_of(self._registration, entries, now_ms, before=before)
        if holder is not None:
            raise _taken(holder, now_ms)

    def _now_ms(self) -> int:
        return epoch_ms(self._clock.now())

    @contextmanager
    def _tolerated(self, consequence: str) -> Iterator[None]:
        try:
            yield
        except TopicUnavailableError as error:
            name = self._registration.pipeline
            _log.warning("pipeline %s: %s: %s", name, consequence, error)


def _taken(holder: KnownRun, now_ms: int) -> StateError:
    """Returns the error for a name that is held."""
    by = holder.registration
    since = from_epoch_ms(by.started_ms)
    outputs = ", ".join(f"{view.kind} {view.output}" for view in by.views)
    runs = holder.holds_name(now_ms)
    problem = (
        f"the name {by.pipeline!r} is taken: a pipeline from source {by.source} to {outputs} "
        f"{'runs' if runs else 'ran'} on {by.host} (process {by.pid}) since {since:%Y-%m-%d %H:%M:%S} UTC, "
        f"with checkpoint {by.checkpoint}; owner: {by.owner or 'not named'}; "
        f"last heard of {(now_ms - holder.heard_ms) / 1000:,.0f} s ago"
    )
    if runs:
        hint = (
            "give this pipeline another name in pipeline.toml; or stop that run, and if it was killed, wait "
            f"until it has been silent for {HELD_FOR / timedelta(seconds=1):.0f} s. With the checkpoint of "
            "that run, this run would continue its work. "
        )
    else:
        hint = (
            "give this pipeline another name in pipeline.toml; if the other pipeline is no longer needed: "
            f"`slackwater pipeline delete {by.pipeline}`. "
        )
    return StateError(problem, hint + starting_over(by.pipeline))


def make_registration(
    definition: PipelineDefinition, *, timeline: int, checkpoint: str, calls_function: bool, clock: Clock
) -> PipelineRegistration:
    """Returns the description of a run of this process that begins now, without the id of its checkpoint."""
    views = zip(definition.plan.views, definition.outputs, strict=True)
    return PipelineRegistration(
        pipeline=definition.name,
        base_name=definition.base_name,
        revision=definition.revision,
        owner=definition.owner,
        source=definition.source,
        timeline=timeline,
        emit=str(definition.emit),
        scope=str(definition.scope),
        tables={table: definition.source_topics.data(table) for table in definition.tables},
        stages=_stages(definition.plan),
        views=tuple(
            _view(definition.plan, view, output, calls_function=calls_function) for view, output in views
        ),
        query_id="",
        checkpoint=checkpoint,
        run=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=version("slackwater"),
        started_ms=epoch_ms(clock.now()),
        revision_of=definition.revision_of,
    )


def with_checkpoint(registration: PipelineRegistration, query_id: str) -> PipelineRegistration:
    """Returns the registration of a run with the checkpoint of this id.

    Functions that receive the documents of one pipeline are separate pipelines, so the id is part of their
    names.
    """
    name = registration.pipeline
    if any(view.kind == _FUNCTION for view in registration.views):
        name = f"{registration.base_name}/{query_id[:8]}"
    return replace(registration, pipeline=name, query_id=query_id)


def _stages(plan: EnginePlan) -> tuple[RegisteredStage, ...]:
    level_of = {number: level for level, numbers in enumerate(plan.levels, 1) for number in numbers}
    earlier: dict[int, list[int]] = {stage.number: [] for stage in plan.stages}
    for stage in plan.stages:
        for receiver in stage.receivers:
            if receiver != stage.number:
                earlier[receiver].append(stage.number)
    return tuple(
        RegisteredStage(
            number=stage.number,
            level=level_of[stage.number],
            key=tuple(dict(stage.labels).get(column.name, column.name) for column in stage.key),
            tables=_tables(plan, (stage.number,)),
            stages=tuple(earlier[stage.number]),
            why=stage.why,
            identity=stage.identity,
        )
        for stage in plan.stages
    )


def _view(
    plan: EnginePlan, view: PublishedView, output: ViewOutput, *, calls_function: bool
) -> RegisteredView:
    is_topic = output.kind is SinkKind.KAFKA and not calls_function
    return RegisteredView(
        name=view.name,
        output=output.name,
        kind=_FUNCTION if calls_function else str(output.kind),
        format=str(output.format) if is_topic else "",
        output_source=output.prefix if output.is_source else "",
        tables=_tables(plan, view.stages),
        stages=view.stages,
    )


def _tables(plan: EnginePlan, stages: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(sorted({each.table.full_name for each in table_inputs(plan, stages)}))
