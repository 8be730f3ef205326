"""A pipeline's state from outside: looking into it, and changing its number of partitions."""

from slackwater_engine.state.contents import name_kinds, show_key
from slackwater_spark.state.checkpoint import Checkpoint, CheckpointHold
from slackwater_spark.state.inspection import (
    BucketState,
    KeptRows,
    PipelineState,
    StageState,
    inspect_state,
    kept_rows,
)
from slackwater_spark.state.rescaling import Rescaled, check_rescaling, rescale

__all__ = [
    "BucketState",
    "Checkpoint",
    "CheckpointHold",
    "KeptRows",
    "PipelineState",
    "Rescaled",
    "StageState",
    "check_rescaling",
    "inspect_state",
    "kept_rows",
    "name_kinds",
    "rescale",
    "show_key",
]
