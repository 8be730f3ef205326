"""The pipelines that scenarios run."""

import tomllib
from pathlib import Path

from slackwater_bench.workloads.places import team_pipeline

ORDERS_PIPELINE = team_pipeline("orders")


def output_of(pipeline: Path) -> str:
    """Output topic of the pipeline in a folder; the first of several, which become visible together."""
    definition = tomllib.loads((pipeline / "pipeline.toml").read_text())
    outputs = [definition["output"]] if "output" in definition else [*definition["outputs"].values()]
    topic: str = outputs[0]["topic"]
    return topic
