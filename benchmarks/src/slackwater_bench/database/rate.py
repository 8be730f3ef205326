"""When transactions are due."""

import threading
from collections.abc import Callable

from slackwater_protocol import Clock


class Schedule:
    """A steady number of row changes per second, shared by threads.

    A transaction is due at its intended time whether or not the database was fast enough before: what was
    late is done as fast as possible. So a measurement against intended times leaves out nothing.
    """

    def __init__(self, changes_per_second: float | None, clock: Clock) -> None:
        self._per_second = changes_per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._next = clock.monotonic()

    def take(self, changes: int, wait: Callable[[float], object]) -> float:
        """Waits until the next transaction is due; returns that time, in seconds of the monotonic clock.

        Args:
            changes: Of the transaction.
            wait: Waits so many seconds, perhaps less.
        """
        if self._per_second is None:
            return self._clock.monotonic()
        with self._lock:
            due = self._next
            self._next = due + changes / self._per_second
        early = due - self._clock.monotonic()
        if early > 0:
            wait(early)
        return due
