"""Pipelines: a folder becomes a streaming query."""

from slackwater_spark.pipeline.definition import PipelineDefinition, load_pipeline
from slackwater_spark.pipeline.errors import (
    DefinitionError,
    IncompatibleCheckpointError,
    PipelineError,
    QueryFailedError,
    RunSettingsError,
    SessionStartError,
)
from slackwater_spark.pipeline.outputs import ViewOutput
from slackwater_spark.pipeline.progress import BatchProgress
from slackwater_spark.pipeline.runner import run_pipeline
from slackwater_spark.pipeline.settings import RunSettings

__all__ = [
    "BatchProgress",
    "DefinitionError",
    "IncompatibleCheckpointError",
    "PipelineDefinition",
    "PipelineError",
    "QueryFailedError",
    "RunSettings",
    "RunSettingsError",
    "SessionStartError",
    "ViewOutput",
    "load_pipeline",
    "run_pipeline",
]
