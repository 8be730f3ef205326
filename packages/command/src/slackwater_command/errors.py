"""Errors of the command, by what can be done about them.

::

    CommandError
    ├── CommandConfigError        a setting is unknown, invalid or missing, or an extra   exit code 2
    ├── CommandInputError         what is asked for does not fit the facts
    ├── CommandTimeoutError       what is waited for has not come                         exit code 3
    └── CommandUnavailableError   a server does not answer a question
"""

from typing import ClassVar

from slackwater_protocol import ExplainedError


class CommandError(ExplainedError):
    """Root of everything this package raises."""

    exit_code: ClassVar[int] = 1


class CommandConfigError(CommandError):
    """Settings that cannot be used, or an extra that is missing.

    Values are not repeated: they may be secrets.
    """

    exit_code = 2


class CommandInputError(CommandError):
    """A request that does not fit the facts; nothing was changed."""


class CommandTimeoutError(CommandError):
    """Something that is not there yet, or was not in time."""

    exit_code = 3


class CommandUnavailableError(CommandError):
    """Kafka or PostgreSQL did not answer a question."""


def installing(requirement: str) -> str:
    """Returns the command that installs a package which may be in no package index; a hint."""
    return (
        f"pip install --find-links DIST '{requirement}', where DIST is the folder with Slackwater's wheels "
        "(`make wheels` in its repository writes dist/); no package index has them"
    )


def unreachable(server: str, question: str, reason: str) -> CommandUnavailableError:
    """Returns the error for a server that did not answer a question."""
    problem = f"{server} does not answer: {question}: {reason}"
    return CommandUnavailableError(problem, "check address and permissions")
