"""One time budget handed down through everything that waits."""

import time
from datetime import timedelta


class Deadline:
    """A point on the monotonic clock. Not affected by changes of the wall clock."""

    def __init__(self, budget: timedelta) -> None:
        self.budget = budget
        self._end = time.monotonic() + budget.total_seconds()

    @property
    def remaining_seconds(self) -> float:
        """Seconds left; 0 when expired."""
        return max(0.0, self._end - time.monotonic())

    @property
    def is_expired(self) -> bool:
        """Whether no time is left."""
        return self.remaining_seconds == 0.0
