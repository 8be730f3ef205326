"""Makes a failing scenario small while it still fails in the same way."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from slackwater_simulator.scenario import Reduction, Scenario
from slackwater_simulator.simulation import Outcome, simulate

_SCHEDULES = 12
"""Orders of steps that are tried for each smaller scenario: dropping something changes what comes when."""
_MOST_RUNS = 3_000

Simulate = Callable[[Scenario], Outcome]


def shrink(failed: Outcome, whole: Scenario, run: Simulate = simulate) -> Outcome:
    """The smallest failing scenario that was found; at worst the one that was given.

    Args:
        failed: What is to be made smaller.
        whole: The scenario without any reduction.
        run: Simulates a scenario.
    """
    return _Shrinker(failed, whole, run).shrink()


class _Shrinker:
    def __init__(self, failed: Outcome, whole: Scenario, run: Simulate) -> None:
        self._best = failed
        self._whole = whole
        self._run = run
        self._runs_left = _MOST_RUNS

    def shrink(self) -> Outcome:
        is_smaller = True
        while is_smaller and self._runs_left > 0:
            is_smaller = False
            for candidate in self._candidates():
                if self._still_fails(candidate):
                    is_smaller = True
                    break
        return self._best

    def _candidates(self) -> Iterator[Reduction]:
        """Less and less daring."""
        best = self._best.scenario
        now = best.reduction
        if not now.is_single_sidecar and best.sidecars > 1:
            yield replace(now, is_single_sidecar=True)
        if not now.is_single_partition:
            yield replace(now, is_single_partition=True)
        if not now.is_small_end:
            yield replace(now, is_small_end=True)
        for chunk in _chunks([i.number for i in best.incidents]):
            yield replace(now, incidents=now.incidents | chunk)
        for chunk in _chunks([i.number for i in best.intents[:-1]]):
            yield replace(now, transactions=now.transactions | chunk)

    def _still_fails(self, reduction: Reduction) -> bool:
        for schedule in range(_SCHEDULES):
            if self._runs_left <= 0:
                return False
            self._runs_left -= 1
            outcome = self._run(self._whole.reduced(replace(reduction, schedule=schedule)))
            if outcome.violation and outcome.promise == self._best.promise:
                self._best = outcome
                return True
        return False


def _chunks(numbers: list[int]) -> Iterator[frozenset[int]]:
    """All, halves, quarters, …, single ones."""
    size = len(numbers)
    while size:
        for first in range(0, len(numbers), size):
            yield frozenset(numbers[first : first + size])
        size //= 2
