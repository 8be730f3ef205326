"""The progress of a run, batch by batch, and how it is shown to others."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from slackwater_markers import MarkersError, MarkerStore, PipelineStatus, RedisMarkerStore
from slackwater_protocol import Clock, ProgressRecord
from slackwater_spark.pipeline.definition import PipelineDefinition
from slackwater_spark.pipeline.settings import RunSettings

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
    """The output held the batch already: the answer to its commit was lost."""
    seconds: Mapping[str, float]
    """By part, one after the other: ``plan`` (choosing and dividing the batch), ``read`` and ``evaluate``
    (the slowest task of each kind), ``schedule`` (whatever else Spark does meanwhile), ``state`` (writing
    it), ``produce`` and ``commit`` (the sink)."""

    @property
    def lag(self) -> timedelta:
        """The time from the database's commit of the newest transaction to its visibility in the output."""
        return self.visible_at - self.committed_at


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
            output=", ".join(dict.fromkeys(output.name for output in self._definition.outputs)),
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
