"""The outputs of pipelines. Each kind has its own module, such as ``outputs.kafka``.

``outputs.function`` is for the Python API; a pipeline folder cannot specify it. Names are imported when they
are first used, because clients read tables and ledgers through modules of this package, and have no engine.
"""

from typing import TYPE_CHECKING

from slackwater.lazy_names import lazy_names

if TYPE_CHECKING:
    from slackwater.outputs.contract import (
        REQUEST_TIMEOUT,
        Emit,
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

_NAMES = {
    "slackwater.outputs.contract": (
        "Emit",
        "Format",
        "KeyFormat",
        "REQUEST_TIMEOUT",
        "Sink",
        "SinkKind",
        "SinkProbe",
        "SinkStep",
        "WriteReport",
    ),
}

if not TYPE_CHECKING:  # type checkers then know the names above, and no others
    __getattr__ = lazy_names(__name__, _NAMES)
