"""The pipelines that scenarios run."""

import tomllib
from pathlib import Path

ORDERS_PIPELINE = Path(__file__).parents[4] / "pipelines" / "orders"


def output_of(pipeline: Path) -> str:
    """Output topic of the pipeline in a folder."""
    topic: str = tomllib.loads((pipeline / "pipeline.toml").read_text())["output"]["topic"]
    return topic
