"""A Kafka Connect worker with one Debezium connector."""

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import ClassVar

import orjson

from slackwater.dev.java import (
    Collector,
    JavaServer,
    Properties,
    render_properties,
)
from slackwater.dev.processes import Lifetime, not_running
from slackwater.dev.server import LOOPBACK, START_TIMEOUT, Deadline, accepts_connections

_CONNECT_HEAP = "256m"
_PRODUCER_BATCH_BYTES = "262144"


class ConnectMode(Enum):
    """Ways of running Connect."""

    STANDALONE = "standalone"
    """Position in a file; starts fastest."""
    DISTRIBUTED = "distributed"
    """Position and configuration in Kafka; takes a new configuration while it runs."""
    EXACTLY_ONCE = "exactly-once"
    """Distributed, and every poll of the connector is one Kafka transaction with its position."""


@dataclass(frozen=True, slots=True)
class ConnectorState:
    """State of the connector, as the worker says."""

    connector: str
    """``RUNNING``, ``FAILED``, ...; empty while the worker does not answer."""
    tasks: tuple[str, ...]
    trace: str
    """Stack trace of a failure; else empty."""

    @property
    def is_running(self) -> bool:
        """True if the connector and all its tasks run."""
        return self.connector == "RUNNING" and bool(self.tasks) and set(self.tasks) == {"RUNNING"}


class ConnectWorker(JavaServer):
    """The worker. Configure it before the first start; after a kill, start it again where it was."""

    name: ClassVar[str] = "connect"

    def __init__(
        self,
        folder: Path,
        *,
        mode: ConnectMode = ConnectMode.STANDALONE,
        heap: str = _CONNECT_HEAP,
        collector: Collector = Collector.SERIAL,
        lifetime: Lifetime = Lifetime.EMBEDDED,
        start_timeout: timedelta = START_TIMEOUT,
    ) -> None:
        super().__init__(folder, lifetime=lifetime, start_timeout=start_timeout)
        self._mode = mode
        self._heap = heap
        self._collector = collector
        self._bootstrap = ""
        self._flush_interval = timedelta(seconds=5)
        self._overrides: Properties = {}
        self._connector: Properties = {}
        self._is_registered = False

    @property
    def address(self) -> str:
        """URL of the REST interface."""
        return f"http://{LOOPBACK}:{self.port}"

    def configure(
        self,
        bootstrap: str,
        connector: Properties,
        flush_interval: timedelta,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        """Say what the worker does from its next start, or :meth:`apply`, on.

        ``flush_interval`` is how often the position is stored; ``overrides`` are added to or replace the
        worker's properties.
        """
        self._bootstrap = bootstrap
        self._connector = dict(connector)
        self._flush_interval = flush_interval
        self._overrides = dict(overrides or {})

    def apply(self) -> None:
        """Start it, or make a new configuration of the connector effective; returns when its task runs.

        A distributed worker keeps running, a standalone one is restarted.

        Raises:
            UnavailableError: it or its connector failed.
        """
        self._is_registered = False
        if self.is_running and self._mode is ConnectMode.STANDALONE and self._differs():
            self.stop()
        if self.is_running:
            self._wait_until_ready(Deadline(self._start_timeout))
        else:
            self.start()

    def state(self) -> ConnectorState:
        """Ask the worker for the state of its connector. Blocks two seconds at most; never raises."""
        status, body = self._request("GET", f"{self._path}/status")
        return parse_state(body) if status == http.client.OK else ConnectorState("", (), "")

    @property
    def _path(self) -> str:
        return f"/connectors/{self._connector.get('name', '')}"

    def _prepare(self) -> None:
        if not self._connector:
            raise not_running(self.name, "start the unconfigured")
        kind = "Standalone" if self._mode is ConnectMode.STANDALONE else "Distributed"
        main = f"org.apache.kafka.connect.cli.Connect{kind}"
        self._program = self._find_program(main, self._heap, self._collector, ())
        self.version = self._program.jars.version_of("debezium-connector-postgres")
        self._is_registered = False
        folder = self._folder()
        folder.mkdir(parents=True, exist_ok=True)
        worker = self._worker_properties(folder) | self._overrides
        (folder / "worker.properties").write_text(render_properties(worker))
        (folder / "connector.properties").write_text(render_properties(self._connector))

    def _worker_properties(self, folder: Path) -> Properties:
        return {
            **worker_properties(self._bootstrap, self.port, self._flush_interval),
            **position_properties(self._mode, self._connector["name"], folder / "offsets"),
        }

    def _arguments(self) -> tuple[str, ...]:
        worker, connector = (str(self._folder() / f"{what}.properties") for what in ("worker", "connector"))
        return (worker, connector) if self._mode is ConnectMode.STANDALONE else (worker,)

    def _differs(self) -> bool:
        """Returns whether it was started with other properties of the connector."""
        file = self._folder() / "connector.properties"
        return not file.is_file() or file.read_text() != render_properties(self._connector)

    def _is_ready(self) -> bool:
        if self._mode is not ConnectMode.STANDALONE and not self._is_registered:
            self._is_registered = self._register()
            if not self._is_registered:
                return False
        state = self.state()
        if state.trace:
            raise self._start_error(f"its connector failed: {state.trace.splitlines()[0]}")
        return state.is_running

    def _register(self) -> bool:
        """Hand the configuration to a distributed worker; whether its task has it."""
        status, body = self._request("GET", f"{self._path}/tasks")
        if status == http.client.OK:
            tasks = [task["config"] for task in orjson.loads(body)]
            if tasks and all(self._connector.items() <= task.items() for task in tasks):
                return True
        status, body = self._request("GET", f"{self._path}/config")
        if status == http.client.OK and orjson.loads(body) == self._connector:
            return False  # taken, the task follows
        if status in (http.client.OK, http.client.NOT_FOUND):
            status, body = self._request("PUT", f"{self._path}/config", self._connector)
            if status == http.client.BAD_REQUEST:
                raise self._start_error(f"it refuses the connector: {body.decode(errors='replace')}")
        return False

    def _request(self, method: str, path: str, body: Properties | None = None) -> tuple[int, bytes]:
        """Status and body; status 0 while the worker does not answer."""
        if not accepts_connections(self.port):
            return 0, b""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=2.0)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else orjson.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()


