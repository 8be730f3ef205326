"""How a sink waits for its server: it reports this, and stops waiting when the run is to stop."""

import threading
from collections.abc import Callable
from datetime import timedelta

from slackwater.kafka.retry import Retry
from slackwater.protocol import Clock, UnavailableError


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


def retry_for(what: str, place: str, patience: timedelta, waiting: Waiting, clock: Clock) -> Retry:
    """Returns how attempts at one thing are repeated; their time begins now.

    Args:
        what: What is attempted.
        place: The name of the server.
        patience: The time after which there is no further attempt.
        waiting: How to wait; raises when the run is to stop.
        clock: The time.
    """
    step = f"waiting for {place}: {what}"
    until = clock.now() + patience

    def pause(seconds: float) -> None:
        waiting.pause(seconds, f"{step}, until {until:%H:%M:%S} UTC at most: {retry.last_error}")

    retry = Retry(step, patience.total_seconds(), clock=clock, pause=pause)
    retry.begin()
    return retry
