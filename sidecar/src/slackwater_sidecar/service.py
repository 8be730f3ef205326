"""The sidecar: reads, moves the frontier, publishes, says how it is."""

import gc
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from slackwater_cdc import Frontier
from slackwater_markers import (
    CutLogUnavailableError,
    FrontierState,
    FrontierStatus,
    KafkaCutLog,
    RedisMarkerStore,
)
from slackwater_protocol import Clock, OpenTransaction, SystemClock
from slackwater_sidecar.errors import SourceUnavailableError
from slackwater_sidecar.kafka_reader import KafkaSourceReader
from slackwater_sidecar.publisher import Publisher
from slackwater_sidecar.reader import SourceReader
from slackwater_sidecar.resume import resumed_frontier, starts_of
from slackwater_sidecar.settings import SidecarSettings
from slackwater_sidecar.status import SidecarStatus
from slackwater_sidecar.watch import OpenTransactions, state_of

logger = logging.getLogger(__name__)

OnStatus = Callable[[SidecarStatus], None]

_BUSY_SECONDS = 0.005
_IDLE_SECONDS = 0.02
_ENDS_INTERVAL = 0.05
_RETRY_SECONDS = 1.0
_LOG_TIMEOUT = timedelta(seconds=5)
_REDIS_TIMEOUT = timedelta(seconds=1)


