"""Errors of looking at a checkpoint's state and of changing its partitions.

::

    StateError
    ├── NotACheckpointError      the folder is no checkpoint, or nothing has been committed to it yet
    ├── CheckpointInUseError     a run or another rescaling holds it
    ├── UnfinishedBatchError     the newest batch is not committed
    ├── UselessPartitionsError   a number of partitions that no pipeline can use
    ├── UnknownKeyError          no stage has a key with these columns or values
    └── RescaledStateError       the state with other partitions is not what it was
"""

from slackwater_protocol import SlackwaterError


class StateError(SlackwaterError):
    """Root of the errors of a checkpoint's state."""


class NotACheckpointError(StateError):
    """There is nothing to look at."""

    def __init__(self, folder: str, lacks: str) -> None:
        super().__init__(folder, lacks)
        self.folder = folder
        self.lacks = lacks

    def __str__(self) -> str:
        return (
            f"{self.folder} is no checkpoint with state: it has no {self.lacks}; expected the folder that a "
            "pipeline ran with (run.checkpoint), after its first batch"
        )


class CheckpointInUseError(StateError):
    """Somebody else works with the checkpoint."""

    def __init__(self, folder: str, holder: str) -> None:
        super().__init__(folder, holder)
        self.folder = folder
        self.holder = holder
        """What the holder says of itself."""

    def __str__(self) -> str:
        return f"{self.folder} is in use by {self.holder or 'another process'}; stop that first"


class UnfinishedBatchError(StateError):
    """The state of the newest batch may or may not be in the output."""

    def __init__(self, folder: str, batch: int, rescaled_to: int | None) -> None:
        super().__init__(folder, batch, rescaled_to)
        self.folder = folder
        self.batch = batch
        self.rescaled_to = rescaled_to
        """Partitions of a rescaling that was interrupted; None: it is a batch of the pipeline."""

    def __str__(self) -> str:
        if self.rescaled_to is not None:
            return (
                f"{self.folder}: a change to {self.rescaled_to} partitions was interrupted (batch "
                f"{self.batch}); finish it first, with --partitions {self.rescaled_to}"
            )
        return (
            f"{self.folder}: batch {self.batch} was begun and not finished, so it may be in the output "
            "already; finish it first: `slackwater run --available-now`"
        )


class UselessPartitionsError(StateError):
    """More partitions than there are buckets to put into them, or none."""

    def __init__(self, partitions: int, buckets: int) -> None:
        super().__init__(partitions, buckets)
        self.partitions = partitions
        self.buckets = buckets

    def __str__(self) -> str:
        return (
            f"{self.partitions} partitions: expected 1 to {self.buckets}, the pipeline's number of buckets, "
            "which is fixed for the life of its checkpoint"
        )


class UnknownKeyError(StateError):
    """A key cannot be looked up."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(key, problem)
        self.key = key
        self.problem = problem

    def __str__(self) -> str:
        return f"key {self.key}: {self.problem}"


class RescaledStateError(StateError):
    """What was read before and after is different."""

    def __init__(self, folder: str, variable: str, before: str, after: str, batch: int) -> None:
        super().__init__(folder, variable, before, after, batch)
        self.folder = folder
        self.variable = variable
        self.before = before
        self.after = after
        self.batch = batch

    def __str__(self) -> str:
        return (
            f"{self.folder}: after the change of partitions (batch {self.batch}), {self.variable} has "
            f"{self.after}, before it had {self.before}. Do not run the pipeline with it: restore the "
            "checkpoint from a copy or start with a new one; please report this"
        )
