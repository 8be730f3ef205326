"""A standalone cluster of Spark on machines of its own, each a folder and its processes.

None of the machines finds the environment that the tests run in, so what works there works without it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil
import pyspark

from slackwater.dev.java import find_java
from slackwater.dev.processes import Launch
from slackwater.dev.server import LOOPBACK, Server
from slackwater_lab.errors import ProgramEndedError, RunFailedError
from slackwater_lab.programs import last_words
from slackwater_lab.servers.storage import ask_json
from slackwater_lab.watching import wait_until

SECONDS = 900.0
"""How long any step may take, on a machine with much else to do."""
_HERE = Path(sys.executable).parent
_SPARK = Path(pyspark.__file__).parent
_DAEMON_MEMORY = "128m"
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


class _SparkDaemon(Server):
    """A process of the installed PySpark."""

    @property
    def address(self) -> str:
        return f"spark://{LOOPBACK}:{self.port}"

    def _home(self) -> Path:
        return self.folder / self.name

    def _prepare(self) -> None:
        self._home().mkdir(parents=True, exist_ok=True)
        self.version = find_java().version.text

    def _command(self, main: str, *arguments: str) -> Launch:
        """Returns how Spark's own script starts a daemon in the foreground."""
        daemon = ("--host", LOOPBACK, "--port", str(self.port), "--webui-port", str(self._port("web")))
        environment = {
            "SPARK_HOME": str(_SPARK),
            "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_CONF_DIR": str(self._home()),
            **self._environment(),
        }
        argv = (str(_SPARK / "bin" / "spark-class"), main, *daemon, *arguments)
        return Launch(argv=argv, cwd=self._home(), environment=environment)

    def _environment(self) -> Mapping[str, str]:
        return {}

    def state(self) -> dict[str, Any]:
        """Returns what it tells of itself; empty while it does not answer. Blocks a second at most."""
        return ask_json(self._port("web"), "/json/")


class SparkMaster(_SparkDaemon):
    """Gives applications the executors that they ask for."""

    name: ClassVar[str] = "spark-master"

    def _launch(self) -> Launch:
        return self._command(_MASTER)

    def _is_ready(self) -> bool:
        return self.state().get("status") == "ALIVE"


class SparkWorker(_SparkDaemon):
    """Starts executors, each in a folder of its own below `work`; they end with it."""

    name: ClassVar[str] = "spark-worker"

    def __init__(
        self,
        folder: Path,
        *,
        master: str,
        memory: str,
        environment: Mapping[str, str],
    ) -> None:
        super().__init__(folder)
        self._master = master
        self._memory = memory
        self._executors = dict(environment)

    @property
    def work(self) -> Path:
        """Has a folder for each application, with one for each of its executors: files, logs."""
        return self._home() / "work"

    @property
    def local(self) -> Path:
        return self._home() / "local"

    def _launch(self) -> Launch:
        size = ("--cores", "1", "--memory", self._memory)
        return self._command(_WORKER, *size, "--work-dir", str(self.work), self._master)

    def _environment(self) -> Mapping[str, str]:
        return {"SPARK_LOCAL_DIRS": str(self.local), **self._executors}

    def _is_ready(self) -> bool:
        return bool(self.state().get("masterurl"))


def path_without_us() -> str:
    """Returns ``PATH`` without the environment that the tests run in."""
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if Path(folder) != _HERE)


class DriverMachine:
    """Where a driver runs, with Spark's configuration.

    Commands in the folder of commands come first; None: those of the tests' environment.
    """

    def __init__(self, folder: Path, conf: Mapping[str, str], commands: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        lines = (f"{name} {value}\n" for name, value in conf.items())
        (folder / "spark-defaults.conf").write_text("".join(lines))
        self.folder = folder
        self.log = folder.with_suffix(".log")
        """What programs here have printed; beside the disk, so it outlives it."""
        self._commands = commands or _HERE

    def python_of(self, archive: Path) -> tuple[str, ...]:
        """Unpacks what ``slackwater package`` has written; returns how its Python is started.

        The library of PySpark is that of the Spark that is installed.
        """
        environment = self.folder / "environment"
        shutil.unpack_archive(archive, environment)
        libraries = os.pathsep.join(map(str, sorted((_SPARK / "python" / "lib").glob("*.zip"))))
        found = (f"SPARK_HOME={_SPARK}", f"PYTHONPATH={libraries}", f"PATH={path_without_us()}")
        return ("/usr/bin/env", *found, str(environment / "bin" / "python"))

    def start(self, *command: str) -> "subprocess.Popen[bytes]":
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLACKWATER", "PYTHONPATH"))
        }
        spark = {
            "PATH": os.pathsep.join((str(self._commands), path_without_us())),
            "SPARK_CONF_DIR": str(self.folder),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with self.log.open("ab") as log:
            return subprocess.Popen(
                (shutil.which(command[0], path=str(self._commands)) or command[0], *command[1:]),
                cwd=self.folder,
                env={**kept, **spark},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def run(self, *command: str) -> str:
        """Runs a program to its end; returns what programs here have printed.

        Raises:
            RunFailedError: it fails.
        """
        code = self.start(*command).wait(SECONDS)
        if code != 0:
            raise RunFailedError(command[0], f"ended with {code}: {self.last_words()}")
        return self.output()

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def last_words(self) -> str:
        return "\n".join(last_words(self.output().splitlines()))

    def wait_until(self, condition: Callable[[], bool], driver: "subprocess.Popen[bytes]") -> None:
        """Waits until a condition is true while a driver runs here.

        Raises:
            ProgramEndedError: the driver ended before.
            RunFailedError: it does not come true in time.
        """

        def check() -> None:
            if driver.poll() is not None:
                raise ProgramEndedError("driver", self.log, self.last_words())

        if not wait_until(condition, SECONDS, check=check):
            raise RunFailedError("the driver", f"gets nowhere in {SECONDS:g} s: {self.last_words()}")

    def lose(self, driver: "subprocess.Popen[bytes]") -> None:
        """Kills all that runs here, at once and with no last word, and takes the disk away."""
        root = psutil.Process(driver.pid)
        for process in [*root.children(recursive=True), root]:
            process.kill()
        driver.wait(SECONDS)
        shutil.rmtree(self.folder)


class SparkCluster:
    """A standalone cluster without workers at first; a context manager that ends what was started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.master = SparkMaster(folder / "master")
        self._workers: list[SparkWorker] = []

    def __enter__(self) -> Self:
        self.master.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in (*self._workers, self.master):
            server.stop()

    def start_workers(self, name: str) -> Sequence[SparkWorker]:
        """Starts two workers, whose machines have Java, Spark, and a Python of the machine."""
        workers = [
            SparkWorker(
                self._folder / f"{name}-{number}",
                master=self.master.address,
                memory="640m",
                environment={"PATH": path_without_us(), "PYTHONPATH": ""},
            )
            for number in range(2)
        ]
        for worker in workers:
            self._workers.append(worker)
            worker.start()
        return workers


def shipped_pythons(workers: Sequence[SparkWorker]) -> list[Path]:
    """Lists what executors of these workers have unpacked of an archive ``#environment``."""
    return [path for worker in workers for path in worker.work.glob("*/*/environment/bin/python")]
