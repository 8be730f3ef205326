"""What stands behind ``slackwater dev up | status | down``."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from slackwater_devstack.connect import ConnectWorker
from slackwater_devstack.kafka import KafkaBroker, SecondKafkaBroker
from slackwater_devstack.postgres import PostgresServer
from slackwater_devstack.processes import Lifetime, ManagedProcess
from slackwater_devstack.redis_server import RedisServer
from slackwater_devstack.server import Server
from slackwater_devstack.settings import DevStackSettings
from slackwater_devstack.stack import DevStack
from slackwater_devstack.state import ServerRecord, StackState, read_state, write_state
from slackwater_devstack.status import StackStatus, status_of

_KINDS: dict[str, type[Server]] = {
    kind.name: kind for kind in (ConnectWorker, SecondKafkaBroker, KafkaBroker, PostgresServer, RedisServer)
}
"""In the order in which they are stopped."""


def up(settings: DevStackSettings, progress: Callable[[str], None] | None = None) -> StackStatus:
    """Start what is missing, connector included, and leave it running; returns when all is ready. Idempotent.

    When only the connector fails (for example because a table does not exist), the servers stay up.

    Raises:
        StackRunningError: another process is starting or embedding a stack in this folder.
        PrerequisiteError: this machine lacks something.
        ServerStartError: a server did not become ready.
        SettingsError: the connector cannot read these tables.
    """
    stack = DevStack(settings, Lifetime.DETACHED, progress)
    stack.start()
    try:
        if settings.connect:
            stack.start_connector(settings.tables)
        return stack.status()
    finally:
        stack.release()


def status(folder: Path) -> StackStatus | None:
    """What runs in the folder; None when no stack was ever started there."""
    state = read_state(folder)
    return None if state is None else status_of(state)


def down(folder: Path) -> StackStatus | None:
    """Stop what runs in the folder, Connect first; None when no stack was ever started there. Idempotent.

    A process that merely has the number of one of ours is left alone. Data, logs and ports are kept.
    """
    state = read_state(folder)
    if state is None:
        return None
    records = {record.name: record for record in state.servers}
    for name, kind in _KINDS.items():
        if name in records:
            _stop(records[name], kind)
            records[name] = replace(records[name], process=None)
    stopped = StackState(
        folder=state.folder, prefix=state.prefix, database=state.database, servers=tuple(records.values())
    )
    write_state(stopped)
    return status_of(stopped)


def _stop(record: ServerRecord, kind: type[Server]) -> None:
    if record.process is not None:
        stop_signal: signal.Signals = kind.stop_signal
        ManagedProcess(record.process).stop(stop_signal, kind.stop_patience)
