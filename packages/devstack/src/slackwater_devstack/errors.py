"""Errors of the devstack.

::

    DevStackError
    ├── PrerequisiteError      something this machine must have is missing or too old
    ├── JarResolutionError     the jars could not be downloaded or are not the pinned ones
    ├── ServerStartError       a server did not become ready
    ├── ServerNotRunningError  an operation needs a running server
    ├── SettingsError          settings that contradict each other
    ├── StackRunningError      another process runs servers in this folder
    └── StateFileError         the state file is not one of ours
"""

from pathlib import Path


class DevStackError(Exception):
    """Root of everything this package raises."""


class PrerequisiteError(DevStackError):
    """Something this machine must have is missing or too old."""

    def __init__(self, what: str, found: str, remedy: str) -> None:
        super().__init__(what, found, remedy)
        self.what = what
        """What is needed, with the least version."""
        self.found = found
        """What was found instead."""
        self.remedy = remedy
        """What to do."""

    def __str__(self) -> str:
        return f"{self.what} is needed, but {self.found}; {self.remedy}"


class JarResolutionError(DevStackError):
    """The jars could not be downloaded or are not the pinned ones."""

    def __init__(self, reason: str, log_tail: str = "") -> None:
        super().__init__(reason, log_tail)
        self.reason = reason
        self.log_tail = log_tail
        """Last lines of the resolver's output; may be empty."""

    def __str__(self) -> str:
        tail = f"\n{self.log_tail}" if self.log_tail else ""
        return f"the Kafka and Debezium jars could not be resolved: {self.reason}{tail}"


class ServerStartError(DevStackError):
    """A server did not become ready."""

    def __init__(self, server: str, reason: str, log_path: Path, log_tail: str = "") -> None:
        super().__init__(server, reason, log_path, log_tail)
        self.server = server
        self.reason = reason
        self.log_path = log_path
        self.log_tail = log_tail
        """Last lines of the server's log; may be empty."""

    def __str__(self) -> str:
        tail = f"; its last lines:\n{self.log_tail}" if self.log_tail else ""
        return f"{self.server} did not start: {self.reason}; log: {self.log_path}{tail}"


class ServerNotRunningError(DevStackError):
    """An operation needs a running server."""

    def __init__(self, server: str, operation: str) -> None:
        super().__init__(server, operation)
        self.server = server
        self.operation = operation

    def __str__(self) -> str:
        return f"cannot {self.operation} {self.server}: it is not running; call start() first"


class SettingsError(DevStackError):
    """Settings that contradict each other, or a value that cannot be used."""

    def __init__(self, setting: str, value: str, expected: str) -> None:
        super().__init__(setting, value, expected)
        self.setting = setting
        self.value = value
        self.expected = expected

    def __str__(self) -> str:
        return f"setting {self.setting}: expected {self.expected}, got {self.value}"


class StackRunningError(DevStackError):
    """Another process runs servers in this folder."""

    def __init__(self, folder: Path, servers: tuple[str, ...]) -> None:
        super().__init__(folder, servers)
        self.folder = folder
        self.servers = servers

    def __str__(self) -> str:
        names = ", ".join(self.servers) or "a stack that is starting"
        return (
            f"{names} already running in {self.folder}; use another folder or run `slackwater dev down` first"
        )


class StateFileError(DevStackError):
    """The state file is not one of ours."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"state file {self.path}: {self.reason}; delete it if nothing runs in that folder"
