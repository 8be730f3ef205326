"""Errors of the benchmarks, beside those of :mod:`slackwater_testing.errors`.

::

    TestingError
    ├── UnknownScenarioError     no scenario of that name
    ├── MalformedResultError     a line of a results file cannot be read
    └── BaseUnavailableError     the other commit cannot be checked out or installed
"""

from collections.abc import Iterable
from pathlib import Path

from slackwater_testing.errors import TestingError


class UnknownScenarioError(TestingError):
    """A name that is not in the registry."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(known)
        super().__init__(name, self.known)

    def __str__(self) -> str:
        return f"no scenario {self.name!r}; there are: {', '.join(self.known)}"


class MalformedResultError(TestingError):
    """A results file holds something else than results."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(path, line, reason)
        self.path = path
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.path}, line {self.line}: {self.reason}; expected what `python -m slackwater_bench` writes"
        )


class BaseUnavailableError(TestingError):
    """The commit to compare with does not exist or does not install."""

    def __init__(self, revision: str, step: str, output: str) -> None:
        super().__init__(revision, step, output)
        self.revision = revision
        self.step = step
        self.output = output

    def __str__(self) -> str:
        return f"base {self.revision}: {self.step} failed:\n{self.output}"
