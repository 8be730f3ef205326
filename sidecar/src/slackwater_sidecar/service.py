"""Follows one source on one timeline: reads, moves the frontier, publishes, and reports its state."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from slackwater.cdc import Frontier
from slackwater.cuts import FrontierState, FrontierStatus, TopicUnavailableError
from slackwater.protocol import (
    OpenTransaction,
    Refusal,
    SkipDecision,
    TimelineDecision,
    epoch_ms,
    hide,
)
from slackwater_sidecar.consumption import SidecarUnavailableError
from slackwater_sidecar.monitor import SourceMonitor
from slackwater_sidecar.publisher import Due, Publisher, PublishingSchedule, Spacing
from slackwater_sidecar.reader import SourceReader
from slackwater_sidecar.resume import Decision
from slackwater_sidecar.settings import SidecarSettings
from slackwater_sidecar.status import (
    FaultHold,
    OpenTransactions,
    SidecarStatus,
    StateLogger,
    regression_notice,
    state_of,
)

logger = logging.getLogger(__name__)

OnStatus = Callable[[SidecarStatus], None]
NewDecisions = Callable[[], Sequence[Decision]]
"""Returns what was decided since it was called last; raises TopicUnavailableError."""

_BUSY_SECONDS = 0.005
_IDLE_SECONDS = 0.02
_ENDS_INTERVAL = 0.05
_HELD_BACK_SECONDS = 10.0
"""Between two looks at Kafka transactions that are open."""
_MANY_RECORDS = 2_000
"""A poll that returns this many records has not reached the end."""
_REST_SECONDS = 10.0
"""After this long without a record the source is at rest: no commit that a snapshot contains is to come."""


class Sidecar:
    """Follows a source one turn at a time: :meth:`turn`. Used by one thread.

    Without ``decisions``, nobody decides or refuses anything. ``on_status`` receives the state at every
    status interval.
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
        self._watch = monitor.watch
        newest = publisher.state.newest
        self._hold = FaultHold(
            settings.source,
            settings.timeline,
            newest.cut.lsn if newest else 0,
            sees_connector=self._watch is not None and settings.connect_url is not None,
        )
        self._commits_end: int | None = None
        """The end of the transaction topic when the connector's fault was found to be gone."""
        self._knows_decisions = decisions is None
        self._monitor = monitor
        self._clock = monitor.clock
        self._on_status = on_status
        self._schedule = PublishingSchedule(settings, self._clock.monotonic())
        self._open = OpenTransactions(settings.open_after)
        self._state_logger = StateLogger(settings.source)
        self._asking = Spacing()
        self._topics: list[str] = []
        self._reported_records = monitor.records
        self._is_busy = False
        self._trouble = ""
        self._reported_at = float("-inf")
        self._read_at = self._clock.monotonic()
        self._is_behind = False
        self._held_back = 0
        self._held_back_at = float("-inf")
        self._status = self._frontier_status(FrontierState.WAITING, "starting")
        monitor.begin_timeline(newest.cut if newest else None)
        self.next_timeline: TimelineDecision | None = None
        """Set when an operator has decided so: this sidecar is over, another one begins there."""

    @property
    def is_over(self) -> bool:
        """Returns whether another sidecar has to begin, on another timeline or at the log's newest cut."""
        return self.next_timeline is not None or self._publisher.state.is_overruled

    def turn(self) -> int:
        """Reads once, publishes if it is time; returns the number of records read.

        Raises:
            InputError: the source cannot be followed any more.
        """
        self._monitor.record_turn()
        try:
            count = self._reader.poll(_BUSY_SECONDS if self._is_busy else _IDLE_SECONDS)
            self._monitor.records += count
            self._is_busy, self._is_behind = count > 0, count >= _MANY_RECORDS
            if count:
                self._read_at = self._clock.monotonic()
            self._monitor.record_read(self._frontier.newest_lsn)
            self._move()
            self._reader.balance(needs_commits=self._hold.needs_bound)
        except SidecarUnavailableError as error:
            self._note_trouble(error)
            count = 0
        if self._clock.monotonic() - self._reported_at >= self._settings.status_interval.total_seconds():
            self._look_after_source()
        return count

    def finish(self) -> None:
        """Publishes what is ready and says that nothing more comes, unless another sidecar begins."""
        if not (self._trouble or self._is_held()):
            self._publish(self._status)
        self._record_refusal()
        if not self.is_over:
            self._publisher.report(self._frontier_status(FrontierState.STOPPED, ""), [])
            self._state_logger.log_changes(FrontierState.STOPPED, "", [])

    def _move(self) -> None:
        frontier = self._frontier
        events = frontier.advance()
        if frontier.end_offsets_wanted and self._asking.is_due(self._clock.monotonic(), _ENDS_INTERVAL):
            self._answer_end_offsets()
            events = frontier.advance()
        if not self._is_held():
            self._publish_if_due(has_events=events > 0)
        elif not self._publisher.log_error:
            self._record_refusal()  # at once: the next process may find the fault corrected

    def _is_held(self) -> bool:
        """Returns whether faults of the connector, seen or logged, forbid cuts, or were not looked for yet.

        Raises:
            Exception: Nobody looks any more, so that cuts would be held for ever, or faults not be seen.
        """
        if self._watch is not None and self._watch.failure is not None:
            raise self._watch.failure
        report = None if self._watch is None else self._watch.report
        newest_lsn = self._frontier.newest_lsn
        self._hold.update(report, newest_lsn, has_read=newest_lsn > 0 or self._monitor.records > 0)
        is_unknown = not self._knows_decisions or (self._watch is not None and report is None)
        return is_unknown or bool(self._hold.reason)

    def _publish_if_due(self, *, has_events: bool) -> None:
        now = self._clock.monotonic()
        due = self._schedule.due(
            now,
            has_cuts=self._frontier.has_moved,
            has_events=has_events,
            is_waiting=self._publisher.state.is_waiting,
            is_behind=self._is_behind,
        )
        if due is Due.CUTS:
            self._publish(replace(self._status, wall_ms=self._wall_ms()))
        elif due is Due.MARKERS_AHEAD:
            self._publish_ahead(now)
        self._publisher.show_markers()

    def _publish(self, status: FrontierStatus) -> None:
        """Publishes everything that is ready, also what could not be written before."""
        started = self._clock.monotonic()
        self._publisher.publish(self._frontier.cuts(), status)
        ended = self._clock.monotonic()
        self._schedule.record_cuts(started, ended)
        if settled := self._publisher.state.take_settled():
            self._monitor.record_cuts(settled, started, ended)

    def _publish_ahead(self, now: float) -> None:
        markers = self._frontier.markers_ahead()
        if markers is not None:
            self._publisher.publish_ahead(markers)
            self._monitor.ahead += 1
        self._schedule.markers_ahead.record(now, self._clock.monotonic())

    def _answer_end_offsets(self) -> None:
        started = self._clock.monotonic()
        try:
            self._topics = self._reader.discover()
            self._frontier.end_offsets(self._reader.end_offsets())
        finally:
            self._asking.record(started, self._clock.monotonic())

    def _look_after_source(self) -> None:
        now = self._clock.monotonic()
        elapsed, self._reported_at = now - self._reported_at, now
        self._look_for_topics()
        if self._publisher.log_error and not (self._trouble or self._is_held()):
            self._publish(self._status)
        # One question without an answer is enough: the report is not to wait for the next one.
        has_answered = not self._trouble
        if has_answered and not self._publisher.log_error:
            has_answered = self._carry_out_decisions()
        wall_ms = self._wall_ms()
        open_ = self._open.update(self._frontier, now, wall_ms)
        state, detail = state_of(self._settings, self._frontier, self._topics, open_)
        if self._monitor.commits is not None:
            detail = detail or self._monitor.commits.trouble
        if self._hold.reason:
            state, detail = FrontierState.MISCONFIGURED, self._hold.reason
        if trouble := self._kafka_error():
            state, detail = FrontierState.WAITING, trouble
        self._state_logger.log_changes(state, detail, open_)
        self._status = self._frontier_status(state, detail)
        self._publisher.report(self._status, open_, asks_log=has_answered)
        self._show(self._sidecar_status(open_, elapsed, wall_ms))

    def _look_for_topics(self) -> None:
        try:
            self._topics = self._reader.discover()
            self._trouble = ""
            if self._frontier.rest_wanted and self._clock.monotonic() - self._read_at >= _REST_SECONDS:
                self._frontier.rest(self._reader.end_offsets())
            now = self._clock.monotonic()
            if now - self._held_back_at >= _HELD_BACK_SECONDS:
                self._held_back_at = now
                self._held_back = self._reader.held_back()
            self._bound_refusal()
        except SidecarUnavailableError as error:
            self._note_trouble(error)

    def _bound_refusal(self) -> None:
        """Finds the newest commit that may have been written with a fault which is gone."""
        if not self._hold.needs_bound:
            self._commits_end = None
            return
        if self._commits_end is None:
            ends = self._reader.end_offsets()
            self._commits_end = ends.get((self._settings.source_topics.transactions, 0), 0)
        if self._frontier.transaction_position >= self._commits_end:
            self._hold.bound(self._frontier.newest_lsn)

    def _carry_out_decisions(self) -> bool:
        """Carries out what was decided since the last look; returns whether that could be read."""
        if self._decisions is None:
            return True
        try:
            decisions = self._decisions()
        except TopicUnavailableError as error:
            logger.warning("decisions cannot be read: %s", error, extra={"source": self._settings.source})
            return False
        self._knows_decisions = True
        for decision in decisions:
            if isinstance(decision, Refusal):
                self._hold.take(decision)
                continue
            if isinstance(decision, SkipDecision):
                self._frontier.skip_to(decision.to_lsn)
                self._hold.skip_to(decision.to_lsn)
                self._monitor.decisions["skip"] += 1
            else:
                self.next_timeline = decision
                self._monitor.decisions["timeline"] += 1
            self._state_logger.log_decision(decision)
        return True

    def _record_refusal(self) -> None:
        """Has the cut log hold that the source is refused, for other sidecars and the next start."""
        if self._knows_decisions and (refusal := self._hold.unrecorded) is not None:
            self._publisher.refuse(refusal)
            if not self._publisher.log_error:
                self._hold.take(refusal)

    def _show(self, status: SidecarStatus) -> None:
        monitor = self._monitor
        monitor.redis_corrections = self._publisher.mirror.corrections
        monitor.status = status
        self._reported_records = monitor.records
        if self._on_status is not None:
            self._on_status(status)

    def _note_trouble(self, error: SidecarUnavailableError) -> None:
        if not self._trouble:
            logger.warning("source is unavailable: %s", error, extra={"source": self._settings.source})
        self._trouble = str(error)

    def _kafka_error(self) -> str | None:
        """Returns what keeps Kafka from answering; it is shown to everybody who looks at the source."""
        trouble = self._trouble or self._publisher.log_error
        return None if trouble is None else hide(trouble, self._settings.servers.secrets)

    def _frontier_status(self, state: FrontierState, detail: str) -> FrontierStatus:
        return FrontierStatus(
            state=state,
            detail=detail,
            wall_ms=self._wall_ms(),
            sidecar=self._settings.sidecar_id,
            timeline=self._settings.timeline,
            regression=regression_notice(self._frontier),
            connector=None if self._watch is None else self._watch.report,
        )

    def _wall_ms(self) -> int:
        return epoch_ms(self._clock.now())

    def _sidecar_status(
        self, open_: Sequence[OpenTransaction], elapsed: float, wall_ms: int
    ) -> SidecarStatus:
        newest = self._publisher.state.newest
        cut = newest.cut if newest else None
        frontier, records = self._frontier, self._monitor.records
        return SidecarStatus(
            source=self._settings.source,
            timeline=self._settings.timeline,
            state=self._status.state,
            detail=self._status.detail,
            lsn=cut.lsn if cut else 0,
            event_count=cut.event_count if cut else 0,
            records_read=records,
            records_per_second=(records - self._reported_records) / elapsed,
            delay_ms=wall_ms - cut.commit_ts_ms if cut else None,
            open=tuple(open_),
            redis_error=self._publisher.mirror.error,
            kafka_error=self._kafka_error(),
            partitions_read=len(frontier.partitions),
            partitions_paused=self._reader.paused_partitions,
            queued_transactions=frontier.queue_length,
            obstacles=len(frontier.obstacles),
            stale_ends=frontier.stale_end_count,
            held_back_offsets=self._held_back,
        )
