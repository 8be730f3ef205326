"""Running a pipeline: one streaming query from the source through its stages into the sink."""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import timedelta
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # has no stubs
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from slackwater_protocol import Clock, SlackwaterError, SourceTopics, SystemClock
from slackwater_spark.errors import OutputRefusedError, QueryFailedError
from slackwater_spark.pipeline.definition import PipelineDefinition
from slackwater_spark.pipeline.failure import RESTARTABLE, root_cause
from slackwater_spark.pipeline.fingerprint import (
    PipelineFingerprint,
    check_fingerprint,
    claim_checkpoint,
)
from slackwater_spark.pipeline.jvm import explain_jvm_end
from slackwater_spark.pipeline.progress import BatchProgress, ProgressQueue, StatusReporter
from slackwater_spark.pipeline.query import BatchWriter, RunStoppedError, packed_documents
from slackwater_spark.pipeline.session import spark_session
from slackwater_spark.pipeline.settings import RunSettings
from slackwater_spark.pipeline.sinks import make_sink
from slackwater_spark.sink import REQUEST_TIMEOUT, SinkProbe
from slackwater_spark.source.kafka_reader import existing_topics
from slackwater_spark.state import Checkpoint, CheckpointHold

_SPARK_LOG = "spark.log"

_POLL_INTERVAL = timedelta(milliseconds=200)
_LAST_PROGRESS_WAIT = timedelta(seconds=2)
_MAX_RESTARTS = 5
"""The number of times in a row that a query is started again without a batch of it having become visible."""

_log = logging.getLogger(__name__)


