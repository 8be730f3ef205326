"""Running a pipeline: one streaming query from the source through its stages into the sink."""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater_protocol import Clock, SlackwaterError, SourceTopics, SystemClock
from slackwater_spark.pipeline.checkpoint import Checkpoint
from slackwater_spark.pipeline.definition import PipelineDefinition
from slackwater_spark.pipeline.errors import QueryFailedError
from slackwater_spark.pipeline.failure import RESTARTABLE, root_cause
from slackwater_spark.pipeline.fingerprint import PipelineFingerprint
from slackwater_spark.pipeline.jvm_process import how_jvm_ended
from slackwater_spark.pipeline.progress import BatchProgress
from slackwater_spark.pipeline.query import packed_documents
from slackwater_spark.pipeline.reporting import BatchDurations, BatchJournal, PipelineRegistry
from slackwater_spark.pipeline.session import spark_session
from slackwater_spark.pipeline.settings import RunSettings
from slackwater_spark.pipeline.sinks import kafka_sink_settings, make_sink
from slackwater_spark.pipeline.tables import without_topic
from slackwater_spark.pipeline.writer import BatchWriter, RunStoppedError
from slackwater_spark.sink import REQUEST_TIMEOUT, OutputRefusedError, SinkProbe, existing_topics
from slackwater_spark.state import CheckpointHold, batches_without_input, hold_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SPARK_LOG = "spark.log"

_LOOK = timedelta(milliseconds=200)
_LAST_NEWS = timedelta(seconds=2)
_RESTARTS = 5
"""How often in a row a query is started again without a batch of it having become visible."""

_log = logging.getLogger(__name__)


def run_pipeline(
    definition: PipelineDefinition,
    settings: RunSettings,
    on_progress: Callable[[BatchProgress], None] | None = None,
    *,
    stop: threading.Event | None = None,
    session: "SparkSession | None" = None,
    probe: SinkProbe | None = None,
    on_step: Callable[[str], None] | None = None,
) -> None:
    """Keeps the views up to date until ``stop`` is set, or, `available_now`, until they hold what was there.

    Blocks. Starting again after any end, a crash included, goes on where the output ends. One run per process
    at a time; it uses this process's Spark session.

    Args:
        definition: What to compute.
        settings: Where.
        on_progress: Called in this thread for each visible batch, in order. What it raises ends the run.
        stop: Ends the run in order: a Kafka transaction that has begun is finished first.
        session: Used instead of one that is made for the run, and left as it is.
        probe: For tests: is told of the sink's steps.
        on_step: Called in this thread before whatever may take long, with a sentence that says what is waited
            for.

    Raises:
        IncompatibleCheckpointError: the checkpoint is of a pipeline that meant something else.
        CheckpointInUseError: its state is being distributed over other partitions.
        PipelineNameTakenError: another pipeline of this name has written; nothing was touched.
        SessionStartError: Spark does not start.
        SinkError: the output cannot be written; ``ProducerFencedError`` if another run took over.
        QueryFailedError: the query ended with an error.
    """
    run = _PipelineRun(definition, settings, probe, SystemClock(), on_step or (lambda _: None))
    run.check()
    on_progress, stop = on_progress or (lambda _: None), stop or threading.Event()
    if session is not None:
        run.run(session, on_progress, stop)
        return
    run.tell("starting Spark")
    with spark_session(definition.name, settings, run.spark_log) as own:
        run.run(own, on_progress, stop)


