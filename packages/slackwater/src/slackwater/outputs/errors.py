"""The error of outputs that a caller reacts to in particular; all others are of the general kinds.

::

    ConfigError
    └── OutputRefusedError      the output rejects something, and would reject it again
"""

from slackwater.protocol import ConfigError, OvertakenError


class OutputRefusedError(ConfigError):
    """The output rejects something, and would reject it again; nothing of the batch is visible."""

    def __init__(self, pipeline: str, what: str, reason: str, hint: str) -> None:
        super().__init__(f"pipeline {pipeline!r}: the output refuses {what}: {reason}", hint)
        self.args = pipeline, what, reason, hint
        self.reason = reason
        """The output's own message."""


def run_overtaken(pipeline: str, found: str) -> OvertakenError:
    """Returns the error for an output that another run has taken over; nothing of the last batch is visible.

    Args:
        pipeline: The name of both runs.
        found: The evidence in the output.
    """
    return OvertakenError(
        f"another run of pipeline {pipeline!r} took over; this run stops, and nothing of its unfinished "
        "batch is visible",
        f"run each pipeline only once, or give the other one a different name (found: {found})",
        found,
    )
