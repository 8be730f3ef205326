"""Base, head, base, head …: runs that alternate see the same weather."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slackwater_bench.comparison.verdict import Compared
from slackwater_bench.errors import BenchError
from slackwater_bench.running import run_points, shown
from slackwater_bench.scenario import Parameters, RunContext, Scenario
from slackwater_bench.subject import Subject


@dataclass(frozen=True, slots=True)
class PointComparison:
    """What the alternating runs at one point of one scenario came to."""

    scenario: Scenario
    parameters: Parameters
    compared: Compared | None
    """None: not comparable."""
    reason: str = ""
    """Why it is not."""

    def __str__(self) -> str:
        what = f"{self.scenario.name} {shown(self.parameters)} [{self.scenario.unit}]"
        return f"{what}: {self.compared or self.reason}"


def compare_point(
    scenario: Scenario,
    parameters: Parameters,
    subjects: tuple[Subject, Subject],
    runs: int,
    context: RunContext,
) -> PointComparison:
    """Measures base and head in turn.

    A base that cannot run the scenario (it lacks what is measured, say) makes the point not comparable.

    Args:
        scenario: What is measured.
        parameters: At this point.
        subjects: Base and head.
        runs: Of each.
        context: Its subject does not count.

    Raises:
        BenchError: head cannot run it.
    """
    base, head = subjects
    values: dict[str, list[float]] = {"base": [], "head": []}
    for number in range(1, runs + 1):
        context.say(f"run {number} of {runs}, {base.label}")
        try:
            values["base"].append(_value(scenario, parameters, replace(context, subject=base)))
        except BenchError as error:
            reason = f"not compared: {base.label} cannot run it: {error}"
            return PointComparison(scenario, parameters, None, reason)
        context.say(f"run {number} of {runs}, {head.label}")
        values["head"].append(_value(scenario, parameters, replace(context, subject=head)))
    compared = Compared.of(values["base"], values["head"], scenario.direction, scenario.threshold)
    return PointComparison(scenario, parameters, compared)


def compare_scenarios(
    work: Sequence[tuple[Scenario, Sequence[Parameters]]],
    subjects: tuple[Subject, Subject],
    runs: int,
    context: RunContext,
    tell: Callable[[PointComparison], None],
) -> list[PointComparison]:
    """All points of all scenarios, each told as soon as it is known."""
    found = []
    for scenario, points in work:
        for parameters in points:
            comparison = compare_point(scenario, parameters, subjects, runs, context)
            tell(comparison)
            found.append(comparison)
    return found


def _value(scenario: Scenario, parameters: Parameters, context: RunContext) -> float:
    return next(measured.value for _, measured in run_points(scenario, [parameters], context))
