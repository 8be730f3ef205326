"""Errors of chaos runs.

::

    BenchError
    └── ChaosError
        ├── NothingToDisturbError   the fault found nothing that it could be done to
        ├── NotRecoveredError       after a fault had ended, nothing became visible for too long
        ├── NotStartedError         the system never worked, so there is nothing to judge
        └── NoResultError           no run was kept yet
"""

from pathlib import Path

from slackwater_bench.errors import BenchError


class ChaosError(BenchError):
    """Root."""


class NothingToDisturbError(ChaosError):
    """No process of that kind, or a step that was never reached."""

    def __init__(self, wanted: str, seconds: float) -> None:
        super().__init__(wanted, seconds)
        self.wanted = wanted
        self.seconds = seconds

    def __str__(self) -> str:
        return f"there was no {self.wanted} to disturb for {self.seconds:.0f} s"


class NotRecoveredError(ChaosError):
    """The output stands still."""

    def __init__(self, after: str, wanted: str, seen: str, seconds: float, logs: Path) -> None:
        super().__init__(after, wanted, seen, seconds, logs)
        self.after = after
        self.wanted = wanted
        self.seen = seen
        self.seconds = seconds
        self.logs = logs

    def __str__(self) -> str:
        return (
            f"{self.seconds:.0f} s after '{self.after}' a commit at {self.wanted} is not visible, the output "
            f"stands at {self.seen}; what each process said last is in {self.logs}"
        )


class NotStartedError(ChaosError):
    """The first state did not become visible."""

    def __init__(self, seconds: float, logs: Path, last_words: str) -> None:
        super().__init__(seconds, logs, last_words)
        self.seconds = seconds
        self.logs = logs
        self.last_words = last_words

    def __str__(self) -> str:
        return (
            f"nothing was visible after {self.seconds:.0f} s, before any fault; logs: {self.logs}\n"
            f"{self.last_words}"
        )


class NoResultError(ChaosError):
    """There is no table to show."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} has no run; `python -m slackwater_bench chaos` makes one"
