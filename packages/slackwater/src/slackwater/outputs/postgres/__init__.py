"""The exactly-once PostgreSQL sink."""

from slackwater_spark.sink.postgres.columns import TableColumn, table_columns
from slackwater_spark.sink.postgres.settings import OutputTable, PostgresSinkSettings
from slackwater_spark.sink.postgres.sink import PostgresSink

__all__ = ["OutputTable", "PostgresSink", "PostgresSinkSettings", "TableColumn", "table_columns"]
