"""Kafka brokers: one KRaft node, and a second one for who wants it."""

import base64
import logging
import re
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import ClassVar

from slackwater.dev.errors import not_running
from slackwater.dev.java import JavaProgram, Properties, java_program, render_properties
from slackwater.dev.kafka_security import NOBODY_SAYS, ListenerSecurity
from slackwater.dev.loopback import LOOPBACK, TcpProxy, accepts_connections
from slackwater.dev.processes import Launch, Lifetime
from slackwater.dev.server import START_TIMEOUT, Server
from slackwater.dev.settings import Collector

logger = logging.getLogger(__name__)

_KAFKA_HEAP = "128m"
# The second compiler's threads take up to 80 % of a core in the first minutes, on the machine of someone who
# develops or tests; a broker that runs for minutes or hours never gets that back.
_JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1",)
_ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
_INTERNAL_PARTITIONS = "2"
_CLEANER_BUFFER_BYTES = "4194304"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """The address at which a broker listens, and the one that it tells its clients."""

    name: str
    """Letters, digits, ``_``."""
    port: int
    advertised_port: int
    """Another one than ``port`` when a proxy is in between."""
    security: ListenerSecurity = NOBODY_SAYS
    """How it finds out who connects."""


class KafkaBroker(Server):
    """Broker and controller in one process; topics are never created by themselves.

    Args:
        folder: Data and logs.
        heap: Of its JVM.
        overrides: Properties added or replaced.
        routes: Names of further listeners, each behind a proxy in this process: what a client reaches over
            a route can be disturbed without disturbing others. Lower case letters, digits, ``_``.
        secured: Further listeners by name, lower case letters, at which clients say who they are. With them
            there is access control: a user may do what ACLs allow, and clients of the first
            listener may do everything.
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
        heap: str = _KAFKA_HEAP,
        overrides: Mapping[str, str] | None = None,
        routes: Sequence[str] = (),
        secured: Mapping[str, ListenerSecurity] | None = None,
        lifetime: Lifetime = Lifetime.EMBEDDED,
        start_timeout: timedelta = START_TIMEOUT,
    ) -> None:
        super().__init__(folder, lifetime=lifetime, start_timeout=start_timeout)
        self._heap = heap
        self._overrides = dict(overrides or {})
        self._secured = dict(secured or {})
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

    def bootstrap_for(self, listener: str) -> str:
        """``bootstrap.servers`` for clients that say who they are at a listener."""
        return f"{LOOPBACK}:{self._port(listener)}"

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
                file.write_text(render_properties(_format_properties(1, _kafka_uuid())))
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
        urls = ",".join(each.allowed_url for each in self._secured.values() if each.allowed_url)
        options = (*_JAVA_OPTIONS, *([f"-D{_ALLOWED_URLS}={urls}"] if urls else []))
        self._program = self._find_program("kafka.Kafka", self._heap, Collector.SERIAL, options)
        self.version = self._program.jars.version_of("kafka_2.13")
        self._format()
        for proxy in self._proxies.values():
            proxy.start()
        self._properties_file().write_text(render_properties(self._properties()))

    def _find_program(
        self, main: str, heap: str, collector: Collector, options: tuple[str, ...]
    ) -> JavaProgram:
        return java_program(main, heap, collector, self.progress, options=options)

    def _format(self) -> None:
        self.cluster_id()

    def _properties(self) -> Properties:
        return broker_properties(self._listeners(), self.controller_port, self._data(), self._overrides)

    def _listeners(self) -> list[Listener]:
        found = [Listener(name="PLAINTEXT", port=self.port, advertised_port=self.port)]
        for name, security in self._secured.items():
            port = self._port(name)
            found.append(Listener(name=name.upper(), port=port, advertised_port=port, security=security))
        return found + [
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
        heap: str = _KAFKA_HEAP,
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
            file.write_text(render_properties(_format_properties(self.node_id, self.cluster_id())))

    def _properties(self) -> Properties:
        controller = self._first.controller_port
        return further_broker_properties(self._listeners(), controller, self._data(), self._overrides)


def broker_properties(
    listeners: Sequence[Listener], controller_port: int, data: Path, overrides: Mapping[str, str]
) -> Properties:
    """One KRaft node that is broker and controller; brokers talk to each other over the first listener.

    The default cleaner buffer alone would not fit into a heap of 128m.
    """
    names = [listener.name for listener in listeners]
    bound = [f"{listener.name}://{LOOPBACK}:{listener.port}" for listener in listeners]
    advertised = [f"{listener.name}://{LOOPBACK}:{listener.advertised_port}" for listener in listeners]
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
        "listeners": ",".join([*bound, f"CONTROLLER://{LOOPBACK}:{controller_port}"]),
        "advertised.listeners": ",".join(advertised),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": names[0],
        "listener.security.protocol.map": ",".join(
            [
                *(f"{each.name}:{each.security.protocol}" for each in listeners),
                "CONTROLLER:PLAINTEXT",
            ]
        ),
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
        **_access_control(listeners),
        **overrides,
    }


def _access_control(listeners: Sequence[Listener]) -> Properties:
    """What users need; nothing without them. Who does not say who he is may do everything."""
    found: dict[str, str] = {}
    for listener in listeners:
        if listener.security is not NOBODY_SAYS:
            prefix = f"listener.name.{listener.name.lower()}"
            found |= {f"{prefix}.{name}": value for name, value in listener.security.properties.items()}
            found |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
            }
    return found


def further_broker_properties(
    listeners: Sequence[Listener], controller_port: int, data: Path, overrides: Mapping[str, str]
) -> Properties:
    """A second node that is only broker; ``controller_port`` is the first one's."""
    properties = broker_properties(listeners, controller_port, data, overrides)
    bound = [f"{listener.name}://{LOOPBACK}:{listener.port}" for listener in listeners]
    return properties | {"process.roles": "broker", "node.id": "2", "listeners": ",".join(bound)}


def _format_properties(node_id: int, cluster_id: str) -> Properties:
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
