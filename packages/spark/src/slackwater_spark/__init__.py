"""PySpark source, stages and sinks that process whole transactions only."""

from slackwater_spark.errors import SlackwaterSparkError

__all__ = ["SlackwaterSparkError"]
