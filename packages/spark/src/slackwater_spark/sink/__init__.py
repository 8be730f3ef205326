"""Sinks: where a pipeline's batches become visible. Each kind has its own module, as ``sink.kafka``.

``sink.function`` is the Python API's: no pipeline folder names it.
"""

from slackwater_spark.sink.batch import Emit
from slackwater_spark.sink.contract import (
    REQUEST_TIMEOUT,
    Format,
    KeyFormat,
    Sink,
    SinkKind,
    SinkProbe,
    SinkStep,
    WriteReport,
)

__all__ = [
    "REQUEST_TIMEOUT",
    "Emit",
    "Format",
    "KeyFormat",
    "Sink",
    "SinkKind",
    "SinkProbe",
    "SinkStep",
    "WriteReport",
]
