from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slackwater_lab.seeds import CRASHED, RIGHT, LeaveOut, PlantedFault, Simplify, Step, shrink


@dataclass(frozen=True)
class Numbers:
    """A case that fails when its sum is large, in another way when it has a negative number."""

    numbers: tuple[int, ...]
    seed: int = 0
    features: tuple[str, ...] = ()

    def command(self) -> str:
        return "repeat"


@dataclass(frozen=True)
class Summed:
    case: Numbers
    verdict: str
    problem: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_failure(self) -> bool:
        return self.verdict != RIGHT


@dataclass
class Sums:
    checks: int = 0
    features: Sequence[str] = ()
    faults: Mapping[str, PlantedFault] = field(default_factory=dict)

    def generate(self, seed: int, only: Sequence[str]) -> Numbers:
        return Numbers(tuple(range(seed)))

    def check(self, case: Numbers) -> Summed:
        self.checks += 1
        if min(case.numbers, default=0) < 0:
            return Summed(case, CRASHED, "ValueError: negative")
        return Summed(case, "too large" if sum(case.numbers) > 100 else RIGHT)

    def shrinking_steps(self) -> Sequence[Step[Numbers, Summed]]:
        return (
            LeaveOut(lambda case: case.numbers, lambda _, kept: Numbers(kept)),
            Simplify(lambda result: [Numbers(tuple(n - 1 for n in result.case.numbers))]),
        )

    def variants(self, case: Numbers) -> Iterable[Numbers]:
        return (case,)

    def report(self, result: Summed) -> str:
        return result.problem


def test_parts_are_left_out_and_the_rest_made_simpler_while_it_still_fails() -> None:
    sums = Sums()

    small = shrink(sums.check(Numbers((3, 200, 5, 20))), sums)

    assert small.case.numbers == (101,)


def test_a_failure_is_not_exchanged_for_one_of_another_kind() -> None:
    sums = Sums()

    small = shrink(sums.check(Numbers((-1, 400, 7))), sums)

    assert small.verdict == CRASHED
    assert small.case.numbers[0] < 0


def test_no_more_cases_are_checked_than_allowed() -> None:
    sums = Sums()
    failed = sums.check(Numbers((10_000,)))
    sums.checks = 0

    small = shrink(failed, sums, most_checks=20)

    assert sums.checks == 20
    assert small.case.numbers == (9_981,) or small.is_failure
