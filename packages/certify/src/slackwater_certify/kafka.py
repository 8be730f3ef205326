"""Reads whole topics with plain ``read_committed`` consumers: no groups, nothing committed."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from slackwater_certify.errors import unreadable

_log = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
BATCH = 10_000
MAX_IDLE_POLLS = 300
"""Polls of 0.2 s, a minute together: as long as a transaction may stay open by default."""
_LOOK_AGAIN_SECONDS = 0.2
_TRANSIENT = (
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - librdkafka's own codes have no other name
    KafkaError._TIMED_OUT,  # noqa: SLF001
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
)
"""A broker restarts: the consumer continues by itself; how long nothing may come is limited elsewhere."""

Ends = dict[tuple[str, int], int]
"""By topic and partition: the offset behind the last record."""
Brokers = Mapping[str, str]
"""librdkafka settings by which the brokers are reached, ``bootstrap.servers`` among them."""


def read_topics(brokers: Brokers, topics: Sequence[str], ends: Ends | None = None) -> Iterator[Message]:
    """Yields every committed record that is in the topics now, or below some end offsets, by partition.

    Raises:
        CertifyError: a topic is missing or cannot be read.
    """
    with _consumer(brokers, ", ".join(topics)) as consumer:
        ends = dict(end_offsets(consumer, topics) if ends is None else ends)
        if ends:
            consumer.assign([TopicPartition(t, p, OFFSET_BEGINNING) for t, p in ends])
        idle = 0
        while ends:
            idle = _check_idle(idle, ends)
            for message in _consume(consumer, 0.2):
                idle = 0
                end = ends.get((str(message.topic()), message.partition() or 0))
                if end is not None and (message.offset() or 0) < end:
                    yield message
            for topic, partition in _drop_reached(consumer, ends):
                consumer.incremental_unassign([TopicPartition(topic, partition)])


def follow_topics(
    brokers: Brokers, topics: Sequence[str], is_over: Callable[[], bool], least_ends: Callable[[], Ends]
) -> Iterator[Message]:
    """Yields every committed record from the beginning as it becomes visible, to the end when it is over.

    Waits for topics that do not exist yet. Continues until it has reached ``least_ends``, which the records
    that were read determine.

    Raises:
        CertifyError: a topic is missing until the end or cannot be read.
    """
    with _consumer(brokers, ", ".join(topics)) as consumer:
        consumer.assign(_await_partitions(consumer, topics, is_over))
        while not is_over():
            yield from _consume(consumer, 0.02)
        ends = end_offsets(consumer, topics)
        idle = 0
        while ends:
            idle = _check_idle(idle, ends)
            for message in _consume(consumer, 0.2):
                idle = 0
                yield message
            _drop_reached(consumer, ends)
            if not ends:
                ends = least_ends()
                _drop_reached(consumer, ends)


def current_ends(brokers: Brokers, topics: Sequence[str]) -> Ends:
    """Asks for the end offsets of the partitions that hold anything.

    Raises:
        CertifyError: a topic is missing or cannot be read.
    """
    with _consumer(brokers, ", ".join(topics)) as consumer:
        return end_offsets(consumer, topics)


def existing(brokers: Brokers, topics: Sequence[str]) -> list[str]:
    """Returns the topics that exist; a connector creates a table's topic with its first change.

    Raises:
        CertifyError: the brokers do not answer.
    """
    with _consumer(brokers, f"Kafka at {brokers['bootstrap.servers']}") as consumer:
        known = _known(consumer)
    return [topic for topic in topics if topic in known]


def end_offsets(consumer: Consumer, topics: Sequence[str]) -> Ends:
    """Asks a consumer for the end offsets of the partitions that hold anything."""
    ends = {}
    for place in _partitions(consumer, topics):
        low, high = consumer.get_watermark_offsets(place, timeout=REQUEST_SECONDS)
        if high > low:
            ends[place.topic, place.partition] = high
    return ends


def place_of(message: Message) -> str:
    """Names a record as ``topic/partition/offset``."""
    return f"{message.topic()}/{message.partition()}/{message.offset()}"


def _known(consumer: Consumer) -> dict[str, Any]:
    topics: dict[str, Any] = consumer.list_topics(timeout=REQUEST_SECONDS).topics
    return topics


def _partitions(consumer: Consumer, topics: Sequence[str]) -> list[TopicPartition]:
    known = _known(consumer)
    for topic in topics:
        if topic not in known:
            raise unreadable(f"topic {topic}", "it does not exist")
    return [TopicPartition(t, p, OFFSET_BEGINNING) for t in topics for p in sorted(known[t].partitions)]


def _await_partitions(
    consumer: Consumer, topics: Sequence[str], is_over: Callable[[], bool]
) -> list[TopicPartition]:
    while not is_over() and not _known(consumer).keys() >= set(topics):
        consumer.poll(_LOOK_AGAIN_SECONDS)
    return _partitions(consumer, topics)


@contextmanager
def _consumer(brokers: Brokers, what: str) -> Iterator[Consumer]:
    """Opens a consumer; an error of Kafka within the block says that ``what`` cannot be read."""
    settings: dict[str, str | int | bool] = {
        "group.id": "slackwater-certify",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
        "fetch.wait.max.ms": 20,
        "queued.max.messages.kbytes": 65_536,
        **brokers,
    }
    consumer = Consumer(settings, logger=_log)
    try:
        yield consumer
    except KafkaException as error:
        raise unreadable(what, str(error)) from error
    finally:
        consumer.close()


def _consume(consumer: Consumer, seconds: float) -> Iterator[Message]:
    for message in consumer.consume(BATCH, seconds):
        error = message.error()
        if error is None:
            yield message
        elif error.code() not in _TRANSIENT:
            raise unreadable(f"topic {message.topic()}", error.str())


def _check_idle(idle: int, ends: Ends) -> int:
    """Counts polls without a record, so that an open transaction is an error rather than an endless wait."""
    if idle > MAX_IDLE_POLLS:
        topic, partition = next(iter(ends))
        what = f"partition {partition} of topic {topic}"
        raise unreadable(
            what, f"no records arrive below offset {ends[topic, partition]}; perhaps a transaction is open"
        )
    return idle + 1


def _drop_reached(consumer: Consumer, ends: Ends) -> list[tuple[str, int]]:
    """Removes the partitions that have been read to their ends; returns them."""
    places = consumer.position([TopicPartition(topic, partition) for topic, partition in ends])
    reached = [(p.topic, p.partition) for p in places if p.offset >= ends[p.topic, p.partition]]
    for place in reached:
        del ends[place]
    return reached
