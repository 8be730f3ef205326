"""Errors of this package and of the benchmarks.

::

    TestingError
    ├── RunFailedError              a run, or something that it needs, gave no result
    │   └── ProgramEndedError       a program of the product ended while it was needed
    ├── NothingToDisturbError       a fault found nothing that it could be done to
    └── WorkRefusedError            a role could not do its work with the rights that it had
"""

from pathlib import Path


class TestingError(Exception):
    """Root of everything this package raises."""

    __test__ = False  # pytest: no class of tests


class RunFailedError(TestingError):
    """There is no result: a run, or something that it needs, failed.

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
        log: Where everything is that it said.
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


class WorkRefusedError(TestingError):
    """A role could not do its work with the rights that it had, or complained about one."""
