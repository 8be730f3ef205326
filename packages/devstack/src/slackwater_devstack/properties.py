"""Configuration files of broker, Connect worker and connector, as pure functions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from slackwater_devstack.ports import LOOPBACK
from slackwater_devstack.settings import ConnectMode, DevStackSettings

Properties = dict[str, str]

_INTERNAL_PARTITIONS = "2"
_CLEANER_BUFFER_BYTES = "4194304"
_PRODUCER_BATCH_BYTES = "262144"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseAddress:
    """The address under which the connector finds its database."""

    port: int
    database: str
    user: str


def render_properties(properties: Mapping[str, str]) -> str:
    """The text of a Java properties file; the values arrive unchanged."""
    return "".join(f"{_escaped(key, key=True)}={_escaped(value)}\n" for key, value in properties.items())


def _escaped(text: str, *, key: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if key:
        escaped = re.sub(r"([=: #!])", r"\\\1", escaped)
    elif escaped.startswith(" "):
        escaped = "\\" + escaped
    return _unicode_escaped(escaped)


def _unicode_escaped(text: str) -> str:
    units = text.encode("utf-16-be")
    codes = (int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2))
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)


def milliseconds(duration: timedelta) -> str:
    """A duration as the servers want it."""
    return str(round(duration / timedelta(milliseconds=1)))


def replication_name(prefix: str) -> str:
    """The prefix as the name of a replication slot or publication, which allow fewer characters."""
    return re.sub(r"[^a-z0-9_]", "_", prefix.lower())[:63]


def publication_name(prefix: str) -> str:
    """The publication that the connector of this prefix reads."""
    return f"slackwater_{replication_name(prefix)}"[:63]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """The address at which a broker listens, and the one that it tells its clients."""

    name: str
    """Letters, digits, ``_``."""
    port: int
    advertised_port: int
    """Another one than ``port`` when a proxy is in between."""


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
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in [*names, "CONTROLLER"]),
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


def further_broker_properties(
    listeners: Sequence[Listener], controller_port: int, data: Path, overrides: Mapping[str, str]
) -> Properties:
    """A second node that is only broker; ``controller_port`` is the first one's."""
    properties = broker_properties(listeners, controller_port, data, overrides)
    bound = [f"{listener.name}://{LOOPBACK}:{listener.port}" for listener in listeners]
    return properties | {"process.roles": "broker", "node.id": "2", "listeners": ",".join(bound)}


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
        "offset.flush.interval.ms": milliseconds(flush_interval),
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


def connector_properties(
    settings: DevStackSettings, address: DatabaseAddress, tables: tuple[str, ...]
) -> Properties:
    """Debezium with everything Slackwater reads: transaction metadata, notifications, heartbeats.

    No tables: every table of the publication.
    """
    prefix = settings.prefix
    exactly_once = settings.connect_mode is ConnectMode.EXACTLY_ONCE
    single = (f"{prefix}.transaction", f"{prefix}.notifications", f"__debezium-heartbeat.{prefix}")
    only = {"table.include.list": ",".join(re.escape(table) for table in tables)} if tables else {}
    return {
        "name": prefix,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": LOOPBACK,
        "database.port": str(address.port),
        "database.user": address.user,
        "database.password": "unused",
        "database.dbname": address.database,
        "plugin.name": "pgoutput",
        "slot.name": replication_name(prefix),
        "publication.name": publication_name(prefix),
        "publication.autocreate.mode": "disabled",
        **only,
        **({"exactly.once.support": "required"} if exactly_once else {}),
        "topic.prefix": prefix,
        "snapshot.mode": "initial",
        "provide.transaction.metadata": "true",
        "tombstones.on.delete": "true",
        # Debezium leaves TRUNCATE out unless told otherwise: views would keep rows that the database has not.
        "skipped.operations": "none",
        "decimal.handling.mode": "string",
        "heartbeat.interval.ms": milliseconds(settings.heartbeat_interval),
        # Debezium waits this long for a batch to fill; its default of half a second would be most of the lag.
        "poll.interval.ms": "20",
        "notification.enabled.channels": "sink",
        "notification.sink.topic.name": f"{prefix}.notifications",
        "statistics.metrics.enabled": "false",
        "topic.creation.default.partitions": str(settings.partitions),
        "topic.creation.default.replication.factor": "1",
        "topic.creation.groups": "single",
        "topic.creation.single.include": ",".join(re.escape(topic) for topic in single),
        "topic.creation.single.partitions": "1",
        "topic.creation.single.replication.factor": "1",
        **settings.connector_overrides,
    }
