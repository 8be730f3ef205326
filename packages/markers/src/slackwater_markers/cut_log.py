"""The cut log: every cut of a source, in order, for ever."""

from collections.abc import Sequence
from typing import Protocol

from slackwater_protocol import Cut, PublishedCut


class CutLog(Protocol):
    """The durable record of cuts; one partition, offsets rise with each cut and may have gaps.

    Several sidecars may append, so cuts may be repeated and interleave. All methods block, for at most the
    log's time-out, and raise only :class:`~slackwater_markers.errors.CutLogError` and protocol errors. Not
    thread-safe.
    """

    def append(self, cuts: Sequence[Cut]) -> list[PublishedCut]:
        """Writes cuts and returns when all of them are acknowledged, with their offsets.

        When it raises, any prefix of the cuts may have been written.
        """
        ...

    def read_range(self, from_offset: int, to_offset: int) -> list[PublishedCut]:
        """The cuts at offsets in ``[from_offset, to_offset)``, ascending.

        Raises:
            CutLogTruncatedError: the log starts above ``from_offset``.
            CutLogUnavailableError: among others, when the log ends below ``to_offset``.
        """
        ...

    def tail(self, after_offset: int, *, limit: int | None = None) -> list[PublishedCut]:
        """What was readable above ``after_offset`` (-1: everything) at the time of the call, ascending.

        Args:
            after_offset: Exclusive. A log that starts above it is read from its start.
            limit: At most so many, the oldest.
        """
        ...

    def newest(self) -> PublishedCut | None:
        """The last cut in the log; None when the log is empty or does not exist."""
        ...

    def close(self) -> None:
        """Frees connections. The log must not be used afterwards."""
        ...
