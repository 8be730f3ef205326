"""Tables of a lake as outputs: an exactly-once sink, with an adapter for each table format.

Names are imported when they are first used, because clients use the adapters and the ledger.
"""

from typing import TYPE_CHECKING

from slackwater.lazy_names import lazy_names

if TYPE_CHECKING:
    from slackwater.outputs.lake.changes import OutputTable
    from slackwater.outputs.lake.columns import LakeColumn, lake_columns
    from slackwater.outputs.lake.sink import LakeSink, LakeSinkSettings

__all__ = [
    "LakeColumn",
    "LakeSink",
    "LakeSinkSettings",
    "OutputTable",
    "lake_columns",
]

_NAMES = {
    "slackwater.outputs.lake.changes": ("OutputTable",),
    "slackwater.outputs.lake.columns": ("LakeColumn", "lake_columns"),
    "slackwater.outputs.lake.sink": ("LakeSink", "LakeSinkSettings"),
}

if not TYPE_CHECKING:  # type checkers then know the names above, and no others
    __getattr__ = lazy_names(__name__, _NAMES)
