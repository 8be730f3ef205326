"""Where Spark finds ``format("slackwater")``: it takes ``DefaultSource`` of every module named ``pyspark_*``.

That happens in each session's first read, also in sessions that never use this source: nothing heavy is
imported here.
"""

from slackwater_spark.source.data_source import SlackwaterSource as DefaultSource

__version__ = "0.1.0"

__all__ = ["DefaultSource"]
