"""A PySpark source, pipelines and sinks that process source transactions as a whole.

Names are imported when they are first used, because Spark's workers load this package for every task.
"""

from typing import TYPE_CHECKING

from slackwater.lazy_names import lazy_names
from slackwater.protocol import ConfigError, InputError, SlackwaterError, StateError, UnavailableError

if TYPE_CHECKING:
    from slackwater.api.change_frame import Changes, ChangesOptions, changes
    from slackwater.api.commit_batch import CommitBatch, Transaction, for_each_commit_batch
    from slackwater.api.document_batch import ViewBatch, for_each_document_batch
    from slackwater.api.documents import Documents, write_view
    from slackwater.api.pipeline import Pipeline
    from slackwater.api.queries import open_views
    from slackwater.api.session import check_session, missing_settings, session_builder
    from slackwater.api.stateful_views import Rows, StatefulOptions, stateful
    from slackwater.pipeline import BatchProgress, RunSettings, ViewOutput
    from slackwater.pipeline.testing.view_test import ViewTest

__all__ = [
    "BatchProgress",
    "Changes",
    "ChangesOptions",
    "CommitBatch",
    "ConfigError",
    "Documents",
    "InputError",
    "Pipeline",
    "Rows",
    "RunSettings",
    "SlackwaterError",
    "StateError",
    "StatefulOptions",
    "Transaction",
    "UnavailableError",
    "ViewBatch",
    "ViewOutput",
    "ViewTest",
    "changes",
    "check_session",
    "for_each_commit_batch",
    "for_each_document_batch",
    "missing_settings",
    "open_views",
    "session_builder",
    "stateful",
    "write_view",
]

_NAMES = {
    "slackwater.api.change_frame": ("Changes", "ChangesOptions", "changes"),
    "slackwater.api.commit_batch": ("CommitBatch", "Transaction", "for_each_commit_batch"),
    "slackwater.api.document_batch": ("ViewBatch", "for_each_document_batch"),
    "slackwater.api.documents": ("Documents", "write_view"),
    "slackwater.api.pipeline": ("Pipeline",),
    "slackwater.api.queries": ("open_views",),
    "slackwater.api.session": ("check_session", "missing_settings", "session_builder"),
    "slackwater.api.stateful_views": ("Rows", "StatefulOptions", "stateful"),
    "slackwater.pipeline": ("BatchProgress", "RunSettings", "ViewOutput"),
    "slackwater.pipeline.testing.view_test": ("ViewTest",),
}
if not TYPE_CHECKING:  # type checkers then know the names above, and no others
    __getattr__ = lazy_names(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
