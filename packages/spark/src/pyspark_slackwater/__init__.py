"""Registers format("slackwater") with Spark, which imports every top-level module named pyspark_*."""
