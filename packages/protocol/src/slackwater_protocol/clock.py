"""Time as an argument: whoever needs a clock takes one of these."""

import time
from datetime import UTC, datetime
from typing import Protocol

END_OF_TIME_MS = 253_402_300_800_000
"""The year 10000: moments in milliseconds since the epoch are below, or nobody could show them."""


class Clock(Protocol):
    """Two kinds of time that must not be mixed."""

    def now(self) -> datetime:
        """The wall clock, aware, UTC. For people and for comparison with commit times."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back. For elapsed time and deadlines."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Wall clock time in UTC."""
        return datetime.fromtimestamp(time.time(), UTC)  # noqa: TID251 - this is the clock adapter

    def monotonic(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()
