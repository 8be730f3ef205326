"""How errors of the devstack are worded."""

from pathlib import Path

from slackwater.protocol import ConfigError, StateError, UnavailableError


def wrong_setting(setting: str, value: str, expected: str) -> ConfigError:
    """Returns the error for a setting whose value cannot be used."""
    return ConfigError(f"setting {setting} is {value}", f"expected {expected}")


def missing_prerequisite(what: str, found: str, hint: str) -> UnavailableError:
    """Returns the error for something that this machine must have, given what was found instead."""
    return UnavailableError(f"{what} is needed, but {found}", hint)


def not_running(server: str, operation: str) -> StateError:
    """Returns the error for an operation that needs a running server."""
    return StateError(f"cannot {operation} {server}: it is not running", "call start() first")


def failed_start(server: str, reason: str, log_path: Path, log_tail: str) -> UnavailableError:
    """Returns the error for a server that did not become ready."""
    return UnavailableError(f"{server} did not start: {reason}", with_tail(f"log: {log_path}", log_tail))


def with_tail(hint: str, log_tail: str) -> str:
    """Returns a hint with the last lines of what a server or a download said, which may be none."""
    return f"{hint}; its last lines:\n{log_tail}" if log_tail else hint
