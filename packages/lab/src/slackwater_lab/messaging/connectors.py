"""Connectors that others have made, run as a team runs them to move messages between a database and Kafka.

A function for each returns its properties; :func:`open_worker` runs one in a Kafka Connect of its own. What
they keep and what they lose is measured in ``packages/messaging/tests/connectors``; which ones, and why, is
in docs/design/0011-messaging.md.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from importlib import resources
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from slackwater.dev import ConnectMode, ConnectWorker, cache_folder
from slackwater.dev.java import resolve_pinned

Properties = dict[str, str]
Database = psycopg.Connection[Any]

_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"


class ConnectPlugin(Enum):
    """Connectors that are downloaded only for a worker that asks for them; docs/design/0011-messaging.md."""

    CAMEL_SQL = "camel-sql"
    """``CamelSourceConnector`` with Camel's SQL component: polls with a query of yours."""
    DEBEZIUM_JDBC = "debezium-jdbc"
    """``JdbcSinkConnector`` of Debezium: writes records into tables."""


_PLUGINS: Final = {
    "org.apache.camel.kafkaconnector.CamelSourceConnector": ConnectPlugin.CAMEL_SQL,
    "io.debezium.connector.jdbc.JdbcSinkConnector": ConnectPlugin.DEBEZIUM_JDBC,
}
_NEVER: Final = timedelta(hours=1)
_STATEMENT: Final = re.compile(rb"LOG:  (?:statement|execute [^:]*): *(\w+)")
"""Not the empty ones with which drivers ask whether a connection is alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The database and the broker between which a connector moves messages."""

    dsn: str
    bootstrap: str
    user: str = "postgres"
    """The account that the connector uses, which tells its statements from others."""

    @property
    def jdbc(self) -> str:
        found = conninfo_to_dict(self.dsn)
        return f"jdbc:postgresql://{found['host']}:{found['port']}/{found['dbname']}"

    @property
    def debezium(self) -> Properties:
        found = conninfo_to_dict(self.dsn)
        return {
            "database.hostname": str(found["host"]),
            "database.port": str(found["port"]),
            "database.dbname": str(found["dbname"]),
            "database.user": self.user,
            "database.password": "unused",
        }


class _Worker(ConnectWorker):
    """A worker with a connector that its own class path may not have."""

    def __init__(self, folder: Path, plugin: ConnectPlugin | None, mode: ConnectMode) -> None:
        super().__init__(folder, mode=mode)
        self._plugin = plugin

    def _worker_properties(self, folder: Path) -> Properties:
        found = super()._worker_properties(folder)
        if self._plugin is None:
            return found
        link, name = folder / "plugins" / self._plugin.value, self._plugin.value
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        pinned = resources.files("slackwater_lab.servers") / "data" / name
        link.symlink_to(resolve_pinned(pinned, cache_folder() / "plugins" / name, self.progress).folder)
        # Not every connector declares itself as Java's services do.
        return {**found, "plugin.path": str(link.parent), "plugin.discovery": "hybrid_warn"}


@contextmanager
def open_worker(
    folder: Path,
    ends: Ends,
    connector: Properties,
    *,
    mode: ConnectMode = ConnectMode.STANDALONE,
) -> Iterator[ConnectWorker]:
    """Runs a Kafka Connect worker with one connector, from when its task runs to the end of the block.

    The folder outlives it. The mode says whether the connector's place is stored in the Kafka transaction of
    its records; else it is only at an orderly end.

    Raises:
        UnavailableError: The worker or its connector did not start.
    """
    plugin = _PLUGINS.get(connector["connector.class"])
    worker = _Worker(folder, plugin, mode)
    worker.configure(ends.bootstrap, connector, _NEVER)
    try:
        worker.apply()
        yield worker
    finally:
        worker.stop()


def event_router(ends: Ends, table: str, *, batch: int = 2048) -> Properties:
    """Debezium's source with its outbox event router, over a :class:`slackwater_messaging.CapturedOutbox`.

    Needs :func:`make_slot`. The table is in the schema ``public``. Each row of a batch is removed by a second
    change.
    """
    return {
        "name": table,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        **ends.debezium,
        "plugin.name": "pgoutput",
        "slot.name": table,
        "publication.name": table,
        "publication.autocreate.mode": "disabled",
        "table.include.list": f"public.{table}",
        "topic.prefix": table,
        "snapshot.mode": "no_data",
        "tombstones.on.delete": "false",
        "poll.interval.ms": "20",
        "max.batch.size": str(batch),
        "max.queue.size": str(2 * batch),
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.route.by.field": "topic",
        "transforms.outbox.route.topic.replacement": "${routedByValue}",
        "transforms.outbox.table.field.event.key": "key",
        "transforms.outbox.table.field.event.payload": "value",
        "key.converter": _BYTES,
        "value.converter": _BYTES,
    }


def make_slot(connection: Database, table: str) -> None:
    """Makes the event router's place in the log, unless it is there: later commits are sent."""
    exists = connection.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", [table]).fetchone()
    if exists is None:
        text = sql.SQL("CREATE PUBLICATION {0} FOR TABLE public.{0}")
        connection.execute(text.format(sql.Identifier(table)))
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [table])


class StatementLog:
    """The statements of a connector, as the database logs them.

    The connection is a superuser's, in autocommit mode. The account is made for the connector.
    """

    def __init__(self, connection: Database, path: Path, account: str) -> None:
        self.account = account
        self._path = path
        name = sql.Identifier(account)
        connection.execute(sql.SQL("CREATE ROLE {} SUPERUSER LOGIN").format(name))
        connection.execute(sql.SQL("ALTER ROLE {} SET log_statement = 'all'").format(name))
        self._start = path.stat().st_size

    def take(self) -> list[str]:
        """Returns the first word of each statement since the last call."""
        with self._path.open("rb") as log:
            log.seek(self._start)
            text = log.read()
            self._start = log.tell()
        return [word.decode().upper() for word in _STATEMENT.findall(text)]
