"""Sinks make a pipeline's batches visible. Each kind has its own module, such as ``sink.kafka``.

``sink.function`` is for the Python API; a pipeline folder cannot specify it.
"""

from slackwater.outputs.batch import Emit
from slackwater.outputs.contract import (
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
