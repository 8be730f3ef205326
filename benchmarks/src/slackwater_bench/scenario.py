"""Scenarios: data that says what is measured, and a function that measures once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from slackwater.protocol import Clock
from slackwater_bench.environment import Environment

Parameters = Mapping[str, int | float | str]


class Direction(StrEnum):
    """Which values are good ones."""

    HIGHER = "higher is better"
    LOWER = "lower is better"


@dataclass(frozen=True, slots=True)
class Measured:
    """The finding of one run."""

    value: float
    """In the scenario's unit."""
    details: Mapping[str, object] = field(default_factory=dict)
    """Whatever explains the value; JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The surroundings that every run is given."""

    environment: Environment
    """The Slackwater that is measured."""
    clock: Clock
    say: Callable[[str], None]
    """Progress, a line at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One question, measured at one or several points."""

    name: str
    version: int
    """Rises when the same code would give other numbers; results of different versions are never compared."""
    unit: str
    direction: Direction
    measures: str
    """What the number is, in a sentence."""
    why: str
    """What it is good for, in a sentence."""
    points: tuple[Parameters, ...]
    """Each takes about three minutes at most."""
    quick_points: tuple[Parameters, ...]
    """Each takes less than a minute."""
    run: Callable[[Parameters, RunContext], Measured] = field(repr=False)
    """Runs once.

    Raises:
        TestingError: there is no number; the message says why.
    """
    axis: str | None = None
    """The parameter that the points vary: the x axis of the plot."""
    series: str | None = None
    """A second parameter that varies: one line of the plot for each of its values."""
    columns: tuple[str, ...] = ()
    """Details that the page shows in its table; ``a.b`` for ``b`` inside ``a``."""
    curves: tuple[str, ...] = ()
    """Columns that are plotted, too, each in a panel of its own."""
    threshold: float = 0.10
    """Relative change below which two commits count as equal, however small the spread is."""


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
        TestingError: a run failed; points before it have been handed out.
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
