"""One JSON line per run, appended to ``<scenario>.jsonl``; what a run ran on."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC
from importlib.metadata import version
from pathlib import Path
from typing import Any

from slackwater_bench.errors import MalformedResultError
from slackwater_bench.scenario import Measured, Parameters, Scenario
from slackwater_protocol import Clock

ROOT = Path(__file__).parents[3]
"""The repository."""
RESULTS = ROOT / "benchmarks" / "results"
MEASURED_PATHS = (
    "packages",
    "sidecar",
    "pipelines",
    "benchmarks/src",
    "benchmarks/pipelines",
    "requirements.lock",
)
"""A tree counts as dirty when something changed here: the rest does not touch numbers."""
PACKAGES = ("slackwater", "pyspark", "confluent-kafka", "duckdb", "lmdb", "msgspec", "pyarrow", "redis")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A run, as it stands in a results file."""

    scenario: str
    version: int
    parameters: Mapping[str, Any]
    value: float
    unit: str
    at: str
    """ISO time in UTC."""
    commit: str
    is_dirty: bool
    """Whether the measured code had changes that were not committed."""
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    details: Mapping[str, Any]


def machine() -> dict[str, object]:
    """What the run ran on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def code_state(root: Path = ROOT) -> tuple[str, bool]:
    """The commit and whether measured code differs from it; ``("unknown", True)`` outside of git."""
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD").strip()
        return commit, bool(_git(root, "status", "--porcelain", "--", *MEASURED_PATHS).strip())
    except (OSError, subprocess.CalledProcessError):
        return "unknown", True


def result_of(scenario: Scenario, parameters: Parameters, measured: Measured, clock: Clock) -> Result:
    """A run of this environment, now."""
    commit, is_dirty = code_state()
    return Result(
        scenario=scenario.name,
        version=scenario.version,
        parameters=dict(parameters),
        value=measured.value,
        unit=scenario.unit,
        at=clock.now().astimezone(UTC).isoformat(timespec="seconds"),
        commit=commit,
        is_dirty=is_dirty,
        machine=machine(),
        versions={name: version(name) for name in PACKAGES},
        details=dict(measured.details),
    )


def to_line(result: Result) -> str:
    """The result as one line of JSON."""
    return json.dumps(asdict(result))


def append(result: Result, folder: Path = RESULTS) -> None:
    """Adds the run to its scenario's file."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{result.scenario}.jsonl").open("a") as file:
        file.write(to_line(result) + "\n")


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


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
