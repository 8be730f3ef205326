"""``devstack.json``: what runs in a folder, so that another process can recognise and end it."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from slackwater_devstack.errors import StateFileError
from slackwater_devstack.processes import ProcessIdentity

FORMAT = 1
FILE_NAME = "devstack.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """One server at the time of writing."""

    name: str
    address: str
    version: str
    log_path: Path
    ports: Mapping[str, int]
    process: ProcessIdentity | None
    """None: stopped in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """All servers of a folder."""

    folder: Path
    prefix: str
    database: str
    servers: tuple[ServerRecord, ...] = field(default=())


def write_state(state: StackState) -> None:
    """Replace the state file; a reader sees the old or the new one."""
    document = {
        "format": FORMAT,
        "prefix": state.prefix,
        "database": state.database,
        "servers": [_server_document(server) for server in state.servers],
    }
    path = state.folder / FILE_NAME
    incoming = path.with_name(f"{FILE_NAME}.{os.getpid()}")
    incoming.write_text(json.dumps(document, indent=2) + "\n")
    incoming.replace(path)


def read_state(folder: Path) -> StackState | None:
    """The state of a folder; None when no stack was ever started there.

    Raises:
        StateFileError: the file is damaged or of another version.
    """
    path = folder.absolute() / FILE_NAME
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StateFileError(path, f"is not JSON ({error})") from error
    try:
        if document["format"] != FORMAT:
            raise StateFileError(path, f"has format {document['format']}, expected {FORMAT}")
        return StackState(
            folder=folder.absolute(),
            prefix=document["prefix"],
            database=document["database"],
            servers=tuple(_server(part) for part in document["servers"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StateFileError(path, f"lacks or garbles a field ({error!r})") from error


def _server_document(server: ServerRecord) -> dict[str, object]:
    process = server.process
    return {
        "name": server.name,
        "address": server.address,
        "version": server.version,
        "log": str(server.log_path),
        "ports": dict(server.ports),
        "process": None
        if process is None
        else {"pid": process.pid, "created_at": process.created_at.isoformat(), "command": process.command},
    }


def _server(part: dict[str, object]) -> ServerRecord:
    ports = part["ports"]
    if not isinstance(ports, dict):
        message = "ports"
        raise TypeError(message)
    return ServerRecord(
        name=str(part["name"]),
        address=str(part["address"]),
        version=str(part["version"]),
        log_path=Path(str(part["log"])),
        ports={str(purpose): int(port) for purpose, port in ports.items()},
        process=_identity(part["process"]),
    )


def _identity(part: object) -> ProcessIdentity | None:
    if part is None:
        return None
    if not isinstance(part, dict):
        message = "process"
        raise TypeError(message)
    return ProcessIdentity(
        pid=int(part["pid"]),
        created_at=datetime.fromisoformat(part["created_at"]),
        command=tuple(str(argument) for argument in part["command"]),
    )
