"""Errors of loading and running pipelines.

::

    PipelineError
    ├── DefinitionError               a pipeline folder is not usable as it is
    ├── RunSettingsError              a setting of a run is not usable
    ├── IncompatibleCheckpointError   the checkpoint was made by a pipeline with another meaning
    ├── SessionStartError             Spark does not start
    ├── ClassArchiveError             no archive of Spark's classes could be made
    └── QueryFailedError              the query ended with an error; the cause in one sentence
"""

from slackwater_protocol import SlackwaterError


class PipelineError(SlackwaterError):
    """Root of the pipelines' errors."""


class DefinitionError(PipelineError):
    """A pipeline folder cannot be used."""

    def __init__(self, file: str, key: str, problem: str, hint: str = "") -> None:
        super().__init__(file, key, problem, hint)
        self.file = file
        self.key = key
        """Dotted key in the file; empty if the file as a whole is meant."""
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        where = f"{self.file}: {self.key}" if self.key else self.file
        return f"{where}: {self.problem}" + (f"; {self.hint}" if self.hint else "")


class RunSettingsError(PipelineError):
    """A setting of a run cannot be used."""

    def __init__(self, setting: str, found: str, expected: str) -> None:
        super().__init__(setting, found, expected)
        self.setting = setting
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.setting} is {self.found!r}, expected {self.expected}"


class IncompatibleCheckpointError(PipelineError):
    """State in the checkpoint belongs to a pipeline that meant something else."""

    def __init__(self, checkpoint: str, changes: tuple[tuple[str, str, str], ...], revision: int = 1) -> None:
        super().__init__(checkpoint, changes, revision)
        self.checkpoint = checkpoint
        self.changes = changes
        """What changed: name, value in the checkpoint, value now; an empty value: the last is a sentence."""
        self.revision = revision
        """Of the pipeline that was to run."""

    def __str__(self) -> str:
        changes = "; ".join(
            f"{name} was {was}, is {now}" if was else f"{name} {now}" for name, was, now in self.changes
        )
        return (
            f"checkpoint {self.checkpoint} does not fit the pipeline any more: {changes}. Undo the change, "
            f"or write `revision = {self.revision + 1}` into pipeline.toml: the changed pipeline then has a "
            "checkpoint of its own beside this one and output topics of its own (give new ones where "
            "pipeline.toml names topics), and builds its views from the beginning of the source's topics, "
            "while readers of the old ones are not disturbed"
        )


class SessionStartError(PipelineError):
    """The Spark session could not be made."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"Spark does not start: {self.reason}; "
            "a Java runtime (17 or newer) must be on PATH or in JAVA_HOME, and there must be room on the "
            "disks of the checkpoint and of spark.local.dir"
        )


class ClassArchiveError(PipelineError):
    """There is no archive of Spark's classes, and none could be made."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"no archive of Spark's classes could be made: {self.reason}"


class QueryFailedError(PipelineError):
    """The query of a pipeline ended with an error."""

    def __init__(self, pipeline: str, error_type: str, reason: str) -> None:
        super().__init__(pipeline, error_type, reason)
        self.pipeline = pipeline
        self.error_type = error_type
        """Name of the error class behind it, e.g. ``BadInputError``."""
        self.reason = reason
        """Its message."""

    def __str__(self) -> str:
        return f"pipeline {self.pipeline!r} stopped: {self.reason} ({self.error_type})"
