"""How often something that costs time is done."""

_SHARE = 0.2
_LONGEST_REST_SECONDS = 0.25
"""What took longer has waited for another process, not worked: a rest would only add to the delay."""


class Pace:
    """Spaces a repeated action: an interval apart, and so that it takes a fifth of the time.

    So an action whose cost grows, e.g. with the number of partitions, slows itself down, not the rest.
    """

    def __init__(self) -> None:
        self._started_at = self._due_at = float("-inf")

    def is_due(self, now: float, interval_seconds: float, *, others_wait: bool = True) -> bool:
        """Whether it is time, by the monotonic clock.

        Args:
            now: The time.
            interval_seconds: At least so much from one start to the next.
            others_wait: Whether there is other work for the time in between; without, it need not be left.
        """
        due_at = self._started_at + interval_seconds
        return now >= (max(self._due_at, due_at) if others_wait else due_at)

    def note(self, started: float, ended: float) -> None:
        """Says when the action was done last."""
        self._started_at = started
        self._due_at = ended + min((ended - started) * (1 / _SHARE - 1), _LONGEST_REST_SECONDS)
