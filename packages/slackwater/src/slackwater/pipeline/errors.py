"""Errors of pipelines that a caller reacts to in particular; all others are of the general kinds.

::

    ConfigError
    └── OutputRefusedError      the output rejects something, and would reject it again
    StateError
    ├── RecordsGoneError        records that a batch needs were deleted
    └── RunOvertakenError       another run of the pipeline has taken over; this one must stop
"""

from slackwater.protocol import ConfigError, StateError


class OutputRefusedError(ConfigError):
    """The output rejects something, and would reject it again; nothing of the batch is visible."""

    def __init__(self, pipeline: str, what: str, reason: str, hint: str) -> None:
        super().__init__(f"pipeline {pipeline!r}: the output refuses {what}: {reason}", hint)
        self.args = pipeline, what, reason, hint
        self.reason = reason
        """The output's own message."""


class RecordsGoneError(StateError):
    """Records of a table's topic or of the cut log that a batch needs are no longer in Kafka."""


class RunOvertakenError(StateError):
    """Another run of the pipeline has taken the output over; nothing of this run's last batch is visible."""

    def __init__(self, pipeline: str, found: str) -> None:
        super().__init__(
            f"another run of pipeline {pipeline!r} took over; this run stops, and nothing of its unfinished "
            "batch is visible",
            f"run each pipeline only once, or give the other one a different name (found: {found})",
        )
        self.args = pipeline, found
        self.found = found
        """The evidence in the output."""
