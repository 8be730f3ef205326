"""When cuts and markers are published, and what is measured about it."""

from collections.abc import Callable, Sequence

from slackwater_cdc import Frontier
from slackwater_markers import FrontierStatus
from slackwater_protocol import Clock, Cut, encode_cut
from slackwater_sidecar.delays import Delays
from slackwater_sidecar.monitor import SourceMonitor
from slackwater_sidecar.pace import Pace
from slackwater_sidecar.publisher import Publisher
from slackwater_sidecar.settings import SidecarSettings

_MEASURED_EVERY_SECONDS = 0.1


class Publication:
    """Publishes what a frontier has, at the pace of the settings. Used by one thread.

    Args:
        settings: Intervals.
        frontier: What to publish.
        publisher: Where to.
        monitor: Told what was published and how long it took.
        clock: The time.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        frontier: Frontier,
        publisher: Publisher,
        monitor: SourceMonitor,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._frontier = frontier
        self._publisher = publisher
        self._monitor = monitor
        self._clock = clock
        self._cuts_pace = Pace()
        self._ahead_pace = Pace()
        self._delays = Delays()
        self._uncounted: list[Cut] = []
        self._moved_at = clock.monotonic()
        self._measured_at = float("-inf")
        monitor.newest = publisher.newest.cut if publisher.newest else None

    def note_read(self) -> None:
        """Notes when the newest END was read."""
        self._delays.read(self._frontier.newest_lsn, self._clock.monotonic())

    def publish_if_due(
        self, events: int, status: Callable[[], FrontierStatus], *, is_behind: bool = True
    ) -> None:
        """Publishes cuts, or markers ahead of a frontier that stands still, if it is time.

        Args:
            events: Change events that are in no cut yet.
            status: Makes the state to publish with them.
            is_behind: Whether many records wait to be read, so that publishing must leave time for that.
        """
        settings, now = self._settings, self._clock.monotonic()
        if self._frontier.has_moved or self._publisher.is_waiting:
            is_urgent = events or self._publisher.is_waiting
            interval = settings.publish_interval if is_urgent else settings.quiet_interval
            if self._cuts_pace.is_due(now, interval.total_seconds(), others_wait=is_behind):
                self.publish(status())
        elif now - self._moved_at >= settings.ahead_after.total_seconds() and self._ahead_pace.is_due(
            now, settings.ahead_interval.total_seconds()
        ):
            self._publish_ahead(now)
        self._publisher.show_markers()

    def publish(self, status: FrontierStatus) -> None:
        """Publishes everything that is ready, also what could not be written before."""
        started = self._clock.monotonic()
        cuts = self._frontier.cuts()
        self._publisher.publish(cuts, status)
        ended = self._clock.monotonic()
        self._cuts_pace.note(started, ended)
        self._moved_at = ended
        self._uncounted += cuts
        if self._uncounted and self._publisher.log_error is None and not self._publisher.is_waiting:
            self._monitor.publication_seconds.observe(ended - started)
            self._count(self._uncounted, ended)
            self._uncounted = []

    def _publish_ahead(self, now: float) -> None:
        markers = self._frontier.markers_ahead()
        if markers is not None:
            self._publisher.publish_ahead(markers)
            self._monitor.ahead += 1
        self._ahead_pace.note(now, self._clock.monotonic())

    def _count(self, cuts: Sequence[Cut], now: float) -> None:
        monitor, newest = self._monitor, cuts[-1]
        before = monitor.newest
        is_first = before is None or before.timeline != newest.timeline
        monitor.events += newest.event_count - (0 if is_first or before is None else before.event_count)
        monitor.transactions += sum(len(cut.transactions) for cut in cuts)
        monitor.skipped += sum(len(cut.skipped) for cut in cuts)
        monitor.cuts += len(cuts)
        monitor.newest = newest
        for delay in self._delays.published(newest.lsn, now):
            monitor.delay_seconds.observe(delay)
        if now - self._measured_at >= _MEASURED_EVERY_SECONDS:
            self._measured_at = now
            monitor.cut_bytes.observe(len(encode_cut(newest)))
