"""Runs many seeds, in one or several processes."""

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from slackwater_differential.case import Feature
from slackwater_differential.check import Outcome, Verdict, check
from slackwater_differential.engines import ENGINES
from slackwater_differential.faults import planted
from slackwater_differential.generator import generate
from slackwater_differential.shrink import shrink

_PORTION = 10
"""Seeds that a process takes at once."""

OnProgress = Callable[[int, int], None]
"""Told how many seeds are done and how many of them failed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run.

    Attributes:
        first: The first seed.
        count: How many.
        only: Names of the features that may occur; empty: all.
        engine: Name of the engine.
        fault: A planted fault, see :mod:`slackwater_differential.faults`.
        keeps_going: Goes on after a failure.
    """

    first: int
    count: int
    only: tuple[str, ...] = ()
    engine: str = "local"
    fault: str | None = None
    keeps_going: bool = True


@dataclass(frozen=True, slots=True)
class Tally:
    """What a number of seeds gave.

    Attributes:
        verdicts: How many seeds came out how.
        features: In how many right or wrong seeds a feature occurred.
        refusals: How often the planner gave which reason, with one of the seeds.
        states: Compared states of views.
        rows: Compared rows.
        repeats: Documents that said what was known.
        failed: The failures, by seed.
        impossible: Seeds that the reference could not do.
    """

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    features: Counter[Feature] = field(default_factory=Counter)
    refusals: tuple[tuple[int, str], ...] = ()
    states: int = 0
    rows: int = 0
    repeats: int = 0
    failed: tuple[Outcome, ...] = ()
    impossible: tuple[Outcome, ...] = ()

    @property
    def seeds(self) -> int:
        """How many there were."""
        return self.verdicts.total()

    @property
    def checked(self) -> int:
        """How many were compared."""
        return self.seeds - self.verdicts[Verdict.REFUSED] - self.verdicts[Verdict.IMPOSSIBLE]

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.verdicts + other.verdicts,
            self.features + other.features,
            (*self.refusals, *other.refusals),
            self.states + other.states,
            self.rows + other.rows,
            self.repeats + other.repeats,
            (*self.failed, *other.failed),
            (*self.impossible, *other.impossible),
        )


def run(plan: Plan, jobs: int = 1, on_progress: OnProgress | None = None) -> Tally:
    """Checks all seeds of a plan, or up to the portion of the first failure.

    Args:
        plan: What to run.
        jobs: Number of processes; 1: in this one.
        on_progress: Told now and then.
    """
    tally = Tally()
    for part in _parts(plan, jobs):
        tally += part
        if on_progress is not None:
            on_progress(tally.seeds, len(tally.failed))
        if tally.failed and not plan.keeps_going:
            break
    return tally


def first_failure(plan: Plan) -> Outcome | None:
    """The first seed of a plan that fails, None when none does."""
    for seed in range(plan.first, plan.first + plan.count):
        tally = _run_portion((plan, range(seed, seed + 1)))
        if tally.failed:
            return tally.failed[0]
    return None


def explain(failed: Outcome, plan: Plan) -> Outcome:
    """The smallest form of a failure that can be found."""
    with planted(plan.fault):
        return shrink(failed, ENGINES[plan.engine])


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
    tally = Tally()
    with planted(plan.fault):
        for seed in seeds:
            tally += _tally(check(generate(seed, plan.only), ENGINES[plan.engine]))
    return tally


def _tally(outcome: Outcome) -> Tally:
    verdict = outcome.verdict
    is_checked = verdict not in {Verdict.REFUSED, Verdict.IMPOSSIBLE}
    return Tally(
        Counter([verdict]),
        Counter(outcome.case.features if is_checked else ()),
        ((outcome.case.seed, outcome.problem),) if verdict is Verdict.REFUSED else (),
        outcome.states,
        outcome.rows,
        outcome.repeats,
        (outcome,) if verdict.is_failure else (),
        (outcome,) if verdict is Verdict.IMPOSSIBLE else (),
    )