class Sidecar:
    """One turn of the loop at a time: :meth:`turn`. Used by one thread.

    Args:
        settings: What to follow.
        frontier: Where to go on.
        reader: Feeds the frontier.
        publisher: Takes the cuts.
        clock: The time.
        on_status: Told about the state at every status interval.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        frontier: Frontier,
        reader: SourceReader,
        publisher: Publisher,
        *,
        clock: Clock,
        on_status: OnStatus | None = None,
    ) -> None:
        self._settings = settings
        self._frontier = frontier
        self._reader = reader
        self._publisher = publisher
        self._clock = clock
        self._on_status = on_status
        self._open = OpenTransactions(settings.open_after)
        self._topics: list[str] = []
        self._records = 0
        self._reported_records = 0
        self._is_busy = False
        self._trouble = ""
        self._published_at = self._ends_at = self._reported_at = float("-inf")
        self._status = self._frontier_status(FrontierState.WAITING, "starting")

    def turn(self) -> int:
        """Reads once, publishes if it is time; returns the number of records read.

        Raises:
            SourceTruncatedError: the source cannot be followed any more.
        """
        try:
            count = self._reader.poll(self._frontier, _BUSY_SECONDS if self._is_busy else _IDLE_SECONDS)
            self._records += count
            self._is_busy = count > 0
            self._move()
            self._reader.balance(self._frontier)
        except SourceUnavailableError as error:
            self._note_trouble(error)
            count = 0
        if self._clock.monotonic() - self._reported_at >= self._settings.status_interval.total_seconds():
            self._look_around()
        return count

    def finish(self) -> None:
        """Publishes what is ready and says that nothing more comes."""
        if not self._trouble:
            self._publisher.publish(self._frontier.cuts(), self._status)
        status = self._frontier_status(FrontierState.STOPPED, "")
        self._publisher.report(status, [])

    def _move(self) -> None:
        frontier, now = self._frontier, self._clock.monotonic()
        events = frontier.advance()
        if frontier.end_offsets_wanted and now - self._ends_at >= _ENDS_INTERVAL:
            self._ends_at = now
            self._topics = self._reader.discover(frontier)
            frontier.end_offsets(self._reader.end_offsets())
            events = frontier.advance()
        interval = self._settings.publish_interval if events else self._settings.quiet_interval
        if frontier.has_moved and now - self._published_at >= interval.total_seconds():
            self._publisher.publish(frontier.cuts(), replace(self._status, wall_ms=self._wall_ms()))
            self._published_at = now

    def _look_around(self) -> None:
        now = self._clock.monotonic()
        elapsed, self._reported_at = now - self._reported_at, now
        try:
            self._topics = self._reader.discover(self._frontier)
            self._trouble = ""
        except SourceUnavailableError as error:
            self._note_trouble(error)
        if self._publisher.log_error and not self._trouble:
            self._publisher.publish([], self._status)
        wall_ms = self._wall_ms()
        open_ = self._open.look(self._frontier, now, wall_ms)
        state, detail = state_of(self._settings, self._frontier, self._topics, open_)
        trouble = self._trouble or self._publisher.log_error
        if trouble:
            state, detail = FrontierState.WAITING, trouble
        self._status = self._frontier_status(state, detail)
        self._publisher.report(self._status, open_)
        if self._on_status is not None:
            self._on_status(self._sidecar_status(open_, elapsed, wall_ms))
        self._reported_records = self._records

    def _note_trouble(self, error: SourceUnavailableError) -> None:
        if not self._trouble:
            logger.warning("source is away: %s", error)
        self._trouble = str(error)

    def _frontier_status(self, state: FrontierState, detail: str) -> FrontierStatus:
        sidecar = self._settings.sidecar_id
        return FrontierStatus(state=state, detail=detail, wall_ms=self._wall_ms(), sidecar=sidecar)

    def _wall_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    def _sidecar_status(
        self, open_: Sequence[OpenTransaction], elapsed: float, wall_ms: int
    ) -> SidecarStatus:
        newest = self._publisher.newest
        cut = newest.cut if newest else None
        return SidecarStatus(
            source=self._settings.source,
            timeline=self._settings.timeline,
            state=self._status.state,
            detail=self._status.detail,
            lsn=cut.lsn if cut else 0,
            event_count=cut.event_count if cut else 0,
            records_read=self._records,
            records_per_second=(self._records - self._reported_records) / elapsed,
            lag_ms=wall_ms - cut.commit_ts_ms if cut else None,
            open=tuple(open_),
            redis_error=self._publisher.store_error,
        )


def run_sidecar(settings: SidecarSettings, stop: threading.Event, on_status: OnStatus | None = None) -> None:
    """Follows a source until ``stop`` is set, then returns within two seconds.

    Waits, and says so, while Kafka or Redis is away or topics do not exist. Several sidecars may follow one
    source.

    Raises:
        SidecarError: the source cannot be followed; the message says what to do.
        slackwater_markers.CutLogError: the cut log is broken.
    """
    log = KafkaCutLog(settings.source, settings.bootstrap, kafka=settings.kafka, timeout=_LOG_TIMEOUT)
    store = None
    if settings.redis_url is not None:
        store = RedisMarkerStore.connect(
            settings.redis_url, password=settings.redis_password, timeout=_REDIS_TIMEOUT
        )
    publisher = Publisher(settings.source, log, store, settings.restored_cuts)
    try:
        frontier = _prepared(settings, log, publisher, stop)
        if frontier is None:
            return
        newest = publisher.newest
        reader = KafkaSourceReader(settings, starts_of(settings.source, newest.cut if newest else None))
        try:
            clock = SystemClock()
            sidecar = Sidecar(settings, frontier, reader, publisher, clock=clock, on_status=on_status)
            with _without_cyclic_gc():
                while not stop.is_set():
                    sidecar.turn()
            sidecar.finish()
        finally:
            reader.close()
    finally:
        publisher.close()


def _prepared(
    settings: SidecarSettings, log: KafkaCutLog, publisher: Publisher, stop: threading.Event
) -> Frontier | None:
    """The frontier to go on from, as soon as Kafka answers; None when stopped before."""
    while not stop.is_set():
        try:
            log.ensure_topic(replication_factor=settings.replication_factor)
            newest = log.newest()
            publisher.go_on_from(newest)
            return resumed_frontier(settings, log, newest)
        except CutLogUnavailableError as error:
            logger.warning("waiting for Kafka: %s", error)
            stop.wait(_RETRY_SECONDS)
    return None


@contextmanager
def _without_cyclic_gc() -> Iterator[None]:
    """Nothing in the loop makes cycles that live; looking for them takes a third of the time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
