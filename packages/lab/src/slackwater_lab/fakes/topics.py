"""A consumer of topics in memory, to which Kafka's errors can happen; a pipeline that has registered."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from slackwater.protocol import Cut, PipelineRegistration, RegisteredStage, RegisteredView

Place = tuple[str, int]
_NO_ERROR = KafkaError.NO_ERROR

REGISTRATION = PipelineRegistration(
    pipeline="orders",
    base_name="orders",
    revision=1,
    owner="team shop",
    source="inv",
    timeline=1,
    emit="transactions",
    scope="strict",
    tables={"inventory.lines": "inv.inventory.lines", "inventory.orders": "inv.inventory.orders"},
    stages=(
        RegisteredStage(
            number=1, level=1, key=("id",), tables=("inventory.lines",), stages=(), why="computes groups"
        ),
        RegisteredStage(
            number=2, level=2, key=("id",), tables=("inventory.orders",), stages=(1,), why="joins"
        ),
    ),
    views=(
        RegisteredView(
            name="orders",
            output="shop.public.orders",
            kind="kafka",
            format="debezium",
            output_source="shop",
            tables=("inventory.lines", "inventory.orders"),
            stages=(1, 2),
        ),
    ),
    query_id="q",
    checkpoint="/c",
    run="r",
    host="host-7",
    pid=4711,
    version="0.1.0",
    started_ms=900_000,
)
"""A run of a pipeline of two stages, whose output is a table of source ``shop``."""


def make_cut(source: str, lsn: int, commit_ts_ms: int, timeline: int = 1) -> Cut:
    """Returns a cut of one change event, in topics that nobody looks at."""
    return Cut(
        source=source,
        timeline=timeline,
        lsn=lsn,
        previous_lsn=0,
        commit_ts_ms=commit_ts_ms,
        event_count=1,
        transactions=(),
        end_offsets={},
        transaction_offset=1,
    )


class FlakyConsumer:
    """Stands in for confluent_kafka's ``Consumer``, as far as it is used here.

    Args:
        topics: Values by topic and partition; offsets begin at 0.
        errors: Codes. Each happens to one request, in this order: a question fails with it, reading returns
            it in place of records. 0 lets a request succeed.
    """

    def __init__(self, topics: Mapping[Place, Sequence[bytes]], errors: Sequence[int] = ()) -> None:
        self._topics = topics
        self.errors = list(errors)
        self._positions: dict[Place, int] = {}
        self._told_end: set[Place] = set()
        self.is_closed = False

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        self._maybe_fail()
        found: dict[str, Any] = {}
        for name, number in self._topics:
            found.setdefault(name, SimpleNamespace(error=None, partitions={})).partitions[number] = number
        if topic is not None and topic not in found:
            gone = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            found[topic] = SimpleNamespace(error=gone, partitions={})
        return SimpleNamespace(topics=found)

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, *, cached: bool = False
    ) -> tuple[int, int]:
        self._maybe_fail()
        values = self._topics.get((partition.topic, partition.partition))
        if values is None:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return 0, len(values)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._positions = {(p.topic, p.partition): max(0, p.offset) for p in partitions}
        self._told_end.clear()

    def unassign(self) -> None:
        self._positions.clear()

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            del self._positions[partition.topic, partition.partition]

    def position(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        return [
            TopicPartition(p.topic, p.partition, self._positions[p.topic, p.partition]) for p in partitions
        ]

    def consume(self, count: int, timeout: float = -1) -> list[Message]:
        """Returns the next records of a partition and, once, its end; or an error."""
        code = self._next_error()
        if code != _NO_ERROR:
            topic, number = next(iter(self._positions))
            return [_message(topic, number, -1001, code)]
        found: list[Message] = []
        for (topic, number), position in self._positions.items():
            values = self._topics[topic, number][position : position + count - len(found)]
            for offset, value in enumerate(values, position):
                found.append(Message(topic=topic, partition=number, offset=offset, value=value))
            end = position + len(values)
            self._positions[topic, number] = end
            if not values and (topic, number) not in self._told_end:
                self._told_end.add((topic, number))
                found.append(_message(topic, number, end, KafkaError._PARTITION_EOF))  # noqa: SLF001
        return found

    def poll(self, timeout: float = -1) -> Message | None:
        return next(iter(self.consume(1, timeout)), None)

    def close(self) -> None:
        self.is_closed = True

    def _next_error(self) -> int:
        return self.errors.pop(0) if self.errors else _NO_ERROR

    def _maybe_fail(self) -> None:
        code = self._next_error()
        if code != _NO_ERROR:
            raise KafkaException(KafkaError(code))


def _message(topic: str, number: int, offset: int, code: int) -> Message:
    return Message(topic=topic, partition=number, offset=offset, error=KafkaError(code))
