"""Runs a pipeline: processes batches from the source through its stages into the sink until it is stopped."""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Final

import psycopg
from pyspark import SparkContext

from slackwater.cdc.batch import PlannedBatch
from slackwater.cdc.connector import unknown_properties
from slackwater.cuts import LeaseLog
from slackwater.engine.bucket import state_fingerprint
from slackwater.engine.payloads import DocumentBatch, documents_by_view
from slackwater.engine.settings import FormProof, Scope, default_buckets
from slackwater.engine.state.manifest import StateKeeper, WrittenManifest, history
from slackwater.observe.repeating import Repeating
from slackwater.outputs.contract import REQUEST_TIMEOUT, SinkProbe
from slackwater.outputs.sink import Sink, Waiting
from slackwater.pipeline.batch_job import BatchJobs, KnownState, TaskProgram
from slackwater.pipeline.change_plan import check_plan
from slackwater.pipeline.checkpoint import Checkpoint, CheckpointIdentity
from slackwater.pipeline.copied_state import CopiedBatch, EarlierRevisions
from slackwater.pipeline.definition import (
    PipelineDefinition,
    needed_columns,
    pipeline_fingerprint,
    stage_settings,
)
from slackwater.pipeline.folder import load_pipeline
from slackwater.pipeline.jvm import SPARK_ERRORS, explain_end
from slackwater.pipeline.leases import LeaseHolder
from slackwater.pipeline.progress import BatchProgress, RunReporter, withheld_keys
from slackwater.pipeline.session import starting_spark, with_spark_log
from slackwater.pipeline.settings import RunSettings, revision_checkpoint
from slackwater.pipeline.sinks import make_sink, output_forms
from slackwater.pipeline.source.kafka_reader import collector_paused, existing_topics
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.planner import Planner
from slackwater.pipeline.source.position import Position
from slackwater.pipeline.source_check import (
    CatalogueCheck,
    ConnectorCheck,
    tables_without_topic,
)
from slackwater.pipeline.spark_conf import index_root
from slackwater.protocol import (
    Clock,
    ConfigError,
    ProgressRecord,
    StateError,
    SystemClock,
    UnavailableError,
    from_epoch_ms,
)
from slackwater.protocol.keys import cut_log_topic
from slackwater.sql.plan import EnginePlan

_POLL_SECONDS: Final = 0.01
"""How long an idle run waits before it checks again for a newer cut."""

_CARRIED_MANIFESTS: Final = 16
_CARRIED_MANIFEST_BYTES: Final = 64 << 10
"""The newest manifests up to this number and size are sent to workers, which then do not have to read them
from the store."""

_CANCEL_SECONDS = 0.2
_LOOK_SECONDS = 1.0
"""The interval of checks whether topics exist that did not exist yet."""

_log = logging.getLogger(__name__)


def run_pipeline(  # noqa: PLR0913 - as many as its run has
    definition: PipelineDefinition,
    settings: RunSettings,
    on_progress: Callable[[BatchProgress], None] | None = None,
    *,
    stop: threading.Event | None = None,
    context: Callable[[], SparkContext] | None = None,
    probe: SinkProbe | None = None,
    on_step: Callable[[str], None] | None = None,
    on_turn: Callable[[bool], None] | None = None,
) -> None:
    """Keeps the views up to date until ``stop`` is set or, if `available_now`, until they are current.

    Blocks. After any end, including a crash, the next start continues where the output ends. Only one run per
    process is possible at a time; it uses this process's Spark. With `available_now`, it ends when the views
    contain everything that existed at the start.

    Args:
        definition: What to compute.
        settings: The settings of the run.
        on_progress: Called in this thread for each visible batch, in order. An error that it raises ends the
            run.
        stop: Ends the run in an orderly way: an open transaction of the output is finished first, unless its
            server is unavailable.
        context: Returns the Spark to use, once it has started, and which is not changed; None to create one
            for the run.
        probe: Informed of the sink's steps, for tests.
        on_step: Called in this thread before each step that may take long, with a sentence that describes it.
        on_turn: Called in this thread before each step of the loop that runs batches, hundreds of times a
            second while there is nothing to do; with whether the views show all cuts that exist.

    Raises:
        ConfigError: The state with which the pipeline is to begin lacks what it needs.
        StateError: The checkpoint belongs to a pipeline with another meaning, another pipeline has this name,
            or the output or the cut log was changed; nothing was modified.
        OvertakenError: Another run has taken over.
        UnavailableError: Spark does not start, or Kafka or the output does not answer; not raised when
            ``stop`` is set.
        SlackwaterError: A batch failed in Spark, Spark ended, or the state cannot be read or written.
        InputError: Rows of a table are not all in its topic, as the database's catalogue shows, or
            the connector's configuration gives values another form.
    """
    if context is None:
        settings = with_spark_log(settings, definition.revision)
    stop, on_step = stop or threading.Event(), on_step or (lambda _: None)
    waiting = Waiting(stop, on_step)
    sink = make_sink(definition, settings, probe=probe, clock=SystemClock(), waiting=waiting)
    run = PipelineRun(
        definition, settings, sink, on_progress=on_progress, stop=stop, on_step=on_step, on_turn=on_turn
    )
    with ExitStack() as ending:
        if context is None:
            run.on_step("starting Spark")
            context = ending.enter_context(starting_spark(definition.name, settings, stop=stop))
        run.check()
        run.run(context)


