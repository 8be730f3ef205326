"""Fills topics with what a connector would have written for a workload."""

from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater.pipeline.source.kafka_reader import collector_paused
from slackwater.protocol.keys import notification_topic
from slackwater_lab.debezium.records import snapshot_notifications
from slackwater_lab.errors import RunFailedError
from slackwater_lab.generator.debezium_records import ConnectorIdentity, Headers
from slackwater_lab.generator.share import TRANSACTIONS, Share
from slackwater_lab.topics import make_topics
from slackwater_lab.workloads.workload import Workload

_FLUSH_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Filled:
    """The size of what one call wrote."""

    events: int
    transactions: int
    last_commit_lsn: int


class TopicFiller:
    """Simulates the database and writes its topics; continues where the last call ended.

    Args:
        bootstrap: The broker. The topics are created and must not exist.
        workload: What happens in the database.
        prefix: The connector's ``topic.prefix``.
        partitions: Of each data topic.
    """

    def __init__(self, bootstrap: str, workload: Workload, *, prefix: str, partitions: int) -> None:
        announce_empty_tables(bootstrap, prefix, workload.tables)
        make_topics(bootstrap, [f"{prefix}.{name}" for name in workload.tables], partitions)
        make_topics(bootstrap, [f"{prefix}.{TRANSACTIONS}"], 1)
        self._output = TopicOutput(bootstrap)
        self._share = Share(workload, ConnectorIdentity(prefix), self._output.put)

    def fill(self, events: int) -> Filled:
        """Writes whole transactions with at least ``events`` change events; returns when Kafka has them.

        The first call writes the workload's first transactions before that, whatever their number.

        Raises:
            RunFailedError: Kafka does not take them.
        """
        with collector_paused():
            first = self._share.begin()
            more = self._share.advance(events)
        self._output.flush()
        return Filled(first[0] + more[0], first[1] + more[1], self._share.log.last_commit_lsn)


class TopicOutput:
    """Produces records; used by one thread."""

    def __init__(self, bootstrap: str, *, linger_ms: int = 50) -> None:
        self._bootstrap = bootstrap
        self._error: KafkaError | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "compression.type": "lz4",
                "linger.ms": linger_ms,
                "batch.size": 1_000_000,
                "queue.buffering.max.messages": 500_000,
                "error_cb": self._note,
                "delivery.report.only.error": True,
                "on_delivery": self._note_delivery,
                "log_level": 2,  # a broker that is stopped under it is no news
            }
        )

    def put(self, topic: str, value: str | None, key: str, headers: Headers) -> None:
        """Takes one record."""
        try:
            self._producer.produce(topic, value, key, headers=headers)
        except BufferError:
            self._producer.poll(0.2)
            self.put(topic, value, key, headers)

    def serve(self) -> None:
        """Lets the producer tell of deliveries."""
        self._producer.poll(0)

    def flush(self, seconds: float = _FLUSH_SECONDS) -> None:
        """Waits until the broker has all records.

        Raises:
            RunFailedError: it does not get them.
        """
        left = self._producer.flush(seconds)
        reason = f"{left} records are left after {seconds:g} s" if left else ""
        if self._error is not None:
            reason = self._error.str()
        if reason:
            what = f"Kafka at {self._bootstrap} did not take all records"
            raise RunFailedError(what, f"{reason}; is it running?")

    def _note(self, error: KafkaError) -> None:
        if error.fatal():
            self._error = error

    def _note_delivery(self, error: KafkaError | None, _: Message) -> None:
        self._error = error or self._error


def announce_empty_tables(bootstrap: str, prefix: str, tables: Iterable[str]) -> None:
    """Writes the notifications of a first snapshot that has found no row.

    Raises:
        confluent_kafka.KafkaException: their topic exists, or the broker does not answer.
    """
    topic = notification_topic(prefix)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in snapshot_notifications(dict.fromkeys(tables, 0)):
        producer.produce(topic, value)
    producer.flush(_FLUSH_SECONDS)
