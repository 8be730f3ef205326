"""How long what passes is waited for."""

import logging
from datetime import timedelta

from slackwater_messaging.errors import MessagingUnavailableError
from slackwater_protocol import Clock

logger = logging.getLogger(__name__)
_FIRST_SECONDS = 0.05
_LONGEST_SECONDS = 2.0


class Patience:
    """Counts failures in a row. Used by one thread.

    Args:
        what: Who waits, for messages.
        limit: How long failures may go on.
        clock: For that.
    """

    def __init__(self, what: str, limit: timedelta, clock: Clock) -> None:
        self._what, self._limit, self._clock = what, limit.total_seconds(), clock
        self._since: float | None = None
        self._seconds = _FIRST_SECONDS

    def note(self, error: BaseException) -> float:
        """Returns how long to wait before another try, longer each time.

        Raises:
            MessagingUnavailableError: Failures have gone on for too long.
        """
        now = self._clock.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > self._limit:
            problem = f"{self._what}: tried for {self._limit:g} s, at last: {error}"
            raise MessagingUnavailableError(problem, "check that it is up; nothing was lost") from error
        logger.warning("%s: %s; trying again", self._what, error)
        seconds, self._seconds = self._seconds, min(2 * self._seconds, _LONGEST_SECONDS)
        return seconds

    def reset(self) -> None:
        """Notes that something succeeded."""
        self._since, self._seconds = None, _FIRST_SECONDS
