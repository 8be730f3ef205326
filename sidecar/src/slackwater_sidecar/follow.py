"""Follows one source from timeline to timeline, from where the cut log ends until it is told to stop."""

import logging
import threading
from dataclasses import replace
from datetime import timedelta

from slackwater_markers import (
    CutLogError,
    CutLogUnavailableError,
    FrontierState,
    FrontierStatus,
    KafkaCutLog,
    RedisMarkerStore,
)
from slackwater_sidecar.errors import SidecarError
from slackwater_sidecar.monitor import SourceMonitor
from slackwater_sidecar.publisher import Publisher
from slackwater_sidecar.reader import KafkaSourceReader
from slackwater_sidecar.resume import Resumption, resume
from slackwater_sidecar.service import OnStatus, Sidecar
from slackwater_sidecar.settings import SidecarSettings

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_LOG_TIMEOUT = timedelta(seconds=5)
_REDIS_TIMEOUT = timedelta(seconds=1)


def follow_source(
    settings: SidecarSettings,
    stop: threading.Event,
    monitor: SourceMonitor,
    on_status: OnStatus | None = None,
) -> None:
    """Follows a source until ``stop`` is set.

    Raises:
        SidecarError: the source cannot be followed; the message says what to do.
        slackwater_markers.CutLogError: the cut log is broken.
    """
    follower = _Follower(settings, stop, monitor, on_status)
    try:
        while not stop.is_set():
            follower.follow_timeline()
    except (SidecarError, CutLogError) as error:
        follower.report_failure(error)
        raise
    finally:
        follower.close()


class _Follower:
    """Follows one timeline after the other, with one log and one publisher for all of them."""

    def __init__(
        self,
        settings: SidecarSettings,
        stop: threading.Event,
        monitor: SourceMonitor,
        on_status: OnStatus | None,
    ) -> None:
        kafka, redis = settings.servers.kafka, settings.servers.redis
        self._settings = settings
        self._stop = stop
        self._monitor = monitor
        self._on_status = on_status
        self._log = KafkaCutLog(settings.source, kafka.bootstrap, kafka=kafka.options, timeout=_LOG_TIMEOUT)
        store = (
            None
            if redis is None
            else RedisMarkerStore.connect(redis.url, password=redis.password, timeout=_REDIS_TIMEOUT)
        )
        self._publisher = Publisher(
            settings.source, self._log, store, settings.restored_cuts, clock=monitor.clock
        )

    def follow_timeline(self) -> None:
        """Follows a timeline until asked to stop, or until an operator decides that another one begins."""
        found = self._wait_for_resumption()
        if found is None:
            return
        settings = replace(self._settings, timeline=found.timeline)
        frontier = found.frontier(settings)
        reader = KafkaSourceReader(settings, found.starts(settings.source_topics), frontier)
        try:
            sidecar = Sidecar(
                settings,
                frontier,
                reader,
                self._publisher,
                monitor=self._monitor,
                decisions=found.decisions(self._log).new,
                on_status=self._on_status,
            )
            while not self._stop.is_set() and sidecar.next_timeline is None:
                sidecar.turn()
            sidecar.finish()
        finally:
            reader.close()

    def report_failure(self, error: Exception) -> None:
        """Tells Redis why the source is followed no more."""
        clock = self._monitor.clock
        status = FrontierStatus(
            state=FrontierState.FAILED,
            detail=str(error),
            wall_ms=int(clock.now().timestamp() * 1000),
            sidecar=self._settings.sidecar_id,
        )
        self._publisher.report(status, [])

    def close(self) -> None:
        """Frees connections."""
        self._publisher.close()

    def _wait_for_resumption(self) -> Resumption | None:
        """Finds where to go on as soon as Kafka answers and tells the publisher; None when stopped before."""
        settings, monitor = self._settings, self._monitor
        while not self._stop.is_set():
            monitor.record_turn()
            try:
                self._log.ensure_topic(replication_factor=settings.replication_factor)
                found = resume(self._log, settings.timeline)
                self._publisher.resume_from(found.newest)
            except CutLogUnavailableError as error:
                logger.warning("waiting for Kafka: %s", error, extra={"source": settings.source})
                monitor.waits_for = str(error)
                self._stop.wait(_RETRY_SECONDS)
            else:
                monitor.waits_for = None
                return found
        return None
