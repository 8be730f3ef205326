"""A database and a broker, for tests in one process."""

import uuid
from dataclasses import dataclass, field
from typing import Any

import psycopg
from confluent_kafka import Message as Record

from slackwater.protocol import KafkaSettings
from slackwater_lab.topics import make_topics, read_to_end
from slackwater_messaging import Message, Outbox


@dataclass
class World:
    """A database, a broker, and a topic, an outbox and a business table of one's own."""

    dsn: str
    bootstrap: str
    name: str = field(default_factory=lambda: f"w{uuid.uuid4().hex[:10]}")

    def __post_init__(self) -> None:
        """Makes them."""
        self.kafka = KafkaSettings(self.bootstrap)
        self.outbox = Outbox(f"{self.name}_outbox")
        self.table = f"{self.name}_business"
        self.connection = psycopg.Connection[Any].connect(self.dsn, autocommit=True)
        self.outbox.create(self.connection)
        self.connection.execute(f"CREATE TABLE {self.table} (number bigint PRIMARY KEY)".encode())
        self.topic = self.make_topic("out")

    def make_topic(self, name: str, partitions: int = 1) -> str:
        """Makes a topic; returns its whole name."""
        topic = f"{self.name}.{name}"
        make_topics(self.bootstrap, [topic], partitions)
        return topic

    def message(self, value: str, key: str = "k") -> Message:
        return Message(topic=self.topic, key=key.encode(), value=value.encode())

    def insert(self, number: int) -> tuple[bytes, list[int]]:
        """Returns a statement, with its parameters, that does business."""
        return f"INSERT INTO {self.table} VALUES (%s)".encode(), [number]  # noqa: S608 - our own name

    @property
    def numbers(self) -> list[int]:
        found = self.connection.execute(f"SELECT number FROM {self.table} ORDER BY number".encode())  # noqa: S608
        return [number for (number,) in found]

    @property
    def waiting(self) -> int:
        query = f"SELECT count(*) FROM {self.outbox.table}".encode()  # noqa: S608 - our own name
        row = self.connection.execute(query).fetchone()
        return int(row[0]) if row else -1

    def records(self, topic: str | None = None) -> list[Record]:
        """Returns what a reader of committed records sees, by partition."""
        return list(read_to_end(self.bootstrap, topic or self.topic))

    def values(self, topic: str | None = None) -> list[str]:
        return [(record.value() or b"").decode() for record in self.records(topic)]
