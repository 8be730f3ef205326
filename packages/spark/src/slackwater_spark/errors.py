"""The root of this package's errors; each part keeps its own leaves.

::

    SlackwaterSparkError
    ├── source: slackwater_spark.source.errors
    ├── stage: slackwater_spark.stage.errors
    ├── SinkError: slackwater_spark.sink.errors
    └── PipelineError: slackwater_spark.pipeline.errors

Spark carries errors between processes, so every leaf can be pickled: its data are its positional arguments.
"""


class SlackwaterSparkError(Exception):
    """Root of everything this package raises."""
