"""Runs sidecars: a thread follows each source from timeline to timeline, pages show all of them."""

import gc
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta

from slackwater.command.listening import HttpSettings, serving
from slackwater.cuts import (
    CutLog,
    FrontierState,
    FrontierStatus,
    RedisMarkerStore,
    TopicUnavailableError,
)
from slackwater.observe.telemetry import Telemetry
from slackwater.protocol import PublishedCut, SlackwaterError, SystemClock, epoch_ms, hide
from slackwater.protocol.log_fields import log_fields
from slackwater_sidecar.commits import SourceCommits
from slackwater_sidecar.monitor import SourceMonitor, sidecar_registry, sidecar_routes
from slackwater_sidecar.publisher import Publisher
from slackwater_sidecar.reader import SourceReader
from slackwater_sidecar.resume import LoggedDecisions, Resumption, resume
from slackwater_sidecar.service import OnStatus, Sidecar
from slackwater_sidecar.settings import SidecarSettings
from slackwater_sidecar.watch import watch_connector

logger = logging.getLogger(__name__)

OnHttp = Callable[[str], None]
STOP_WITHIN = timedelta(seconds=1.2)
"""How long sources may take to stop; the process needs some time, too. What is not finished then is left as a
kill would leave it, which is harmless."""
_LOOK_SECONDS = 0.5
_RETRY_SECONDS = 1.0
LOG_TIMEOUT = timedelta(seconds=2)
"""A sidecar that is silent for six seconds is blamed, and it has to report also while Kafka is silent."""
_REDIS_TIMEOUT = timedelta(seconds=1)


def run_sidecar(settings: SidecarSettings, stop: threading.Event, on_status: OnStatus | None = None) -> None:
    """Follows one source until ``stop`` is set; see :func:`run_sidecars`."""
    run_sidecars([settings], stop, on_status)


def run_sidecars(
    settings: Sequence[SidecarSettings],
    stop: threading.Event,
    on_status: OnStatus | None = None,
    *,
    http: HttpSettings | None = None,
    on_http: OnHttp | None = None,
    telemetry: Telemetry | None = None,
) -> None:
    """Follows sources until ``stop`` is set, then returns within two seconds.

    Waits, and says so, while Kafka or Redis is away or topics do not exist. Several sidecars may follow one
    source. A source that cannot be followed any more is shown as failed; the others continue.

    Args:
        settings: One for each source.
        stop: Set it from any thread.
        on_status: Receives the state of each source, in the thread of that source.
        http: Where ``/metrics``, ``/healthz``, ``/readyz`` and ``/status`` are, and for whom; None: nowhere.
        on_http: Receives their address, with the port that was chosen.
        telemetry: Is sent metrics and traces.

    Raises:
        ConfigError: nobody can listen there, or a certificate cannot be used.
        SlackwaterError: the only source cannot be followed; the message says what to do.
        StateError: its cut log is broken.
        SlackwaterError: all have ended, and some of several could not be followed.
    """
    threads = [SourceThread(each, stop, on_status, telemetry) for each in settings]
    monitors = [t.monitor for t in threads]
    if telemetry is not None:
        telemetry.send_metrics(sidecar_registry(monitors))
    with serving(http, lambda: sidecar_routes(monitors)) as address, _without_cyclic_gc():
        if address is not None and on_http is not None:
            on_http(address)
        for thread in threads:
            thread.start()
        while not stop.is_set() and any(t.is_alive() for t in threads):
            stop.wait(_LOOK_SECONDS)
        _join(threads)
    _raise_failures(threads)


