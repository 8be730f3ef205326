"""The base of all servers: free loopback ports that stay ours, processes, logs, waiting until ready."""

import atexit
import logging
import os
import random
import shutil
import signal
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import ClassVar

import psutil

from slackwater.dev.processes import (
    Launch,
    Lifetime,
    ManagedProcess,
    failed_start,
    launch,
    not_running,
)
from slackwater.protocol import UnavailableError

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.03
TAIL_LINES = 25
START_TIMEOUT = timedelta(seconds=300)
LOOPBACK = "127.0.0.1"
_FIRST_PORT = 10_000
_LAST_PORT_IF_UNKNOWN = 30_000
_ATTEMPTS = 200
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A loopback port on which nothing listens, below the range of outgoing connections.

    A port that the kernel hands out may be taken by any outgoing connection while a restarted server
    is down (a client that retries can even connect to itself), so these are drawn by hand.

    Raises:
        OSError: no free port was found.
    """
    last = _last_port()
    for _ in range(_ATTEMPTS):
        port = random.randint(_FIRST_PORT, last)  # noqa: S311 - no secret
        if is_free(port):
            return port
    message = f"no free port between {_FIRST_PORT} and {last} on {LOOPBACK} in {_ATTEMPTS} attempts"
    raise OSError(message)


def is_free(port: int) -> bool:
    """Returns whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def accepts_connections(port: int) -> bool:
    """Returns whether something listens on the port."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0):
            return True
    except OSError:
        return False


def _last_port() -> int:
    try:
        first_outgoing = int(_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _LAST_PORT_IF_UNKNOWN
    return first_outgoing - 1 if first_outgoing > _FIRST_PORT + _ATTEMPTS else _LAST_PORT_IF_UNKNOWN


class Deadline:
    """One time budget for everything that waits: a point on the monotonic clock."""

    def __init__(self, budget: timedelta) -> None:
        self.budget = budget
        self._end = time.monotonic() + budget.total_seconds()

    @property
    def is_expired(self) -> bool:
        """True if no time is left."""
        return time.monotonic() >= self._end


def log_tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 400 * lines))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


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
    process: ManagedProcess | None
    """None: stopped in order."""

    @property
    def state(self) -> RunState:
        """What its process does now."""
        if self.process is None:
            return RunState.STOPPED
        if not self.process.is_alive:
            return RunState.GONE
        return RunState.PAUSED if self.process.is_paused else RunState.RUNNING

    @property
    def pid(self) -> int | None:
        """The process, if it is alive."""
        return self.process.pid if self.process is not None and self.process.is_alive else None


class Server(ABC):
    """One server on loopback. Ports, data and log stay the same over restarts.

    Methods may be called from any thread, but not for one server from two threads at once, except
    :meth:`cancel`.
    """

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    stop_patience: ClassVar[timedelta] = timedelta(seconds=10)

    def __init__(
        self,
        folder: Path,
        *,
        lifetime: Lifetime = Lifetime.EMBEDDED,
        start_timeout: timedelta = START_TIMEOUT,
    ) -> None:
        self.folder = folder.absolute()
        self.lifetime = lifetime
        self.log_path = self.folder / "logs" / f"{self.name}.log"
        self.version = ""
        """Known from the first start on."""
        self.on_change: Callable[[], object] = lambda: None
        """Called after each start and end that this object caused."""
        self.progress: Callable[[str], None] | None = None
        """Receives lines about what takes long (downloads); None: the log. Called from any thread."""
        self._start_timeout = start_timeout
        self._ports: dict[str, int] = {}
        self._choosing = threading.Lock()
        self._process: ManagedProcess | None = None
        self._has_started = False
        self._cancelled = threading.Event()

    @property
    @abstractmethod
    def address(self) -> str:
        """URL, DSN or ``host:port`` by which a client reaches it."""

    @abstractmethod
    def _prepare(self) -> None:
        """Make programs and data ready. May block and download; may be called again after a stop."""

    @abstractmethod
    def _launch(self) -> Launch:
        """Return what to execute. Called after :meth:`_prepare`; must not block."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Returns whether clients can work with it now. Blocks a second at most; False instead of raising."""

    def _run(self) -> ManagedProcess:
        """Execute what :meth:`_launch` says, with its output appended to the log."""
        return launch(self._launch(), self.log_path, self.lifetime)

    @property
    def port(self) -> int:
        """TCP port on loopback by which clients reach it."""
        return self._port("port")

    @property
    def pid(self) -> int:
        """Process id.

        Raises:
            StateError: it does not run.
        """
        return self._running("ask the pid of").pid

    @property
    def is_running(self) -> bool:
        """True if its process lives (paused counts)."""
        return self._process is not None and self._process.is_alive

    @property
    def is_paused(self) -> bool:
        """True if its process is stopped by :meth:`pause`."""
        return self._process is not None and self._process.is_paused

    def start(self) -> None:
        """Start it and wait until clients can work with it; nothing happens when it runs.

        Raises:
            UnavailableError: this machine lacks something, the server ended or was not ready in time,
                or the start was cancelled.
        """
        if self.is_running:
            return
        self._drop_taken_ports()
        self._prepare()
        self._check_cancelled()
        self._process = self._run()
        if self.lifetime is Lifetime.EMBEDDED:
            atexit.register(self._stop_at_exit, os.getpid())
        try:
            self._wait_until_ready(Deadline(self._start_timeout))
        except BaseException:
            self._process.kill()
            raise
        self.on_change()

    def stop(self) -> None:
        """End it in order; kill it when that takes too long. Nothing happens when it does not run."""
        self._end()

    def kill(self) -> None:
        """SIGKILL it and its children, as a crash would; :meth:`start` brings it back on the same data."""
        self._running("kill").kill()
        self.on_change()

    def pause(self) -> None:
        """SIGSTOP it and its children: connections stay open, nothing is answered."""
        self._running("pause").pause()

    def resume(self) -> None:
        """SIGCONT after :meth:`pause`."""
        self._running("resume").resume()

    def prefer_ports(self, ports: Mapping[str, int]) -> None:
        """Use these ports if they are free at the first start."""
        self._ports = dict(ports)

    def adopt(self, record: ServerStatus) -> bool:
        """Take over a server that an earlier process started; False when it has ended."""
        if record.process is None or not record.process.is_alive:
            return False
        self._ports = dict(record.ports)
        self._process = record.process
        self._has_started = True
        self.version = record.version
        return True

    def record(self) -> ServerStatus:
        """Return what another process must know to recognise this server."""
        return ServerStatus(
            name=self.name,
            address=self.address,
            version=self.version,
            log=self.log_path,
            ports=dict(self._ports),
            process=self._process,
        )

    def delete_data(self) -> None:
        """Remove what it stored; it must not run."""
        shutil.rmtree(self.folder / self.name, ignore_errors=True)

    def cancel(self) -> None:
        """Make a :meth:`start` in another thread give up soon."""
        self._cancelled.set()

    def _port(self, purpose: str) -> int:
        """The port for that purpose, chosen on first use, by whichever thread comes first."""
        with self._choosing:
            while purpose not in self._ports:
                port = free_port()  # nothing listens yet on the ports of other purposes
                if port not in self._ports.values():
                    self._ports[purpose] = port
            return self._ports[purpose]

    def _drop_taken_ports(self) -> None:
        """Forget ports that somebody took since an earlier process used them.

        Never after a start: clients know them.
        """
        if not self._has_started:
            self._ports = {purpose: port for purpose, port in self._ports.items() if is_free(port)}
        self._has_started = True

    def _running(self, operation: str) -> ManagedProcess:
        if self._process is None or not self._process.is_alive:
            raise not_running(self.name, operation)
        return self._process

    def _end(self) -> bool:
        """Stop it; whether it ran and ended by itself."""
        atexit.unregister(self._stop_at_exit)
        if self._process is None:
            return False
        in_order = self._process.stop(self.stop_signal, self.stop_patience)
        self._process = None
        self.on_change()
        return in_order

    def _wait_until_ready(self, deadline: Deadline) -> None:
        while not self._is_ready():
            if not self.is_running:
                raise self._start_error("its process ended")
            if deadline.is_expired:
                raise self._start_error(f"not ready after {deadline.budget.total_seconds():g} s")
            self._cancelled.wait(POLL_SECONDS)
            self._check_cancelled()
        if self._process is not None:
            try:
                self._process = self._process.settled()
            except psutil.NoSuchProcess:
                raise self._start_error("its process ended") from None

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise self._start_error("the start was cancelled")

    def _start_error(self, reason: str) -> UnavailableError:
        return failed_start(self.name, reason, self.log_path, log_tail(self.log_path))

    def _stop_at_exit(self, owner: int) -> None:
        if os.getpid() == owner:  # a forked child must not end its parent's servers
            self.stop()
