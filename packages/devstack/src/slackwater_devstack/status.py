"""What runs in a folder, for people and for programs."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path

from slackwater_devstack.processes import ManagedProcess
from slackwater_devstack.state import ServerRecord, StackState


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
    """One server."""

    name: str
    state: RunState
    address: str
    """URL, DSN or ``host:port``; also when it does not run, because ports stay the same if they can."""
    version: str
    pid: int | None
    started_at: datetime | None
    log_path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """All servers of a folder."""

    folder: Path
    prefix: str
    servers: tuple[ServerStatus, ...]

    @property
    def is_running(self) -> bool:
        """Whether at least one server runs and none is missing."""
        states = {server.state for server in self.servers}
        return RunState.RUNNING in states and states <= {RunState.RUNNING, RunState.STOPPED}

    def server(self, name: str) -> ServerStatus | None:
        """``postgres``, ``kafka``, ``redis`` or ``connect``; None when the stack has it not."""
        return next((server for server in self.servers if server.name == name), None)


def status_of(state: StackState) -> StackStatus:
    """Compare the records with the processes of this machine."""
    return StackStatus(folder=state.folder, prefix=state.prefix, servers=tuple(map(_status, state.servers)))


def _status(record: ServerRecord) -> ServerStatus:
    state = _run_state(record)
    alive = record.process if state in (RunState.RUNNING, RunState.PAUSED) else None
    return ServerStatus(
        name=record.name,
        state=state,
        address=record.address,
        version=record.version,
        pid=alive.pid if alive else None,
        started_at=alive.created_at if alive else None,
        log_path=record.log_path,
    )


def _run_state(record: ServerRecord) -> RunState:
    if record.process is None:
        return RunState.STOPPED
    process = ManagedProcess(record.process)
    if not process.is_alive:
        return RunState.GONE
    return RunState.PAUSED if process.is_paused else RunState.RUNNING
