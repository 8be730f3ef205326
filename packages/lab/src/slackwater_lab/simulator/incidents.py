"""The processes of a simulation, and the incidents that happen to them and to what they read, by kind."""

import copy
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from slackwater.cuts import FrontierState, FrontierStatus, markers_of
from slackwater.protocol import Cut, PublishedCut
from slackwater.protocol.keys import data_topic
from slackwater_lab.fakes.memory import InMemoryMarkerStore
from slackwater_lab.simulator.connector import TRANSACTIONS, Place, Restart
from slackwater_lab.simulator.kafka import Key
from slackwater_lab.simulator.readers import GroupPipeline, Pipeline, StrictPipeline
from slackwater_lab.simulator.scenario import SOURCE, Feature
from slackwater_lab.simulator.sidecar import SidecarProcess
from slackwater_lab.simulator.world import World
from slackwater_sidecar.resume import resume

_LONGEST = 60
"""Steps that something is away, at most."""
_TURNS_AHEAD = 8
_SECONDS_AHEAD = 0.05
"""Between two turns while groups run ahead: how long sidecars wait before they write markers."""
_FLOW = 300
"""Items of the connector that flow between two such turns, at most."""


class Retention:
    """Raises the first offsets of data topics, the transaction topic and the cut log.

    A process that needs what is gone may refuse to continue, no other may. Before the first cut
    nothing is removed that a sidecar needs: its first start takes what there is.
    """

    def __init__(
        self, world: World, sidecars: Sequence[SidecarProcess], pipelines: Sequence[Pipeline]
    ) -> None:
        self._world = world
        self._sidecars = sidecars
        self._pipelines = pipelines
        self._told = ""

    def remove_read(self, rng: random.Random) -> None:
        """Removes records that nobody needs any more, of all topics."""
        world = self._world
        if self._world.newest_cut is None:
            return
        for key in self._keys():
            needed = min(self._needed_by_sidecars(key), *(p.needs(key) for p in self._pipelines))
            world.broker.partitions[key].delete_before(rng.choice((needed, rng.randint(0, needed))))
        needed = min(self._log_needed_by_sidecars(), *(p.needs_log() for p in self._pipelines))
        world.log.delete_before(rng.choice((needed, rng.randint(0, needed))))
        begins = f"keeps the cut log from {world.log.begin()}, {self._begins()}"
        if begins != self._told:
            self._told = begins
            world.note("broker", lambda: begins)

    def remove_unread(self, rng: random.Random) -> None:
        """Removes records of one topic that somebody has not read."""
        world, newest = self._world, self._world.newest_cut
        if newest is None:
            return
        if rng.random() < 0.35:
            self._remove_of_log(rng.randint(1, world.log.end()))
            return
        needed = {
            key: min(self._needed_by_sidecars(key), *(p.needs(key) for p in self._pipelines))
            for key in self._keys()
            if _knows(newest.cut, key)
        }
        ends = world.readable
        unread = [key for key, first in needed.items() if first < ends[key]]
        if not unread:
            return
        key = rng.choice(unread)
        offset = rng.randint(needed[key] + 1, ends[key])
        world.is_sidecar_input_removed |= offset > self._needed_by_sidecars(key)
        for pipeline in self._pipelines:
            pipeline.lacks |= offset > pipeline.needs(key)
        world.broker.partitions[key].delete_before(offset)
        world.note("broker", lambda: f"keeps {key[0]}/{key[1]} from {offset}")

    def _remove_of_log(self, offset: int) -> None:
        world = self._world
        world.is_log_short |= offset > self._log_needed_by_sidecars()
        world.is_sidecar_input_removed |= world.is_log_short
        for pipeline in self._pipelines:
            pipeline.lacks |= offset > pipeline.needs_log()
        world.log.delete_before(offset)
        world.note("broker", lambda: f"keeps the cut log from {offset}")

    def _keys(self) -> Iterable[Key]:
        topics = self._world.followed_topics
        return [key for key in self._world.broker.partitions if key[0] in topics or key == TRANSACTIONS]

    def _begins(self) -> str:
        partitions = self._world.broker.partitions
        return ", ".join(f"{t}/{n} from {partitions[t, n].begin}" for t, n in self._keys())

    def _needed_by_sidecars(self, key: Key) -> int:
        """The first offset that a sidecar reads next, also one that starts again."""
        world = self._world
        found = resume(world.log, 1)
        start = found.starts(self._sidecars[0].settings.source_topics)(*key)
        return min(start or 0, *(sidecar.needs(key) for sidecar in self._sidecars))

    def _log_needed_by_sidecars(self) -> int:
        """One that starts again needs the furthest cut, and decisions behind it.

        It also needs the cuts of every commit of which the data topics still have rows: the log must be kept
        as long as they are. Otherwise it does not recognise rows that were written again.
        """
        world = self._world
        found = resume(world.log, 1)
        if found.newest is None:
            return 0
        begins = {key: partition.begin for key, partition in world.broker.partitions.items()}
        kept = {
            (era.timeline, commit.lsn)
            for era in world.eras
            for commit in era.oracle.commits
            if any(offset >= begins[key] for places in commit.places.values() for key, offset in places)
        }
        needed = (
            offset
            for offset, logged in world.logged.items()
            if any((logged.cut.timeline, t.commit_lsn) in kept for t in logged.cut.transactions)
        )
        return min((found.log_offset, *needed))


