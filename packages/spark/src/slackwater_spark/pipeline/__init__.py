"""Pipelines: a folder becomes views that are kept up to date."""

from slackwater_spark.pipeline.class_archive import make_class_archive
from slackwater_spark.pipeline.definition import (
    PipelineDefinition,
    PipelineSql,
    ViewOutput,
    pipeline_definition,
    table_names,
    view_inputs,
)
from slackwater_spark.pipeline.folder import load_pipeline, read_sql
from slackwater_spark.pipeline.progress import BatchProgress
from slackwater_spark.pipeline.runner import run_pipeline
from slackwater_spark.pipeline.settings import RunSettings
from slackwater_spark.pipeline.spark_home import default_class_archives

__all__ = [
    "BatchProgress",
    "PipelineDefinition",
    "PipelineSql",
    "RunSettings",
    "ViewOutput",
    "default_class_archives",
    "load_pipeline",
    "make_class_archive",
    "pipeline_definition",
    "read_sql",
    "run_pipeline",
    "table_names",
    "view_inputs",
]
