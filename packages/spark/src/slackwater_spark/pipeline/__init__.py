"""Pipelines: a folder becomes a streaming query."""

from slackwater_spark.pipeline.class_archive import default_class_archives, make_class_archive
from slackwater_spark.pipeline.definition import PipelineDefinition, load_pipeline, pipeline_definition
from slackwater_spark.pipeline.errors import (
    ClassArchiveError,
    DefinitionError,
    IncompatibleCheckpointError,
    PipelineError,
    QueryFailedError,
    RunSettingsError,
    SessionStartError,
)
from slackwater_spark.pipeline.outputs import ViewOutput
from slackwater_spark.pipeline.progress import BatchProgress
from slackwater_spark.pipeline.query import packed_documents
from slackwater_spark.pipeline.runner import run_pipeline
from slackwater_spark.pipeline.settings import RunSettings
from slackwater_spark.pipeline.sources import PipelineSources, read_sources
from slackwater_spark.pipeline.tables import table_names, view_inputs

__all__ = [
    "BatchProgress",
    "ClassArchiveError",
    "DefinitionError",
    "IncompatibleCheckpointError",
    "PipelineDefinition",
    "PipelineError",
    "PipelineSources",
    "QueryFailedError",
    "RunSettings",
    "RunSettingsError",
    "SessionStartError",
    "ViewOutput",
    "default_class_archives",
    "load_pipeline",
    "make_class_archive",
    "packed_documents",
    "pipeline_definition",
    "read_sources",
    "run_pipeline",
    "table_names",
    "view_inputs",
]
