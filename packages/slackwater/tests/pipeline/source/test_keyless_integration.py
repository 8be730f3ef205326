"""Rows of a table without key, repeated into other partitions of a real topic, read by tasks."""

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import pytest
from confluent_kafka import Producer
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructType, TimestampType

from slackwater.cdc import BadInputError
from slackwater.cdc.keyless import RUN_HEADER
from slackwater.dev import KafkaBroker
from slackwater.pipeline.source.data_source import ROW_SCHEMA
from slackwater.pipeline.source.feed import Feed
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.planner import Planner
from slackwater.pipeline.source.task import read_task
from slackwater.protocol import PublishedCut
from slackwater_lab.fakes.memory import InMemoryCutLog
from slackwater_lab.topics import make_topics

pytestmark = pytest.mark.integration

TABLE = "s.events"
PARTITIONS = 3
TYPES: dict[str, DataType] = {
    "STRING": StringType(),
    "BIGINT": LongType(),
    "INT": IntegerType(),
    "TIMESTAMP": TimestampType(),
}


class Topic:
    """Plays connector and sidecar for one table without key."""

    def __init__(
        self,
        broker: KafkaBroker,
        source: str,
        row_value: Callable[..., bytes],
        published: Callable[..., PublishedCut],
    ) -> None:
        self._source, self._row_value, self._published = source, row_value, published
        self._broker = broker
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        self._ends = [0] * PARTITIONS
        self._next = 0
        make_topics(broker.bootstrap, [f"{source}.{TABLE}"], PARTITIONS)

    def write(self, run: str, orders: Sequence[int], lsns: Sequence[int], texts: Sequence[str]) -> None:
        """A connector run's rows of transaction 7, spread over the partitions."""
        for order, lsn, text in zip(orders, lsns, texts, strict=True):
            partition = self._next = (self._next + 1) % PARTITIONS
            value = self._row_value(7, lsn, table=TABLE, order=order, after={"text": text})
            headers: list[tuple[str, str | bytes | None]] = [(RUN_HEADER, run.encode())]
            self._producer.produce(f"{self._source}.{TABLE}", value, partition=partition, headers=headers)
            self._ends[partition] += 1

    def read(self) -> Counter[str]:
        """What the tasks of one batch over everything find."""
        assert self._producer.flush(20) == 0
        ends = {f"{self._source}.{TABLE}": tuple(self._ends)}
        cut = self._published(
            1000, 0, source=self._source, transactions={7: 1000}, end_offsets=ends, repeated=frozenset({1000})
        ).cut
        log = InMemoryCutLog(self._source)
        log.append([cut])
        options = SourceOptions.parse(
            {
                "source": self._source,
                "bootstrap": self._broker.bootstrap,
                "tables": TABLE,
                "parallelism": "3",
                "min_task_events": "1",
            }
        )
        planner = Planner(options, Feed(options, store=None, log=log, monotonic=lambda: 0.0))
        start = planner.start()
        tasks = planner.tasks(start, planner.next(start, None, None))
        found: Counter[str] = Counter()
        for task in tasks:
            for batch in read_task(options, row_schema(), task):
                found.update(msgspec.json.decode(text)["text"] for text in batch.column("after").to_pylist())
        return found


def row_schema() -> StructType:
    schema = StructType()
    for column in ROW_SCHEMA.split(", "):
        name, kind = column.split()
        schema.add(name.strip("`"), TYPES[kind])
    return schema


@pytest.fixture
def topic(
    kafka_broker: KafkaBroker,
    source: str,
    row_value: Callable[..., bytes],
    published: Callable[..., PublishedCut],
) -> Topic:
    return Topic(kafka_broker, source, row_value, published)


def test_rows_that_came_again_in_other_partitions_count_once(topic: Topic) -> None:
    topic.write("run-1", [1, 2, 3], [10, 20, 20], "aaa")
    topic.write("run-2", [1, 2, 3, 4], [10, 20, 20, 30], "aaab")
    assert topic.read() == {"a": 3, "b": 1}


def test_rows_that_came_again_with_new_numbers_count_once(topic: Topic) -> None:
    topic.write("run-1", [1, 2, 3], [10, 20, 30], "abc")
    topic.write("run-2", [1, 2, 3], [20, 30, 40], "bcd")
    assert topic.read() == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_the_batch_stops_where_equal_rows_cannot_be_told_apart(topic: Topic) -> None:
    topic.write("run-1", [1, 2], [10, 10], "aa")
    topic.write("run-2", [1, 2], [10, 10], "aa")
    with pytest.raises(BadInputError, match="it cannot be determined which of them are the same row"):
        topic.read()
