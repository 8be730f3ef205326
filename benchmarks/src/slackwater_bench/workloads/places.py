"""Where the pipeline folders of the workloads are."""

from pathlib import Path

BENCHMARKS = Path(__file__).parents[3]


def bench_pipeline(name: str) -> Path:
    """The folder of a pipeline that exists for a benchmark only."""
    return BENCHMARKS / "pipelines" / name


def team_pipeline(name: str) -> Path:
    """The folder of a pipeline outside the benchmarks."""
    return BENCHMARKS.parent / "pipelines" / name