class PipelineRun:
    """One run of a pipeline into a sink; for most arguments see :func:`run_pipeline`.

    If the sink calls a function, a batch that an earlier run has prepared ends at the same position again,
    because the function may know it.
    """

    def __init__(  # noqa: PLR0913 - a run is made of them
        self,
        definition: PipelineDefinition,
        settings: RunSettings,
        sink: Sink,
        *,
        on_progress: Callable[[BatchProgress], None] | None,
        stop: threading.Event | None,
        on_step: Callable[[str], None] | None = None,
        on_turn: Callable[[bool], None] | None = None,
        calls_function: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._calls_function = calls_function
        self._sink = sink
        self._on_progress = on_progress or (lambda _: None)
        self.on_step = on_step or (lambda _: None)
        self._stop = stop or threading.Event()
        self._on_turn = on_turn or (lambda _: None)
        self._clock = clock or SystemClock()
        address = revision_checkpoint(settings.checkpoint, definition.revision)
        self._checkpoint = Checkpoint(address, settings.spark_conf)
        self._definition = definition
        self._catalogue = CatalogueCheck(
            definition, settings.source_database, settings.source_user, self._checkpoint
        )
        self._connector = ConnectorCheck.of_run(definition, settings)
        self._proof = FormProof.CONFIGURATION
        self._wait_for_cuts = "waiting for a cut with something new"
        self._refusal = ""

    def check(self) -> None:
        """Refuses what can be refused before anything is written or fenced."""
        check_plan(self._definition, self._settings)
        self._choose_buckets()
        self._checkpoint.check(self._fingerprint)
        identity = self._checkpoint.identity()
        query_id = None if identity is None else identity.query_id
        with ExitStack() as unless_checked:
            place, calls = self._checkpoint.store.address, self._calls_function
            self._reporter = RunReporter.connect(
                self._definition, self._settings, place, self._clock, calls_function=calls
            )
            unless_checked.callback(self._reporter.close)
            self._reporter.check(query_id)
            with self._stopped_in_order():
                for check in (partial(self._check_sink, query_id), self._check_tables, self._check_connector):
                    if not self._stop.is_set():
                        check()
            if self._stop.is_set():
                unless_checked.pop_all()
                return
            copied: Sequence[Checkpoint] = ()
            if self._settings.copy_state_of and not history(self._checkpoint.store) and self._earlier:
                self._earlier.check()
                copied = self._earlier.checkpoints
            self._check_catalogue(is_new=identity is None, copied=copied)
            unless_checked.pop_all()

    def run(self, context: Callable[[], SparkContext]) -> None:
        """Takes over the pipeline when Spark has started, runs it, releases it; nothing if it is stopped."""
        with ExitStack() as unless_run:
            unless_run.callback(self._reporter.close)
            try:
                started = context()
            except UnavailableError:
                if self._stop.is_set():
                    return
                raise
            if self._stop.is_set():
                return
            unless_run.pop_all()
        with self._reporter.reporting_end():
            try:
                with self._stopped_in_order():
                    self._run(started)
            except SPARK_ERRORS as error:
                log, stops = self._settings.spark_log, self._stop.is_set()
                if explained := explain_end(started, error, self._definition.name, log, stops=stops):
                    raise explained from error

    @contextmanager
    def _stopped_in_order(self) -> Iterator[None]:
        """Treats the failure of a server during a requested stop as the requested end."""
        try:
            yield
        except UnavailableError as error:
            if not self._stop.is_set():
                raise
            _log.warning("the run stops: %s", error)

    def _lease_holder(self) -> LeaseHolder:
        """Returns what holds states for readers; nothing is requested yet."""
        refusal = 'with scope "aggregate", its documents are not as of one commit'
        return LeaseHolder(
            LeaseLog(self._settings.servers.kafka),
            pipeline=self._definition.name,
            refusal="" if self._definition.scope is Scope.STRICT else refusal,
            longest=self._settings.longest_lease,
            sink=self._sink,
            clock=self._clock,
        )

    def _choose_buckets(self) -> None:
        """Sets the number of buckets: that of the definition, of the first run, or of this machine."""
        if self._definition.buckets is None:
            identity = self._checkpoint.identity()
            cores = self._settings.parallelism or os.cpu_count() or 1
            buckets = default_buckets(cores) if identity is None else identity.buckets
            self._definition = replace(self._definition, buckets=buckets)
        self._fingerprint = pipeline_fingerprint(self._definition, self._settings.timeline)

    def _check_sink(self, query_id: str | None) -> None:
        self._announce_wait_for_sink("its progress")
        self._sink.check(query_id)

    def _check_tables(self) -> None:
        """Refuses tables without a topic, or logs a warning if they are to count as empty; logs notes."""
        for note in self._definition.plan.notes:
            _log.warning("%s", note)
        known = self._topics_of_source()
        if self._stop.is_set():
            return
        source = self._definition.source
        if cut_log_topic(source) not in known:
            self._wait_for_cuts = (
                f"waiting for the first cut; `slackwater sidecar --source {source}` publishes it"
            )
        topics = self._definition.source_topics
        missing = tables_without_topic(self._definition.tables, topics, known)
        for table, (text, hint) in missing.items():
            if self._settings.allow_missing_tables:
                _log.warning("table %s is treated as empty: %s. %s", table, text, hint)
            else:
                more = f" (and for {len(missing) - 1} more)" if len(missing) > 1 else ""
                raise ConfigError(f"table {table}: {text}{more}", hint)

    def _check_connector(self) -> None:
        """Refuses a connector that gives values another form; if nobody knows it, values prove their form."""
        self._connector.look()
        self._connector.check()
        self._proof = self._connector.prove(
            self._settings.servers.kafka,
            self._definition.input_topics,
            needed_columns(self._definition.plan),
            pause=self._pause_for_topics,
        )
        if self._proof is FormProof.VALUES:
            unknown = unknown_properties(self._definition.source)
            _log.warning("%s. %s", unknown.text, unknown.hint)

    def _topics_of_source(self) -> frozenset[str]:
        """Returns the topics that exist, after waiting for the first one of the source."""
        settings, source = self._settings, self._definition.source
        may_be_empty = settings.allow_missing_tables or settings.available_now
        wait = (
            f"waiting for source {source!r}, which has no topics yet: start its connector, or the pipeline "
            "whose output it is, or correct the name"
        )
        while True:
            known = existing_topics(settings.servers.kafka, REQUEST_TIMEOUT, self._pause_for_topics)
            own = {topic for topic in known if topic.startswith(f"{source}.")}
            if may_be_empty or any(".slackwater." not in topic for topic in own):
                return known
            if wait:
                self.on_step(wait)
                wait = ""
            if self._stop.wait(_LOOK_SECONDS):
                return known

    def _pause_for_topics(self, seconds: float) -> None:
        Waiting(self._stop, self.on_step).pause(seconds, "waiting for Kafka to list its topics")

    def _check_catalogue(self, *, is_new: bool, copied: Sequence[Checkpoint]) -> None:
        """Refuses tables whose rows are not all in their topics, as far as the database shows."""
        try:
            found = self._catalogue.first_look(*copied)
        except psycopg.Error as error:
            self._catalogue.warn(error)
            return
        if not is_new:
            self._catalogue.check()
        self._catalogue.refuse(found)

    def _run(self, context: SparkContext) -> None:
        with ExitStack() as ending:
            ending.callback(self._sink.close)
            identity = self._checkpoint.claim(self._fingerprint)
            self._reporter.register(identity.query_id)
            self._announce_wait_for_sink("its outputs")
            self._sink.find_root = self._reporter.find_root
            progress = self._sink.open()
            keeper = self._open_state(progress)
            beginning = self._copied_batch() if progress is None else None
            options = source_options(self._definition, self._settings, context.defaultParallelism)
            planner = ending.enter_context(closing(Planner(options)))
            make_program = partial(self._program, identity, options, str(context.master))
            self._reporter.report_start(progress, withheld_keys(self._definition.plan, keeper.state))
            leases = self._lease_holder()
            for watch in (leases, self._catalogue, self._connector):
                ending.callback(watch.close)
                watch.begin()
            self.on_step(self._wait_for_cuts)
            jobs = ending.enter_context(closing(BatchJobs(context, make_program(), options.parallelism)))
            canceller = Repeating("cancel-on-stop", partial(self._cancel, jobs), _CANCEL_SECONDS)
            ending.callback(canceller.close, 0)
            canceller.begin()

            def report(batch: BatchProgress) -> None:
                self._reporter.report_batch(batch)
                self._on_progress(batch)

            def between_batches() -> None:
                self._catalogue.check()
                self._connector.check()
                if self._proof is FormProof.WRITER and self._connector.is_known:
                    self._proof = FormProof.CONFIGURATION
                    jobs.use(make_program())
                self._say_refusal()
                leases.hold()

            loop = BatchLoop(
                pipeline=self._definition.name,
                query_id=identity.query_id,
                plan=self._definition.plan,
                planner=planner,
                jobs=jobs,
                keeper=keeper,
                sink=self._sink,
                clock=self._clock,
                stop=self._stop,
                on_computed=self._reporter.report_computed,
                on_batch=report,
                between_batches=between_batches,
                on_turn=self._on_turn,
                max_events=options.max_events_per_batch,
                beginning=beginning,
                repeats=self._calls_function,
            )
            loop.run(available_now=self._settings.available_now)

    def _cancel(self, jobs: BatchJobs) -> None:
        """Cancels the running batch when the run is stopped, because it may take long."""
        if self._stop.is_set():
            with suppress(*SPARK_ERRORS):  # which the job reports, too
                jobs.cancel()

    def _say_refusal(self) -> None:
        """Says why the sidecar publishes no further cut, once for each reason."""
        refusal, said = self._connector.refusal, self._refusal
        self._refusal = refusal
        if refusal not in ("", said):
            self.on_step(f"the sidecar publishes no further cut of {self._definition.source}: {refusal}")

    @cached_property
    def _earlier(self) -> EarlierRevisions | None:
        """The revisions with whose states the pipeline is to begin, if there are any."""
        earlier = [load_pipeline(folder) for folder in self._settings.copy_state_of]
        return EarlierRevisions(earlier, self._definition, self._settings) if earlier else None

    def _copied_batch(self) -> CopiedBatch | None:
        if self._earlier is None:
            return None
        self.on_step(f"copying the state of {self._earlier.place}")
        return self._earlier.copy(self._checkpoint.store, lambda: not self._stop.is_set())

    def _open_state(self, progress: ProgressRecord | None) -> StateKeeper:
        keeper = StateKeeper(
            self._checkpoint.store, state_fingerprint(self._definition.plan, stage_settings(self._definition))
        )
        if progress is not None and not progress.state:
            raise StateError(
                f"the newest batch of pipeline {self._definition.name!r} was published by an earlier "
                "version, which kept its state in another form",
                f"set `revision = {self._definition.revision + 1}` in pipeline.toml: the pipeline then "
                "builds its views from the beginning of the source's topics, into its own output topics",
            )
        keeper.open("" if progress is None else progress.state)
        return keeper

    def _program(self, identity: CheckpointIdentity, options: SourceOptions, master: str) -> TaskProgram:
        root = index_root(self._settings, master)
        return TaskProgram(
            plan=self._definition.plan,
            settings=replace(stage_settings(self._definition, self._settings.limits), proof=self._proof),
            evaluators=self._definition.evaluators,
            options=options,
            checkpoint=self._checkpoint.location,
            query_id=identity.query_id,
            index_root=None if root is None else str(root),
            forms=output_forms(self._definition),
        )

    def _announce_wait_for_sink(self, what: str) -> None:
        until = self._clock.now() + REQUEST_TIMEOUT
        self.on_step(
            f"asking {self._sink.place} for {what}, until {until:%H:%M:%S} UTC if it does not answer"
        )


@dataclass(kw_only=True)
class BatchLoop:
    """Plans a batch, runs it, writes its state, makes it visible, and begins again, where the state ends.

    Use it from one thread. Its parts are open; the caller closes them.
    """

    pipeline: str
    query_id: str
    """The id of the checkpoint."""
    plan: EnginePlan
    planner: Planner
    jobs: BatchJobs
    keeper: StateKeeper
    sink: Sink
    clock: Clock
    """Measures how long the parts of a batch take."""
    stop: threading.Event
    """Ends the loop. A batch that is being written is finished first."""
    on_computed: Callable[[int], None]
    """Called with the commit up to which a batch is computed; it is not visible yet."""
    on_batch: Callable[[BatchProgress], None]
    """Called with each batch that is visible."""
    between_batches: Callable[[], None]
    on_turn: Callable[[bool], None]
    """Called before each step, with whether the views show all cuts that exist."""
    max_events: int
    """The number of change events at which a batch is closed."""
    beginning: CopiedBatch | None = None
    """The first batch, if there was none yet; None to read it from the beginning of the topics."""
    repeats: bool = False
    """Whether a batch that an earlier run has prepared ends at the same position again, because the output
    may know it."""
    _written: deque[WrittenManifest] = field(
        default_factory=lambda: deque(maxlen=_CARRIED_MANIFESTS), init=False
    )
    """The newest manifests, oldest first."""

    def run(self, *, available_now: bool) -> None:
        """Runs until it is stopped or, if `available_now`, until all that existed at the start is visible.

        Raises:
            SlackwaterError: See its tree.
            SPARK_ERRORS: A batch failed in Spark, or Spark has ended.
        """
        planner = self.planner
        stored = self.keeper.state.position
        target = planner.target() if available_now else None
        if stored is None and self.beginning is not None and not self.stop.is_set():
            self._run_batch(self.beginning, self.beginning.end, self.clock.monotonic())
            position = self.beginning.end
        else:
            position = planner.start() if stored is None else planner.offset(dict(stored))
        prepared = self.keeper.prepared_position() if self.repeats else None
        while not self.stop.is_set():
            self.on_turn(False)
            self.between_batches()
            began = self.clock.monotonic()
            with collector_paused():
                if prepared is None:
                    end = planner.next(position, self.max_events, target)
                else:
                    end, prepared = planner.offset(dict(prepared)), None
                planned = None if end is position else planner.plan(position, end)
            if planned is not None:
                self._run_batch(planned, end, began)
            elif end is position:
                if available_now:
                    return
                self.on_turn(end.lsn > 0)  # else there is no cut yet
                self.jobs.check()
                self.stop.wait(_POLL_SECONDS)
            position = end

    def _run_batch(self, planned: PlannedBatch | CopiedBatch, end: Position, began: float) -> None:
        now = self.clock.monotonic
        keeper = self.keeper
        batch_id = keeper.state.batch_id + 1
        cuts = tuple(self.planner.cuts(planned.header))
        planned_at = now()
        self.on_turn(False)
        result = self.jobs.run(batch_id, planned, self._known_state())
        collected_at = now()
        self.on_turn(False)
        self.on_computed(planned.header.to_lsn)
        if self.stop.is_set():
            return
        state = keeper.prepare(end.to_json(), result.writes, result.updates, result.withheld)
        documents = documents_by_view(batch_id, result.rows)
        prepared_at = now()
        self.on_turn(False)
        report = self.sink.write(self.query_id, DocumentBatch(batch_id, planned.header, documents, state))
        keeper.adopt(state)
        if keeper.newest_manifest is not None:
            self._written.append(keeper.newest_manifest)
        header = planned.header
        seconds = {
            "plan": planned_at - began,
            "read": result.read_seconds,
            "evaluate": result.evaluate_seconds,
            "schedule": collected_at - planned_at - result.read_seconds - result.evaluate_seconds,
            "state": prepared_at - collected_at,
            "produce": report.produce_seconds,
            "commit": report.commit_seconds,
        }
        self.on_batch(
            BatchProgress(
                pipeline=self.pipeline,
                source=header.source,
                timeline=header.timeline,
                batch_id=batch_id,
                commit_lsn=header.to_lsn,
                committed_at=from_epoch_ms(header.commit_ts_ms),
                visible_at=report.visible_at,
                events=header.event_count,
                transactions=len(header.transactions),
                documents=report.documents,
                deletes=report.deletes,
                was_covered=report.was_covered,
                stage_work=result.stage_work(),
                state_bytes=keeper.state.stage_bytes(),
                withheld=withheld_keys(self.plan, keeper.state),
                commits=header.transactions,
                cuts=cuts,
                seconds={name: max(0.0, each) for name, each in seconds.items()},
            )
        )

    def _known_state(self) -> KnownState:
        sizes = accumulate(len(manifest.data) for manifest in reversed(self._written))
        count = sum(size <= _CARRIED_MANIFEST_BYTES for size in sizes)
        return KnownState(self.keeper.state.name, tuple(self._written)[len(self._written) - count :])


def source_options(definition: PipelineDefinition, settings: RunSettings, cores: int) -> SourceOptions:
    """Returns the options with which a pipeline reads its source."""
    options = SourceOptions(
        servers=settings.servers,
        source=definition.source,
        tables=definition.tables,
        routed=dict(definition.topics),
        timeline=settings.timeline,
        scope=definition.scope,
        parallelism=settings.parallelism or cores,
    )
    most = settings.max_events_per_batch
    return options if most is None else replace(options, max_events_per_batch=most)
