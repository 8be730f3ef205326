"""PySpark source, stages and sinks that process whole source transactions only.

Names are imported when they are first used: Spark's workers load this package for every task.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from slackwater_spark.errors import SlackwaterSparkError

if TYPE_CHECKING:
    from slackwater_spark.api.changes import Changes, ChangesOptions, changes
    from slackwater_spark.api.commit_batch import CommitBatch, Transaction, for_each_commit_batch
    from slackwater_spark.api.errors import ApiError
    from slackwater_spark.api.session import check_session, missing_settings, session_builder

__all__ = [
    "ApiError",
    "Changes",
    "ChangesOptions",
    "CommitBatch",
    "SlackwaterSparkError",
    "Transaction",
    "changes",
    "check_session",
    "for_each_commit_batch",
    "missing_settings",
    "session_builder",
]

_MODULES = {
    "ApiError": "errors",
    "Changes": "changes",
    "ChangesOptions": "changes",
    "CommitBatch": "commit_batch",
    "Transaction": "commit_batch",
    "changes": "changes",
    "check_session": "session",
    "for_each_commit_batch": "commit_batch",
    "missing_settings": "session",
    "session_builder": "session",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"slackwater_spark.api.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
