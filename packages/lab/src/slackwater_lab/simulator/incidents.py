"""The incidents of a simulation, by kind."""

import copy
import random
from collections.abc import Callable
from dataclasses import replace

from slackwater.cuts import FrontierState, FrontierStatus, markers_of
from slackwater.protocol import PublishedCut
from slackwater.protocol.keys import data_topic
from slackwater_lab.fakes.memory import InMemoryMarkerStore
from slackwater_lab.simulator.connector import Place, Restart
from slackwater_lab.simulator.processes import Processes
from slackwater_lab.simulator.scenario import SOURCE, Feature, Incident
from slackwater_lab.simulator.world import World

_LONGEST = 60
"""Steps that something is away, at most."""
_TURNS_AHEAD = 8
_SECONDS_AHEAD = 0.05
"""Between two turns while groups run ahead: how long sidecars wait before they write markers."""
_FLOW = 300
"""Items of the connector that flow between two such turns, at most."""


class Incidents:
    """Makes incidents happen, and ends those that last.

    Args:
        world: To what.
        processes: To whom.
    """

    def __init__(self, world: World, processes: Processes) -> None:
        self._world = world
        self._processes = processes
        self._coming = list(world.scenario.incidents)
        self._ends: list[tuple[int, Callable[[], None]]] = []

    def happen(self) -> None:
        """Everything that is due at the present step."""
        world = self._world
        for end in [e for e in self._ends if e[0] <= world.step]:
            self._ends.remove(end)
            end[1]()
        while self._coming and self._coming[0].step <= world.step:
            incident = self._coming.pop(0)
            world.note("incident", lambda incident=incident: f"i{incident.number}: {incident.kind}")  # type: ignore[misc]
            _HANDLERS[incident.kind](self, incident, random.Random(incident.choice))

    def heal(self, *, is_over: bool) -> None:
        """Ends everything that lasts; nothing more happens, for now or at all."""
        if is_over:
            self._coming.clear()
        for _, end in self._ends:
            end()
        self._ends.clear()

    def _for_a_while(self, rng: random.Random, end: Callable[[], None]) -> None:
        self._ends.append((self._world.step + rng.randint(1, _LONGEST), end))

    # --- connector

    def kill_connector(self, incident: Incident, rng: random.Random) -> None:
        """Kills it; the next run starts at some offset that was stored."""
        world = self._world
        world.note("connector", lambda: "is killed")
        world.producer.kill()
        connector = world.connector
        connector.note_acknowledgements()
        if connector.is_in_snapshot:
            world.kill_connector_in_snapshot()
            return
        is_exact = world.scenario.has(Feature.EXACTLY_ONCE)
        if is_exact or rng.random() < 0.5:
            connector.flush()
        place = connector.acknowledged if is_exact else connector.stored[-1]
        if incident.kind == "connector goes far back" and not is_exact:
            place = rng.choice(connector.stored)
            place = Place(place.commit) if rng.random() < 0.5 else place
        is_renumbering = incident.kind == "connector renumbers" or connector.would_renumber_again(place)
        world.start_connector(Restart(place, is_renumbering, rng.choice((0, 1, 2, 9))))

    def double_batch(self, incident: Incident, rng: random.Random) -> None:
        """The producer does not get to know that a batch was written."""
        self._world.producer.doubles += 1

    def emit_chunk(self, incident: Incident, rng: random.Random) -> None:
        """A chunk of an incremental snapshot."""
        self._world.emit_chunk(rng)

    def emit_blocking(self, incident: Incident, rng: random.Random) -> None:
        """An ad hoc snapshot of one table or more."""
        self._world.emit_blocking(rng)

    # --- broker

    def stall(self, incident: Incident, rng: random.Random) -> None:
        """Nothing more of a partition becomes readable."""
        stalled = self._world.broker.stalled
        key = rng.choice(list(self._world.broker.partitions))
        stalled.add(key)
        self._world.note("broker", lambda: f"{key[0]}/{key[1]} stalls")
        self._for_a_while(rng, lambda: stalled.discard(key))

    def run_ahead(self, incident: Incident, rng: random.Random) -> None:
        """Nothing more of a partition becomes readable while everything else flows: other groups continue."""
        world = self._world
        stalled = world.broker.stalled
        key = rng.choice([key for key in world.broker.partitions if key[0] in world.followed_topics])
        stalled.add(key)
        world.note("broker", lambda: f"{key[0]}/{key[1]} stalls, all others flow")
        for _ in range(_TURNS_AHEAD):
            for _ in range(rng.choice((1, 2))):
                world.commit()
            world.flow(_FLOW)
            world.clock.seconds += _SECONDS_AHEAD
            for sidecar in self._processes.sidecars:
                sidecar.turn(is_eager=True)
            for pipeline in self._processes.pipelines:
                pipeline.step(rng)
        self._for_a_while(rng, lambda: stalled.discard(key))

    def add_partitions(self, incident: Incident, rng: random.Random) -> None:
        """A topic gets one or two more, between two transactions of the connector or while it restarts.

        Not while an initial snapshot may have to be taken again: its repeat would be in other partitions.
        Nor before the first cut: only cuts tell a sidecar that starts how many there were.
        """
        if self._world.scenario.has(Feature.CRASHES) and rng.random() < 0.5:
            self.kill_connector(incident, rng)
        world = self._world
        if world.connector.place.item or world.connector.is_in_snapshot or not world.logged:
            return
        broker = world.broker
        topic = data_topic(SOURCE, rng.choice(world.scenario.tables).name)
        broker.add_topic(topic, broker.partition_count(topic) + rng.choice((1, 2)))

    def remove_read(self, incident: Incident, rng: random.Random) -> None:
        """Retention behind everybody."""
        self._processes.retention.remove_read(rng)

    def remove_unread(self, incident: Incident, rng: random.Random) -> None:
        """Retention that somebody may be behind; in half of the histories with it there is none."""
        if self._world.scenario.seed % 2:
            self._processes.retention.remove_unread(rng)

    # --- sidecars and readers

    def kill_sidecar(self, incident: Incident, rng: random.Random) -> None:
        """Between two turns."""
        rng.choice(self._processes.sidecars).kill()

    def kill_sidecar_writing(self, incident: Incident, rng: random.Random) -> None:
        """At one of the next points before or after cut log and Redis."""
        rng.choice(self._processes.sidecars).kill_at_point(rng.randint(0, 5))

    def stop_sidecar(self, incident: Incident, rng: random.Random) -> None:
        """In good order."""
        rng.choice(self._processes.sidecars).stop()

    def kill_reader(self, incident: Incident, rng: random.Random) -> None:
        """Wherever it is."""
        rng.choice(self._processes.pipelines).kill()

    def skip(self, incident: Incident, rng: random.Random) -> None:
        """An operator lets pass what is not there yet, or decides about a timeline that does not exist."""
        world = self._world
        if world.committed:
            lsn = rng.choice(world.database.commits[: world.committed]).lsn
            world.skip_to(lsn, timeline=rng.choice((1, 1, 1, 7)))

    def skip_ahead(self, incident: Incident, rng: random.Random) -> None:
        """An operator decides about commits that sidecars then read at once, together with the decision."""
        world = self._world
        for _ in range(rng.randint(2, _TURNS_AHEAD)):
            world.commit()
            world.flow(_FLOW)
            world.clock.seconds += rng.choice((0.0, _SECONDS_AHEAD, 1.0))
        if world.committed:
            world.skip_to(rng.choice(world.database.commits[: world.committed][-_TURNS_AHEAD:]).lsn)

    # --- Redis and Kafka

    def empty_redis(self, incident: Incident, rng: random.Random) -> None:
        """It loses everything."""
        self._world.store = InMemoryMarkerStore()

    def remove_redis(self, incident: Incident, rng: random.Random) -> None:
        """It does not answer."""
        self._set_away("is_redis_away", rng)

    def copy_redis(self, incident: Incident, rng: random.Random) -> None:
        """Somebody makes a copy."""
        self._world.store_copy = copy.deepcopy(self._world.store)

    def replace_redis(self, incident: Incident, rng: random.Random) -> None:
        """The copy takes the place of the original."""
        if self._world.store_copy is not None:
            self._world.store = copy.deepcopy(self._world.store_copy)

    def forge_redis(self, incident: Incident, rng: random.Random) -> None:
        """Somebody who cannot write to the cut log writes to Redis what no sidecar did."""
        world, newest = self._world, self._world.newest_cut
        if newest is None:
            return
        store, cut = world.store, newest.cut
        lsn = rng.choice((cut.lsn - 1, cut.lsn, cut.lsn + 1, cut.lsn + 4000, 2**62))
        forged = replace(
            cut,
            timeline=rng.choice((1, 1, 1, 99)),
            lsn=lsn,
            previous_lsn=rng.choice((0, cut.lsn, cut.previous_lsn)),
            transactions=rng.choice(((), cut.transactions)),
            end_offsets={topic: tuple(end + 1 for end in ends) for topic, ends in cut.end_offsets.items()},
        )
        offset = rng.choice((0, newest.log_offset, world.log.end(), 2**62))
        world.note("redis", lambda: f"{forged.lsn} of timeline {forged.timeline} at {offset} is forged")
        if rng.random() < 0.5:
            store.clear(SOURCE, 99)
        status = FrontierStatus(
            state=FrontierState.STOPPED, wall_ms=0, sidecar=rng.choice(("nobody", "sidecar 0")), timeline=99
        )
        store.put_cut(PublishedCut(forged, offset), status)
        store.set_markers(SOURCE, forged.position, markers_of(forged))

    def remove_source(self, incident: Incident, rng: random.Random) -> None:
        """Topics cannot be read."""
        self._set_away("is_source_away", rng)

    def remove_registry(self, incident: Incident, rng: random.Random) -> None:
        """Schemas cannot be asked for."""
        avro = self._world.avro
        if avro is not None:
            avro.is_away = True
            self._for_a_while(rng, lambda: setattr(avro, "is_away", False))

    def remove_log(self, incident: Incident, rng: random.Random) -> None:
        """The cut log cannot be read; what is appended may arrive."""
        self._set_away("is_log_away", rng)

    def _set_away(self, attribute: str, rng: random.Random) -> None:
        setattr(self._world, attribute, True)
        self._for_a_while(rng, lambda: setattr(self._world, attribute, False))


