"""The progress of a run: what the sink and Spark say of each batch, put together, and shown to others."""

import logging
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from slackwater_markers import MarkersError, MarkerStore, PipelineStatus, RedisMarkerStore
from slackwater_protocol import Clock, ProgressRecord
from slackwater_spark.pipeline.definition import PipelineDefinition
from slackwater_spark.pipeline.settings import RunSettings
from slackwater_spark.sink import WriteReport

_REDIS_TIMEOUT = timedelta(seconds=1)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """A batch that is visible."""

    pipeline: str
    source: str
    timeline: int
    batch_id: int
    commit_lsn: int
    """The view shows everything up to and including this commit."""
    committed_at: datetime
    """When the newest transaction of the batch was committed in the database."""
    visible_at: datetime
    """When a ``read_committed`` reader of the output could see it."""
    events: int
    """Change events of the source in the batch, over all its tables."""
    transactions: int
    """Source transactions with a change event."""
    documents: int
    """Records written to the output, deletes included."""
    deletes: int
    was_covered: bool
    """The output held the batch already: the run before ended between Kafka's commit and Spark's."""
    seconds: Mapping[str, float]
    """By part. ``collect`` (source, stage, transfer to the driver), ``produce`` and ``commit`` are the
    sink's; the others are Spark's ``durationMs``; there ``addBatch`` spans these three. Spark's are
    absent if it did not report the batch before the run ended."""

    @property
    def lag(self) -> timedelta:
        """The time from the database's commit of the newest transaction to its visibility in the output."""
        return self.visible_at - self.committed_at


class ProgressQueue:
    """Brings together what sink and Spark say of a batch, each in its own thread, for the run's thread.

    Args:
        pipeline: The pipeline's name.
    """

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._news: queue.Queue[BatchProgress | tuple[int, Mapping[str, int]]] = queue.Queue()
        self._written: dict[int, BatchProgress] = {}
        self.listener: StreamingQueryListener = _DurationListener(self.put_durations)
        """To be added to the session, so that Spark tells what it measures."""

    def put_written(self, report: WriteReport, collect_seconds: float) -> None:
        """Adds what the sink says of a batch, and how long it took to get there; called by its thread."""
        header = report.header
        progress = BatchProgress(
            pipeline=self._pipeline,
            source=header.source,
            timeline=header.timeline,
            batch_id=report.batch_id,
            commit_lsn=header.to_lsn,
            committed_at=datetime.fromtimestamp(header.commit_ts_ms / 1000, UTC),
            visible_at=report.visible_at,
            events=header.event_count,
            transactions=len(header.transactions),
            documents=report.documents,
            deletes=report.deletes,
            was_covered=report.was_covered,
            seconds={
                "collect": collect_seconds,
                "produce": report.produce_seconds,
                "commit": report.commit_seconds,
            },
        )
        self._news.put(progress)

    def put_durations(self, batch_id: int, milliseconds: Mapping[str, int]) -> None:
        """Adds what Spark measured; called by the listener's thread, after the sink for the same batch."""
        self._news.put((batch_id, milliseconds))

    def next(self, timeout: timedelta) -> BatchProgress | None:
        """Takes the next batch of which both have told.

        None if the time is over, or a piece came that completes no batch: durations of one that wrote
        nothing, or a batch whose durations are still to come.
        """
        try:
            piece = self._news.get(timeout=timeout.total_seconds())
        except queue.Empty:
            return None
        if isinstance(piece, BatchProgress):
            self._written[piece.batch_id] = piece
            return None
        batch_id, milliseconds = piece
        written = self._written.pop(batch_id, None)
        if written is None:
            return None
        measured = {name: ms / 1000 for name, ms in milliseconds.items()}
        return replace(written, seconds={**written.seconds, **measured})

    @property
    def has_unfinished(self) -> bool:
        """Says that a piece waits for its counterpart or to be read."""
        return bool(self._written) or not self._news.empty()

    def take_rest(self) -> list[BatchProgress]:
        """Takes the batches of which Spark has not told."""
        rest = [written for _, written in sorted(self._written.items())]
        self._written.clear()
        return rest


class StatusReporter:
    """Keeps the pipeline's entry in the marker store up to date, where ``slackwater status`` finds it.

    A store that is away is logged once, and costs the run nothing else.

    Args:
        definition: The pipeline.
        store: None: nothing is reported.
        clock: Gives the time of each report.
        timeline: The timeline that the run reads.
    """

    def __init__(
        self, definition: PipelineDefinition, store: MarkerStore | None, clock: Clock, timeline: int = 1
    ) -> None:
        self._definition = definition
        self._timeline = timeline
        self._store = store
        self._clock = clock
        self._is_away = False

    @classmethod
    def connect(cls, definition: PipelineDefinition, settings: RunSettings, clock: Clock) -> "StatusReporter":
        """Makes one that reports to Redis, if the settings have one."""
        store = None
        redis = settings.servers.redis
        if redis is not None:
            store = RedisMarkerStore.connect(redis.url, password=redis.password, timeout=_REDIS_TIMEOUT)
        return cls(definition, store, clock, settings.timeline)

    def report_start(self, query_id: str, progress: ProgressRecord | None) -> None:
        """Reports that the run has begun where the progress says; None: nothing is visible yet."""
        if progress is None:
            self._register(query_id, batch_id=-1, timeline=self._timeline, commit_lsn=0)
        else:
            self._register(query_id, progress.batch_id, progress.timeline, progress.commit_lsn)

    def report_batch(self, query_id: str, batch: BatchProgress) -> None:
        """Reports that a batch has become visible."""
        self._register(query_id, batch.batch_id, batch.timeline, batch.commit_lsn)

    def close(self) -> None:
        """Frees the connection."""
        if self._store is not None:
            self._store.close()

    def _register(self, query_id: str, batch_id: int, timeline: int, commit_lsn: int) -> None:
        if self._store is None:
            return
        status = PipelineStatus(
            name=self._definition.name,
            source=self._definition.source,
            output=", ".join(output.topic for output in self._definition.outputs),
            query_id=query_id,
            batch_id=batch_id,
            timeline=timeline,
            commit_lsn=commit_lsn,
            wall_ms=int(self._clock.now().timestamp() * 1000),
        )
        try:
            self._store.register_pipeline(status)
        except MarkersError as error:
            if not self._is_away:
                _log.warning("progress is not shown in the marker store: %s", error)
            self._is_away = True
        else:
            self._is_away = False


class _DurationListener(StreamingQueryListener):
    """Passes on what Spark measured of each batch; Spark calls it from a thread of its own."""

    def __init__(self, on_durations: Callable[[int, Mapping[str, int]], None]) -> None:
        self._on_durations = on_durations

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Does nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Passes the durations of a batch on that has ended."""
        self._on_durations(event.progress.batchId, dict(event.progress.durationMs))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Does nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Does nothing."""
