"""Probes that look at a sink, or crash it, at one of its steps."""

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
