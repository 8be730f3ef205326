"""Pipelines: keeps the views of a folder up to date.

Names are imported when they are first used, because Spark starts before the libraries that plan views are
loaded.
"""

from typing import TYPE_CHECKING

from slackwater_spark.lazy_names import lazy_names

if TYPE_CHECKING:
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
    from slackwater_spark.pipeline.folder_run import run_folder
    from slackwater_spark.pipeline.monitor import RunMonitor
    from slackwater_spark.pipeline.progress import BatchProgress
    from slackwater_spark.pipeline.runner import run_pipeline
    from slackwater_spark.pipeline.settings import RunSettings
    from slackwater_spark.pipeline.spark_home import default_class_archives
    from slackwater_spark.pipeline.toml_table import labels_of
    from slackwater_spark.pipeline.tracing import batch_spans

__all__ = [
    "BatchProgress",
    "PipelineDefinition",
    "PipelineSql",
    "RunMonitor",
    "RunSettings",
    "ViewOutput",
    "batch_spans",
    "default_class_archives",
    "labels_of",
    "load_pipeline",
    "make_class_archive",
    "pipeline_definition",
    "read_sql",
    "run_folder",
    "run_pipeline",
    "table_names",
    "view_inputs",
]

_NAMES = {
    "class_archive": ("make_class_archive",),
    "definition": (
        "PipelineDefinition",
        "PipelineSql",
        "ViewOutput",
        "pipeline_definition",
        "table_names",
        "view_inputs",
    ),
    "folder": ("load_pipeline", "read_sql"),
    "folder_run": ("run_folder",),
    "monitor": ("RunMonitor",),
    "progress": ("BatchProgress",),
    "runner": ("run_pipeline",),
    "settings": ("RunSettings",),
    "spark_home": ("default_class_archives",),
    "toml_table": ("labels_of",),
    "tracing": ("batch_spans",),
}

if not TYPE_CHECKING:  # type checkers then know the names above, and no others
    __getattr__ = lazy_names(__name__, _NAMES)
