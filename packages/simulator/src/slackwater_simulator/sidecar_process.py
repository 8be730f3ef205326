"""A sidecar: the real service, publisher and resume code over simulated Kafka and Redis."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, cast

from slackwater_markers import CutLog, CutLogUnavailableError, MarkerStore
from slackwater_sidecar import Publisher, Sidecar, SidecarSettings
from slackwater_sidecar.decision_feed import LoggedDecisions
from slackwater_sidecar.monitor import SourceMonitor
from slackwater_sidecar.resume import resume
from slackwater_simulator.scenario import SOURCE
from slackwater_simulator.source_reader import SimulatedSourceReader
from slackwater_simulator.stores import KilledError, ProcessLog, ProcessStore

if TYPE_CHECKING:
    from slackwater_simulator.world import World

_NEVER = 1 << 30


class SidecarProcess:
    """Starts, turns, dies. Between two turns nothing of it is kept but what is in Kafka and Redis."""

    def __init__(self, world: "World", name: str) -> None:
        self._world = world
        self.name = name
        self._sidecar: Sidecar | None = None
        self._reader: SimulatedSourceReader | None = None
        self._points_left = _NEVER
        self._next: Callable[[], None] = self.start

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._sidecar is not None

    def start(self) -> None:
        """Goes on from the cut log; stays dead while that is away."""
        world = self._world
        log = cast(CutLog, ProcessLog(world, self._pass_point))
        store = cast(MarkerStore, ProcessStore(world, self._pass_point))
        settings = self._settings()
        publisher = Publisher(SOURCE, log, store, settings.restored_cuts, clock=world.clock)
        self._follow(settings, log, publisher)

    def _follow(self, settings: SidecarSettings, log: CutLog, publisher: Publisher) -> None:
        """Follows the newest timeline."""
        world = self._world
        self._sidecar = None
        try:
            found = resume(log, settings.timeline)
            publisher.go_on_from(found.newest)
            frontier = found.frontier(settings)
        except CutLogUnavailableError:
            return
        settings = replace(settings, timeline=found.timeline)
        self._next = partial(self._follow, settings, log, publisher)
        self._reader = SimulatedSourceReader(
            world.broker,
            world.followed_topics,
            found.starts(settings.source_topics),
            world.rng,
            lambda: world.is_source_away,
        )
        self._frontier = frontier
        self._sidecar = Sidecar(
            settings,
            frontier,
            self._reader,
            publisher,
            monitor=SourceMonitor(SOURCE, world.clock),
            decisions=LoggedDecisions(log, found.timeline, found.log_offset).new,
        )
        world.note(
            self.name, lambda: f"starts from {found.newest.cut.lsn if found.newest else 'the beginning'}"
        )

    def turn(self, *, is_eager: bool = False) -> None:
        """One turn of the service, or a start."""
        if self._sidecar is None or self._reader is None:
            self.start()
            return
        self._reader.is_eager = is_eager
        try:
            self._sidecar.turn()
            if self._sidecar.next_timeline is not None:
                self._world.note(self.name, lambda: "goes on to another timeline")
                self._sidecar.finish()
                self._next()
        except KilledError:
            self.kill("while it writes")

    def stop(self) -> None:
        """An orderly end."""
        if self._sidecar is None:
            return
        self._world.note(self.name, lambda: "stops")
        with suppress(KilledError):
            self._sidecar.finish()
        self._sidecar, self._points_left = None, _NEVER

    def kill(self, when: str = "") -> None:
        """The end."""
        self._world.note(self.name, lambda: f"is killed {when}")
        self._sidecar, self._points_left = None, _NEVER

    def kill_at_point(self, count: int) -> None:
        """Lets the process die at one of the next points between reading, cut log and Redis."""
        self._points_left = count

    def waits_for(self) -> list[str]:
        """The transactions that the frontier waits for, with what is known of them."""
        if self._sidecar is None:
            return ["it does not run"]
        return [str(t) for t in self._frontier.open_transactions(3)]

    @property
    def rests(self) -> bool:
        """Whether rows of snapshots wait for a commit, or for the source to be at rest."""
        return self._sidecar is not None and self._frontier.rest_wanted

    def _pass_point(self) -> None:
        self._points_left -= 1
        if self._points_left < 0:
            raise KilledError

    def _settings(self) -> SidecarSettings:
        world = self._world
        return SidecarSettings(
            source=SOURCE,
            bootstrap="simulated",
            tables=world.followed_tables if world.is_subset else None,
            publish_interval=timedelta(milliseconds=world.publish_interval_ms),
            quiet_interval=timedelta(milliseconds=40),
            open_after=timedelta(seconds=1),
            restored_cuts=world.restored_cuts,
            status_interval=timedelta(milliseconds=100),
            ahead_after=timedelta(milliseconds=30),
            ahead_interval=timedelta(milliseconds=10),
            sidecar_id=self.name,
            evidence=world.evidence,
        )