def run_pipeline(
    definition: PipelineDefinition,
    settings: RunSettings,
    on_progress: Callable[[BatchProgress], None] | None = None,
    *,
    stop: threading.Event | None = None,
    session: SparkSession | None = None,
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
        PipelineStateError: the checkpoint is of a pipeline that meant something else, another pipeline of
            this name has written, or the output is not as it was left; nothing was touched.
        RunOvertakenError: another run took over.
        PipelineUnavailableError: Spark does not start, the output cannot be reached, or the checkpoint is
            being distributed over other partitions.
        QueryFailedError: the query ended with an error.
    """
    run = _PipelineRun(
        definition,
        settings,
        on_progress=on_progress or (lambda _: None),
        on_step=on_step or (lambda _: None),
        stop=stop or threading.Event(),
        clock=SystemClock(),
        probe=probe,
    )
    run.check()
    if session is not None:
        run.run(session)
        return
    run.on_step("starting Spark")
    with spark_session(definition.name, settings, run.spark_log) as own:
        run.run(own)


class _PipelineRun:
    def __init__(
        self,
        definition: PipelineDefinition,
        settings: RunSettings,
        *,
        on_progress: Callable[[BatchProgress], None],
        on_step: Callable[[str], None],
        stop: threading.Event,
        clock: Clock,
        probe: SinkProbe | None = None,
    ) -> None:
        self._definition = definition
        self._settings = settings
        self._on_progress = on_progress
        self.on_step = on_step
        self._stop = stop
        self._clock = clock
        self._checkpoint = Checkpoint(definition.checkpoint(settings.checkpoint))
        self._fingerprint = PipelineFingerprint.take(definition, settings.timeline)
        without_output = self._checkpoint.batches_without_input
        self._sink = make_sink(definition, settings, without_output, probe=probe, clock=clock)
        self._progress = ProgressQueue(definition.name)
        self._writer = self._new_writer()
        self._restarts = 0

    @property
    def spark_log(self) -> Path:
        """The file that Spark's JVM logs to."""
        return self._settings.spark_log or self._checkpoint.folder / _SPARK_LOG

    def check(self) -> None:
        """Refuses what can be refused before anything is started, written or fenced."""
        check_fingerprint(self._checkpoint, self._fingerprint)
        self._announce_wait_for_sink("its progress")
        self._sink.check(self._checkpoint.query_id())
        self._warn_of_missing_topics()

    def run(self, session: SparkSession) -> None:
        """Takes the pipeline over, runs it and lets it go."""
        holder = f"a run of {self._definition.name}"
        with self._checkpoint.hold(holder, alone=False) as hold:
            try:
                self._run(session, hold)
            except (Py4JError, OSError) as error:  # OSError: a socket to the JVM
                self._raise_end_of_jvm(error)

    def _warn_of_missing_topics(self) -> None:
        """Warns of tables without a topic, which count as empty: right if nobody has written to them yet."""
        known = existing_topics(self._settings.servers.kafka, REQUEST_TIMEOUT)
        topics = SourceTopics(self._definition.source, self._definition.topics)
        for table, others in tables_without_topic(self._definition.tables, topics, known):
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

    def _run(self, session: SparkSession, hold: CheckpointHold) -> None:
        status = StatusReporter.connect(self._definition, self._settings, self._clock)
        session.streams.addListener(self._progress.listener)
        try:
            claim_checkpoint(self._checkpoint, self._fingerprint)
            self._announce_wait_for_sink("its outputs")
            progress = self._sink.open()
            self._checkpoint.replan_failed_batch(None if progress is None else progress.batch_id, hold)
            self.on_step("starting its query")
            query = self._start(session)
            status.report_start(self._query_id(), progress)
            self.on_step("waiting for a cut with something new")
            self._watch(query, status)
            while not self._has_ended(session, query):
                query = self._start(session)
                self._watch(query, status)
        finally:
            self._sink.close()
            session.streams.removeListener(self._progress.listener)
            status.close()

    def _new_writer(self) -> BatchWriter:
        return BatchWriter(self._sink, self._query_id, self._clock, self._progress.put_written)

    def _announce_wait_for_sink(self, what: str) -> None:
        until = self._clock.now() + REQUEST_TIMEOUT
        self.on_step(
            f"asking {self._sink.place} for {what}, until {until:%H:%M:%S} UTC if it does not answer"
        )

    def _start(self, session: SparkSession) -> StreamingQuery:
        self._writer = self._new_writer()
        documents = packed_documents(session, self._definition, self._settings)
        writer = documents.writeStream.queryName(self._definition.name).foreachBatch(self._writer)
        writer = writer.option("checkpointLocation", str(self._checkpoint.folder))
        if self._settings.available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def _watch(self, query: StreamingQuery, status: StatusReporter) -> None:
        """Reports the query's batches until it has ended, or the run is to stop and the query was stopped."""
        try:
            while query.isActive and not self._stop.is_set():
                self._report(self._progress.next(_POLL_INTERVAL), status)
        finally:
            self._writer.stop()
            query.stop()
        deadline = self._clock.monotonic() + _LAST_PROGRESS_WAIT.total_seconds()
        while self._progress.has_unfinished and self._clock.monotonic() < deadline:
            self._report(self._progress.next(_POLL_INTERVAL), status)
        for batch in self._progress.take_rest():
            self._report(batch, status)

    def _report(self, batch: BatchProgress | None, status: StatusReporter) -> None:
        if batch is None:
            return
        if not batch.was_covered:
            self._restarts = 0
        status.report_batch(self._query_id(), batch)
        self._on_progress(batch)

    def _has_ended(self, session: SparkSession, query: StreamingQuery) -> bool:
        """Tells whether the run has ended with its query; raises a failure; False: the query starts again."""
        failure = self._writer.failure
        if isinstance(failure, OutputRefusedError):
            self._checkpoint.note_failed_batch()
        if failure is not None:
            raise failure
        error = query.exception()
        if error is None:
            self._check_end_was_wanted(session)
            return True
        text = str(error)
        error_type, reason = root_cause(text)
        if error_type == RunStoppedError.__name__ or (self._stop.is_set() and error_type in RESTARTABLE):
            return True
        if error_type in RESTARTABLE and self._restarts < _MAX_RESTARTS:
            self._restarts += 1
            _log.warning(
                "the query ended: %s (%s). Starting it again from its checkpoint, %d of at most %d times",
                reason,
                error_type,
                self._restarts,
                _MAX_RESTARTS,
            )
            return False
        _log.error("the query failed: %s", text)
        self._checkpoint.note_failed_batch()
        raise self._failed(error_type, reason)

    def _check_end_was_wanted(self, session: SparkSession) -> None:
        """Raises if Spark was shut down, say by a signal to its JVM: queries then end without an error."""
        if self._stop.is_set():
            return
        ended = explain_jvm_end()
        if ended is None and session.sparkContext._jsc.sc().isStopped():  # noqa: SLF001 - has no other name
            ended = explain_jvm_end(is_lost=True) or "Spark was shut down from outside"
        if ended is None and self._settings.available_now:
            return
        reason = f"{ended or 'the query was stopped from outside'}; {self._what_helps}"
        raise self._failed("SparkStopped", reason)

    def _raise_end_of_jvm(self, error: Exception) -> None:
        """Names the end of the JVM in place of what it did to our connection to it."""
        ended = explain_jvm_end(is_lost=True)
        if ended is None:
            raise error
        if self._stop.is_set():  # a signal to all processes of a group, as systemd sends it
            _log.warning("%s while the run was being stopped", ended)
            return
        _log.error("%s; our connection to it: %s", ended, error)
        raise self._failed("SparkStopped", f"{ended}; {self._what_helps}") from error

    def _failed(self, error_type: str, reason: str) -> QueryFailedError:
        return QueryFailedError(f"pipeline {self._definition.name!r} stopped: {reason} ({error_type})")

    @property
    def _what_helps(self) -> str:
        return f"nothing is lost: start the pipeline again; {self.spark_log} may say more"

    def _query_id(self) -> str:
        query_id = self._checkpoint.query_id()
        if query_id is None:
            message = f"checkpoint {self._checkpoint.folder} has no query id although a query runs"
            raise SlackwaterError(message)
        return query_id


def tables_without_topic(
    tables: Iterable[str], topics: SourceTopics, known: Collection[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Finds the tables whose topics do not exist, each with the topics that its partitions may have.

    The connector makes a topic with the first row, so a new table has none. But the changes of a partitioned
    table may go to topics of its partitions, whose names begin with its own as a rule.

    Args:
        tables: Full names.
        topics: The topics of the source.
        known: The topics that exist.
    """
    named = {table: topics.data(table) for table in tables}
    for table, topic in named.items():
        if topic not in known:
            others = set(known).difference(named.values())
            yield table, tuple(sorted(other for other in others if other.startswith(topic)))
