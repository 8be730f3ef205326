"""Results that are kept: one JSON line per run, with what it ran on. They are written and read here alone."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

from slackwater.protocol import Clock
from slackwater_lab.errors import RunFailedError
from slackwater_lab.workloads.workload import REPOSITORY

RESULTS = REPOSITORY / "benchmarks" / "results"
_MEASURED_PATHS = ("packages", "sidecar", "pipelines", "benchmarks/src", "requirements.lock")
"""A tree counts as dirty when something changed here: the rest does not touch numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A run, as it is in a results file."""

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

    def line(self) -> str:
        return json.dumps(asdict(self))


def new_result(
    scenario: str, version: int, *, clock: Clock, versions: Mapping[str, str] | None = None, **found: Any
) -> Result:
    """The result of a run of this tree on this machine, now: its parameters, value, unit and details."""
    commit, is_dirty = _code_state()
    return Result(
        scenario=scenario,
        version=version,
        at=clock.now().astimezone(UTC).isoformat(timespec="seconds"),
        commit=commit,
        is_dirty=is_dirty,
        machine=machine(),
        versions=dict(versions or {}),
        **found,
    )


def machine() -> dict[str, object]:
    """Describes the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _code_state() -> tuple[str, bool]:
    """The commit and whether measured code differs from it; ``("unknown", True)`` outside of git."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD").strip()
        return commit, bool(_git("status", "--porcelain", "--", *_MEASURED_PATHS).strip())
    except (OSError, subprocess.CalledProcessError):
        return "unknown", True


def append(result: Result, folder: Path = RESULTS) -> None:
    """Adds the run to its scenario's file."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{result.scenario}.jsonl").open("a") as file:
        file.write(result.line() + "\n")


def read_results(scenario: str, folder: Path = RESULTS) -> list[Result]:
    """Reads all runs of a scenario that were kept, oldest first; none when there is no file.

    Raises:
        RunFailedError: a line is no result.
    """
    path = folder / f"{scenario}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [_parse(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _parse(path: Path, number: int, line: str) -> Result:
    try:
        return Result(**json.loads(line))
    except (TypeError, ValueError) as error:
        expected = "expected what `python -m slackwater_bench` writes"
        raise RunFailedError(f"{path}, line {number}", f"{error}; {expected}") from error


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
