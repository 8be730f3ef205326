"""When work is due, whatever the system that does it makes of it."""

import threading

from slackwater_protocol import Clock


class Pace:
    """A steady number of row changes, or of transactions, per second; threads may share it.

    Work is due at its intended time whether or not what came before was done in time: what was late is done
    as fast as possible. So a measurement against intended times leaves out nothing.

    Args:
        per_second: How many; None: all is due at once.
        clock: The time. The first work is due now.
    """

    def __init__(self, per_second: float | None, clock: Clock) -> None:
        self._per_second = per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._next = clock.monotonic()

    def next_due(self, amount: int) -> float:
        """Takes the next turn; returns when its work is due, in seconds of the monotonic clock.

        Args:
            amount: The size of the work, in what is counted per second: the next turn comes so much later.
        """
        if self._per_second is None:
            return self._clock.monotonic()
        with self._lock:
            due = self._next
            self._next = due + amount / self._per_second
        return due
