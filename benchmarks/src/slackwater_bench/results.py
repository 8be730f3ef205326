"""Results of scenarios: made from what was measured, and read again."""

import json
from importlib.metadata import version
from pathlib import Path

from slackwater_bench.errors import MalformedResultError
from slackwater_bench.scenario import Measured, Parameters, Scenario
from slackwater_protocol import Clock
from slackwater_testing.results import RESULTS, Result, new_result

PACKAGES = ("slackwater", "pyspark", "confluent-kafka", "duckdb", "lmdb", "msgspec", "pyarrow", "redis")


def result_of(scenario: Scenario, parameters: Parameters, measured: Measured, clock: Clock) -> Result:
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


def read_results(scenario: Scenario, folder: Path = RESULTS) -> list[Result]:
    """The runs of a scenario in its present version, oldest first; none when there is no file.

    Raises:
        MalformedResultError: a line is no result.
    """
    path = folder / f"{scenario.name}.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    found = [_parse(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    return [result for result in found if result.version == scenario.version]


def _parse(path: Path, number: int, line: str) -> Result:
    try:
        return Result(**json.loads(line))
    except (TypeError, ValueError) as error:
        raise MalformedResultError(path, number, str(error)) from error
