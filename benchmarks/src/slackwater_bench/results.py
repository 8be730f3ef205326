"""One JSON line per run, appended to ``benchmarks/results/<scenario>.jsonl``."""

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC
from importlib.metadata import version
from pathlib import Path

from slackwater_protocol import Clock

RESULTS = Path(__file__).parents[2] / "results"
BENCHMARK_VERSION = 1
"""Results of different benchmark versions are not compared."""
PACKAGES = ("slackwater", "pyspark", "confluent-kafka", "duckdb", "lmdb", "msgspec", "pyarrow", "redis")


def machine() -> dict[str, object]:
    """What the run ran on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def record(scenario: str, clock: Clock, values: Mapping[str, object]) -> str:
    """Appends the run to the scenario's file and returns the line."""
    line = json.dumps(
        {
            "scenario": scenario,
            "benchmark_version": BENCHMARK_VERSION,
            "at": clock.now().astimezone(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "versions": {name: version(name) for name in PACKAGES},
            **values,
        }
    )
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{scenario}.jsonl").open("a") as file:
        file.write(line + "\n")
    return line


def percentile(values: list[float], share: float) -> float:
    """The nearest-rank percentile of a non-empty list."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
