"""The servers of a folder, for this and for other processes.

``devstack.json`` names the processes, so that another process can recognise, judge and end them.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path

import msgspec
import orjson

from slackwater.dev.processes import ManagedProcess, ProcessIdentity
from slackwater.protocol import StateError

_FORMAT = 1
FILE_NAME = "devstack.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """One server at the time of writing."""

    name: str
    address: str
    version: str
    log: Path
    ports: Mapping[str, int]
    process: ProcessIdentity | None
    """None: stopped in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """All servers of a folder at the time of writing."""

    prefix: str
    database: str
    servers: tuple[ServerRecord, ...]
    folder: Path = Path()


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
    """One server now."""

    name: str
    state: RunState
    address: str
    """URL, DSN or ``host:port``; also when it does not run, because ports stay the same if they can."""
    version: str
    pid: int | None
    log_path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """All servers of a folder now."""

    folder: Path
    prefix: str
    database: str
    servers: tuple[ServerStatus, ...]

    @property
    def is_running(self) -> bool:
        """True if at least one server runs and none is missing."""
        states = {server.state for server in self.servers}
        return RunState.RUNNING in states and states <= {RunState.RUNNING, RunState.STOPPED}

    def server(self, name: str) -> ServerStatus | None:
        """The status of ``postgres``, ``kafka``, ``redis`` or ``connect``; None if the stack has it not."""
        return next((server for server in self.servers if server.name == name), None)


def look_up_status(state: StackState) -> StackStatus:
    """Compares what was written with the processes of this machine."""
    return StackStatus(
        folder=state.folder,
        prefix=state.prefix,
        database=state.database,
        servers=tuple(_look_up_server(record) for record in state.servers),
    )


def write_state(state: StackState) -> None:
    """Replace the state file; a reader sees the old or the new one."""
    document = {"format": _FORMAT, **{each.name: getattr(state, each.name) for each in fields(state)}}
    path = state.folder / FILE_NAME
    incoming = path.with_name(f"{FILE_NAME}.{os.getpid()}")
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    incoming.write_bytes(orjson.dumps(document, str, options))  # paths become texts
    incoming.replace(path)


def read_state(folder: Path) -> StackState | None:
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
        found = msgspec.convert(document, StackState, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        raise _unusable(path, f"lacks or garbles a field ({error})") from error
    return replace(found, folder=folder.absolute())


def _unusable(path: Path, reason: str) -> StateError:
    return StateError(f"state file {path}: {reason}", "delete it if nothing runs in that folder")


def _look_up_server(record: ServerRecord) -> ServerStatus:
    state = _run_state(record)
    is_alive = state in (RunState.RUNNING, RunState.PAUSED)
    return ServerStatus(
        name=record.name,
        state=state,
        address=record.address,
        version=record.version,
        pid=record.process.pid if is_alive and record.process else None,
        log_path=record.log,
    )


def _run_state(record: ServerRecord) -> RunState:
    if record.process is None:
        return RunState.STOPPED
    process = ManagedProcess(record.process)
    if not process.is_alive:
        return RunState.GONE
    return RunState.PAUSED if process.is_paused else RunState.RUNNING
