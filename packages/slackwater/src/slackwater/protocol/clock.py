"""Clocks, which are passed as arguments to everything that needs the time."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

END_OF_TIME_MS = 253_402_300_800_000
"""The year 10000. Times in milliseconds since the epoch are less than this, so that they can be shown."""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def epoch_ms(moment: datetime) -> int:
    """Returns a time as whole milliseconds since the epoch; a time without a zone is local time.

    Exact, unlike the multiplication of a float of seconds, which may be just below the millisecond.
    """
    return (moment.astimezone(UTC) - _EPOCH) // _MILLISECOND


def from_epoch_ms(milliseconds: int) -> datetime:
    """Returns a time in UTC.

    Raises:
        OverflowError: It is after the year 9999 (see :data:`END_OF_TIME_MS`) or before the year 1.
    """
    return _EPOCH + milliseconds * _MILLISECOND


class Clock(Protocol):
    """Two kinds of time that must not be mixed."""

    def now(self) -> datetime:
        """Wall clock time, aware, in UTC. For display and for comparison with commit times."""

    def monotonic(self) -> float:
        """Seconds that never decrease. For elapsed time and deadlines."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Wall clock time in UTC."""
        return datetime.fromtimestamp(time.time(), UTC)  # noqa: TID251 - this is the clock adapter

    def monotonic(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()
