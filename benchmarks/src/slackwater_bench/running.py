"""Runs scenarios point by point."""

from collections.abc import Iterator, Mapping, Sequence

from slackwater_bench.scenario import Measured, Parameters, RunContext, Scenario


def points_of(scenario: Scenario, *, is_quick: bool, limits: Mapping[str, float]) -> tuple[Parameters, ...]:
    """The points of a scenario that are to be run.

    Args:
        scenario: What is run.
        is_quick: Small sizes.
        limits: By parameter, the largest value; larger points are left out.
    """
    points = scenario.quick_points if is_quick else scenario.points
    return tuple(
        point
        for point in points
        if all(float(point.get(name, 0)) <= largest for name, largest in limits.items())
    )


def run_points(
    scenario: Scenario, points: Sequence[Parameters], context: RunContext
) -> Iterator[tuple[Parameters, Measured]]:
    """Measures each point once, in order.

    Raises:
        BenchError: a run failed; points before it have been handed out.
    """
    for point in points:
        context.say(f"{scenario.name} {shown(point)}")
        measured = scenario.run(point, context)
        context.say(f"{scenario.name} {shown(point)}: {measured.value:,} {scenario.unit}")
        yield point, measured


def shown(parameters: Parameters) -> str:
    """Parameters for people."""
    values = (
        f"{name}={value:,}" if isinstance(value, int) else f"{name}={value}"
        for name, value in parameters.items()
    )
    return " ".join(values)
