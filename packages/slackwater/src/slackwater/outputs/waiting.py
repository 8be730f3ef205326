"""How a sink waits for its server: it reports this, and stops waiting when the run is to stop."""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from slackwater.protocol import Clock, UnavailableError

_FIRST_PAUSE: Final = timedelta(milliseconds=50)
_LONGEST_PAUSE: Final = timedelta(seconds=1)
_NEWS: Final = timedelta(seconds=5)
"""The time between two lines in the log."""

_log = logging.getLogger(__name__)


def tried(attempts: int) -> str:
    """Returns how often something was tried, as the end of a phrase; nothing for once."""
    return "" if attempts == 1 else f" in {attempts} attempts"


class Waiting:
    """Pauses between attempts. Used by the thread that runs the pipeline.

    Args:
        stop: Ends all waiting when it is set; None if it never is.
        on_step: Called with what is waited for.
    """

    def __init__(
        self, stop: threading.Event | None = None, on_step: Callable[[str], None] = lambda _: None
    ) -> None:
        self._stop = stop or threading.Event()
        self._on_step = on_step

    @property
    def is_over(self) -> bool:
        """Whether the run is to stop."""
        return self._stop.is_set()

    def pause(self, seconds: float, step: str) -> None:
        """Reports what is waited for, and waits for at most this time.

        Raises:
            UnavailableError: The run is to stop.
        """
        self._on_step(step)
        if self._stop.wait(seconds):
            raise UnavailableError(
                f"the run was asked to stop while it was {step}",
                "nothing is lost or partly visible: start the pipeline again when the server is back",
            )


class Attempts:
    """Counts the attempts at one thing, with increasing pauses between them.

    Args:
        what: What is attempted.
        place: The name of the server.
        patience: The time after which there is no further attempt.
        waiting: How to wait.
        clock: The time; the attempts begin now.
    """

    def __init__(self, what: str, place: str, patience: timedelta, waiting: Waiting, clock: Clock) -> None:
        self.number = 1
        until = clock.now() + patience
        self._waits_for = f"waiting for {place}: {what}, until {until:%H:%M:%S} UTC at most"
        self._waiting = waiting
        self._clock = clock
        self._end = clock.monotonic() + patience.total_seconds()
        self._pause = _FIRST_PAUSE
        self._news_at = float("-inf")

    @property
    def are_over(self) -> bool:
        """Whether the patience is exhausted."""
        return self._clock.monotonic() >= self._end

    def pause(self, reason: str) -> None:
        """Waits for the next attempt; reports the reason to the run and, from time to time, to the log.

        Raises:
            UnavailableError: The run is to stop.
        """
        now = self._clock.monotonic()
        step = f"{self._waits_for}: {reason}"
        if now - self._news_at >= _NEWS.total_seconds():
            self._news_at = now
            _log.warning("%s", step)
        self._waiting.pause(self._pause.total_seconds(), step)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self.number += 1
