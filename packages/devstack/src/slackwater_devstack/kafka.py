"""Kafka brokers: one KRaft node, and a second one for who wants it."""

import base64
import logging
import re
import threading
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import ClassVar

from slackwater_devstack.errors import not_running
from slackwater_devstack.jvm import JavaProgram, java_program
from slackwater_devstack.ports import LOOPBACK, accepts_connections
from slackwater_devstack.processes import Launch, Lifetime
from slackwater_devstack.properties import (
    Listener,
    Properties,
    broker_properties,
    further_broker_properties,
    render_properties,
)
from slackwater_devstack.proxy import TcpProxy
from slackwater_devstack.server import START_TIMEOUT, Server
from slackwater_devstack.settings import Collector

logger = logging.getLogger(__name__)

KAFKA_HEAP = "128m"


class KafkaBroker(Server):
    """Broker and controller in one process; topics are never created by themselves.

    Args:
        folder: Data and logs.
        heap: Of its JVM.
        overrides: Properties added or replaced.
        routes: Names of further listeners, each behind a proxy in this process: what a client reaches over
            a route can be disturbed without disturbing others. Lower case letters, digits, ``_``.
        lifetime: How long it lives; with routes only EMBEDDED makes sense.
        start_timeout: For one start.
    """

    name: ClassVar[str] = "kafka"
    node_id: ClassVar[int] = 1
    stop_patience: ClassVar[timedelta] = timedelta(seconds=20)

    def __init__(
        self,
        folder: Path,
        *,
        heap: str = KAFKA_HEAP,
        overrides: Mapping[str, str] | None = None,
        routes: Sequence[str] = (),
        lifetime: Lifetime = Lifetime.EMBEDDED,
        start_timeout: timedelta = START_TIMEOUT,
    ) -> None:
        super().__init__(folder, lifetime=lifetime, start_timeout=start_timeout)
        self._heap = heap
        self._overrides = dict(overrides or {})
        self._program: JavaProgram | None = None
        self._formatting = threading.Lock()
        self._proxies: dict[str, TcpProxy] = {}
        for route in routes:
            self._proxies[route] = TcpProxy(partial(self._port, f"route {route}"))

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

    @property
    def controller_port(self) -> int:
        """Port of the controller on loopback."""
        return self._port("controller")

    def proxy(self, route: str) -> TcpProxy:
        """The proxy of a route; runs from the first start of the broker until it is stopped in order."""
        return self._proxies[route]

    def bootstrap_over(self, route: str) -> str:
        """``bootstrap.servers`` for clients that use a route; all their connections go through its proxy."""
        return f"{LOOPBACK}:{self.proxy(route).port}"

    def cluster_id(self) -> str:
        """The id of the cluster; formats the log folder when that has not happened yet. Thread-safe."""
        file = self._data() / "meta.properties"
        with self._formatting:
            if not file.exists():
                self._data().mkdir(parents=True, exist_ok=True)
                file.write_text(render_properties(format_properties(1, _kafka_uuid())))
            return re.search(r"^cluster\.id=(.*)$", file.read_text(), re.MULTILINE)[1]  # type: ignore[index]

    def stop(self) -> None:
        """End it in order; kill it when that takes too long. Nothing happens when it does not run."""
        if self._end() and self._program is not None:
            self._program.publish_recording(self._folder())
        for proxy in self._proxies.values():
            proxy.stop()

    def _folder(self) -> Path:
        return self.folder / self.name

    def _data(self) -> Path:
        return self._folder() / "data"

    def _prepare(self) -> None:
        self._program = java_program("kafka.Kafka", self._heap, Collector.SERIAL, self.progress)
        self.version = self._program.jars.version_of("kafka_2.13")
        self._format()
        for proxy in self._proxies.values():
            proxy.start()
        self._properties_file().write_text(render_properties(self._properties()))

    def _format(self) -> None:
        self.cluster_id()

    def _properties(self) -> Properties:
        return broker_properties(self._listeners(), self.controller_port, self._data(), self._overrides)

    def _listeners(self) -> list[Listener]:
        plain = Listener(name="PLAINTEXT", port=self.port, advertised_port=self.port)
        return [plain] + [
            Listener(name=route.upper(), port=self._port(f"route {route}"), advertised_port=proxy.port)
            for route, proxy in self._proxies.items()
        ]

    def _properties_file(self) -> Path:
        return self._folder() / "server.properties"

    def _launch(self) -> Launch:
        if self._program is None:
            raise not_running(self.name, "launch")
        folder = self._folder()
        return Launch(argv=self._program.command((str(self._properties_file()),), folder), cwd=folder)

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


class SecondKafkaBroker(KafkaBroker):
    """A further broker of a first one's cluster: partitions it leads can be slow or away by themselves.

    Takes the same arguments, and the first broker, which must be started at about the same time.
    """

    name: ClassVar[str] = "kafka-2"
    node_id: ClassVar[int] = 2

    def __init__(
        self,
        first: KafkaBroker,
        *,
        heap: str = KAFKA_HEAP,
        overrides: Mapping[str, str] | None = None,
        routes: Sequence[str] = (),
        lifetime: Lifetime = Lifetime.EMBEDDED,
        start_timeout: timedelta = START_TIMEOUT,
    ) -> None:
        super().__init__(
            first.folder,
            heap=heap,
            overrides=overrides,
            routes=routes,
            lifetime=lifetime,
            start_timeout=start_timeout,
        )
        self._first = first

    def cluster_id(self) -> str:
        """The first broker's."""
        return self._first.cluster_id()

    def _format(self) -> None:
        file = self._data() / "meta.properties"
        if not file.exists():
            self._data().mkdir(parents=True, exist_ok=True)
            file.write_text(render_properties(format_properties(self.node_id, self.cluster_id())))

    def _properties(self) -> Properties:
        controller = self._first.controller_port
        return further_broker_properties(self._listeners(), controller, self._data(), self._overrides)


def format_properties(node_id: int, cluster_id: str) -> Properties:
    """Return what formats a log folder for a node with static voters, without Kafka's own storage tool."""
    return {
        "version": "1",
        "cluster.id": cluster_id,
        "node.id": str(node_id),
        "directory.id": _kafka_uuid(),
    }


def _kafka_uuid() -> str:
    """A random id as Kafka writes it; none of its own starts with a dash."""
    text = "-"
    while text.startswith("-"):
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return text
