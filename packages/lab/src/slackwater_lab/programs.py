"""Programs that run beside a test: started, watched, paused and ended by their names.

:class:`Product` is the product as such programs on a stack of servers.
"""

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from confluent_kafka.admin import AdminClient

from slackwater.cdc.connector import reading_properties
from slackwater.dev import DevStack, Lifetime
from slackwater.dev.processes import Launch, ManagedProcess, identify, launch
from slackwater.pipeline import load_pipeline
from slackwater.protocol import Clock, SystemClock
from slackwater.protocol.keys import cut_log_topic
from slackwater_lab.errors import ProgramEndedError, RunFailedError
from slackwater_lab.watching import Visibility, wait_until

_PATIENCE = timedelta(seconds=30)
"""How long a program may take to end in order."""
_LOG_LINES = 15
_ASK_SECONDS = 60.0


class Program:
    """A process of the product with its log; it can be started again. For one thread at a time.

    The command line is asked for at each start.
    """

    def __init__(self, name: str, arguments: Callable[[], Sequence[str]], logs: Path) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self._arguments = arguments
        self._process: ManagedProcess | None = None

    @property
    def command(self) -> Sequence[str]:
        return self._arguments()

    def start(
        self,
        lifetime: Lifetime = Lifetime.EMBEDDED,
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts it; returns before it is of any use."""
        order = Launch(argv=tuple(self.command), cwd=folder or Path.cwd(), environment=environment or {})
        self._process = launch(order, self.log, lifetime)

    @property
    def is_well(self) -> bool:
        """True if it runs; paused counts."""
        return self._process is not None and self._process.is_alive

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.is_well else None

    def check(self) -> None:
        """Does nothing while it runs.

        Raises:
            ProgramEndedError: it does not.
        """
        if not self.is_well:
            raise ProgramEndedError(self.name, self.log, self.last_words())

    def wait(self, seconds: float) -> int:
        """Waits until it has ended by itself; returns its exit code, negative for a signal.

        Raises:
            RunFailedError: it was not started, or takes longer.
        """
        if self._process is None:
            raise RunFailedError(self.name, "was not started")
        try:
            return int(psutil.Process(self._process.pid).wait(seconds) or 0)
        except psutil.TimeoutExpired:
            raise RunFailedError(self.name, f"did not end within {seconds:g} s") from None

    def stop(self) -> None:
        """Sends SIGTERM, and SIGKILL when that takes too long. Idempotent."""
        if self._process is not None:
            self._process.resume()
            self._process.stop(signal.SIGTERM, _PATIENCE)

    def terminate(self, seconds: float) -> int:
        """Sends SIGTERM to the process alone, and returns its exit code, as :meth:`wait` does."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(self._process.pid).terminate()
        return self.wait(seconds)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def pause(self) -> None:
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        if self._process is not None:
            self._process.resume()

    def children(self, is_wanted: Callable[[psutil.Process], bool]) -> list[ManagedProcess]:
        """Lists the processes of one kind below it."""
        found: list[ManagedProcess] = []
        with contextlib.suppress(psutil.Error):
            if self.pid is not None:
                children = psutil.Process(self.pid).children(recursive=True)
                found += [identify(child.pid) for child in children if is_wanted(child)]
        return found

    def output(self) -> str:
        try:
            return self.log.read_text(errors="replace")
        except OSError:
            return ""

    def last_words(self) -> str:
        """Tells how its log ends: with the error of a command, if it has one, else with its last lines."""
        return "\n".join(last_words(self.output().splitlines()))


def last_words(lines: Sequence[str]) -> list[str]:
    """The error a command printed at its end, with its indented lines; without one, the last lines."""
    starts = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    if not starts:
        return list(lines[-_LOG_LINES:])
    more = takewhile(lambda line: line.startswith(" " * 7), lines[starts[-1] + 1 :])
    return [lines[starts[-1]], *more]


def slackwater_command(*arguments: str) -> Sequence[str]:
    """The ``slackwater`` command of this environment."""
    return (sys.executable, "-m", "slackwater", *arguments)


class Product:
    """Programs that run on a stack, by name; a context manager that ends them. Used by one thread.

    The stack's servers are neither started nor stopped here. Programs work in the folder.
    """

    def __init__(
        self,
        stack: DevStack,
        folder: Path,
        *,
        clock: Clock | None = None,
        command: Callable[..., Sequence[str]] = slackwater_command,
        lifetime: Lifetime = Lifetime.EMBEDDED,
        logs: Path | None = None,
    ) -> None:
        self.stack = stack
        self.folder = folder
        self.programs: dict[str, Program] = {}
        """What was started and not stopped, in this order."""
        self._clock = clock or SystemClock()
        self._command, self._lifetime, self._logs = command, lifetime, logs or folder
        self._watching = ExitStack()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.close()
        for program in reversed(self.programs.values()):
            program.stop()

    @property
    def bootstrap(self) -> str:
        return self.stack.kafka.bootstrap

    def start(self, name: str, command: Sequence[str]) -> Program:
        """Starts any program; returns before it is of any use."""
        program = self.programs[name] = Program(name, lambda: command, self._logs)
        program.start(self._lifetime, folder=self.folder)
        return program

    def start_sidecar(self, *options: str) -> Program:
        """Starts ``slackwater sidecar``; kills the one that runs."""
        if "sidecar" in self.programs:
            self.programs["sidecar"].kill()
        source = ("--source", self.stack.settings.prefix)
        return self.start("sidecar", self._command("sidecar", *source, *self._servers, *options))

    def wait_for_cut_log(self, seconds: float) -> None:
        """Waits until the sidecar has made the log of cuts: before, nobody can read transactions.

        Raises:
            RunFailedError: it does not come in time.
            ProgramEndedError: a program ended before.
        """
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        log = cut_log_topic(self.stack.settings.prefix)
        if not self.wait_until(lambda: log in admin.list_topics(timeout=_ASK_SECONDS).topics, seconds):
            raise RunFailedError("the sidecar", f"has made no topic {log} within {seconds:g} s")

    def start_pipeline(
        self, pipeline: Path, *options: str, local: Path | None = None, name: str = "pipeline"
    ) -> Program:
        """Starts ``slackwater run``.

        Indexes and Spark's local files are in ``local``; None: where the command puts them.
        """
        given, settings = self.stack.settings, self.folder / "pipeline.toml"
        connect = ("--connect-url", self.stack.connect.address) if given.connect else ()
        stated = "" if given.connect else stated_connector(given.prefix)  # of generated topics
        if local is not None:
            write_run_settings(settings, local, stated)
        elif stated:
            settings.write_text(stated)
        config = ("--config", str(settings)) if stated or local is not None else ()
        checkpoint = ("--checkpoint", str(self.folder / "checkpoint"), "--allow-missing-tables")
        run = (*config, "run", str(pipeline), *self._servers, *connect, *checkpoint, *options)
        return self.start(name, self._command(*run))

    def watch(self, pipeline: Path) -> Visibility:
        """Follows the output of the pipeline in a folder until the end of the block."""
        visible = Visibility(self.bootstrap, load_pipeline(pipeline).outputs[0].name, self._clock)
        visible.start()
        self._watching.callback(visible.stop)
        return visible

    def log(self, name: str) -> str:
        return self.programs[name].output()

    def stop(self, name: str) -> None:
        """Ends a program; it is no longer part of the run."""
        self.programs.pop(name).stop()

    def check(self) -> None:
        """Does nothing while everything that was started runs.

        Raises:
            ProgramEndedError: something does not.
        """
        for program in self.programs.values():
            program.check()

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Waits for a condition; returns whether it came true in time.

        Raises:
            ProgramEndedError: a program ended before.
        """
        return wait_until(condition, seconds, check=self.check, clock=self._clock)

    @property
    def _servers(self) -> tuple[str, ...]:
        return ("--bootstrap", self.bootstrap, "--redis-url", self.stack.redis.url)


def stated_connector(source: str) -> str:
    """Returns the section of a settings file that states how the connector of a source is configured."""
    lines = (
        f"{json.dumps(name)} = {json.dumps(value)}" for name, value in reading_properties(source).items()
    )
    return "\n".join(("[connect.properties]", *lines, ""))


def write_run_settings(path: Path, local: Path, more: str = "") -> Path:
    """Writes a settings file with which everything that ``slackwater run`` keeps on disk lies in a folder."""
    (local / "local").mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"[run]\nindex_root = {json.dumps(str(local / 'index'))}\n"
        f'[run.spark_conf]\n"spark.local.dir" = {json.dumps(str(local / "local"))}\n{more}'
    )
    return path
