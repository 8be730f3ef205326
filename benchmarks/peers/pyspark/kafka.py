"""Kafka for Spark as a Python data source: columns as Spark's connector has them, a task per partition."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

COLUMNS = "topic string, partition int, offset bigint, value string"


class KafkaSource(DataSource):
    """Options: bootstrap, topics, max_rows; for writing: bootstrap, topic."""

    @classmethod
    def name(cls) -> str:
        """As it is named in ``format(...)``."""
        return "plain_kafka"

    def schema(self) -> str:
        """The columns of a record."""
        return COLUMNS

    def streamReader(self, schema: Any) -> "KafkaReader":
        """Called by Spark."""
        return KafkaReader(self.options)

    def streamWriter(self, schema: Any, overwrite: bool) -> "KafkaWriter":
        """Called by Spark."""
        return KafkaWriter(self.options)


@dataclass
class KafkaRange(InputPartition):
    """A part of a batch."""

    topic: str
    partition: int
    start: int
    end: int


class KafkaReader(DataSourceStreamReader):
    """Offsets are ``{"topic/partition": next offset}``."""

    def __init__(self, options: Any) -> None:
        self._bootstrap = options["bootstrap"]
        self._topics = options["topics"].split(",")
        self._max_rows = int(options["max_rows"])
        self._driver: Consumer | None = None

    def initialOffset(self) -> dict[str, int]:
        """Everything from the beginning."""
        known = self._consumer().list_topics(timeout=30).topics
        return {
            f"{topic}/{number}": 0 for topic in self._topics for number in sorted(known[topic].partitions)
        }

    def getDefaultReadLimit(self) -> ReadLimit:
        """At most so many rows in a batch."""
        return ReadMaxRows(self._max_rows)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The ends of the partitions, or the same share of each within the limit."""
        ends = {name: max(at, self._end(name)) for name, at in start.items()}
        backlog = sum(ends.values()) - sum(start.values())
        if isinstance(limit, ReadAllAvailable) or backlog <= limit.max_rows:
            return ends
        share = limit.max_rows / backlog
        return {name: start[name] + int((end - start[name]) * share + 0.5) for name, end in ends.items()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One task per partition that has new records."""
        return [KafkaRange(*_place(name), at, end[name]) for name, at in start.items() if end[name] > at]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a range."""
        wanted = partition
        consumer = _new_consumer(self._bootstrap)
        consumer.assign([TopicPartition(wanted.topic, wanted.partition, wanted.start)])
        position = wanted.start
        while position < wanted.end:
            messages = consumer.consume(min(10_000, wanted.end - position), 1.0)
            if messages:
                position = messages[-1].offset() + 1
                yield _batch(wanted, messages)
        consumer.close()

    def _consumer(self) -> Consumer:
        if self._driver is None:
            self._driver = _new_consumer(self._bootstrap)
        return self._driver

    def _end(self, name: str) -> int:
        return self._consumer().get_watermark_offsets(TopicPartition(*_place(name)), timeout=30)[1]


class KafkaWriter(DataSourceStreamWriter):
    """Writes the columns ``key`` and ``value``; a null value is a tombstone."""

    def __init__(self, options: Any) -> None:
        self._bootstrap, self._topic = options["bootstrap"], options["topic"]

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """One producer per task; waits for the acknowledgements."""
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 5, "compression.type": "lz4"})
        for row in iterator:
            while True:
                try:
                    producer.produce(self._topic, row.value, row.key)
                except BufferError:
                    producer.poll(1)
                else:
                    break
        producer.flush()
        return WriterCommitMessage()


def _new_consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "plain-kafka",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
        }
    )


def _place(name: str) -> tuple[str, int]:
    topic, number = name.rsplit("/", 1)
    return topic, int(number)


def _batch(wanted: KafkaRange, messages: list[Any]) -> pa.RecordBatch:
    size = len(messages)
    columns = [
        pa.array([wanted.topic] * size),
        pa.array([wanted.partition] * size, pa.int32()),
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array([message.value() for message in messages], pa.binary()).cast(pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, ["topic", "partition", "offset", "value"])
