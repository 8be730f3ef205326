"""A pipeline's state from outside: looking into it, and changing its number of partitions."""

from slackwater_spark.state.checkpoint import (
    CheckpointFacts,
    checkpoint_facts,
    is_checkpoint,
    rescaled_batches,
)
from slackwater_spark.state.errors import (
    CheckpointInUseError,
    NotACheckpointError,
    RescaledStateError,
    StateError,
    UnfinishedBatchError,
    UselessPartitionsError,
)
from slackwater_spark.state.hold import hold_checkpoint
from slackwater_spark.state.rescaling import Rescaled, check_rescaling, rescale

__all__ = [
    "CheckpointFacts",
    "CheckpointInUseError",
    "NotACheckpointError",
    "Rescaled",
    "RescaledStateError",
    "StateError",
    "UnfinishedBatchError",
    "UselessPartitionsError",
    "check_rescaling",
    "checkpoint_facts",
    "hold_checkpoint",
    "is_checkpoint",
    "rescale",
    "rescaled_batches",
]
