"""What Spark's JVM and its Python workers print, as log messages."""

import logging
import os
import threading
from types import TracebackType

_NOISE = (
    b"WARNING: Using incubator modules",
    b"Starting Streaming ",
    b"Streaming TransformWithStateIn",
)
"""Printed at every start or in every task by Spark itself."""

_log = logging.getLogger("slackwater_spark.jvm")


class JvmOutput:
    """A pipe whose lines are logged by a thread of its own until the last writer has closed it.

    Within the block, :attr:`writer` can be handed to a child process.
    """

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        self._thread = threading.Thread(target=self._log_lines, name="jvm-output", daemon=True)

    def __enter__(self) -> "JvmOutput":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.writer)

    def _log_lines(self) -> None:
        with os.fdopen(self._reader, "rb") as lines:
            for line in lines:
                text = line.rstrip()
                if text and not text.startswith(_NOISE):
                    _log.info("%s", text.decode(errors="replace"))
