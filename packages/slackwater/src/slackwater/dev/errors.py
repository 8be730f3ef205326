"""The error of servers that do not start, and how errors of the devstack are worded."""

from pathlib import Path

from slackwater.protocol import ConfigError, StateError, UnavailableError


class DevStackUnavailableError(UnavailableError):
    """This machine lacks something, a download failed, or a server did not become ready."""

    def __init__(self, problem: str, hint: str, log_tail: str = "") -> None:
        super().__init__(problem, hint)
        self.args = problem, hint, log_tail
        self.log_tail = log_tail
        """Last lines of what a server or a download said; may be empty."""

    def __str__(self) -> str:
        tail = f"; its last lines:\n{self.log_tail}" if self.log_tail else ""
        return f"{super().__str__()}{tail}"


def wrong_setting(setting: str, value: str, expected: str) -> ConfigError:
    """Returns the error for a setting whose value cannot be used."""
    return ConfigError(f"setting {setting} is {value}", f"expected {expected}")


def missing_prerequisite(what: str, found: str, hint: str) -> DevStackUnavailableError:
    """Returns the error for something that this machine must have, given what was found instead."""
    return DevStackUnavailableError(f"{what} is needed, but {found}", hint)


def not_running(server: str, operation: str) -> StateError:
    """Returns the error for an operation that needs a running server."""
    return StateError(f"cannot {operation} {server}: it is not running", "call start() first")


def failed_start(server: str, reason: str, log_path: Path, log_tail: str) -> DevStackUnavailableError:
    """Returns the error for a server that did not become ready."""
    return DevStackUnavailableError(f"{server} did not start: {reason}", f"log: {log_path}", log_tail)
