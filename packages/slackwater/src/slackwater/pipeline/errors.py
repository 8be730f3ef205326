"""Errors of the package, divided by what can be done about them.

::

    PipelineError
    ├── PipelineConfigError         an option, a setting, a file or an argument has to be changed
    │   └── OutputRefusedError      the output rejects something, and would reject it again
    ├── PipelineInputError          rows, or documents that a function returned, have to be corrected
    ├── PipelineStateError          checkpoint, topics or output were changed by others
    │   ├── RecordsGoneError        records that a batch needs were deleted
    │   └── RunOvertakenError       another run of the pipeline has taken over; this one must stop
    ├── PipelineUnavailableError    something does not answer or is in use; starting again later is safe
    └── QueryFailedError            a query ended with an error of which Spark passes on only the text

Spark passes errors between processes, so all of them can be pickled: their positional arguments contain their
data.
"""

from slackwater.protocol import ExplainedError


class PipelineError(ExplainedError):
    """Root of the package's errors."""


class PipelineConfigError(PipelineError):
    """An option, a setting, a file or an argument cannot be used."""


class OutputRefusedError(PipelineConfigError):
    """The output rejects something, and would reject it again; nothing of the batch is visible."""

    def __init__(self, pipeline: str, what: str, reason: str, hint: str) -> None:
        super().__init__(f"pipeline {pipeline!r}: the output refuses {what}: {reason}", hint)
        self.args = pipeline, what, reason, hint
        self.reason = reason
        """The output's own message."""


class PipelineInputError(PipelineError):
    """Rows of the source, or documents that a function returned, cannot be used."""


class PipelineStateError(PipelineError):
    """Checkpoint, topics or output were changed by others, or do not belong together."""


class RecordsGoneError(PipelineStateError):
    """Records of a table's topic or of the cut log that a batch needs are no longer in Kafka."""


class RunOvertakenError(PipelineStateError):
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


class PipelineUnavailableError(PipelineError):
    """A server does not work, or a checkpoint is in use. Nothing is lost: start again later."""


class QueryFailedError(PipelineError):
    """The query of a pipeline ended with an error; the message names its class and repeats its text."""
