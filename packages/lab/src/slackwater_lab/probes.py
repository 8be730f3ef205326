"""Probes that look at what has steps, or crash it, at one of them."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater.outputs.contract import SinkStep

_dead: list[BaseException] = []
"""What has crashed stays as it was, held by its traceback, until this process ends: librdkafka ends a process
that destroys a producer in the middle of a transaction (see ``KafkaTransactions.discard``)."""


class CrashError(Exception):
    """Ends a run at a step of its sink."""

    def __init__(self, step: SinkStep) -> None:
        super().__init__(step)
        _dead.append(self)


class CrashAt:
    """Raises :class:`CrashError`, once, at a step of a batch."""

    def __init__(self, step: SinkStep, batch_id: int) -> None:
        self._place: tuple[SinkStep, int] | None = (step, batch_id)

    def __call__(self, step: SinkStep, batch_id: int) -> None:
        """Receives each step."""
        if self._place == (step, batch_id):
            self._place = None
            raise CrashError(step)


class LookAt:
    """Calls a function at a step of every batch."""

    def __init__(self, step: SinkStep, look: Callable[[], object]) -> None:
        self._step = step
        self._look = look

    def __call__(self, step: SinkStep, batch_id: int) -> None:
        """Receives each step; ``batch_id`` does not matter."""
        del batch_id
        if step is self._step:
            self._look()


class Death(BaseException):
    """What a process that is killed does to its open calls."""

    def __init__(self) -> None:
        super().__init__()
        _dead.append(self)


class At:
    """Does something once, at a step, after it was reached some times.

    Args:
        step: The step; None: never.
        act: What is done; None: :class:`Death` is raised.
        times: Which of its occurrences, counting from 1.
    """

    def __init__(self, step: str | None, act: Callable[[], object] | None = None, times: int = 1) -> None:
        self._step, self._act, self._left = step, act, times
        self.is_done = False
        """Whether it has happened, and is over."""

    def __call__(self, step: str) -> None:
        """Receives each step."""
        if step != self._step:
            return
        self._left -= 1
        if self._left == 0:
            if self._act is None:
                raise Death
            self._act()
            self.is_done = True


class SignalAt(At):
    """Sends this process a signal at a step, after it was reached some times."""

    def __init__(
        self, step: str | None = None, times: int = 1, number: signal.Signals = signal.SIGKILL
    ) -> None:
        super().__init__(step, lambda: os.kill(os.getpid(), number), times)


@dataclass(frozen=True, slots=True)
class Servers:
    """What can be killed at a step."""

    postgres: PostgresServer
    kafka: KafkaBroker
