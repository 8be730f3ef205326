"""A pipeline's state from outside: looking into it, and changing its number of partitions."""

from slackwater_spark.state.checkpoint import (
    CheckpointFacts,
    batches_without_input,
    checkpoint_facts,
    is_checkpoint,
)
from slackwater_spark.state.errors import (
    CheckpointInUseError,
    NotACheckpointError,
    RescaledStateError,
    StateError,
    UnfinishedBatchError,
    UnknownKeyError,
    UselessPartitionsError,
)
from slackwater_spark.state.hold import CheckpointHold, hold_checkpoint
from slackwater_spark.state.inspection import BucketState, PipelineState, StageState, inspect_state
from slackwater_spark.state.lookup import KeptRows, kept_rows, kind_names, shown_key
from slackwater_spark.state.rescaling import Rescaled, check_rescaling, rescale

__all__ = [
    "BucketState",
    "CheckpointFacts",
    "CheckpointHold",
    "CheckpointInUseError",
    "KeptRows",
    "NotACheckpointError",
    "PipelineState",
    "Rescaled",
    "RescaledStateError",
    "StageState",
    "StateError",
    "UnfinishedBatchError",
    "UnknownKeyError",
    "UselessPartitionsError",
    "batches_without_input",
    "check_rescaling",
    "checkpoint_facts",
    "hold_checkpoint",
    "inspect_state",
    "is_checkpoint",
    "kept_rows",
    "kind_names",
    "rescale",
    "shown_key",
]
