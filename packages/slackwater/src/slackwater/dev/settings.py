"""The parts of a stack, their settings, and how its errors are worded."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path

from slackwater.protocol import ConfigError, StateError, UnavailableError
from slackwater.protocol.keys import table_name


def wrong_setting(setting: str, value: str, expected: str) -> ConfigError:
    """Returns the error for a setting whose value cannot be used."""
    return ConfigError(f"setting {setting} is {value}", f"expected {expected}")


def missing_prerequisite(what: str, found: str, hint: str) -> UnavailableError:
    """Returns the error for something that this machine must have, given what was found instead."""
    return UnavailableError(f"{what} is needed, but {found}", hint)


def not_running(server: str, operation: str) -> StateError:
    """Returns the error for an operation that needs a running server."""
    return StateError(f"cannot {operation} {server}: it is not running", "call start() first")


def failed_start(server: str, reason: str, log_path: Path, log_tail: str) -> UnavailableError:
    """Returns the error for a server that did not become ready."""
    return UnavailableError(f"{server} did not start: {reason}", with_tail(f"log: {log_path}", log_tail))


def with_tail(hint: str, log_tail: str) -> str:
    """Returns a hint with the last lines of what a server or a download said, which may be none."""
    return f"{hint}; its last lines:\n{log_tail}" if log_tail else hint


_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
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
        for name, heap in (("kafka_heap", self.kafka_heap), ("connect_heap", self.connect_heap)):
            if not _HEAP.fullmatch(heap):
                raise wrong_setting(name, repr(heap), "a size such as 256m or 1g")


def checked_tables(tables: Iterable[str]) -> tuple[str, ...]:
    """Return full names of tables; refuse what is not ``schema.table``, where SQL's quotes are allowed."""
    try:
        return tuple(map(table_name, tables))
    except ConfigError as error:
        raise wrong_setting("tables", error.problem, error.hint.removeprefix("expected ")) from error
