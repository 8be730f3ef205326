"""``python -m slackwater_bench compare``: two commits, by runs that alternate."""

import sys
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

import click

from slackwater_bench.environment import Environment, installed
from slackwater_bench.latencies import relative_spread
from slackwater_bench.registry import scenario_named
from slackwater_bench.scenario import (
    Direction,
    Parameters,
    RunContext,
    Scenario,
    points_of,
    run_points,
    shown,
)
from slackwater_lab.errors import TestingError


class Verdict(StrEnum):
    """The meaning of a ratio."""

    SAME = "same"
    BETTER = "better"
    WORSE = "REGRESSION"


@dataclass(frozen=True, slots=True)
class Compared:
    """Base and head at one point."""

    base: tuple[float, ...]
    head: tuple[float, ...]
    direction: Direction
    threshold: float
    """The least relative change that counts."""

    @property
    def ratio(self) -> float:
        """Median of head over median of base; infinite if base's is 0 and head's is not."""
        base, head = median(self.base), median(self.head)
        if base == 0:
            return 1.0 if head == 0 else float("inf")
        return head / base

    @property
    def spread(self) -> float:
        """The larger relative spread of the two: what repeating a run changes by itself."""
        return max(relative_spread(self.base), relative_spread(self.head))

    @property
    def verdict(self) -> Verdict:
        """A change counts when it exceeds the threshold *and* the spread, whichever is larger.

        The change is counted from the better of the two medians, so that twice and half are equally far.
        """
        ratio = self.ratio
        gain = ratio if self.direction is Direction.HIGHER else (1 / ratio if ratio else float("inf"))
        allowed = 1 + max(self.threshold, self.spread)
        if gain > allowed:
            return Verdict.BETTER
        if gain * allowed < 1:
            return Verdict.WORSE
        return Verdict.SAME

    def __str__(self) -> str:
        values = f"{median(self.base):,.4g} -> {median(self.head):,.4g}"
        return f"{values}, ratio {self.ratio:.3f}, spread {100 * self.spread:.0f} %: {self.verdict}"


@dataclass(frozen=True, slots=True)
class PointComparison:
    """The result of the alternating runs at one point of one scenario."""

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
    environments: tuple[Environment, Environment],
    runs: int,
    context: RunContext,
) -> PointComparison:
    """Measures base and head in turn.

    A base that cannot run the scenario (it lacks what is measured, say) makes the point not comparable.

    Raises:
        TestingError: head cannot run it.
    """
    base, head = environments
    values: dict[str, list[float]] = {"base": [], "head": []}
    for number in range(1, runs + 1):
        context.say(f"run {number} of {runs}, {base.label}")
        try:
            values["base"].append(_value(scenario, parameters, replace(context, environment=base)))
        except TestingError as error:
            reason = f"not compared: {base.label} cannot run it: {error}"
            return PointComparison(scenario, parameters, None, reason)
        context.say(f"run {number} of {runs}, {head.label}")
        values["head"].append(_value(scenario, parameters, replace(context, environment=head)))
    compared = Compared((*values["base"],), (*values["head"],), scenario.direction, scenario.threshold)
    return PointComparison(scenario, parameters, compared)


def _value(scenario: Scenario, parameters: Parameters, context: RunContext) -> float:
    return next(measured.value for _, measured in run_points(scenario, [parameters], context))


DEFAULT_SCENARIOS = ("throughput", "latency", "sidecar", "sink-alone")


@click.command()
@click.option("--base", "revision", required=True, metavar="REV", help="The commit to compare with.")
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    metavar="NAME",
    help=f"May be repeated.  [default: {', '.join(DEFAULT_SCENARIOS)}]",
)
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1), help="Runs of each commit.")
@click.option("--quick/--full", default=True, show_default=True, help="Small sizes or the default ones.")
def compare(revision: str, scenarios: tuple[str, ...], runs: int, quick: bool) -> None:
    """Compare the working tree with another commit; exit code 1 if something got worse.

    The other commit is checked out and installed in a temporary folder. This benchmark drives both, through
    the `slackwater` command of each: base, head, base, head ... What counts is the ratio of the medians; it
    has to exceed both 10 % (some scenarios: more) and the spread of the runs.
    """
    try:
        chosen = [scenario_named(name) for name in scenarios or DEFAULT_SCENARIOS]
        work = [(each, points_of(each, is_quick=quick, limits={})) for each in chosen]
        context = RunContext.here()
        with installed(revision, context.say) as base:
            environments, found = (base, Environment.here()), []
            for scenario, points in work:
                for parameters in points:
                    found.append(compare_point(scenario, parameters, environments, runs, context))
                    click.echo(str(found[-1]))
    except TestingError as error:
        raise click.ClickException(str(error)) from error
    worse = [each for each in found if each.compared and each.compared.verdict is Verdict.WORSE]
    click.echo(f"{len(found)} points, {len(worse)} regressions")
    sys.exit(1 if worse else 0)
