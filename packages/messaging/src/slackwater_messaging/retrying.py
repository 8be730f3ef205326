"""How long something is tried again, and what is logged meanwhile: one line, and not one for each attempt."""

import logging
from dataclasses import replace
from datetime import timedelta
from typing import Final

from slackwater.protocol import Clock, KafkaSettings, SystemClock
from slackwater_messaging.errors import MessagingUnavailableError

logger = logging.getLogger(__name__)
_FIRST_SECONDS: Final = 0.05
_LONGEST_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 60.0
_ONLY_CRITICAL: Final = "2"


class RepeatedWarning:
    """Logs a warning at the first failure, and then once a minute until something has succeeded.

    Args:
        logger: The logger.
        what: Who retries.
        clock: Measures the minute.
    """

    def __init__(self, logger: logging.Logger, what: str, clock: Clock | None = None) -> None:
        self._logger, self._what, self._clock = logger, what, clock or SystemClock()
        self._due_at = float("-inf")

    def note(self, problem: object) -> None:
        """Logs the problem, unless one was logged within the last minute."""
        now = self._clock.monotonic()
        if now >= self._due_at:
            self._due_at = now + _AGAIN_SECONDS
            self._logger.warning("%s: %s; retrying", self._what, problem)

    def reset(self) -> None:
        """Notes that something has succeeded."""
        self._due_at = float("-inf")


def quiet(kafka: KafkaSettings) -> KafkaSettings:
    """Returns settings with which librdkafka does not write a line for each of its own attempts.

    Otherwise it writes to standard error several times a second while no broker answers. ``log_level`` among
    the options has precedence.
    """
    return replace(kafka, options={"log_level": _ONLY_CRITICAL, **kafka.options})


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
