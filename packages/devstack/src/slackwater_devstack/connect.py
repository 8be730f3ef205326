"""A standalone Kafka Connect worker with one Debezium connector."""

import http.client
import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from slackwater_devstack.errors import ServerNotRunningError
from slackwater_devstack.jvm import JavaProgram, java_program
from slackwater_devstack.ports import LOOPBACK, accepts_connections
from slackwater_devstack.processes import Launch, Lifetime
from slackwater_devstack.properties import Properties, render_properties, worker_properties
from slackwater_devstack.server import START_TIMEOUT, Server
from slackwater_devstack.settings import Collector

CONNECT_HEAP = "256m"


@dataclass(frozen=True, slots=True)
class ConnectorState:
    """What the worker says about its connector."""

    connector: str
    """``RUNNING``, ``FAILED``, ...; empty while the worker does not answer."""
    tasks: tuple[str, ...]
    trace: str
    """Stack trace of a failure; else empty."""

    @property
    def is_running(self) -> bool:
        """Whether the connector and all its tasks run."""
        return self.connector == "RUNNING" and bool(self.tasks) and set(self.tasks) == {"RUNNING"}


class ConnectWorker(Server):
    """The worker. Configure it before the first start; after a kill, start it again on the same offsets."""

    name: ClassVar[str] = "connect"
    stop_patience: ClassVar[timedelta] = timedelta(seconds=20)

    def __init__(
        self,
        folder: Path,
        *,
        heap: str = CONNECT_HEAP,
        collector: Collector = Collector.SERIAL,
        lifetime: Lifetime = Lifetime.EMBEDDED,
        start_timeout: timedelta = START_TIMEOUT,
    ) -> None:
        super().__init__(folder, lifetime=lifetime, start_timeout=start_timeout)
        self._heap = heap
        self._collector = collector
        self._program: JavaProgram | None = None
        self._bootstrap = ""
        self._flush_interval = timedelta(seconds=5)
        self._connector: Properties = {}

    @property
    def port(self) -> int:
        """TCP port of the REST interface on loopback."""
        return self._port("port")

    @property
    def address(self) -> str:
        """URL of the REST interface."""
        return f"http://{LOOPBACK}:{self.port}"

    def configure(self, bootstrap: str, connector: Properties, flush_interval: timedelta) -> None:
        """Say what the worker does from its next start on."""
        self._bootstrap = bootstrap
        self._connector = dict(connector)
        self._flush_interval = flush_interval

    def state(self) -> ConnectorState:
        """What the worker says about its connector now. Blocks two seconds at most; never raises."""
        unknown = ConnectorState("", (), "")
        if not accepts_connections(self.port):
            return unknown
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=2.0)
        try:
            connection.request("GET", f"/connectors/{self._connector.get('name', '')}/status")
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            return unknown
        finally:
            connection.close()
        return parse_state(body) if response.status == http.client.OK else unknown

    def stop(self) -> None:
        """End it in order, storing its offsets; kill it when that takes too long. Idempotent."""
        if self._end() and self._program is not None:
            self._program.publish_recording(self._folder())

    def _folder(self) -> Path:
        return self.folder / "connect"

    def _prepare(self) -> None:
        if not self._connector:
            raise ServerNotRunningError(self.name, "start the unconfigured")
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        self._program = java_program(main, self._heap, self._collector, self.progress)
        self.version = self._program.jars.version_of("debezium-connector-postgres")
        folder = self._folder()
        folder.mkdir(parents=True, exist_ok=True)
        worker = worker_properties(self._bootstrap, self.port, folder / "offsets", self._flush_interval)
        (folder / "worker.properties").write_text(render_properties(worker))
        (folder / "connector.properties").write_text(render_properties(self._connector))

    def _launch(self) -> Launch:
        if self._program is None:
            raise ServerNotRunningError(self.name, "launch")
        folder = self._folder()
        files = (str(folder / "worker.properties"), str(folder / "connector.properties"))
        return Launch(argv=self._program.command(files, folder), cwd=folder)

    def _is_ready(self) -> bool:
        state = self.state()
        if state.trace:
            raise self._start_error(f"its connector failed: {state.trace.splitlines()[0]}")
        return state.is_running


def parse_state(body: bytes) -> ConnectorState:
    """The worker's status document of a connector."""
    document = json.loads(body)
    parts = [document["connector"], *document["tasks"]]
    trace = next((part["trace"] for part in parts if part.get("trace")), "")
    return ConnectorState(
        document["connector"]["state"], tuple(task["state"] for task in document["tasks"]), trace
    )
