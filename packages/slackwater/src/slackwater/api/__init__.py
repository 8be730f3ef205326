"""A PySpark source, pipelines and sinks that process source transactions as a whole.

Names are imported when they are first used, because Spark's workers load this package for every task.
"""

from typing import TYPE_CHECKING

from slackwater_protocol import SlackwaterError
from slackwater_spark.lazy_names import lazy_names

if TYPE_CHECKING:
    from slackwater_spark.api.changes import Changes, ChangesOptions, changes
    from slackwater_spark.api.commit_batch import CommitBatch, Transaction, for_each_commit_batch
    from slackwater_spark.api.document_batch import ViewBatch, for_each_document_batch
    from slackwater_spark.api.documents import Documents, write_view
    from slackwater_spark.api.pipeline import Pipeline
    from slackwater_spark.api.session import check_session, missing_settings, session_builder
    from slackwater_spark.api.stateful import Rows, StatefulOptions, stateful
    from slackwater_spark.errors import (
        PipelineConfigError,
        PipelineError,
        PipelineInputError,
        PipelineStateError,
        PipelineUnavailableError,
    )
    from slackwater_spark.pipeline import BatchProgress, RunSettings, ViewOutput
    from slackwater_spark.testing.view_test import ViewTest

__version__ = "0.1.0"

__all__ = [
    "BatchProgress",
    "Changes",
    "ChangesOptions",
    "CommitBatch",
    "Documents",
    "Pipeline",
    "PipelineConfigError",
    "PipelineError",
    "PipelineInputError",
    "PipelineStateError",
    "PipelineUnavailableError",
    "Rows",
    "RunSettings",
    "SlackwaterError",
    "StatefulOptions",
    "Transaction",
    "ViewBatch",
    "ViewOutput",
    "ViewTest",
    "changes",
    "check_session",
    "for_each_commit_batch",
    "for_each_document_batch",
    "missing_settings",
    "session_builder",
    "stateful",
    "write_view",
]

_NAMES = {
    "api.changes": ("Changes", "ChangesOptions", "changes"),
    "api.commit_batch": ("CommitBatch", "Transaction", "for_each_commit_batch"),
    "api.document_batch": ("ViewBatch", "for_each_document_batch"),
    "api.documents": ("Documents", "write_view"),
    "api.pipeline": ("Pipeline",),
    "api.session": ("check_session", "missing_settings", "session_builder"),
    "api.stateful": ("Rows", "StatefulOptions", "stateful"),
    "errors": (
        "PipelineConfigError",
        "PipelineError",
        "PipelineInputError",
        "PipelineStateError",
        "PipelineUnavailableError",
    ),
    "pipeline": ("BatchProgress", "RunSettings", "ViewOutput"),
    "testing.view_test": ("ViewTest",),
}
if not TYPE_CHECKING:  # type checkers then know the names above, and no others
    __getattr__ = lazy_names(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
