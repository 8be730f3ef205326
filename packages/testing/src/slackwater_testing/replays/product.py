"""A sidecar and a pipeline as processes of their own, on a stack."""

import json
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from slackwater_devstack import DevStack
from slackwater_protocol import Clock, SystemClock
from slackwater_spark.pipeline import load_pipeline
from slackwater_testing.programs import Program
from slackwater_testing.watching import Visibility

LOCAL = "local[2]"
_LOOK_SECONDS = 0.05


class Product:
    """A context manager: the real ``slackwater sidecar`` and, when a folder is given, ``slackwater run``."""

    def __init__(
        self,
        stack: DevStack,
        folder: Path,
        *,
        pipeline: Path | None = None,
        sidecar: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._stack = stack
        self._folder = folder
        self._pipeline = pipeline
        self._sidecar = sidecar
        self._running = ExitStack()
        self._programs: dict[str, Program] = {}
        self.clock = clock or SystemClock()
        self.visible: Visibility | None = None
        """What the pipeline has published; None without a pipeline."""

    def __enter__(self) -> "Product":
        self._folder.mkdir(parents=True, exist_ok=True)
        self.start_sidecar(self._sidecar)
        if self._pipeline is not None:
            run = ["--config", str(self._settings_file()), "run", str(self._pipeline), *self._servers()]
            run += ["--checkpoint", str(self._folder / "checkpoint"), "--master", LOCAL]
            self._start("pipeline", run)
            topic = load_pipeline(self._pipeline).outputs[0].topic
            self.visible = Visibility(self._stack.kafka.bootstrap, topic, self.clock)
            self.visible.start()
            self._running.callback(self.visible.stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def start_sidecar(self, arguments: Sequence[str]) -> None:
        """Starts the sidecar with these options; kills the one that runs."""
        if "sidecar" in self._programs:
            self._programs["sidecar"].kill()
        source = ["--source", self._stack.settings.prefix]
        self._start("sidecar", ["--config", "/dev/null", "sidecar", *source, *self._servers(), *arguments])

    def last_words(self, program: str) -> str:
        """The end of a program's log."""
        return self._programs[program].last_words()

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether it came true in time.

        Raises:
            ProgramEndedError: sidecar or pipeline did.
        """
        deadline, pause = self.clock.monotonic() + seconds, threading.Event()
        while not condition():
            for program in self._programs.values():
                program.check()
            if self.clock.monotonic() > deadline:
                return False
            pause.wait(_LOOK_SECONDS)
        return True

    def _servers(self) -> list[str]:
        return ["--bootstrap", self._stack.kafka.bootstrap, "--redis-url", self._stack.redis.url]

    def _settings_file(self) -> Path:
        local = self._folder / "local"
        local.mkdir(exist_ok=True)
        path = self._folder / "pipeline.toml"
        path.write_text(
            f"[run]\nindex_root = {json.dumps(str(self._folder / 'index'))}\n"
            f'[run.spark_conf]\n"spark.local.dir" = {json.dumps(str(local))}\n'
        )
        return path

    def _start(self, name: str, arguments: Sequence[str]) -> None:
        program = Program(name, lambda: (sys.executable, "-m", "slackwater", *arguments), self._folder)
        program.start(folder=self._folder)
        self._programs[name] = program
        self._running.callback(program.kill)
