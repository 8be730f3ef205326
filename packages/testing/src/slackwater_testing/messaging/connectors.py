"""Connectors that others have made, as a team would use them to move messages between a database and Kafka.

Each is a function that returns a connector's properties for a :class:`Place`; :class:`Worker` runs one in a Kafka
Connect of its own. What they keep and lose is measured in ``packages/messaging/tests/connectors``.
"""

import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

import psycopg
from confluent_kafka import Producer
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from slackwater_devstack import ConnectMode, ConnectPlugin, ConnectWorker

Properties = dict[str, str]
_STRINGS = "org.apache.kafka.connect.storage.StringConverter"
_JSON = "org.apache.kafka.connect.json.JsonConverter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A database, a broker, and the names of a table and a topic that a connector moves messages between."""

    dsn: str
    bootstrap: str
    table: str
    topic: str
    user: str = "postgres"
    """The account that the connector uses, which tells its statements from others."""

    @property
    def _address(self) -> Properties:
        found = conninfo_to_dict(self.dsn)
        return {name: str(found[name]) for name in ("host", "port", "dbname")}

    @property
    def jdbc_url(self) -> str:
        """The database as JDBC drivers want it."""
        where = self._address
        return f"jdbc:postgresql://{where['host']}:{where['port']}/{where['dbname']}"

    @property
    def debezium(self) -> Properties:
        """The database as Debezium's source wants it."""
        where = self._address
        return {
            "database.hostname": where["host"],
            "database.port": where["port"],
            "database.dbname": where["dbname"],
            "database.user": self.user,
            "database.password": "unused",
        }


class Worker:
    """A Kafka Connect worker with one connector; a context manager that starts and stops it.

    Args:
        folder: Its data and log.
        bootstrap: Kafka.
        connector: Properties of the connector.
        plugins: What is downloaded for it.
        mode: Whether it stores where it is with the records, in one Kafka transaction.
        flush_interval: How often it stores where it is otherwise; a worker that is killed earlier repeats.
        overrides: Added to or replacing the worker's properties.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        connector: Properties,
        *,
        plugins: tuple[ConnectPlugin, ...] = (),
        mode: ConnectMode = ConnectMode.STANDALONE,
        flush_interval: timedelta = timedelta(minutes=10),
        overrides: Properties | None = None,
    ) -> None:
        self.connect = ConnectWorker(folder, mode=mode, plugins=plugins)
        self.connect.configure(bootstrap, connector, flush_interval, overrides)

    def __enter__(self) -> Self:
        """Starts it; returns when its task runs."""
        self.connect.apply()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it."""
        self.connect.stop()


def polling_source(place: Place, query: str, after: str, *, delay: timedelta, batch: int = 0) -> Properties:
    """Camel's SQL source: polls with a query and runs a statement for each row that it took.

    Args:
        place: Database and topic.
        query: Selects the rows to be sent, in order.
        after: Run after each row, whose columns it names as ``:#column``.
        delay: Between two polls.
        batch: Rows per poll at most; 0: all.
    """
    options = {"dataSource": "#bean:database", "onConsume": after, "delay": delay // timedelta(milliseconds=1)}
    options |= {"initialDelay": 0, "maxMessagesPerPoll": batch}
    return {
        "name": place.topic,
        "connector.class": "org.apache.camel.kafkaconnector.CamelSourceConnector",
        "tasks.max": "1",
        "topics": place.topic,
        "camel.source.url": f"sql:{query}?{urlencode(options)}",
        "camel.source.marshal": "json-jackson",
        "camel.beans.database": "#class:org.postgresql.ds.PGSimpleDataSource",
        "camel.beans.database.url": place.jdbc_url,
        "camel.beans.database.user": place.user,
        "key.converter": _STRINGS,
        "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
    }


def event_router(place: Place, *, batch: int = 2048, exactly_once: bool = False) -> Properties:
    """Debezium's source with its outbox event router; the table has the columns that it expects by default.

    Args:
        place: Database and table (``schema.table``); a row's ``aggregatetype`` names its topic.
        batch: Records per poll at most.
        exactly_once: Whether the worker has to support it.
    """
    name = place.table.replace(".", "_")
    return {
        "name": name,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        **place.debezium,
        "plugin.name": "pgoutput",
        "slot.name": name,
        "publication.name": name,
        "publication.autocreate.mode": "filtered",
        "table.include.list": place.table,
        "topic.prefix": name,
        "snapshot.mode": "no_data",
        "tombstones.on.delete": "false",
        "max.batch.size": str(batch),
        "max.queue.size": str(2 * batch),
        **({"exactly.once.support": "required"} if exactly_once else {}),
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.route.topic.replacement": "${routedByValue}",
        "key.converter": _STRINGS,
        "value.converter": _STRINGS,
    }


def make_event_table(connection: psycopg.Connection[tuple[object, ...]], table: str) -> None:
    """Makes a table with the columns that the event router expects by default."""
    columns = "id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text, aggregateid text, type text, payload text"
    connection.execute(sql.SQL(f"CREATE TABLE {{}} ({columns})").format(sql.Identifier(*table.split("."))))  # type: ignore[arg-type]


def table_sink(place: Place, topics: tuple[str, ...], *, upsert: bool, key: bool, batch: int = 500) -> Properties:
    """Debezium's JDBC sink: each topic's records are written into a table of the topic's name.

    Args:
        place: The database.
        topics: What it reads, of read_committed records.
        upsert: Whether a row that is there is written over.
        key: Whether the record's key is the table's primary key.
        batch: Records of one table per transaction at most.
    """
    return {
        "name": place.topic,
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": "1",
        "topics": ",".join(topics),
        "connection.url": place.jdbc_url,
        "connection.username": place.user,
        "connection.password": "unused",
        "insert.mode": "upsert" if upsert else "insert",
        "primary.key.mode": "record_key" if key else "none",
        "schema.evolution": "none",
        "collection.name.format": "${topic}",
        "batch.size": str(batch),
        "consumer.override.isolation.level": "read_committed",
        "consumer.override.auto.offset.reset": "earliest",
        # a worker that is started again takes over at once from the one that was killed
        "consumer.override.group.instance.id": place.topic,
        "key.converter": _JSON,
        "key.converter.schemas.enable": "true",
        "value.converter": _JSON,
        "value.converter.schemas.enable": "true",
    }
