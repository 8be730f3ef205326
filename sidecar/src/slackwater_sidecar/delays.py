"""How long commits wait from the moment their END was read until they are published."""

from collections import deque

_REMEMBERED = 10_000


class Delays:
    """Notes the newest END of each poll; bounded: while nothing is published, only the oldest are kept."""

    def __init__(self) -> None:
        self._read: deque[tuple[int, float]] = deque()
        self._newest = 0

    def read(self, newest_lsn: int, now: float) -> None:
        """Says up to where ENDs have been read."""
        if newest_lsn > self._newest:
            self._newest = newest_lsn
            if len(self._read) < _REMEMBERED:
                self._read.append((newest_lsn, now))

    def published(self, lsn: int, now: float) -> list[float]:
        """The delays, in seconds, of those at or below a cut that was published now."""
        result = []
        while self._read and self._read[0][0] <= lsn:
            result.append(now - self._read.popleft()[1])
        return result
