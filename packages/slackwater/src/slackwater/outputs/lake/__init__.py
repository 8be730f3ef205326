"""The exactly-once sink of lakes: one code path, with an adapter for each table format."""

from slackwater_spark.sink.lake.columns import LakeColumn, lake_columns
from slackwater_spark.sink.lake.settings import LakeSinkSettings, OutputTable
from slackwater_spark.sink.lake.sink import LakeSink

__all__ = ["LakeColumn", "LakeSink", "LakeSinkSettings", "OutputTable", "lake_columns"]
