"""Who reads what is in the world: sidecars and readers; and retention, which takes it away from them."""

import random
from collections.abc import Iterable, Sequence

from slackwater.protocol import Cut
from slackwater_lab.simulator.connector import TRANSACTIONS
from slackwater_lab.simulator.kafka import Key
from slackwater_lab.simulator.readers import GroupPipeline, Pipeline, StrictPipeline
from slackwater_lab.simulator.scenario import Feature
from slackwater_lab.simulator.sidecar import SidecarProcess
from slackwater_lab.simulator.world import World
from slackwater_sidecar.resume import resume


class Retention:
    """Raises the first offsets of data topics, the transaction topic and the cut log.

    A process that needs what is gone may refuse to continue, no other may. Before the first cut
    nothing is removed that a sidecar needs: its first start takes what there is.

    Args:
        world: Whose topics these are.
        sidecars: Who reads them.
        pipelines: Who else does; others may join.
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
    """The processes of a simulation.

    Args:
        world: Where they run.
    """

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
