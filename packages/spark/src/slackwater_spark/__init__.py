"""PySpark source, stages and sinks that process whole transactions only."""
