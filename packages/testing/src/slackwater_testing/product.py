"""The product's programs on a stack: started, watched and ended together."""

import json
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from slackwater_devstack import DevStack
from slackwater_protocol import Clock, SystemClock
from slackwater_spark.pipeline import load_pipeline
from slackwater_testing.programs import Program
from slackwater_testing.watching import Visibility

_LOOK_SECONDS = 0.05


def slackwater_command(*arguments: str) -> Sequence[str]:
    """The ``slackwater`` command of this environment."""
    return (sys.executable, "-m", "slackwater", *arguments)


class Product:
    """Programs that run on a stack, by name; a context manager that ends them. Used by one thread.

    Args:
        stack: Its servers; they are neither started nor stopped here.
        folder: For logs and checkpoints; programs work in it.
        clock: The time; None: the system's.
        command: Makes the command line of a ``slackwater`` subcommand.
    """

    def __init__(
        self,
        stack: DevStack,
        folder: Path,
        *,
        clock: Clock | None = None,
        command: Callable[..., Sequence[str]] = slackwater_command,
    ) -> None:
        self.stack = stack
        self.folder = folder
        self.programs: dict[str, Program] = {}
        """What was started and not stopped, in this order."""
        self._clock = clock or SystemClock()
        self._command = command
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
        """The broker."""
        return self.stack.kafka.bootstrap

    def start(self, name: str, command: Sequence[str]) -> Program:
        """Starts any program; returns before it is of any use."""
        program = self.programs[name] = Program(name, lambda: command, self.folder)
        program.start(folder=self.folder)
        return program

    def start_sidecar(self, *options: str) -> Program:
        """Starts ``slackwater sidecar``; kills the one that runs."""
        if "sidecar" in self.programs:
            self.programs["sidecar"].kill()
        source = ("--source", self.stack.settings.prefix)
        return self.start("sidecar", self._command("sidecar", *source, *self._servers, *options))

    def start_pipeline(self, pipeline: Path, *options: str, local: Path | None = None) -> Program:
        """Starts ``slackwater run``.

        Args:
            pipeline: Its folder.
            options: Of the command.
            local: A folder for indexes and Spark's local files; None: where the command puts them.
        """
        settings = None if local is None else write_run_settings(self.folder / "pipeline.toml", local)
        config = () if settings is None else ("--config", str(settings))
        checkpoint = ("--checkpoint", str(self.folder / "checkpoint"))
        run = (*config, "run", str(pipeline), *self._servers, *checkpoint, *options)
        return self.start("pipeline", self._command(*run))

    def watch(self, pipeline: Path) -> Visibility:
        """Follows the output of the pipeline in a folder until the end of the block."""
        visible = Visibility(self.bootstrap, load_pipeline(pipeline).outputs[0].topic, self._clock)
        visible.start()
        self._watching.callback(visible.stop)
        return visible

    def log(self, name: str) -> str:
        """Reads what a program has said so far."""
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
        deadline, pause = self._clock.monotonic() + seconds, threading.Event()
        while not condition():
            self.check()
            if self._clock.monotonic() > deadline:
                return False
            pause.wait(_LOOK_SECONDS)
        return True

    @property
    def _servers(self) -> tuple[str, ...]:
        return ("--bootstrap", self.bootstrap, "--redis-url", self.stack.redis.url)


def write_run_settings(path: Path, local: Path) -> Path:
    """Writes a settings file with which everything that ``slackwater run`` keeps on disk lies in a folder.

    Args:
        path: The file.
        local: The folder of indexes and of Spark's local files; created.
    """
    (local / "local").mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"[run]\nindex_root = {json.dumps(str(local / 'index'))}\n"
        f'[run.spark_conf]\n"spark.local.dir" = {json.dumps(str(local / "local"))}\n'
    )
    return path
