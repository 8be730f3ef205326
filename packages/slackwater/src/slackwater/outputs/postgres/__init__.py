"""The exactly-once PostgreSQL sink."""

from slackwater.outputs.postgres.columns import TableColumn, table_columns
from slackwater.outputs.postgres.settings import OutputTable, PostgresSinkSettings
from slackwater.outputs.postgres.sink import PostgresSink

__all__ = ["OutputTable", "PostgresSink", "PostgresSinkSettings", "TableColumn", "table_columns"]
