"""Scenarios: data that says what is measured, a function that measures once, and what its runs have given."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import click

from slackwater.protocol import Clock, SystemClock
from slackwater_bench.environment import Environment
from slackwater_bench.latencies import relative_spread
from slackwater_lab.results import RESULTS, Result, new_result, read_results

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

    @classmethod
    def here(cls) -> "RunContext":
        """Measures what is installed here; progress goes to standard error, results to standard output."""
        return cls(environment=Environment.here(), clock=SystemClock(), say=partial(click.echo, err=True))


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
    columns: tuple[str, ...] = ()
    """Details that the page shows in its table; ``a.b`` for ``b`` inside ``a``."""
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


PACKAGES = ("slackwater", "pyspark", "confluent-kafka", "duckdb", "lmdb", "msgspec", "pyarrow", "redis")
NEWEST_RUNS = 5
"""Older runs at the same point stay in the file and out of the page's numbers."""


def make_result(scenario: Scenario, parameters: Parameters, measured: Measured, clock: Clock) -> Result:
    """The result of a run in this environment, now."""
    return new_result(
        scenario.name,
        scenario.version,
        parameters=parameters,
        value=measured.value,
        unit=scenario.unit,
        details=measured.details,
        clock=clock,
        versions=package_versions(),
    )


def package_versions() -> dict[str, str]:
    """The versions of what numbers depend on."""
    return {name: version(name) for name in PACKAGES}


def scenario_results(scenario: Scenario, folder: Path = RESULTS) -> list[Result]:
    """The runs of a scenario in its present version, oldest first; none when there is no file.

    Raises:
        RunFailedError: a line of the file is no result.
    """
    found = read_results(scenario.name, folder)
    return [result for result in found if result.version == scenario.version]


@dataclass(frozen=True, slots=True)
class PointSummary:
    """The newest runs at one point."""

    parameters: Mapping[str, Any]
    runs: tuple[Result, ...]

    @property
    def values(self) -> tuple[float, ...]:
        """The value of each run, oldest first."""
        return tuple(run.value for run in self.runs)

    @property
    def median(self) -> float:
        """The median of the values."""
        return median(self.values)

    @property
    def spread(self) -> float:
        """Relative; 0 for a single run."""
        return relative_spread(self.values)

    def column(self, name: str) -> float | None:
        """The median of a detail; None where no run has it as a number."""
        found = [value for run in self.runs if (value := _detail(run.details, name)) is not None]
        return median(found) if found else None


def summaries(scenario: Scenario, results: Iterable[Result]) -> list[PointSummary]:
    """One per point, in the order of the scenario's points; points of other sizes behind them."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(_identity(result.parameters), []).append(result)
    known = [_identity(point) for point in scenario.points]
    others = sorted(identity for identity in groups if identity not in known)
    return [
        PointSummary(groups[identity][-1].parameters, tuple(groups[identity][-NEWEST_RUNS:]))
        for identity in [*known, *others]
        if identity in groups
    ]


def missing_points(scenario: Scenario, found: Sequence[PointSummary]) -> list[Mapping[str, Any]]:
    """Points of the scenario without any run."""
    measured = {_identity(summary.parameters) for summary in found}
    return [point for point in scenario.points if _identity(point) not in measured]


def _identity(parameters: Mapping[str, Any]) -> str:
    return json.dumps(parameters, sort_keys=True)


def _detail(details: Mapping[str, Any], name: str) -> float | None:
    value: Any = details
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None
