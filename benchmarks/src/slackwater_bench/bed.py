"""The bed of a run: servers and the subject's programs in a folder of its own; nothing outlives it."""

import tempfile
import threading
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from slackwater_bench.scenario import RunContext
from slackwater_devstack import DevStack, DevStackSettings
from slackwater_protocol import Clock
from slackwater_testing.errors import ProgramEndedError
from slackwater_testing.programs import Program
from slackwater_testing.workloads.pipelines import repository_pipeline

SOURCE = "inv"
ORDERS_PIPELINE = repository_pipeline("orders")


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
        self._programs: dict[str, Program] = {}

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
        for program in reversed(self._programs.values()):
            program.stop()
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
        program = self._programs[name] = Program(name, lambda: command, self.folder)
        program.start(folder=self.folder)

    def log(self, name: str) -> str:
        """Reads what a program has printed so far."""
        return self._programs[name].output()

    def pause(self, name: str) -> None:
        """Lets a process and its descendants do nothing until :meth:`resume`."""
        self._programs[name].pause()

    def resume(self, name: str) -> None:
        """Ends a pause."""
        self._programs[name].resume()

    def stop(self, name: str) -> None:
        """Ends a process; it is no longer part of the run."""
        self._programs.pop(name).stop()

    def check(self) -> None:
        """Everything that was started still runs.

        Raises:
            ProgramEndedError: something does not.
        """
        for program in self._programs.values():
            program.check()

    def rest(self, seconds: float, clock: Clock) -> None:
        """Lets everything run for a while.

        Raises:
            ProgramEndedError: something does not run any more.
        """
        until, pause = clock.monotonic() + seconds, threading.Event()
        while (left := until - clock.monotonic()) > 0:
            self.check()
            pause.wait(min(1.0, left))

    def wait(self, name: str, seconds: float) -> None:
        """Waits until a process has ended well.

        Raises:
            ProgramEndedError: it failed.
            RunFailedError: it takes longer.
        """
        program = self._programs[name]
        if program.wait(seconds):
            raise ProgramEndedError(name, program.log, program.last_words())

    def roles(self) -> Mapping[str, int]:
        """Process id of everything that runs, servers included."""
        roles = {name: pid for name, program in self._programs.items() if (pid := program.pid) is not None}
        for server in self.stack.servers:
            if server.identity is not None:
                roles[server.name] = server.identity.pid
        return roles


def output_of(pipeline: Path) -> str:
    """Output topic of the pipeline in a folder; the first of several, which become visible together."""
    definition = tomllib.loads((pipeline / "pipeline.toml").read_text())
    outputs = [definition["output"]] if "output" in definition else [*definition["outputs"].values()]
    topic: str = outputs[0]["topic"]
    return topic
