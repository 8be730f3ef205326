"""The pipeline's entry in the marker store, where `slackwater status` finds it."""

import logging
from datetime import timedelta

from slackwater_markers import MarkersError, MarkerStore, PipelineStatus, RedisMarkerStore
from slackwater_protocol import Clock, ProgressRecord
from slackwater_spark.pipeline.definition import PipelineDefinition
from slackwater_spark.pipeline.progress import BatchProgress
from slackwater_spark.pipeline.settings import RunSettings

_REDIS_TIMEOUT = timedelta(seconds=1)

_log = logging.getLogger(__name__)


class StatusReporter:
    """Keeps the pipeline's entry up to date, as far as there is a store; one that is away is logged once.

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
