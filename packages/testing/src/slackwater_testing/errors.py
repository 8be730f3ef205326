"""Errors of this package and of the benchmarks.

::

    TestingError
    ├── RunFailedError              a run ended without a result
    │   └── ProgramEndedError       a program of the product ended while it was needed
    ├── NothingToDisturbError       a fault found nothing that it could be done to
    ├── NotRecoveredError           after a fault had ended, nothing became visible for too long
    └── NoResultError               no run was kept yet
"""

from pathlib import Path


class TestingError(Exception):
    """Root of everything this package raises."""

    __test__ = False  # pytest: no class of tests


class RunFailedError(TestingError):
    """A run that gave no result.

    Attributes:
        what: The part that is to blame.
        reason: What is known.
    """

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what = what
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


class ProgramEndedError(RunFailedError):
    """A program ended while it was needed.

    Attributes:
        log: Where everything stands that it said.
        last_words: How that ends.
    """

    def __init__(self, program: str, log: Path, last_words: str) -> None:
        super().__init__(f"the {program}", f"ended while it was needed; log: {log}\n{last_words}")
        self.args = (program, log, last_words)
        self.program = program
        self.log = log
        self.last_words = last_words


class NothingToDisturbError(TestingError):
    """No process of that kind, or a step that was never reached."""

    def __init__(self, wanted: str, seconds: float) -> None:
        super().__init__(wanted, seconds)
        self.wanted = wanted
        self.seconds = seconds

    def __str__(self) -> str:
        return f"there was no {self.wanted} to disturb for {self.seconds:.0f} s"


class NotRecoveredError(TestingError):
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


class NoResultError(TestingError):
    """There is no table to show."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} has no run; `python -m slackwater_testing chaos` makes one"
