"""What is logged while something is tried again: one line, and not one for each attempt."""

import logging
from dataclasses import replace
from typing import Final

from slackwater_protocol import Clock, KafkaSettings, SystemClock

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