def _knows(cut: Cut, key: Key) -> bool:
    """Says whether a cut names where to continue."""
    return key == TRANSACTIONS or key[1] < len(cut.end_offsets.get(key[0], ()))


class Processes:
    """The processes of a simulation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sidecars = [SidecarProcess(world, f"sidecar {n}") for n in range(world.scenario.sidecars)]
        self.pipelines: list[Pipeline] = []
        self.retention = Retention(world, self.sidecars, self.pipelines)
        self.start_pipelines()

    def start_pipelines(self) -> None:
        """Readers with new checkpoints follow the present timeline; those before must stay where they are."""
        self.pipelines.append(StrictPipeline(self._world, self._world.era))
        if self._world.scenario.has(Feature.AGGREGATE):
            self.pipelines.append(GroupPipeline(self._world, self._world.era))

    @property
    def newest_pipelines(self) -> list[Pipeline]:
        """Those of the present timeline."""
        return [p for p in self.pipelines if p.timeline == self._world.era.timeline]


class Incidents:
    """Makes incidents happen, and ends those that last."""

    def __init__(self, world: World, processes: Processes) -> None:
        self.world = world
        self.processes = processes
        self._coming = list(world.scenario.incidents)
        self._ends: list[tuple[int, Callable[[], None]]] = []

    def happen(self) -> None:
        """Everything that is due at the present step."""
        world = self.world
        for end in [e for e in self._ends if e[0] <= world.step]:
            self._ends.remove(end)
            end[1]()
        while self._coming and self._coming[0].step <= world.step:
            incident = self._coming.pop(0)
            world.note("incident", lambda incident=incident: f"i{incident.number}: {incident.kind}")  # type: ignore[misc]
            _HANDLERS[incident.kind](self, random.Random(incident.choice))

    def heal(self, *, is_over: bool) -> None:
        """Ends everything that lasts; nothing more happens, for now or at all."""
        if is_over:
            self._coming.clear()
        for _, end in self._ends:
            end()
        self._ends.clear()

    def _for_a_while(self, rng: random.Random, end: Callable[[], None]) -> None:
        self._ends.append((self.world.step + rng.randint(1, _LONGEST), end))

    # --- connector

    def kill_connector(
        self, rng: random.Random, *, is_renumbering: bool = False, goes_back: bool = False
    ) -> None:
        """Kills it; the next run starts at some offset that was stored."""
        world = self.world
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
        if goes_back and not is_exact:
            place = rng.choice(connector.stored)
            place = Place(place.commit) if rng.random() < 0.5 else place
        is_renumbering |= connector.would_renumber_again(place)
        world.start_connector(Restart(place, is_renumbering, rng.choice((0, 1, 2, 9))))

    def double_batch(self, rng: random.Random) -> None:
        """The producer does not get to know that a batch was written."""
        self.world.producer.doubles += 1

    # --- broker

    def stall(self, rng: random.Random) -> None:
        """Nothing more of a partition becomes readable."""
        stalled = self.world.broker.stalled
        key = rng.choice(list(self.world.broker.partitions))
        stalled.add(key)
        self.world.note("broker", lambda: f"{key[0]}/{key[1]} stalls")
        self._for_a_while(rng, lambda: stalled.discard(key))

    def run_ahead(self, rng: random.Random) -> None:
        """Nothing more of a partition becomes readable while everything else flows: other groups continue."""
        world = self.world
        stalled = world.broker.stalled
        key = rng.choice([key for key in world.broker.partitions if key[0] in world.followed_topics])
        stalled.add(key)
        world.note("broker", lambda: f"{key[0]}/{key[1]} stalls, all others flow")
        for _ in range(_TURNS_AHEAD):
            for _ in range(rng.choice((1, 2))):
                world.commit()
            world.flow(_FLOW)
            world.clock.seconds += _SECONDS_AHEAD
            for sidecar in self.processes.sidecars:
                sidecar.turn(is_eager=True)
            for pipeline in self.processes.pipelines:
                pipeline.step(rng)
        self._for_a_while(rng, lambda: stalled.discard(key))

    def add_partitions(self, rng: random.Random) -> None:
        """A topic gets one or two more, between two transactions of the connector or while it restarts.

        Not while an initial snapshot may have to be taken again: its repeat would be in other partitions.
        Nor before the first cut: only cuts tell a sidecar that starts how many there were.
        """
        if self.world.scenario.has(Feature.CRASHES) and rng.random() < 0.5:
            self.kill_connector(rng)
        world = self.world
        if world.connector.place.item or world.connector.is_in_snapshot or not world.logged:
            return
        broker = world.broker
        topic = data_topic(SOURCE, rng.choice(world.scenario.tables).name)
        broker.add_topic(topic, broker.partition_count(topic) + rng.choice((1, 2)))

    def remove_unread(self, rng: random.Random) -> None:
        """Retention that somebody may be behind; in half of the histories with it there is none."""
        if self.world.scenario.seed % 2:
            self.processes.retention.remove_unread(rng)

    # --- sidecars and readers

    def skip(self, rng: random.Random) -> None:
        """An operator lets pass what is not there yet, or decides about another timeline."""
        world = self.world
        if world.committed:
            lsn = rng.choice(world.database.commits[: world.committed]).lsn
            world.skip_to(lsn, is_elsewhere=rng.choice((False, False, False, True)))

    def skip_ahead(self, rng: random.Random) -> None:
        """An operator decides about commits that sidecars then read at once, together with the decision."""
        world = self.world
        for _ in range(rng.randint(2, _TURNS_AHEAD)):
            world.commit()
            world.flow(_FLOW)
            world.clock.seconds += rng.choice((0.0, _SECONDS_AHEAD, 1.0))
        if world.committed:
            world.skip_to(rng.choice(world.database.commits[: world.committed][-_TURNS_AHEAD:]).lsn)

    # --- Redis and Kafka

    def empty_redis(self, rng: random.Random) -> None:
        """It loses everything."""
        self.world.store = InMemoryMarkerStore()

    def copy_redis(self, rng: random.Random) -> None:
        """Somebody makes a copy."""
        self.world.store_copy = copy.deepcopy(self.world.store)

    def replace_redis(self, rng: random.Random) -> None:
        """The copy takes the place of the original."""
        if self.world.store_copy is not None:
            self.world.store = copy.deepcopy(self.world.store_copy)

    def forge_redis(self, rng: random.Random) -> None:
        """Somebody who cannot write to the cut log writes to Redis what no sidecar did."""
        world, newest = self.world, self.world.newest_cut
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

    def remove_registry(self, rng: random.Random) -> None:
        """Schemas cannot be asked for."""
        avro = self.world.avro
        if avro is not None:
            avro.is_away = True
            self._for_a_while(rng, lambda: setattr(avro, "is_away", False))

    def set_away(self, attribute: str, rng: random.Random) -> None:
        """Something does not answer for a while; what is appended to the cut log may arrive all the same."""
        setattr(self.world, attribute, True)
        self._for_a_while(rng, lambda: setattr(self.world, attribute, False))


_HANDLERS: dict[str, Callable[[Incidents, random.Random], None]] = {
    "connector killed": Incidents.kill_connector,
    "connector renumbers": lambda it, rng: it.kill_connector(rng, is_renumbering=True),
    "connector goes far back": lambda it, rng: it.kill_connector(rng, goes_back=True),
    "batch doubled": Incidents.double_batch,
    "chunk of a snapshot": lambda it, rng: it.world.emit_chunk(rng),
    "snapshot that blocks": lambda it, rng: it.world.emit_blocking(rng),
    "partition stalls": Incidents.stall,
    "all but one partition flow": Incidents.run_ahead,
    "partitions added": Incidents.add_partitions,
    "sidecar killed": lambda it, rng: rng.choice(it.processes.sidecars).kill(),
    "sidecar killed writing": lambda it, rng: rng.choice(it.processes.sidecars).kill_at_point(
        rng.randint(0, 5)
    ),
    "sidecar stopped": lambda it, rng: rng.choice(it.processes.sidecars).stop(),
    "redis emptied": Incidents.empty_redis,
    "redis away": lambda it, rng: it.set_away("is_redis_away", rng),
    "redis copied": Incidents.copy_redis,
    "redis replaced by the copy": Incidents.replace_redis,
    "redis forged": Incidents.forge_redis,
    "source away": lambda it, rng: it.set_away("is_source_away", rng),
    "cut log away": lambda it, rng: it.set_away("is_log_away", rng),
    "registry away": Incidents.remove_registry,
    "reader killed": lambda it, rng: rng.choice(it.processes.pipelines).kill(),
    "operator skips": Incidents.skip,
    "operator skips what nobody has read": Incidents.skip_ahead,
    "read records removed": lambda it, rng: it.processes.retention.remove_read(rng),
    "unread records removed": Incidents.remove_unread,
}