_HANDLERS: dict[str, Callable[[Incidents, Incident, random.Random], None]] = {
    "connector killed": Incidents.kill_connector,
    "connector renumbers": Incidents.kill_connector,
    "connector goes far back": Incidents.kill_connector,
    "batch doubled": Incidents.double_batch,
    "chunk of a snapshot": Incidents.emit_chunk,
    "snapshot that blocks": Incidents.emit_blocking,
    "partition stalls": Incidents.stall,
    "all but one partition flow": Incidents.run_ahead,
    "partitions added": Incidents.add_partitions,
    "sidecar killed": Incidents.kill_sidecar,
    "sidecar killed writing": Incidents.kill_sidecar_writing,
    "sidecar stopped": Incidents.stop_sidecar,
    "redis emptied": Incidents.empty_redis,
    "redis away": Incidents.remove_redis,
    "redis copied": Incidents.copy_redis,
    "redis replaced by the copy": Incidents.replace_redis,
    "redis forged": Incidents.forge_redis,
    "source away": Incidents.remove_source,
    "cut log away": Incidents.remove_log,
    "registry away": Incidents.remove_registry,
    "reader killed": Incidents.kill_reader,
    "operator skips": Incidents.skip,
    "operator skips what nobody has read": Incidents.skip_ahead,
    "read records removed": Incidents.remove_read,
    "unread records removed": Incidents.remove_unread,
}
