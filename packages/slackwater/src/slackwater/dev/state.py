"""The servers of a folder, for this and for other processes.

``devstack.json`` names the processes, so that another process can recognise, judge and end them.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path

import msgspec
import orjson

from slackwater.dev.processes import ManagedProcess, ProcessIdentity
from slackwater.protocol import StateError

_FORMAT = 1
FILE_NAME = "devstack.json"


class RunState(Enum):
    """State of one server's process."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    """Stopped in order."""
    GONE = "gone"
    """It should run, but its process has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """One server, as it was written down; what its process does is looked up when it is asked for."""

    name: str
    address: str
    """URL, DSN or ``host:port``; also when it does not run, because ports stay the same if they can."""
    version: str
    log: Path
    ports: Mapping[str, int] = field(default_factory=dict)
    process: ProcessIdentity | None
    """None: stopped in order."""

    @property
    def state(self) -> RunState:
        """What its process does now."""
        if self.process is None:
            return RunState.STOPPED
        process = ManagedProcess(self.process)
        if not process.is_alive:
            return RunState.GONE
        return RunState.PAUSED if process.is_paused else RunState.RUNNING

    @property
    def pid(self) -> int | None:
        """The process, if it is alive."""
        is_alive = self.process is not None and ManagedProcess(self.process).is_alive
        return self.process.pid if self.process is not None and is_alive else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """All servers of a folder."""

    prefix: str
    database: str
    servers: tuple[ServerStatus, ...]
    folder: Path = Path()

    @property
    def is_running(self) -> bool:
        """True if at least one server runs and none is missing."""
        states = {server.state for server in self.servers}
        return RunState.RUNNING in states and states <= {RunState.RUNNING, RunState.STOPPED}

    def server(self, name: str) -> ServerStatus | None:
        """The status of ``postgres``, ``kafka``, ``redis`` or ``connect``; None if the stack has it not."""
        return next((server for server in self.servers if server.name == name), None)


def write_state(state: StackStatus) -> None:
    """Replace the state file; a reader sees the old or the new one."""
    document = {"format": _FORMAT, **{each.name: getattr(state, each.name) for each in fields(state)}}
    path = state.folder / FILE_NAME
    incoming = path.with_name(f"{FILE_NAME}.{os.getpid()}")
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    incoming.write_bytes(orjson.dumps(document, str, options))  # paths become texts
    incoming.replace(path)


def read_state(folder: Path) -> StackStatus | None:
    """The state of a folder; None when no stack was ever started there.

    Raises:
        StateError: the file is damaged or of another version.
    """
    path = folder.absolute() / FILE_NAME
    try:
        document = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise _unusable(path, f"is not JSON ({error})") from error
    if isinstance(document, dict) and document.get("format") != _FORMAT:
        raise _unusable(path, f"has format {document.get('format')}, expected {_FORMAT}")
    try:
        found = msgspec.convert(document, StackStatus, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        raise _unusable(path, f"lacks or garbles a field ({error})") from error
    return replace(found, folder=folder.absolute())


def _unusable(path: Path, reason: str) -> StateError:
    return StateError(f"state file {path}: {reason}", "delete it if nothing runs in that folder")
