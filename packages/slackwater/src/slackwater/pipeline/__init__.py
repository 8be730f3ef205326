"""Pipelines: keeps the views of a folder up to date.

Names are imported when they are first used, because Spark starts before the libraries that plan views are
loaded.
"""

from typing import TYPE_CHECKING

from slackwater.lazy_names import lazy_names

if TYPE_CHECKING:
    from slackwater.pipeline.definition import PipelineDefinition, ViewOutput, pipeline_definition
    from slackwater.pipeline.folder import load_pipeline
    from slackwater.pipeline.monitor import RunMonitor, batch_spans
    from slackwater.pipeline.progress import BatchProgress
    from slackwater.pipeline.runner import run_pipeline
    from slackwater.pipeline.session import run_folder
    from slackwater.pipeline.settings import RunSettings
    from slackwater.pipeline.spark_home import default_class_archives, make_class_archive

__all__ = [
    "BatchProgress",
    "PipelineDefinition",
    "RunMonitor",
    "RunSettings",
    "ViewOutput",
    "batch_spans",
    "default_class_archives",
    "load_pipeline",
    "make_class_archive",
    "pipeline_definition",
    "run_folder",
    "run_pipeline",
]

_NAMES = {
    "slackwater.pipeline.definition": ("PipelineDefinition", "ViewOutput", "pipeline_definition"),
    "slackwater.pipeline.folder": ("load_pipeline",),
    "slackwater.pipeline.session": ("run_folder",),
    "slackwater.pipeline.monitor": ("RunMonitor", "batch_spans"),
    "slackwater.pipeline.progress": ("BatchProgress",),
    "slackwater.pipeline.runner": ("run_pipeline",),
    "slackwater.pipeline.settings": ("RunSettings",),
    "slackwater.pipeline.spark_home": ("default_class_archives", "make_class_archive"),
}

if not TYPE_CHECKING:  # type checkers then know the names above, and no others
    __getattr__ = lazy_names(__name__, _NAMES)
