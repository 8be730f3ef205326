"""The sidecar of one source on one timeline: reads, moves the frontier, publishes, says how it is."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from slackwater_cdc import Frontier
from slackwater_markers import CutLogUnavailableError, FrontierState, FrontierStatus
from slackwater_protocol import OpenTransaction, SkipDecision, TimelineDecision
from slackwater_sidecar.chronicle import Chronicle
from slackwater_sidecar.decision_feed import Decision
from slackwater_sidecar.errors import SourceUnavailableError
from slackwater_sidecar.monitor import Gauges, SourceMonitor
from slackwater_sidecar.pace import Pace
from slackwater_sidecar.publication import Publication
from slackwater_sidecar.publisher import Publisher
from slackwater_sidecar.reader import SourceReader
from slackwater_sidecar.settings import SidecarSettings
from slackwater_sidecar.status import SidecarStatus
from slackwater_sidecar.watch import OpenTransactions, regression_notice, state_of

logger = logging.getLogger(__name__)

OnStatus = Callable[[SidecarStatus], None]
NewDecisions = Callable[[], Sequence[Decision]]
"""What was decided since it was last asked; raises CutLogUnavailableError."""

_BUSY_SECONDS = 0.005
_IDLE_SECONDS = 0.02
_ENDS_INTERVAL = 0.05
_MANY_RECORDS = 2_000
"""A poll that brings so many has not come to the end of what there is."""
_REST_SECONDS = 10.0
"""After so long without a record the source is at rest: no commit that a snapshot holds is still to come."""


class Sidecar:
    """One turn of the loop at a time: :meth:`turn`. Used by one thread.

    Args:
        settings: What to follow, on which timeline.
        frontier: Where to go on.
        reader: Feeds the frontier.
        publisher: Takes the cuts.
        decisions: What operators decide; None: nothing.
        monitor: Shows this source to others; it has the clock.
        on_status: Told about the state at every status interval.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        frontier: Frontier,
        reader: SourceReader,
        publisher: Publisher,
        *,
        monitor: SourceMonitor,
        decisions: NewDecisions | None = None,
        on_status: OnStatus | None = None,
    ) -> None:
        self._settings = settings
        self._frontier = frontier
        self._reader = reader
        self._publisher = publisher
        self._decisions = decisions
        self._monitor = monitor
        self._clock = monitor.clock
        self._on_status = on_status
        self._publication = Publication(settings, frontier, publisher, monitor, self._clock)
        self._open = OpenTransactions(settings.open_after)
        self._chronicle = Chronicle(settings.source)
        self._asking = Pace()
        self._topics: list[str] = []
        self._reported_records = monitor.records
        self._is_busy = False
        self._trouble = ""
        self._reported_at = float("-inf")
        self._read_at = self._clock.monotonic()
        self._is_behind = False
        self._status = self._frontier_status(FrontierState.WAITING, "starting")
        self.next_timeline: TimelineDecision | None = None
        """Set when an operator has decided so: this sidecar is over, another one begins there."""

    def turn(self) -> int:
        """Reads once, publishes if it is time; returns the number of records read.

        Raises:
            SourceTruncatedError: the source cannot be followed any more.
        """
        self._monitor.turned()
        try:
            count = self._reader.poll(self._frontier, _BUSY_SECONDS if self._is_busy else _IDLE_SECONDS)
            self._monitor.records += count
            self._is_busy, self._is_behind = count > 0, count >= _MANY_RECORDS
            if count:
                self._read_at = self._clock.monotonic()
            self._publication.note_read()
            self._move()
            self._reader.balance(self._frontier)
        except SourceUnavailableError as error:
            self._note_trouble(error)
            count = 0
        if self._clock.monotonic() - self._reported_at >= self._settings.status_interval.total_seconds():
            self._look_around()
        return count

    def finish(self) -> None:
        """Publishes what is ready and says that nothing more comes, unless another timeline does."""
        if not self._trouble:
            self._publication.publish(self._status)
        if self.next_timeline is None:
            self._publisher.report(self._frontier_status(FrontierState.STOPPED, ""), [])
            self._chronicle.look(FrontierState.STOPPED, "", [])

    def _move(self) -> None:
        frontier = self._frontier
        events = frontier.advance()
        if frontier.end_offsets_wanted and self._asking.is_due(self._clock.monotonic(), _ENDS_INTERVAL):
            self._answer_end_offsets()
            events = frontier.advance()
        self._publication.publish_if_due(events, self._status_now, is_behind=self._is_behind)

    def _answer_end_offsets(self) -> None:
        started = self._clock.monotonic()
        try:
            self._topics = self._reader.discover(self._frontier)
            self._frontier.end_offsets(self._reader.end_offsets())
        finally:
            self._asking.note(started, self._clock.monotonic())

    def _look_around(self) -> None:
        now = self._clock.monotonic()
        elapsed, self._reported_at = now - self._reported_at, now
        self._look_for_topics()
        if self._publisher.log_error and not self._trouble:
            self._publication.publish(self._status)
        if not (self._trouble or self._publisher.log_error):
            self._obey()
        wall_ms = self._wall_ms()
        open_ = self._open.look(self._frontier, now, wall_ms)
        state, detail = state_of(self._settings, self._frontier, self._topics, open_)
        trouble = self._trouble or self._publisher.log_error
        if trouble:
            state, detail = FrontierState.WAITING, trouble
        self._chronicle.look(state, detail, open_)
        self._status = self._frontier_status(state, detail)
        self._publisher.report(self._status, open_)
        self._show(self._sidecar_status(open_, elapsed, wall_ms))

    def _look_for_topics(self) -> None:
        try:
            self._topics = self._reader.discover(self._frontier)
            self._trouble = ""
            if self._frontier.rest_wanted and self._clock.monotonic() - self._read_at >= _REST_SECONDS:
                self._frontier.rest(self._reader.end_offsets())
        except SourceUnavailableError as error:
            self._note_trouble(error)

    def _obey(self) -> None:
        """Carries out what operators have decided since the last look."""
        if self._decisions is None:
            return
        try:
            decisions = self._decisions()
        except CutLogUnavailableError as error:
            logger.warning("decisions cannot be read: %s", error, extra={"source": self._settings.source})
            return
        for decision in decisions:
            if isinstance(decision, SkipDecision):
                self._frontier.skip_to(decision.to_lsn)
                self._monitor.decisions["skip"] += 1
            else:
                self.next_timeline = decision
                self._monitor.decisions["timeline"] += 1
            self._chronicle.obeyed(decision)

    def _show(self, status: SidecarStatus) -> None:
        frontier, monitor = self._frontier, self._monitor
        monitor.gauges = Gauges(
            partitions_read=len(frontier.partitions),
            partitions_paused=self._reader.paused_partitions,
            queued_transactions=frontier.queue_length,
            obstacles=len(frontier.obstacles),
            stale_ends=frontier.stale_end_count,
        )
        monitor.redis_corrections = self._publisher.corrections
        monitor.status = status
        self._reported_records = monitor.records
        if self._on_status is not None:
            self._on_status(status)

    def _note_trouble(self, error: SourceUnavailableError) -> None:
        if not self._trouble:
            logger.warning("source is away: %s", error, extra={"source": self._settings.source})
        self._trouble = str(error)

    def _frontier_status(self, state: FrontierState, detail: str) -> FrontierStatus:
        return FrontierStatus(
            state=state,
            detail=detail,
            wall_ms=self._wall_ms(),
            sidecar=self._settings.sidecar_id,
            timeline=self._settings.timeline,
            regression=regression_notice(self._frontier),
        )

    def _status_now(self) -> FrontierStatus:
        return replace(self._status, wall_ms=self._wall_ms())

    def _wall_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    def _sidecar_status(
        self, open_: Sequence[OpenTransaction], elapsed: float, wall_ms: int
    ) -> SidecarStatus:
        newest = self._publisher.newest
        cut = newest.cut if newest else None
        records = self._monitor.records
        return SidecarStatus(
            source=self._settings.source,
            timeline=self._settings.timeline,
            state=self._status.state,
            detail=self._status.detail,
            lsn=cut.lsn if cut else 0,
            event_count=cut.event_count if cut else 0,
            records_read=records,
            records_per_second=(records - self._reported_records) / elapsed,
            lag_ms=wall_ms - cut.commit_ts_ms if cut else None,
            open=tuple(open_),
            redis_error=self._publisher.store_error,
            kafka_error=self._trouble or self._publisher.log_error,
        )
