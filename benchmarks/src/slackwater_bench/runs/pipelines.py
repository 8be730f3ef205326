"""The pipelines that scenarios run."""

import tomllib
from pathlib import Path

from slackwater_bench.workloads.places import team_pipeline

ORDERS_PIPELINE = team_pipeline("orders")


def output_of(pipeline: Path) -> str:
    """Output topic of the pipeline in a folder."""
    topic: str = tomllib.loads((pipeline / "pipeline.toml").read_text())["output"]["topic"]
    return topic
