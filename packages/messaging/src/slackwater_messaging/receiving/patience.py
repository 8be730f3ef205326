"""How long transient failures are retried."""

import logging
from datetime import timedelta

from slackwater_messaging.errors import MessagingUnavailableError
from slackwater_messaging.retrying import RepeatedWarning
from slackwater_protocol import Clock

logger = logging.getLogger(__name__)
_FIRST_SECONDS = 0.05
_LONGEST_SECONDS = 2.0


class Patience:
    """Tracks consecutive failures. Use it from one thread.

    Args:
        what: Who retries, for messages.
        limit: How long failures may continue.
        clock: Measures that time.
    """

    def __init__(self, what: str, limit: timedelta, clock: Clock) -> None:
        self._what, self._limit, self._clock = what, limit.total_seconds(), clock
        self._since: float | None = None
        self._seconds = _FIRST_SECONDS
        self._warning = RepeatedWarning(logger, what, clock)

    def note(self, error: BaseException) -> float:
        """Returns how long to wait before the next attempt, longer each time.

        Raises:
            MessagingUnavailableError: Failures have continued for too long.
        """
        now = self._clock.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > self._limit:
            problem = f"{self._what}: gave up after {self._limit:g} s of retries: {error}"
            raise MessagingUnavailableError(
                problem, "check that the server is up; nothing was lost"
            ) from error
        self._warning.note(error)
        seconds, self._seconds = self._seconds, min(2 * self._seconds, _LONGEST_SECONDS)
        return seconds

    def reset(self) -> None:
        """Notes that something succeeded."""
        self._since, self._seconds = None, _FIRST_SECONDS
        self._warning.reset()
