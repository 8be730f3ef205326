"""Tables in PostgreSQL as outputs: an exactly-once sink, and the ledger that readers use.

Names are imported when they are first used, because clients use the ledger.
"""

from typing import TYPE_CHECKING

from slackwater.lazy_names import lazy_names

if TYPE_CHECKING:
    from slackwater.outputs.postgres.columns import TableColumn, table_columns
    from slackwater.outputs.postgres.sink import PostgresSink
    from slackwater.outputs.postgres.tables import OutputTable, PostgresSinkSettings

__all__ = [
    "OutputTable",
    "PostgresSink",
    "PostgresSinkSettings",
    "TableColumn",
    "table_columns",
]

_NAMES = {
    "slackwater.outputs.postgres.columns": ("TableColumn", "table_columns"),
    "slackwater.outputs.postgres.sink": ("PostgresSink",),
    "slackwater.outputs.postgres.tables": ("OutputTable", "PostgresSinkSettings"),
}

if not TYPE_CHECKING:  # type checkers then know the names above, and no others
    __getattr__ = lazy_names(__name__, _NAMES)
