"""A Kafka broker: one KRaft node."""

import base64
import uuid
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from slackwater.dev.java import Collector, JavaServer, Properties, render_properties
from slackwater.dev.processes import Lifetime
from slackwater.dev.server import LOOPBACK, START_TIMEOUT, accepts_connections

KAFKA_HEAP = "128m"
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
