"""The servers of Apache Kafka: a broker, one KRaft node, and a Connect worker with one Debezium connector."""

import base64
import http.client
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import ClassVar

import orjson

from slackwater.dev.java import Collector, JavaServer, Properties, render_properties
from slackwater.dev.processes import Lifetime, not_running
from slackwater.dev.server import LOOPBACK, START_TIMEOUT, Deadline, accepts_connections

KAFKA_HEAP = "128m"
_CONNECT_HEAP = "256m"
_PRODUCER_BATCH_BYTES = "262144"
# The second compiler's threads take up to 80 % of a core in the first minutes, on the machine of someone who
# develops or tests; a broker that runs for minutes or hours never gets that back.
_JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1",)
_INTERNAL_PARTITIONS = "2"
_CLEANER_BUFFER_BYTES = "4194304"


class KafkaBroker(JavaServer):
    """Broker and controller in one process; topics are never created by themselves."""

    name: ClassVar[str] = "kafka"
    node_id: ClassVar[int] = 1

    def __init__(
        self,
        folder: Path,
        *,
        heap: str = KAFKA_HEAP,
        overrides: Mapping[str, str] | None = None,
        lifetime: Lifetime = Lifetime.EMBEDDED,
        start_timeout: timedelta = START_TIMEOUT,
    ) -> None:
        super().__init__(folder, lifetime=lifetime, start_timeout=start_timeout)
        self._heap = heap
        self._overrides = dict(overrides or {})
        self._java_options: tuple[str, ...] = _JAVA_OPTIONS

    @property
    def bootstrap(self) -> str:
        """``bootstrap.servers`` for clients."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def address(self) -> str:
        """The bootstrap address."""
        return self.bootstrap

    @property
    def controller_port(self) -> int:
        """Port of the controller on loopback."""
        return self._port("controller")

    def _data(self) -> Path:
        return self._folder() / "data"

    def _prepare(self) -> None:
        self._program = self._find_program("kafka.Kafka", self._heap, Collector.SERIAL, self._java_options)
        self.version = self._program.jars.version_of("kafka_2.13")
        self._format()
        self._properties_file().write_text(render_properties(self._properties()))

    def _format(self) -> None:
        """Formats the log folder, unless that has happened, for a node with static voters.

        Kafka's own storage tool would take seconds.
        """
        file = self._data() / "meta.properties"
        if not file.exists():
            self._data().mkdir(parents=True, exist_ok=True)
            node = {"version": "1", "cluster.id": self._new_cluster_id(), "node.id": str(self.node_id)}
            file.write_text(render_properties({**node, "directory.id": _kafka_uuid()}))

    def _new_cluster_id(self) -> str:
        return _kafka_uuid()

    def _properties(self) -> Properties:
        return broker_properties(self.port, self.controller_port, self._data(), self._overrides)

    def _properties_file(self) -> Path:
        return self._folder() / "server.properties"

    def _arguments(self) -> tuple[str, ...]:
        return (str(self._properties_file()),)

    def _is_ready(self) -> bool:
        if not accepts_connections(self.port):
            return False
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            return self.node_id in client.list_topics(timeout=1.0).brokers
        except KafkaException:
            return False


def broker_properties(
    port: int, controller_port: int, data: Path, overrides: Mapping[str, str]
) -> Properties:
    """One KRaft node that is broker and controller.

    The default cleaner buffer alone would not fit into a heap of 128m.
    """
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        "log.retention.ms": "-1",
        "log.cleaner.dedupe.buffer.size": _CLEANER_BUFFER_BYTES,
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": _INTERNAL_PARTITIONS,
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": _INTERNAL_PARTITIONS,
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        **overrides,
    }


def _kafka_uuid() -> str:
    """A random id as Kafka writes it; none of its own starts with a dash."""
    text = "-"
    while text.startswith("-"):
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return text


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
