"""Runs many seeds, in one or several processes."""

import logging
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from slackwater_simulator.faults import planted
from slackwater_simulator.generator import generate
from slackwater_simulator.scenario import NO_REDUCTION, Reduction
from slackwater_simulator.shrink import shrink
from slackwater_simulator.simulation import Outcome, simulate

_PORTION = 25
"""Seeds that a process takes at once."""

OnProgress = Callable[[int, int], None]
"""Told how many seeds are done and how many steps they took."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run."""

    first: int
    count: int
    only: tuple[str, ...] = ()
    reduction: Reduction = NO_REDUCTION
    fault: str | None = None
    """A planted fault: see :mod:`slackwater_simulator.faults`."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What a number of seeds gave."""

    seeds: int
    steps: int
    cuts: int
    failed: tuple[Outcome, ...]


def run(plan: Plan, jobs: int = 1, on_progress: OnProgress | None = None) -> Tally:
    """Simulates all seeds of a plan; goes on after failures.

    Args:
        plan: What to run.
        jobs: Number of processes; 1: in this one.
        on_progress: Told now and then.
    """
    seeds = steps = cuts = 0
    failed: list[Outcome] = []
    for part in _parts(plan, jobs):
        seeds, steps, cuts = seeds + part.seeds, steps + part.steps, cuts + part.cuts
        failed += part.failed
        if on_progress is not None:
            on_progress(seeds, steps)
    return Tally(seeds, steps, cuts, tuple(sorted(failed, key=lambda o: o.scenario.seed)))


def first_failure(plan: Plan) -> Outcome | None:
    """The first seed of a plan that fails, None when none does."""
    for seed in range(plan.first, plan.first + plan.count):
        tally = _run_portion((plan, range(seed, seed + 1)))
        if tally.failed:
            return tally.failed[0]
    return None


def explain(failed: Outcome, plan: Plan) -> Outcome:
    """The smallest form of a failure that can be found, with its trace."""
    with planted(plan.fault), _silence():
        whole = generate(failed.scenario.seed, plan.only)
        smallest = failed if plan.reduction != NO_REDUCTION else shrink(failed, whole)
        return simulate(smallest.scenario, is_traced=True)


def _parts(plan: Plan, jobs: int) -> Iterator[Tally]:
    seeds = range(plan.first, plan.first + plan.count)
    portions = [(plan, seeds[i : i + _PORTION]) for i in range(0, plan.count, _PORTION)]
    if jobs == 1:
        yield from map(_run_portion, portions)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_run_portion, portions)


def _run_portion(job: tuple[Plan, Sequence[int]]) -> Tally:
    plan, seeds = job
    with planted(plan.fault), _silence():
        outcomes = [simulate(generate(s, plan.only).reduced(plan.reduction)) for s in seeds]
    return Tally(
        len(outcomes),
        sum(o.steps for o in outcomes),
        sum(o.cuts for o in outcomes),
        tuple(o for o in outcomes if o.violation),
    )


@contextmanager
def _silence() -> Iterator[None]:
    """What simulated processes log is nobody's business."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
