"""Results of scenarios: made from what was measured, read again, and summed up by point for the page."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from slackwater.protocol import Clock
from slackwater_bench.latencies import relative_spread
from slackwater_bench.scenario import Measured, Parameters, Scenario
from slackwater_lab.results import RESULTS, Result, new_result, read_results

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
        versions={name: version(name) for name in PACKAGES},
    )


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
