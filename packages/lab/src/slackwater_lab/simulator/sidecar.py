"""A sidecar: the real service, reader, publisher and resume code over simulated Kafka and Redis."""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import cast

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from slackwater.cdc import Frontier
from slackwater.cuts import (
    CutLog,
    RecordsGoneError,
    RedisMarkerStore,
    TopicUnavailableError,
)
from slackwater.protocol import KafkaSettings, RegistrySettings, Servers, SlackwaterError
from slackwater_lab.simulator.avro import ADDRESS
from slackwater_lab.simulator.kafka import NOT_AT_ALL, Broker, Key, SimulatedAdmin, SimulatedConsumer
from slackwater_lab.simulator.oracle import BARRIER_INTERVAL_MS, ViolationError
from slackwater_lab.simulator.scenario import SOURCE
from slackwater_lab.simulator.stores import KilledError, ProcessLog, ProcessStore
from slackwater_lab.simulator.world import World
from slackwater_sidecar import Publisher, Sidecar, SidecarSettings
from slackwater_sidecar.consumption import AvroValues, Consumption, avro_values
from slackwater_sidecar.monitor import SourceMonitor
from slackwater_sidecar.reader import SourceReader, Starts
from slackwater_sidecar.resume import LoggedDecisions, resume


class _SimulatedSourceReader(SourceReader):
    """The real reader over simulated clients.

    Reads as much of each partition as chance has it, neglects one for a while, sees the ends of partitions
    late.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        broker: Broker,
        starts: Starts,
        frontier: Frontier,
        *,
        rng: random.Random,
        is_away: Callable[[], bool],
        avro: AvroValues | None,
    ) -> None:
        admin = cast(AdminClient, SimulatedAdmin(broker, is_away))
        self._consumer = SimulatedConsumer(broker)
        self._rng = rng
        self._is_away = is_away
        self._neglected: Key | None = None
        self.is_eager = False
        """Whether a poll reads everything there is."""

        def connect(settings: SidecarSettings, others: frozenset[str], partitions: int) -> Consumption:
            consumer = cast(Consumer, self._consumer)
            return Consumption(settings, others, partitions, consumer=consumer, avro=avro)

        super().__init__(settings, starts, frontier, admin=admin, connect=connect)

    @property
    def positions(self) -> dict[Key, int]:
        """The offset that is read next of each partition."""
        return self._consumer.positions

    def poll(self, timeout_seconds: float) -> int:
        """See the protocol; waits for nothing."""
        if not self._is_away():
            self._fetch()
        return super().poll(0)

    def _fetch(self) -> None:
        keys, rng = list(self._consumer.positions), self._rng
        rng.shuffle(keys)
        if keys and rng.random() < 0.1:
            self._neglected = rng.choice((None, keys[0]))
        for key in keys:
            if self.is_eager:
                self._consumer.fetch(key, None, tells_end=True)
            elif key != self._neglected and rng.random() < 0.4:
                size = rng.choice((1, 3, 10, 100))
                self._consumer.fetch(key, size, tells_end=rng.random() < 0.7)


_NEVER = 1 << 30


class SidecarProcess:
    """Starts, turns, dies. Between two turns nothing of it is kept but what is in Kafka and Redis."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._sidecar: Sidecar | None = None
        self._reader: _SimulatedSourceReader | None = None
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
        """Continues from the cut log; stays dead while that is away."""
        world = self._world
        log = cast(CutLog, ProcessLog(world, self._pass_point))
        store = cast(RedisMarkerStore, ProcessStore(world, self._pass_point))
        settings = self.settings
        publisher = Publisher(SOURCE, log, store, settings.restored_cuts, clock=world.clock)
        self._follow(settings, log, publisher)

    def _follow(self, settings: SidecarSettings, log: CutLog, publisher: Publisher) -> None:
        """Follows the newest timeline."""
        world = self._world
        self._sidecar = None
        try:
            found = resume(log, settings.timeline)
            publisher.state.resume_from(found.newest)
            frontier = found.frontier(settings)
        except TopicUnavailableError:
            return
        except RecordsGoneError as error:
            self._refuse(error)
            return
        settings = replace(settings, timeline=found.timeline)
        self._next = partial(self._follow, settings, log, publisher)
        self._starts = found.starts(settings.source_topics)
        self._reader = _SimulatedSourceReader(
            settings,
            world.broker,
            self._starts,
            frontier,
            rng=world.rng,
            is_away=lambda: world.is_source_away,
            avro=avro_values(settings, world.clock, world.avro.send) if world.avro is not None else None,
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
            if self._sidecar.is_over:
                self._world.note(self.name, lambda: "begins again from the cut log")
                self._sidecar.finish()
                self._next()
            self.refusal = ""
        except KilledError:
            self.kill("while it writes")
        except SlackwaterError as error:
            self._refuse(error)

    def _refuse(self, error: SlackwaterError) -> None:
        """It ends, and is started again by its supervisor; only where something is gone that it needs."""
        if not self._world.is_sidecar_input_removed:
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
        """True if rows of snapshots wait for a commit, or for the source to be at rest."""
        return self._sidecar is not None and self._frontier.rest_wanted

    def _pass_point(self) -> None:
        self._points_left -= 1
        if self._points_left < 0:
            raise KilledError

    @property
    def settings(self) -> SidecarSettings:
        """The settings of its process."""
        world = self._world
        return SidecarSettings(
            source=SOURCE,
            servers=Servers(
                KafkaSettings("simulated"),
                registry=None if world.avro is None else RegistrySettings(url=ADDRESS),
            ),
            tables=world.followed_tables if world.is_subset else None,
            publish_interval=timedelta(milliseconds=world.publish_interval_ms),
            barrier_interval=timedelta(milliseconds=BARRIER_INTERVAL_MS),
            quiet_interval=timedelta(milliseconds=40),
            open_after=timedelta(seconds=1),
            restored_cuts=world.restored_cuts,
            status_interval=timedelta(milliseconds=100),
            ahead_after=timedelta(milliseconds=30),
            ahead_interval=timedelta(milliseconds=10),
            sidecar_id=self.name,
            evidence=world.evidence,
            complete_tables=world.complete_tables,
        )
