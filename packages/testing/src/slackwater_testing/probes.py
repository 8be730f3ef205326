"""Probes that look at what has steps, or crash it, at one of them."""

import os
import signal
from collections.abc import Callable

from slackwater_spark.sink import SinkStep


class CrashError(Exception):
    """Ends a run at a step of its sink."""


class CrashAt:
    """Raises :class:`CrashError`, once, at a step of a batch."""

    def __init__(self, step: SinkStep, batch_id: int) -> None:
        self._place: tuple[SinkStep, int] | None = (step, batch_id)

    def __call__(self, step: SinkStep, batch_id: int) -> None:
        """Is told of each step."""
        if self._place == (step, batch_id):
            self._place = None
            raise CrashError(step)


class LookAt:
    """Calls a function at a step of every batch."""

    def __init__(self, step: SinkStep, look: Callable[[], object]) -> None:
        self._step = step
        self._look = look

    def __call__(self, step: SinkStep, batch_id: int) -> None:
        """Is told of each step; ``batch_id`` does not matter."""
        del batch_id
        if step is self._step:
            self._look()


class SignalAt:
    """Sends this process a signal at a step, after it was reached some times.

    Args:
        step: The step; None: never.
        times: Which of its occurrences, counting from 1.
        number: The signal.
    """

    def __init__(
        self, step: str | None = None, times: int = 1, number: signal.Signals = signal.SIGKILL
    ) -> None:
        self._step, self._left, self._number = step, times, number

    def __call__(self, step: str) -> None:
        """Is told of each step."""
        if step == self._step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), self._number)
