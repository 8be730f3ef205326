"""The root of all errors, their kinds, and the errors of records.

::

    SlackwaterError                     a problem, and a hint that says what to do about it
    ├── ConfigError                     a setting, an option, a file or an argument has to be changed
    ├── InputError                      data, or a request, cannot be used
    │   └── MalformedRecordError        bytes that are not a record of this protocol
    ├── StateError                      what was written does not fit, or was changed by others
    │   └── OvertakenError              another instance has taken over; this one must stop
    └── UnavailableError                a server or a disk does not work; trying again later is safe

Packages add a class only where a caller reacts to it in particular. Errors cross processes, so all of them
can be pickled: their positional arguments contain their data.
"""


class SlackwaterError(Exception):
    """Root of the errors that Slackwater's packages raise."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem, hint)
        self.problem = problem
        """What was expected, what was found, and where."""
        self.hint = hint
        """What to do; empty if the problem already says it."""

    def __str__(self) -> str:
        return f"{self.problem}; {self.hint}" if self.hint else self.problem


class ConfigError(SlackwaterError):
    """A setting, an option, a file or an argument cannot be used as it is."""


class InputError(SlackwaterError):
    """Data cannot be used, or a request does not fit the facts."""


class StateError(SlackwaterError):
    """State, topics or outputs cannot be used: they were changed by others, or do not belong together."""


class OvertakenError(StateError):
    """Another instance has taken over; this one can write no more, and must stop."""

    def __init__(self, problem: str, hint: str = "", found: str = "") -> None:
        super().__init__(problem, hint)
        self.args = problem, hint, found
        self.found = found


def run_overtaken(pipeline: str, found: str) -> OvertakenError:
    """Returns the error for an output that another run of the pipeline has taken over."""
    return OvertakenError(
        f"another run of pipeline {pipeline!r} took over; this run stops, and nothing of its unfinished "
        "batch is visible",
        f"run each pipeline only once, or give the other one a different name (found: {found})",
        found,
    )


class UnavailableError(SlackwaterError):
    """A server or a disk does not work, or something is in use. Nothing is lost: try again later."""


class MalformedRecordError(InputError):
    """Bytes that cannot be read as the expected record."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"not a readable {kind}: {reason}", "check what else writes to this topic or key")
        self.args = kind, reason
        self.kind = kind
        """The kind that was expected: ``cut``, ``commit record``, ..."""
        self.reason = reason
        """The fault in the bytes."""
