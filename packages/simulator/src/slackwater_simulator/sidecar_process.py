"""A sidecar: the real service, publisher and resume code over simulated Kafka and Redis."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, cast

from slackwater_markers import CutLog, CutLogTruncatedError, CutLogUnavailableError, MarkerStore
from slackwater_sidecar import Publisher, Sidecar, SidecarError, SidecarSettings
from slackwater_sidecar.avro import avro_values
from slackwater_sidecar.decision_feed import LoggedDecisions
from slackwater_sidecar.monitor import SourceMonitor
from slackwater_sidecar.resume import resume
from slackwater_simulator.avro import ADDRESS
from slackwater_simulator.broker import Key
from slackwater_simulator.oracle import ViolationError
from slackwater_simulator.pipeline import NOT_AT_ALL
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
        self.refusal = ""
        """Why it ended by itself; empty when it did not, or runs again."""

    def needs(self, key: Key) -> int:
        """The first offset of a partition that it has not read; larger than any while it does not run."""
        if self._sidecar is None or self._reader is None:
            return NOT_AT_ALL
        return self._reader.positions.get(key, self._starts(*key) or 0)

    def start(self) -> None:
        """Goes on from the cut log; stays dead while that is away."""
        world = self._world
        log = cast(CutLog, ProcessLog(world, self._pass_point))
        store = cast(MarkerStore, ProcessStore(world, self._pass_point))
        settings = self.settings
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
        except CutLogTruncatedError as error:
            self._refuse(error)
            return
        settings = replace(settings, timeline=found.timeline)
        self._next = partial(self._follow, settings, log, publisher)
        self._starts = found.starts(settings.source_topics)
        self._reader = SimulatedSourceReader(
            settings,
            world.broker,
            self._starts,
            rng=world.rng,
            is_away=lambda: world.is_source_away,
            avro=avro_values(settings, world.clock, world.avro.get) if world.avro is not None else None,
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
            self.refusal = ""
        except KilledError:
            self.kill("while it writes")
        except (SidecarError, CutLogTruncatedError) as error:
            self._refuse(error)

    def _refuse(self, error: SidecarError | CutLogTruncatedError) -> None:
        """It ends, and is started again by whoever watches it; only where something is gone that it needs."""
        if not self._world.retention.sidecars_lack:
            raise ViolationError("G4", f"{self.name} stops: {error}")
        self._world.note(self.name, lambda: f"ends: {error}")
        self.refusal = str(error)
        self._sidecar, self._points_left = None, _NEVER

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

    @property
    def settings(self) -> SidecarSettings:
        """As its process reads them."""
        world = self._world
        return SidecarSettings(
            source=SOURCE,
            bootstrap="simulated",
            schema_registry=None if world.avro is None else ADDRESS,
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
