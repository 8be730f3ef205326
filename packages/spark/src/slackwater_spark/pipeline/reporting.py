"""Where a run's news go: to the caller and, as far as it is there, to Redis."""

import logging
import queue
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from slackwater_markers import MarkersError, MarkerStore, PipelineStatus, RedisMarkerStore
from slackwater_protocol import Clock, ProgressRecord
from slackwater_spark.pipeline.definition import PipelineDefinition
from slackwater_spark.pipeline.progress import BatchProgress, batch_progress
from slackwater_spark.pipeline.settings import RunSettings
from slackwater_spark.pipeline.writer import WrittenBatch

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_REDIS_TIMEOUT = timedelta(seconds=1)

_log = logging.getLogger(__name__)


class BatchDurations(StreamingQueryListener):
    """Passes on what Spark measured of each batch; Spark calls it from a thread of its own."""

    def __init__(self, on_durations: Callable[[int, Mapping[str, int]], None]) -> None:
        self._on_durations = on_durations

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:
        """Nothing to tell."""

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:
        """A batch has ended."""
        self._on_durations(event.progress.batchId, dict(event.progress.durationMs))

    def onQueryIdle(self, event: "QueryIdleEvent") -> None:
        """Nothing to tell."""

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:
        """Nothing to tell."""


class BatchJournal:
    """Brings together what sink and Spark say of a batch, each in its own thread, for the run's thread."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._news: queue.Queue[WrittenBatch | tuple[int, Mapping[str, int]]] = queue.Queue()
        self._written: dict[int, WrittenBatch] = {}

    def wrote(self, batch: WrittenBatch) -> None:
        """From the thread that writes."""
        self._news.put(batch)

    def measured(self, batch_id: int, durations: Mapping[str, int]) -> None:
        """From the listener's thread, after :meth:`wrote` for the same batch."""
        self._news.put((batch_id, durations))

    def next(self, timeout: timedelta) -> BatchProgress | None:
        """The next batch of which both have told; None if the time is over or a piece was of no interest."""
        try:
            piece = self._news.get(timeout=timeout.total_seconds())
        except queue.Empty:
            return None
        if isinstance(piece, WrittenBatch):
            self._written[piece.report.batch_id] = piece
            return None
        batch_id, durations = piece
        written = self._written.pop(batch_id, None)
        return None if written is None else self._progress(written, durations)

    @property
    def has_unfinished(self) -> bool:
        """Whether a piece of news waits for its counterpart or to be read."""
        return bool(self._written) or not self._news.empty()

    def rest(self) -> list[BatchProgress]:
        """Batches of which Spark never told."""
        rest = [self._progress(written, {}) for _, written in sorted(self._written.items())]
        self._written.clear()
        return rest

    def _progress(self, written: WrittenBatch, durations: Mapping[str, int]) -> BatchProgress:
        return batch_progress(self._pipeline, written.report, written.collect_seconds, durations)


class PipelineRegistry:
    """The pipeline's entry in the marker store; a store that is away is logged once."""

    def __init__(
        self, definition: PipelineDefinition, store: MarkerStore | None, clock: Clock, timeline: int = 1
    ) -> None:
        self._definition = definition
        self._timeline = timeline
        self._store = store
        self._clock = clock
        self._is_away = False

    @classmethod
    def connect(
        cls, definition: PipelineDefinition, settings: RunSettings, clock: Clock
    ) -> "PipelineRegistry":
        """With Redis, if the settings have one."""
        store = None
        redis = settings.servers.redis
        if redis is not None:
            store = RedisMarkerStore.connect(redis.url, password=redis.password, timeout=_REDIS_TIMEOUT)
        return cls(definition, store, clock, settings.timeline)

    def started(self, query_id: str, progress: ProgressRecord | None) -> None:
        """The run has begun where the progress says."""
        if progress is None:
            self._register(query_id, batch_id=-1, timeline=self._timeline, commit_lsn=0)
        else:
            self._register(query_id, progress.batch_id, progress.timeline, progress.commit_lsn)

    def visible(self, query_id: str, batch: BatchProgress) -> None:
        """A batch has become visible."""
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
