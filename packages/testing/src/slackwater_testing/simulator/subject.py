"""The simulator as a subject of the seed harness."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from slackwater_testing.seeds import LeaveOut, PlantedFault, Simplify, Step
from slackwater_testing.simulator.faults import FAULTS
from slackwater_testing.simulator.generator import generate
from slackwater_testing.simulator.scenario import (
    NO_REDUCTION,
    Feature,
    Reduction,
    Scenario,
    feature_names,
)
from slackwater_testing.simulator.simulation import Simulated, simulate

_SCHEDULES = 12
"""Orders of steps that are tried for each smaller scenario: dropping something changes what comes when."""


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
            LeaveOut(_incidents, _with_incidents),
            LeaveOut(_transactions, _with_transactions),
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
    now = result.case.reduction
    if result.case.sidecars > 1:
        yield _reduced(result.case, replace(now, is_single_sidecar=True))
    if not now.is_single_partition:
        yield _reduced(result.case, replace(now, is_single_partition=True))
    if not now.is_small_end:
        yield _reduced(result.case, replace(now, is_small_end=True))


def _incidents(scenario: Scenario) -> tuple[int, ...]:
    return tuple(incident.number for incident in scenario.incidents)


def _with_incidents(scenario: Scenario, kept: tuple[int, ...]) -> Scenario:
    now = scenario.reduction
    gone = now.incidents | (set(_incidents(scenario)) - set(kept))
    return _reduced(scenario, replace(now, incidents=gone))


def _transactions(scenario: Scenario) -> tuple[int, ...]:
    return tuple(transaction.number for transaction in scenario.transactions[:-1])


def _with_transactions(scenario: Scenario, kept: tuple[int, ...]) -> Scenario:
    now = scenario.reduction
    gone = now.transactions | (set(_transactions(scenario)) - set(kept))
    return _reduced(scenario, replace(now, transactions=gone))


def _reduced(scenario: Scenario, reduction: Reduction) -> Scenario:
    return generate(scenario.seed, scenario.only).reduced(reduction)