class _PipelineRun:
    def __init__(
        self,
        definition: PipelineDefinition,
        settings: RunSettings,
        probe: SinkProbe | None,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self._definition = definition
        self._settings = settings
        self._clock = clock
        self.tell = tell
        self._checkpoint = Checkpoint(definition.checkpoint(settings.checkpoint))
        self._fingerprint = PipelineFingerprint.of(definition, settings.timeline)
        without_output = partial(batches_without_input, self._checkpoint.folder)
        self._sink = make_sink(definition, settings, without_output, probe=probe, clock=clock)
        self._journal = BatchJournal(definition.name)
        self._writer = self._new_writer()
        self._restarts = 0

    @property
    def spark_log(self) -> Path:
        """Where Spark's JVM writes."""
        return self._settings.spark_log or self._checkpoint.folder / SPARK_LOG

    def check(self) -> None:
        """Refuses what can be refused before anything is started, written or fenced."""
        self._checkpoint.check(self._fingerprint)
        self._tell_of_kafka("its progress")
        self._sink.check(self._checkpoint.query_id())
        self._warn_of_missing_topics()

    def _warn_of_missing_topics(self) -> None:
        """A table without a topic counts as empty: right if nobody has written to it yet."""
        known = existing_topics(kafka_sink_settings(self._definition, self._settings))
        topics = SourceTopics(self._definition.source, self._definition.topics)
        for table, others in without_topic(self._definition.tables, topics, known):
            partitions = f" Are these its partitions: {', '.join(others)}?" if others else ""
            _log.warning(
                "table %s counts as empty: there is no topic %s. Right if it has no rows yet, since the "
                "connector makes the topic with the first one. Else look at the connector's "
                "table.include.list and its publication; a partitioned table needs "
                "publish_via_partition_root.%s",
                table,
                topics.data(table),
                partitions,
            )

    def run(
        self, session: "SparkSession", on_progress: Callable[[BatchProgress], None], stop: threading.Event
    ) -> None:
        """From taking the pipeline over to letting it go."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # has no stubs

        holder = f"a run of {self._definition.name}"
        with hold_checkpoint(self._checkpoint.folder, holder, alone=False) as hold:
            try:
                self._run(session, hold, on_progress, stop)
            except (Py4JError, OSError) as error:  # OSError: a socket to the JVM
                self._raise_end_of_jvm(stop, error)

    def _run(
        self,
        session: "SparkSession",
        hold: CheckpointHold,
        on_progress: Callable[[BatchProgress], None],
        stop: threading.Event,
    ) -> None:
        registry = PipelineRegistry.connect(self._definition, self._settings, self._clock)
        listener = BatchDurations(self._journal.measured)
        session.streams.addListener(listener)
        try:
            self._checkpoint.claim(self._fingerprint)
            self._tell_of_kafka("its output topics")
            progress = self._sink.open()
            self._checkpoint.replan_failed(progress, hold)
            self.tell("starting its query")
            query = self._start(session)
            registry.started(self._query_id(), progress)
            self.tell("waiting for a cut with something new")
            while not self._watch(session, query, on_progress, registry, stop):
                query = self._start(session)
        finally:
            self._sink.close()
            session.streams.removeListener(listener)
            registry.close()

    def _new_writer(self) -> BatchWriter:
        return BatchWriter(self._sink, self._query_id, self._clock, self._journal.wrote)

    def _tell_of_kafka(self, what: str) -> None:
        until = self._clock.now() + REQUEST_TIMEOUT
        at = f"Kafka at {self._settings.servers.kafka.bootstrap}"
        self.tell(f"asking {at} for {what}, until {until:%H:%M:%S} UTC if it does not answer")

    def _start(self, session: "SparkSession") -> "StreamingQuery":
        self._writer = self._new_writer()
        documents = packed_documents(session, self._definition, self._settings)
        writer = documents.writeStream.queryName(self._definition.name).foreachBatch(self._writer)
        writer = writer.option("checkpointLocation", str(self._checkpoint.folder))
        if self._settings.available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def _watch(
        self,
        session: "SparkSession",
        query: "StreamingQuery",
        on_progress: Callable[[BatchProgress], None],
        registry: PipelineRegistry,
        stop: threading.Event,
    ) -> bool:
        """Until the query has ended; whether the run has, too, or the query is to be started again."""

        def tell(batch: BatchProgress) -> None:
            if not batch.was_covered:
                self._restarts = 0
            registry.visible(self._query_id(), batch)
            on_progress(batch)

        try:
            while query.isActive and not stop.is_set():
                if (batch := self._journal.next(_LOOK)) is not None:
                    tell(batch)
        finally:
            self._writer.stop()
            query.stop()
        deadline = self._clock.monotonic() + _LAST_NEWS.total_seconds()
        while self._journal.has_unfinished and self._clock.monotonic() < deadline:
            if (batch := self._journal.next(_LOOK)) is not None:
                tell(batch)
        for batch in self._journal.rest():
            tell(batch)
        return self._has_ended(session, query, stop)

    def _has_ended(self, session: "SparkSession", query: "StreamingQuery", stop: threading.Event) -> bool:
        """Why the query ended: raises a failure; False if the query may be started again."""
        failure = self._writer.failure
        if isinstance(failure, OutputRefusedError):
            self._checkpoint.batch_failed()
        if failure is not None:
            raise failure
        error = query.exception()
        if error is None:
            self._check_end_was_wanted(session, stop)
            return True
        text = str(error)
        error_type, reason = root_cause(text)
        if error_type == RunStoppedError.__name__ or (stop.is_set() and error_type in RESTARTABLE):
            return True
        if error_type in RESTARTABLE and self._restarts < _RESTARTS:
            self._restarts += 1
            _log.warning(
                "the query ended: %s (%s). Starting it again from its checkpoint, %d of at most %d times",
                reason,
                error_type,
                self._restarts,
                _RESTARTS,
            )
            return False
        _log.error("the query failed: %s", text)
        self._checkpoint.batch_failed()
        raise QueryFailedError(self._definition.name, error_type, reason)

    def _check_end_was_wanted(self, session: "SparkSession", stop: threading.Event) -> None:
        """A Spark that is shut down, by a signal to its JVM for example, ends queries without an error."""
        if stop.is_set():
            return
        ended = how_jvm_ended()
        if ended is None and session.sparkContext._jsc.sc().isStopped():  # noqa: SLF001 - has no other name
            ended = how_jvm_ended(is_lost=True) or "Spark was shut down from outside"
        if ended is None and self._settings.available_now:
            return
        reason = f"{ended or 'the query was stopped from outside'}; {self._what_helps}"
        raise QueryFailedError(self._definition.name, "SparkStopped", reason)

    def _raise_end_of_jvm(self, stop: threading.Event, error: Exception) -> None:
        """Names the end of the JVM in place of what it did to our connection to it."""
        ended = how_jvm_ended(is_lost=True)
        if ended is None:
            raise error
        if stop.is_set():  # a signal to all processes of a group, as systemd sends it
            _log.warning("%s while the run was being stopped", ended)
            return
        _log.error("%s; our connection to it: %s", ended, error)
        raise QueryFailedError(
            self._definition.name, "SparkStopped", f"{ended}; {self._what_helps}"
        ) from error

    @property
    def _what_helps(self) -> str:
        return f"nothing is lost: start the pipeline again; {self.spark_log} may say more"

    def _query_id(self) -> str:
        query_id = self._checkpoint.query_id()
        if query_id is None:
            message = f"checkpoint {self._checkpoint.folder} has no query id although a query runs"
            raise SlackwaterError(message)
        return query_id
