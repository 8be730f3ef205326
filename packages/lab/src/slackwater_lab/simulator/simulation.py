"""Simulates scenarios: steps in random order, then a time in which nothing goes wrong.

:class:`Simulator` is the subject of the seed harness: it generates, checks and shrinks them.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from slackwater.protocol import SNAPSHOT_XID
from slackwater_lab.seeds import CRASHED, RIGHT, LeaveOut, PlantedFault, Simplify, Step
from slackwater_lab.simulator.faults import FAULTS
from slackwater_lab.simulator.incidents import Incidents, Processes
from slackwater_lab.simulator.oracle import ViolationError
from slackwater_lab.simulator.scenario import (
    NO_REDUCTION,
    SOURCE,
    Feature,
    Reduction,
    Scenario,
    feature_names,
    generate,
)
from slackwater_lab.simulator.world import World

_HEALTHY_ROUNDS = 60
"""Within this many rounds, in which everybody has a turn, the frontier must be at the last commit."""
_SECONDS_BETWEEN_COMMITS = 120.0
"""At the end: some rows of snapshots are shown only when something much newer is there."""
_SCHEDULES = 12
"""Orders of steps that are tried for each smaller scenario: dropping something changes what comes when."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """The end of a simulation.

    Attributes:
        case: What was simulated.
        verdict: `RIGHT`, the promise that was broken, or `CRASHED`.
        problem: What was wrong; empty when everything that is promised held.
        counts: Steps and cuts.
        trace: What happened, if it was wanted.
    """

    case: Scenario
    verdict: str
    problem: str
    counts: Mapping[str, int]
    trace: tuple[str, ...] = ()

    @property
    def is_failure(self) -> bool:
        """True if a promise was broken."""
        return self.verdict != RIGHT


def simulate(scenario: Scenario, *, is_traced: bool = False) -> Simulated:
    """Runs a scenario to its end, or to the first violation."""
    world = World(scenario, is_traced=is_traced)
    try:
        _Simulation(world).run()
        verdict, problem = RIGHT, ""
    except ViolationError as error:
        verdict, problem = error.promise, error.text
    except Exception as error:  # noqa: BLE001 - what a simulated process dies of is a finding with a seed, too
        verdict, problem = CRASHED, f"{type(error).__name__}: {error} {_where(error)}"
    counts = {"steps": world.step, "cuts": len(world.logged)}
    return Simulated(scenario, verdict, problem, counts, tuple(world.trace.lines))


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return "at " + ", ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames)


class _Simulation:
    def __init__(self, world: World) -> None:
        self._world = world
        self._processes = processes = Processes(world)
        self._incidents = Incidents(world, processes)
        rng = world.rng
        self._actions: list[tuple[Callable[[], object], float]] = [
            (world.commit, rng.choice((0.3, 1.0))),
            (world.emit, rng.choice((0.5, 1.0, 3.0))),
            (world.produce, 4.0),
            (world.reveal, 4.0),
            (lambda: world.connector.flush(), rng.choice((0.1, 0.5))),
            (self._wait, 1.0),
            (lambda: rng.choice(processes.pipelines).step(rng), rng.choice((0.1, 0.5, 2.0))),
            (world.decide_timeline, 0.05),
            *((sidecar.turn, 4.0 / len(processes.sidecars)) for sidecar in processes.sidecars),
        ]

    def run(self) -> None:
        world, restore = self._world, self._world.scenario.restore
        world.begin()
        if restore is None:
            self._live(world.scenario.steps)
            self._heal(is_over=True)
            return
        self._live(world.scenario.steps // 2)
        if self._heal(is_over=False):
            world.restore(restore)
            self._processes.start_pipelines()
            self._live(world.scenario.steps // 2)
            self._heal(is_over=True)

    def _live(self, steps: int) -> None:
        world = self._world
        actions = [action for action, _ in self._actions]
        weights = [weight for _, weight in self._actions]
        for _ in range(steps):
            world.step += 1
            world.clock.seconds += 0.001
            self._incidents.happen()
            world.rng.choices(actions, weights)[0]()

    def _wait(self) -> None:
        self._world.clock.seconds += self._world.rng.choice((0.01, 0.1, 1.0))

    def _heal(self, *, is_over: bool) -> bool:
        """G4: what was committed becomes visible, and the reader gets there, unless it may stall."""
        world = self._world
        world.note("", lambda: "from here on nothing goes wrong")
        self._incidents.heal(is_over=is_over)
        world.retake_snapshot()
        for number in range(_HEALTHY_ROUNDS):
            world.step += 1
            self._healthy_round(0.11 if number < _HEALTHY_ROUNDS / 2 else 2.0)
            if self._is_done():
                return True
            if number == _HEALTHY_ROUNDS // 2 and world.lost_commit is not None:
                self._judge_name(world.oracle.newest_cut_lsn)
                world.skip_lost()
        self._judge_stall()
        return False

    def _healthy_round(self, seconds: float) -> None:
        world = self._world
        while world.committed < len(world.database.commits) and not world.connector.is_in_snapshot:
            world.clock.seconds += _SECONDS_BETWEEN_COMMITS
            world.commit()
        world.clock.seconds += seconds
        world.flow()
        for sidecar in self._processes.sidecars:
            sidecar.turn(is_eager=True)
            world.decide_timeline()
        for _ in range(10):
            for pipeline in self._processes.pipelines:
                pipeline.step(world.rng)
        if world.scenario.has(Feature.RETENTION):
            self._processes.retention.remove_read(world.rng)

    def _is_done(self) -> bool:
        """Says whether cut log, Redis and reader are at the last commit."""
        world, last = self._world, self._last_lsn
        if all(sidecar.refusal for sidecar in self._processes.sidecars):
            return True
        if max(world.logged, default=0) < world.log.begin():
            return True  # before the next cut nothing says where the newest one was
        held = world.store.newest(SOURCE, world.era.timeline)
        is_redis_done = held is not None and held.cut.lsn >= last and self._is_redis_right()
        is_reader_done = all(
            p.refusal or p.lacks or p.shown_lsn >= last for p in self._processes.newest_pipelines
        )
        is_shown = world.scenario.has(Feature.DROPPED) or not any(s.rests for s in self._processes.sidecars)
        is_log_done = world.oracle.newest_cut_lsn >= last and is_shown
        return is_redis_done and is_reader_done and is_log_done

    def _is_redis_right(self) -> bool:
        """Says whether what is in Redis is what the cut log says."""
        world = self._world
        timeline = world.era.timeline
        held, newest = world.store.position(SOURCE), world.store.newest(SOURCE, timeline)
        if held is None or newest is None:
            return False
        try:
            world.judge_markers(timeline, world.store.markers(SOURCE))
        except ViolationError:
            return False  # forged, and not put right yet
        return world.logged.get(held.log_offset) == newest and newest.cut.position == held.position

    @property
    def _last_lsn(self) -> int:
        """The last commit; the one before where completeness shows only when later rows are there."""
        commits = self._world.database.commits
        is_seen_later = self._world.scenario.has(Feature.DROPPED)
        return commits[-2 if is_seen_later and len(commits) > 1 else -1].lsn

    def _judge_stall(self) -> None:
        world = self._world
        held, at = world.store.newest(SOURCE, world.era.timeline), world.oracle.newest_cut_lsn
        if self._may_stall() and (at < self._last_lsn or any(s.rests for s in self._processes.sidecars)):
            self._judge_name(at)
            return
        readers = ", ".join(f"the {p.name} at {p.lsn}" for p in self._processes.newest_pipelines)
        waits = "; ".join(text for s in self._processes.sidecars for text in s.waits_for())
        raise ViolationError(
            "G4",
            f"after {_HEALTHY_ROUNDS} healthy rounds the cut log is at {at}, Redis at "
            f"{held.cut.lsn if held else 0}, {readers}, the last commit is "
            f"{self._last_lsn}; waits for {waits or 'nothing'}",
        )

    def _may_stall(self) -> bool:
        """Says whether the last transaction may have to wait: only traffic behind it proves it whole.

        So it is where the cut log lacks what a sidecar needs, for repeats without run headers or keys, for
        snapshots without notifications, for rows of a snapshot that wait for a commit that has to be
        overtaken, and for transactions that a connector began before its offsets were deleted for a new
        snapshot: their ENDs never come, and in a partition without rows of the snapshot nothing shows that it
        contains them.
        """
        has = self._world.scenario.has
        return (
            self._world.may_stall_without_keys
            or self._world.is_log_short
            or (has(Feature.NO_HEADERS) and self._world.may_repeat_rows)
            or ((has(Feature.SNAPSHOT) or has(Feature.TIMELINES)) and has(Feature.UNANNOUNCED))
            or (has(Feature.SKIPPED_SNAPSHOT) and self._is_any_without_end())
            or (has(Feature.DROPPED) and has(Feature.BLOCKING))
            or (has(Feature.DROPPED) and "end" in self._world.scenario.reduction.parts)
        )

    def _is_any_without_end(self) -> bool:
        return any(transaction.commit_lsn is None for transaction in self._world.store.open(SOURCE))

    def _judge_name(self, at: int) -> None:
        """Judges that what cannot complete is named.

        Where a snapshot is missing, this is the first commit of all, even if no table has rows of it.
        """
        named = {t.xid for t in self._world.store.open(SOURCE)}
        is_any = self._world.scenario.has(Feature.UNANNOUNCED)
        commits = (c for c in self._world.oracle.commits if c.lsn > at and (is_any or c.is_listed))
        waiting = [c.xid for c in commits] + [SNAPSHOT_XID]
        if named.isdisjoint(waiting):
            raise ViolationError("G4", f"the cut log is at {at}, {waiting} wait, named are {sorted(named)}")


@dataclass(frozen=True, slots=True)
class Simulator:
    """Simulates scenarios; see `Subject`.

    Attributes:
        reduction: What is left out of every scenario. Nothing more is left out then to make it small.
    """

    reduction: Reduction = NO_REDUCTION
    features: ClassVar[tuple[str, ...]] = tuple(Feature)
    faults: ClassVar[Mapping[str, PlantedFault]] = FAULTS

    def generate(self, seed: int, only: Sequence[str]) -> Scenario:
        """Makes the scenario of a seed."""
        return generate(seed, only).reduced(self.reduction)

    def check(self, case: Scenario) -> Simulated:
        """Simulates a scenario."""
        return simulate(case)

    def shrinking_steps(self) -> Sequence[Step[Scenario, Simulated]]:
        """Leaves out sidecars, partitions, incidents, transactions."""
        if self.reduction != NO_REDUCTION:
            return ()
        return (
            Simplify(_with_simpler_surroundings),
            LeaveOut(_incidents, _with_parts(_incidents)),
            LeaveOut(_transactions, _with_parts(_transactions)),
        )

    def variants(self, case: Scenario) -> Iterator[Scenario]:
        """Other orders of steps."""
        for schedule in range(_SCHEDULES):
            yield replace(case, reduction=replace(case.reduction, schedule=schedule))

    def report(self, result: Simulated) -> str:
        """Simulates it again, and shows what happened."""
        scenario = result.case
        traced = simulate(scenario, is_traced=True)
        lines = [
            f"seed {scenario.seed} ({feature_names(scenario.features)})",
            *(f"  {line}" for line in traced.trace),
            f"  {traced.verdict}: {traced.problem}",
            f"repeat: {scenario.command()}",
            "",
        ]
        return "\n".join(lines)


def _with_simpler_surroundings(result: Simulated) -> Iterator[Scenario]:
    case = result.case
    for part in (*["sidecars"] * (case.sidecars > 1), "partitions", "end"):
        if part not in case.reduction.parts:
            yield _without(case, {part})


def _incidents(scenario: Scenario) -> tuple[str, ...]:
    return tuple(f"i{incident.number}" for incident in scenario.incidents)


def _transactions(scenario: Scenario) -> tuple[str, ...]:
    return tuple(f"t{transaction.number}" for transaction in scenario.transactions[:-1])


def _with_parts(
    parts: Callable[[Scenario], tuple[str, ...]],
) -> Callable[[Scenario, tuple[str, ...]], Scenario]:
    return lambda scenario, kept: _without(scenario, set(parts(scenario)) - set(kept))


def _without(scenario: Scenario, parts: set[str]) -> Scenario:
    now = scenario.reduction
    return generate(scenario.seed, scenario.only).reduced(replace(now, parts=now.parts | parts))
