"""A Kafka broker: one KRaft node."""

import base64
import logging
import uuid
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from slackwater_devstack.errors import ServerNotRunningError
from slackwater_devstack.jvm import JavaProgram, java_program
from slackwater_devstack.ports import LOOPBACK, accepts_connections
from slackwater_devstack.processes import Launch, Lifetime
from slackwater_devstack.properties import broker_properties, render_properties
from slackwater_devstack.server import START_TIMEOUT, Server
from slackwater_devstack.settings import Collector

logger = logging.getLogger(__name__)

KAFKA_HEAP = "128m"


class KafkaBroker(Server):
    """Broker and controller in one process; topics are never created by themselves."""

    name: ClassVar[str] = "kafka"
    stop_patience: ClassVar[timedelta] = timedelta(seconds=20)

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
        self._program: JavaProgram | None = None

    @property
    def port(self) -> int:
        """TCP port on loopback."""
        return self._port("port")

    @property
    def bootstrap(self) -> str:
        """``bootstrap.servers`` for clients."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def address(self) -> str:
        """The bootstrap address."""
        return self.bootstrap

    def stop(self) -> None:
        """End it in order; kill it when that takes too long. Nothing happens when it does not run."""
        if self._end() and self._program is not None:
            self._program.publish_recording(self._folder())

    def _folder(self) -> Path:
        return self.folder / "kafka"

    def _prepare(self) -> None:
        self._program = java_program("kafka.Kafka", self._heap, Collector.SERIAL, self.progress)
        self.version = self._program.jars.version_of("kafka_2.13")
        data = self._folder() / "data"
        data.mkdir(parents=True, exist_ok=True)
        if not (data / "meta.properties").exists():
            (data / "meta.properties").write_text(render_properties(format_properties()))
        properties = broker_properties(self.port, self._port("controller"), data, self._overrides)
        self._properties_file().write_text(render_properties(properties))

    def _properties_file(self) -> Path:
        return self._folder() / "server.properties"

    def _launch(self) -> Launch:
        if self._program is None:
            raise ServerNotRunningError(self.name, "launch")
        folder = self._folder()
        return Launch(argv=self._program.command((str(self._properties_file()),), folder), cwd=folder)

    def _is_ready(self) -> bool:
        if not accepts_connections(self.port):
            return False
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            return bool(client.list_topics(timeout=1.0).brokers)
        except KafkaException:
            return False


def format_properties() -> dict[str, str]:
    """What formats a log folder for a node with static voters; saves a run of Kafka's own storage tool."""
    return {"version": "1", "cluster.id": _kafka_uuid(), "node.id": "1", "directory.id": _kafka_uuid()}


def _kafka_uuid() -> str:
    """A random id as Kafka writes it; none of its own starts with a dash."""
    text = "-"
    while text.startswith("-"):
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return text
