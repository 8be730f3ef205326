"""What the service needs of whoever reads the source."""

from collections.abc import Callable
from typing import Protocol

from slackwater_cdc import EndOffsets, Frontier

Starts = Callable[[str, int], int | None]
"""Topic and partition to the offset from which they must be read; None: from the beginning."""


class SourceReader(Protocol):
    """Reads the topics of a source into a frontier. Used by one thread."""

    def discover(self, frontier: Frontier) -> list[str]:
        """Looks for topics and partitions that are not read yet and begins to; returns all data topics.

        Raises:
            SourceUnavailableError: Kafka does not answer.
            SourceTruncatedError: a partition does not have the offset from which it must be read.
        """
        ...

    def poll(self, frontier: Frontier, timeout_seconds: float) -> int:
        """Gives the frontier what has come, after at most the time-out; returns the number of records.

        Raises:
            SourceUnavailableError: a topic cannot be read.
            SourceTruncatedError: records were deleted before they were read.
        """
        ...

    def end_offsets(self) -> EndOffsets:
        """High watermarks, as of now, of everything that is read: what is written counts, committed or not.

        Raises:
            SourceUnavailableError: Kafka does not answer.
        """
        ...

    def balance(self, frontier: Frontier) -> None:
        """Pauses what is far ahead of the rest, so that memory stays bounded."""
        ...

    @property
    def paused_partitions(self) -> int:
        """How many partitions are not read at present."""
        ...

    def close(self) -> None:
        """Frees connections."""
        ...
