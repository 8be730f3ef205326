"""The exactly-once sink of lakes: one code path, with an adapter for each table format."""

from slackwater.outputs.lake.columns import LakeColumn, lake_columns
from slackwater.outputs.lake.settings import LakeSinkSettings, OutputTable
from slackwater.outputs.lake.sink import LakeSink

__all__ = ["LakeColumn", "LakeSink", "LakeSinkSettings", "OutputTable", "lake_columns"]
