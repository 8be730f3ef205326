"""The bed of a run: servers and the subject's processes in a folder of its own; nothing outlives it."""

import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from slackwater_bench.errors import ProcessEndedError, RunFailedError
from slackwater_bench.runs.processes import stop_all
from slackwater_bench.scenario import RunContext
from slackwater_devstack import DevStack, DevStackSettings
from slackwater_protocol import Clock

SOURCE = "inv"
LOG_LINES = 15


class Bed:
    """Kafka and Redis, with PostgreSQL and Connect when wanted; a context manager.

    Args:
        context: Of the run.
        partitions: Of topics that the broker or the connector makes.
        has_database: Whether PostgreSQL and Connect are needed.
        kafka_heap: Of the broker; the default does for a few dozen partitions.
    """

    def __init__(
        self,
        context: RunContext,
        *,
        partitions: int = 4,
        has_database: bool = False,
        kafka_heap: str = "128m",
    ) -> None:
        self._context = context
        self._temporary = tempfile.TemporaryDirectory(prefix="slackwater-bench-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self.stack = DevStack(
            DevStackSettings(
                folder=self.folder / "stack",
                prefix=SOURCE,
                partitions=partitions,
                postgres=has_database,
                connect=has_database,
                keep_data=False,
                kafka_heap=kafka_heap,
            )
        )
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._context.say("starting servers")
        try:
            self.stack.start()
        except BaseException:
            self._temporary.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                _signal(process.pid, signal.SIGCONT)
        stop_all(self._processes.values())
        self.stack.stop()
        self._temporary.cleanup()

    @property
    def bootstrap(self) -> str:
        """The broker."""
        return self.stack.kafka.bootstrap

    @property
    def servers(self) -> list[str]:
        """Options of the ``slackwater`` command."""
        return ["--bootstrap", self.bootstrap, "--redis-url", self.stack.redis.url]

    def start_sidecar(self, *options: str) -> None:
        """The subject's sidecar."""
        command = ("sidecar", "--source", SOURCE, *self.servers, *options)
        self.start("sidecar", self._context.subject.command(*command))

    def start_pipeline(self, folder: Path, *options: str) -> None:
        """The subject's pipeline on this folder."""
        checkpoint = str(self.folder / "checkpoint")
        command = ["run", str(folder), *self.servers, "--checkpoint", checkpoint, *options]
        self.start("pipeline", self._context.subject.command(*command))

    def start(self, name: str, command: Sequence[str]) -> None:
        """Any process of the run; its output goes to :meth:`log`."""
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder)
        self._processes[name] = process

    def log(self, name: str) -> str:
        """What a process has printed so far."""
        return self._log(name).read_text(errors="replace")

    def pause(self, name: str) -> None:
        """Lets a process and its descendants do nothing until :meth:`resume`."""
        _signal(self._processes[name].pid, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Ends a pause."""
        _signal(self._processes[name].pid, signal.SIGCONT)

    def stop(self, name: str) -> None:
        """Ends a process; it is no longer part of the run."""
        stop_all([self._processes.pop(name)])

    def check(self) -> None:
        """Everything that was started still runs.

        Raises:
            ProcessEndedError: something does not.
        """
        for name, process in self._processes.items():
            if process.poll() is not None:
                tail = "\n".join(self.log(name).splitlines()[-LOG_LINES:])
                raise ProcessEndedError(name, process.returncode, tail)

    def rest(self, seconds: float, clock: Clock) -> None:
        """Lets everything run for a while.

        Raises:
            ProcessEndedError: something does not run any more.
        """
        until, pause = clock.monotonic() + seconds, threading.Event()
        while (left := until - clock.monotonic()) > 0:
            self.check()
            pause.wait(min(1.0, left))

    def wait(self, name: str, seconds: float) -> None:
        """Waits until a process has ended well.

        Raises:
            ProcessEndedError: it failed.
            RunFailedError: it takes longer.
        """
        try:
            code = self._processes[name].wait(seconds)
        except subprocess.TimeoutExpired:
            raise RunFailedError(name, f"did not end within {seconds:g} s") from None
        if code:
            self.check()

    def roles(self) -> Mapping[str, int]:
        """Process id of everything that runs, servers included."""
        roles = {name: process.pid for name, process in self._processes.items()}
        for server in self.stack.servers:
            if server.identity is not None:
                roles[server.name] = server.identity.pid
        return roles

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def _signal(pid: int, number: signal.Signals) -> None:
    """To a process, then to its descendants."""
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
