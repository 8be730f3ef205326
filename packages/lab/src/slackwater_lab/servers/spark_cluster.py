"""A standalone cluster of Spark: one master, and workers that start executors, each a process of its own."""

import http.client
import importlib.util
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import orjson

from slackwater.dev.processes import Launch, Lifetime
from slackwater.dev.programs import find_java
from slackwater.dev.server import LOOPBACK, START_TIMEOUT, Server
from slackwater.dev.settings import missing_prerequisite

_DAEMON_MEMORY = "128m"
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


class _SparkDaemon(Server):
    """A process of the installed PySpark."""

    @property
    def port(self) -> int:
        """TCP port on loopback."""
        return self._port("port")

    @property
    def address(self) -> str:
        """``spark://`` URL."""
        return f"spark://{LOOPBACK}:{self.port}"

    def _home(self) -> Path:
        return self.folder / self.name

    def _prepare(self) -> None:
        self._home().mkdir(parents=True, exist_ok=True)
        self.version = find_java().version.text

    def _command(self, main: str, *arguments: str) -> Launch:
        """Returns how Spark's own script starts a daemon in the foreground."""
        spark = _installed_spark()
        daemon = ("--host", LOOPBACK, "--port", str(self.port), "--webui-port", str(self._port("web")))
        environment = {
            "SPARK_HOME": str(spark),
            "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_CONF_DIR": str(self._home()),
            **self._environment(),
        }
        argv = (str(spark / "bin" / "spark-class"), main, *daemon, *arguments)
        return Launch(argv=argv, cwd=self._home(), environment=environment)

    def _environment(self) -> Mapping[str, str]:
        return {}

    def state(self) -> dict[str, Any]:
        """Returns what it tells of itself; empty while it does not answer. Blocks a second at most."""
        connection = http.client.HTTPConnection(LOOPBACK, self._port("web"), timeout=1.0)
        try:
            connection.request("GET", "/json/")
            found: dict[str, Any] = orjson.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        else:
            return found
        finally:
            connection.close()


class SparkMaster(_SparkDaemon):
    """Gives applications the executors that they ask for."""

    name: ClassVar[str] = "spark-master"

    def _launch(self) -> Launch:
        return self._command(_MASTER)

    def _is_ready(self) -> bool:
        return self.state().get("status") == "ALIVE"


class SparkWorker(_SparkDaemon):
    """Starts executors, each in a folder of its own below `work`; they end with it.

    Args:
        folder: Data and logs; one for each worker.
        master: Address of the master.
        cores: Tasks at a time.
        memory: For all executors together, such as ``512m``.
        environment: Added to that of executors.
        lifetime: How long it lives.
        start_timeout: For one start.
    """

    name: ClassVar[str] = "spark-worker"

    def __init__(
        self,
        folder: Path,
        *,
        master: str,
        cores: int = 1,
        memory: str = "512m",
        environment: Mapping[str, str] | None = None,
        lifetime: Lifetime = Lifetime.EMBEDDED,
        start_timeout: timedelta = START_TIMEOUT,
    ) -> None:
        super().__init__(folder, lifetime=lifetime, start_timeout=start_timeout)
        self._master = master
        self._cores = cores
        self._memory = memory
        self._executors = dict(environment or {})

    @property
    def work(self) -> Path:
        """Has a folder for each application, with one for each of its executors: files, logs."""
        return self._home() / "work"

    @property
    def local(self) -> Path:
        """The local disk of its executors."""
        return self._home() / "local"

    def _launch(self) -> Launch:
        size = ("--cores", str(self._cores), "--memory", self._memory)
        return self._command(_WORKER, *size, "--work-dir", str(self.work), self._master)

    def _environment(self) -> Mapping[str, str]:
        return {"SPARK_LOCAL_DIRS": str(self.local), **self._executors}

    def _is_ready(self) -> bool:
        return bool(self.state().get("masterurl"))


def _installed_spark() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        hint = "install slackwater[dev]"
        raise missing_prerequisite("PySpark", "it is not installed", hint)
    return Path(spec.origin).parent
