"""The properties of Debezium's PostgreSQL connector on which the reading of its topics depends."""

import re
from collections.abc import Mapping

from slackwater_protocol import SourceTopics

REASONS: Mapping[str, str] = {
    "provide.transaction.metadata": "BEGIN and END tell which change events belong to a transaction",
    "decimal.handling.mode": "decimal numbers stay exact as text",
    "time.precision.mode": "the declared types of dates and times expect this form",
    "binary.handling.mode": "the declared type bytea expects this form",
    "skipped.operations": "otherwise TRUNCATE is omitted, and views keep rows that the database has removed",
    "notification.enabled.channels": "notifications tell when an initial snapshot is complete",
    "notification.sink.topic.name": "the sidecar reads the notifications there",
    "heartbeat.interval.ms": "a slot that does not advance keeps the database from removing its log",
    "publication.autocreate.mode": "a publication created beforehand can have publish_via_partition_root",
}
"""Why a property has to have its value, by name."""

_DEFAULTS: Mapping[str, str] = {
    "provide.transaction.metadata": "false",
    "decimal.handling.mode": "precise",
    "time.precision.mode": "adaptive",
    "binary.handling.mode": "bytes",
    "skipped.operations": "t",
    "heartbeat.interval.ms": "0",
    "publication.autocreate.mode": "all_tables",
}
"""What the connector does when a property is left out."""


def reading_properties(prefix: str, heartbeat_ms: int = 10_000) -> dict[str, str]:
    """Returns the properties that a connector needs for its topics to be read as whole transactions.

    Args:
        prefix: Its ``topic.prefix``.
        heartbeat_ms: The time between two heartbeats, milliseconds.
    """
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "plugin.name": "pgoutput",
        "slot.name": replication_name(prefix),
        "publication.name": publication_name(prefix),
        "publication.autocreate.mode": "disabled",
        "topic.prefix": prefix,
        "snapshot.mode": "initial",
        "provide.transaction.metadata": "true",
        "tombstones.on.delete": "true",
        "skipped.operations": "none",
        "decimal.handling.mode": "string",
        "time.precision.mode": "adaptive",
        "binary.handling.mode": "bytes",
        "heartbeat.interval.ms": str(heartbeat_ms),
        "notification.enabled.channels": "sink",
        "notification.sink.topic.name": SourceTopics(prefix).notifications,
    }


def topic_properties(prefix: str, partitions: int, replication_factor: int) -> dict[str, str]:
    """Returns the properties by which Connect makes the connector's topics.

    Args:
        prefix: Its ``topic.prefix``.
        partitions: Of each table's topic. Those that tell of transactions have one, since their order counts.
        replication_factor: Of all topics; -1: the broker's default.
    """
    topics = SourceTopics(prefix)
    single = (topics.transactions, topics.notifications, f"__debezium-heartbeat.{prefix}")
    return {
        "topic.creation.default.partitions": str(partitions),
        "topic.creation.default.replication.factor": str(replication_factor),
        "topic.creation.groups": "single",
        "topic.creation.single.include": ",".join(re.escape(topic) for topic in single),
        "topic.creation.single.partitions": "1",
        "topic.creation.single.replication.factor": str(replication_factor),
    }


def faults_of(properties: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Returns what keeps a connector's topics from being read: property, the value it has, and what it needs.

    Args:
        properties: The connector's, as Connect has them.
    """
    needed = reading_properties(properties.get("topic.prefix", ""))
    found = []
    for name in REASONS:
        has = properties.get(name, _DEFAULTS.get(name, "nothing"))
        if name == "heartbeat.interval.ms":
            if has == "0":
                found.append((name, has, "more than 0"))
        elif name == "publication.autocreate.mode":
            if has != "disabled" and properties.get("publish.via.partition.root") != "true":
                found.append((name, has, "disabled, or publish.via.partition.root=true as well"))
        elif has != needed[name] and not (name == "notification.sink.topic.name" and has != "nothing"):
            found.append((name, has, needed[name]))
    return found


def publication_name(prefix: str) -> str:
    """Returns the name of the publication that the connector of this prefix reads."""
    return f"slackwater_{replication_name(prefix)}"[:63]


def replication_name(prefix: str) -> str:
    """Returns the prefix as the name of a replication slot, which allows fewer characters."""
    return re.sub(r"[^a-z0-9_]", "_", prefix.lower())[:63]
