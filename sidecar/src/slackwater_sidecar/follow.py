"""Follows one source from timeline to timeline, from where the cut log ends until it is told to stop."""

import logging
import threading
from dataclasses import dataclass, replace
from datetime import timedelta

from slackwater_cdc import Frontier
from slackwater_markers import (
    CutLogError,
    CutLogUnavailableError,
    FrontierState,
    FrontierStatus,
    KafkaCutLog,
    RedisMarkerStore,
)
from slackwater_sidecar.decision_feed import LoggedDecisions
from slackwater_sidecar.errors import SidecarError
from slackwater_sidecar.lookup import Starts
from slackwater_sidecar.monitor import SourceMonitor
from slackwater_sidecar.publisher import Publisher
from slackwater_sidecar.reader import KafkaSourceReader
from slackwater_sidecar.resume import resume
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
    kafka = settings.servers.kafka
    log = KafkaCutLog(settings.source, kafka.bootstrap, kafka=kafka.options, timeout=_LOG_TIMEOUT)
    publisher = Publisher(settings.source, log, _store(settings), settings.restored_cuts, clock=monitor.clock)
    try:
        while not stop.is_set():
            beginning = _wait_for_beginning(settings, log, publisher, monitor, stop)
            if beginning is not None:
                _follow_timeline(beginning, publisher, monitor, stop, on_status)
    except (SidecarError, CutLogError) as error:
        _report_failure(settings, publisher, monitor, error)
        raise
    finally:
        publisher.close()


@dataclass(frozen=True, slots=True)
class _Beginning:
    """Where a timeline is followed from."""

    settings: SidecarSettings
    frontier: Frontier
    starts: Starts
    decisions: LoggedDecisions


def _store(settings: SidecarSettings) -> RedisMarkerStore | None:
    redis = settings.servers.redis
    if redis is None:
        return None
    return RedisMarkerStore.connect(redis.url, password=redis.password, timeout=_REDIS_TIMEOUT)


def _wait_for_beginning(
    settings: SidecarSettings,
    log: KafkaCutLog,
    publisher: Publisher,
    monitor: SourceMonitor,
    stop: threading.Event,
) -> _Beginning | None:
    """Returns where to go on, as soon as Kafka answers; None when stopped before."""
    while not stop.is_set():
        monitor.record_turn()
        try:
            log.ensure_topic(replication_factor=settings.replication_factor)
            beginning = _beginning(settings, log, publisher)
        except CutLogUnavailableError as error:
            logger.warning("waiting for Kafka: %s", error, extra={"source": settings.source})
            monitor.waits_for = str(error)
            stop.wait(_RETRY_SECONDS)
        else:
            monitor.waits_for = None
            return beginning
    return None


def _follow_timeline(
    beginning: _Beginning,
    publisher: Publisher,
    monitor: SourceMonitor,
    stop: threading.Event,
    on_status: OnStatus | None,
) -> None:
    """Follows a timeline until asked to stop, or until an operator has decided that another one begins."""
    settings = beginning.settings
    reader = KafkaSourceReader(settings, beginning.starts)
    try:
        sidecar = Sidecar(
            settings,
            beginning.frontier,
            reader,
            publisher,
            monitor=monitor,
            decisions=beginning.decisions.new,
            on_status=on_status,
        )
        while not stop.is_set() and sidecar.next_timeline is None:
            sidecar.turn()
        sidecar.finish()
    finally:
        reader.close()


def _report_failure(
    settings: SidecarSettings, publisher: Publisher, monitor: SourceMonitor, error: Exception
) -> None:
    wall_ms = int(monitor.clock.now().timestamp() * 1000)
    status = FrontierStatus(
        state=FrontierState.FAILED, detail=str(error), wall_ms=wall_ms, sidecar=settings.sidecar_id
    )
    publisher.report(status, [])


def _beginning(settings: SidecarSettings, log: KafkaCutLog, publisher: Publisher) -> _Beginning:
    found = resume(log, settings.timeline)
    publisher.resume_from(found.newest)
    settings = replace(settings, timeline=found.timeline)
    decisions = LoggedDecisions(log, found.timeline, found.log_offset)
    return _Beginning(settings, found.frontier(settings), found.starts(settings.source_topics), decisions)