def parse_state(body: bytes) -> ConnectorState:
    """The worker's status document of a connector."""
    document = orjson.loads(body)
    parts = [document["connector"], *document["tasks"]]
    trace = next((part["trace"] for part in parts if part.get("trace")), "")
    return ConnectorState(
        document["connector"]["state"], tuple(task["state"] for task in document["tasks"]), trace
    )


def worker_properties(bootstrap: str, rest_port: int, flush_interval: timedelta) -> Properties:
    """Return what every Connect worker has: it writes JSON without schemas."""
    converter = "org.apache.kafka.connect.json.JsonConverter"
    return {
        "bootstrap.servers": bootstrap,
        "key.converter": converter,
        "value.converter": converter,
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "listeners": f"http://{LOOPBACK}:{rest_port}",
        "plugin.discovery": "service_load",
        "topic.creation.enable": "true",
        "offset.flush.interval.ms": str(round(flush_interval / timedelta(milliseconds=1))),
        "producer.compression.type": "lz4",
        "producer.batch.size": _PRODUCER_BATCH_BYTES,
    }


def position_properties(mode: ConnectMode, name: str, offsets: Path) -> Properties:
    """Makes the properties of the place where a worker keeps its connector's position: a file, or Kafka."""
    if mode is ConnectMode.STANDALONE:
        return {"offset.storage.file.filename": str(offsets)}
    group = f"connect-{name}"
    properties = {"group.id": group, "offset.storage.partitions": "1", "status.storage.partitions": "1"}
    for kind in ("config", "offset", "status"):
        properties[f"{kind}.storage.topic"] = f"{group}.{kind}"
        properties[f"{kind}.storage.replication.factor"] = "1"
    if mode is ConnectMode.EXACTLY_ONCE:
        properties["exactly.once.source.support"] = "enabled"
    return properties
