"""Errors of the devstack, by what can be done about them.

::

    DevStackError
    ├── DevStackConfigError        settings that no server can use, or that contradict each other
    ├── DevStackStateError         what is asked does not fit what runs, or ran, in the folder
    └── DevStackUnavailableError   this machine lacks something, a download failed, a server did not start
"""

from pathlib import Path

from slackwater.protocol import ExplainedError


class DevStackError(ExplainedError):
    """Root of everything this package raises."""

    def __init__(self, problem: str, hint: str, log_tail: str = "") -> None:
        super().__init__(problem, hint)
        self.args = problem, hint, log_tail
        self.log_tail = log_tail
        """Last lines of what a server or a download said; may be empty."""

    def __str__(self) -> str:
        tail = f"; its last lines:\n{self.log_tail}" if self.log_tail else ""
        return f"{super().__str__()}{tail}"


class DevStackConfigError(DevStackError):
    """A setting has a value that cannot be used, or that contradicts another one."""


class DevStackStateError(DevStackError):
    """An operation does not fit what runs: a server is down, or another process uses the folder."""


class DevStackUnavailableError(DevStackError):
    """Something that a server needs is not there, or the server did not become ready."""


def wrong_setting(setting: str, value: str, expected: str) -> DevStackConfigError:
    """Returns the error for a setting whose value cannot be used."""
    return DevStackConfigError(f"setting {setting} is {value}", f"expected {expected}")


def missing_prerequisite(what: str, found: str, hint: str) -> DevStackUnavailableError:
    """Returns the error for something that this machine must have, given what was found instead."""
    return DevStackUnavailableError(f"{what} is needed, but {found}", hint)


def not_running(server: str, operation: str) -> DevStackStateError:
    """Returns the error for an operation that needs a running server."""
    return DevStackStateError(f"cannot {operation} {server}: it is not running", "call start() first")


def failed_start(server: str, reason: str, log_path: Path, log_tail: str) -> DevStackUnavailableError:
    """Returns the error for a server that did not become ready."""
    return DevStackUnavailableError(f"{server} did not start: {reason}", f"log: {log_path}", log_tail)
