"""Makes ``format("slackwater")`` known to Spark, which takes ``DefaultSource`` of every module ``pyspark_*``.

Spark imports this module on the first read of every session, also if the session never uses this source. It
must therefore import nothing heavy.
"""

from slackwater.pipeline.source.data_source import SlackwaterSource as DefaultSource

__version__ = "0.1.0"

__all__ = ["DefaultSource"]
