"""Who works with a checkpoint: runs share it (the newest one fences the others), a rescaling has it alone."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from slackwater_spark.state.errors import CheckpointInUseError

HOLD_FILE = "slackwater.lock"


class CheckpointHold:
    """What a holder has of a checkpoint.

    Args:
        file: The lock.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Shuts others out for the time of the block; False if others hold the checkpoint, too."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The attempt has let go of what was held; those who hold it, too, only share it.
            fcntl.flock(self._file, fcntl.LOCK_SH)
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(self._file, fcntl.LOCK_SH)


@contextmanager
def hold_checkpoint(folder: Path, holder: str, *, alone: bool) -> Iterator[CheckpointHold]:
    """Holds a checkpoint for the time of the block; the system lets go when the process ends.

    Args:
        folder: The checkpoint; made if it is not there.
        holder: What others are told who want it meanwhile.
        alone: Nobody else may hold it.

    Raises:
        CheckpointInUseError: somebody else holds it alone, or holds it and `alone` is asked for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / HOLD_FILE).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise CheckpointInUseError(str(folder), file.read().strip()) from error
        file.truncate(0)
        file.write(f"{holder} (process {os.getpid()})\n")
        file.flush()
        yield CheckpointHold(file)
