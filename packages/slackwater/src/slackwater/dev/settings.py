"""The parts of a stack and their settings."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path

from slackwater.dev.errors import wrong_setting
from slackwater.protocol import ConfigError
from slackwater.protocol.keys import table_name

_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ROUTE = re.compile(r"[a-z][a-z0-9_]*")
_HEAP = re.compile(r"[1-9][0-9]*[mg]")


class Collector(Enum):
    """Garbage collector of the Connect worker."""

    SERIAL = "-XX:+UseSerialGC"
    """Smallest footprint."""
    PARALLEL = "-XX:+UseParallelGC"
    """Half as fast again under load; give it a heap of 1g."""


class ConnectMode(Enum):
    """Ways of running Connect."""

    STANDALONE = "standalone"
    """Position in a file; starts fastest."""
    DISTRIBUTED = "distributed"
    """Position and configuration in Kafka; takes a new configuration while it runs."""
    EXACTLY_ONCE = "exactly-once"
    """Distributed, and every poll of the connector is one Kafka transaction with its position."""


class ConnectPlugin(Enum):
    """Connectors that are downloaded only for a worker that asks for them; docs/design/0011-messaging.md."""

    CAMEL_SQL = "camel-sql"
    """``CamelSourceConnector`` with Camel's SQL component: polls with a query of yours."""
    DEBEZIUM_JDBC = "debezium-jdbc"
    """``JdbcSinkConnector`` of Debezium: writes records into tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevStackSettings:
    """One stack of servers on loopback with its data and logs in one folder."""

    folder: Path
    """Data, logs and the state file; created when missing."""
    prefix: str = "inv"
    """``topic.prefix`` of the connector: the name of the source."""
    database: str = "inventory"
    """Created when missing."""
    tables: tuple[str, ...] = ()
    """``schema.table`` each, for :func:`slackwater.dev.up`; empty: all tables, also later ones."""
    partitions: int = 4
    """Partitions of each data topic; transaction, notification and heartbeat topics have one."""
    postgres: bool = True
    kafka: bool = True
    redis: bool = True
    second_kafka: bool = False
    """Whether there is a second broker, for partitions that are slow or away by themselves."""
    kafka_routes: tuple[str, ...] = ()
    """Routes to the brokers that go through proxies, see :class:`slackwater.dev.KafkaBroker`.

    Connect uses the one named ``connect`` when there is one.
    """
    connect: bool = True
    """Whether the stack has a Connect worker; :func:`slackwater.dev.up` then starts it, too."""
    connect_mode: ConnectMode = ConnectMode.STANDALONE
    fsync: bool = False
    """Whether PostgreSQL survives a crash of the machine; a killed process it always survives."""
    kafka_heap: str = "128m"
    connect_heap: str = "256m"
    connect_collector: Collector = Collector.SERIAL
    offset_flush_interval: timedelta = timedelta(seconds=5)
    """Time between two positions that Connect stores, which determines how much is repeated after a kill."""
    heartbeat_interval: timedelta = timedelta(seconds=5)
    postgres_overrides: Mapping[str, str] = field(default_factory=dict)
    """Added to or replacing PostgreSQL's settings."""
    broker_overrides: Mapping[str, str] = field(default_factory=dict)
    """Added to or replacing the broker's properties."""
    worker_overrides: Mapping[str, str] = field(default_factory=dict)
    """Added to or replacing the Connect worker's properties."""
    connector_overrides: Mapping[str, str] = field(default_factory=dict)
    """Added to or replacing the connector's properties."""
    keep_data: bool = True
    """Whether the servers' data outlives the context manager; logs always do."""
    start_timeout: timedelta = timedelta(seconds=300)
    """For each server, downloads not included."""

    def __post_init__(self) -> None:
        """Refuse what no server could be started with."""
        object.__setattr__(self, "folder", self.folder.absolute())
        if not _PREFIX.fullmatch(self.prefix):
            raise wrong_setting("prefix", repr(self.prefix), "letters, digits, '.', '_' and '-'")
        if self.partitions < 1:
            raise wrong_setting("partitions", str(self.partitions), "at least 1")
        if self.connect and not (self.kafka and self.postgres):
            raise wrong_setting("connect", "True", "False in a stack without Kafka or PostgreSQL")
        object.__setattr__(self, "tables", checked_tables(self.tables))
        for route in self.kafka_routes:
            if not _ROUTE.fullmatch(route):
                raise wrong_setting("kafka_routes", repr(route), "lower case letters, digits and '_'")
        for name, heap in (("kafka_heap", self.kafka_heap), ("connect_heap", self.connect_heap)):
            if not _HEAP.fullmatch(heap):
                raise wrong_setting(name, repr(heap), "a size such as 256m or 1g")


def checked_tables(tables: Iterable[str]) -> tuple[str, ...]:
    """Return full names of tables; refuse what is not ``schema.table``, where SQL's quotes are allowed."""
    try:
        return tuple(map(table_name, tables))
    except ConfigError as error:
        raise wrong_setting("tables", error.problem, error.hint.removeprefix("expected ")) from error