class SourceThread(threading.Thread):
    """Follows a source, one timeline after the other, with one log and one publisher for all of them."""

    def __init__(
        self,
        settings: SidecarSettings,
        stop: threading.Event,
        on_status: OnStatus | None,
        telemetry: Telemetry | None,
    ) -> None:
        super().__init__(name=f"slackwater-{settings.source}", daemon=True)
        ratio = 0.0 if telemetry is None else telemetry.trace_ratio
        send = telemetry.send if telemetry is not None and ratio else None
        self.settings = settings
        self.stop_event = stop
        self.on_status = on_status
        self.monitor = SourceMonitor(settings.source, SystemClock(), send, ratio)
        self.commits = self.monitor.commits = SourceCommits(settings) if settings.commit_format else None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Follows the source, and keeps the error that ends this."""
        monitor = self.monitor
        with log_fields(source=monitor.source):
            try:
                self.follow()
            except BaseException as error:
                reason = hide(str(error) or repr(error), self.settings.servers.secrets)
                self.error, monitor.failure = error, reason
                exc_info = not isinstance(error, SlackwaterError)
                logger.error("source failed: %s", reason, extra={"source": monitor.source}, exc_info=exc_info)
                if self.on_status is not None and monitor.status is not None:
                    with suppress(OSError):  # nobody reads the output any more: that may be what ended it
                        self.on_status(replace(monitor.status, state=FrontierState.FAILED, detail=reason))
            finally:
                monitor.has_ended = True

    def follow(self) -> None:
        """Follows the source until asked to stop, and frees its connections.

        Raises:
            SlackwaterError: the source cannot be followed, as Redis then says; the message says what to do.
            StateError: the cut log is broken.
        """
        settings, monitor = self.settings, self.monitor
        kafka, redis = settings.servers.kafka, settings.servers.redis
        watch = monitor.watch = watch_connector(settings, monitor.clock)
        watch.begin()
        log = CutLog(settings.source, kafka, timeout=LOG_TIMEOUT)
        store = None
        if redis is not None:
            store = RedisMarkerStore.connect(redis.url, password=redis.password, timeout=_REDIS_TIMEOUT)
        restored, written = settings.restored_cuts, self._record_written
        publisher = Publisher(settings.source, log, store, restored, clock=monitor.clock, on_written=written)
        if self.commits is not None:
            self.commits.start()
        try:
            while not self.stop_event.is_set():
                self._follow_timeline(log, publisher)
        except SlackwaterError as error:
            status = FrontierStatus(
                state=FrontierState.FAILED,
                detail=hide(str(error), settings.servers.secrets),
                wall_ms=epoch_ms(monitor.clock.now()),
                sidecar=settings.sidecar_id,
            )
            publisher.report(status, [])
            raise
        finally:
            if self.commits is not None:
                self.commits.close()
            watch.close()
            publisher.close()

    def _record_written(self, cuts: Sequence[PublishedCut]) -> None:
        self.monitor.record_written(cuts)
        if self.commits is not None:
            self.commits.news.set()

    def _follow_timeline(self, log: CutLog, publisher: Publisher) -> None:
        """Follows a timeline until asked to stop, or until it has to be resumed, or another one has."""
        found = self._wait_for_resumption(log, publisher)
        if found is None:
            return
        settings = replace(self.settings, timeline=found.timeline)
        frontier = found.frontier(settings)
        reader = SourceReader(settings, found.starts(settings.source_topics), frontier)
        try:
            sidecar = Sidecar(
                settings,
                frontier,
                reader,
                publisher,
                monitor=self.monitor,
                decisions=LoggedDecisions(log, found.timeline, found.log_offset).new,
                on_status=self.on_status,
            )
            while not self.stop_event.is_set() and not sidecar.is_over:
                sidecar.turn()
                if self.commits is not None and self.commits.error is not None:
                    raise self.commits.error
            if publisher.state.is_overruled:
                text = "another sidecar's cut decides what operators have skipped: continuing from there"
                logger.info(text, extra={"source": settings.source})
            sidecar.finish()
        finally:
            reader.close()

    def _wait_for_resumption(self, log: CutLog, publisher: Publisher) -> Resumption | None:
        """Finds where to continue once Kafka answers, and notifies the publisher; None if stopped before."""
        settings, monitor = self.settings, self.monitor
        while not self.stop_event.is_set():
            monitor.record_turn()
            try:
                log.ensure_topic(replication_factor=settings.replication_factor)
                found = resume(log, settings.timeline)
                publisher.state.resume_from(found.newest)
            except TopicUnavailableError as error:
                logger.warning("waiting for Kafka: %s", error, extra={"source": settings.source})
                monitor.waits_for = hide(str(error), settings.servers.secrets)
                self.stop_event.wait(_RETRY_SECONDS)
            else:
                monitor.waits_for = None
                return found
        return None


def _join(threads: Sequence[SourceThread]) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + STOP_WITHIN.total_seconds()
    for thread in threads:
        thread.join(max(0.0, deadline - clock.monotonic()))
        if thread.is_alive():
            logger.warning(
                "source did not stop in time and is abandoned", extra={"source": thread.monitor.source}
            )


def _raise_failures(threads: Sequence[SourceThread]) -> None:
    failures = {t.monitor.source: t.error for t in threads if t.error is not None}
    if not failures:
        return
    if len(threads) == 1:
        raise next(iter(failures.values()))
    raise SlackwaterError("\n".join(f"source {source}: {error}" for source, error in failures.items()))


@contextmanager
def _without_cyclic_gc() -> Iterator[None]:
    """Disables the search for garbage cycles: the loops leave none, and it takes a third of the time."""
    gc.collect()
    gc.freeze()  # the server of the pages collects now and then
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
