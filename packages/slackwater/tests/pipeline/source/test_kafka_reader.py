"""Exact stretches of partitions, against a real broker."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from slackwater.cdc.batch import OffsetSpan
from slackwater.cuts import RecordsGoneError
from slackwater.dev import KafkaBroker
from slackwater.outputs.contract import REQUEST_TIMEOUT
from slackwater.pipeline.source.kafka_reader import SpanReader, first_values, kept_consumer
from slackwater.protocol import KafkaSettings, StateError, UnavailableError
from slackwater_lab.topics import make_topics

pytestmark = pytest.mark.integration

Values = dict[int, list[str]]


class Topic:
    """A topic of its own, with a producer."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.name = f"t-{uuid.uuid4().hex[:12]}"
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        make_topics(bootstrap, [self.name], partitions)

    def write(self, partition: int, values: Sequence[str]) -> None:
        # idempotent: a new topic refuses the first batches, and others would overtake them
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        for value in values:
            producer.produce(self.name, value, partition=partition)
        assert producer.flush(20) == 0

    def transaction(self, partition: int, values: Sequence[str]) -> Producer:
        """An open transaction."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(20)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.name, value, partition=partition)
        producer.flush(20)
        return producer

    def span(self, partition: int, from_offset: int, to_offset: int) -> OffsetSpan:
        return OffsetSpan(self.name, partition, from_offset, to_offset, partition)

    def read(self, *spans: OffsetSpan, timeout: float = 20.0, may_start_late: bool = False) -> Values:
        result: Values = {}
        offsets: dict[int, list[int]] = {}
        with kept_consumer({"bootstrap.servers": self.bootstrap}) as consumer:
            reader = SpanReader(consumer, timeout_seconds=timeout, may_start_late=may_start_late)
            for span, messages in reader.read(spans):
                result.setdefault(span.partition, []).extend((m.value() or b"").decode() for m in messages)
                offsets.setdefault(span.partition, []).extend(m.offset() or 0 for m in messages)
        assert all(read == sorted(set(read)) for read in offsets.values())
        return result


@pytest.fixture
def make_topic(kafka_broker: KafkaBroker) -> Callable[[int], Topic]:
    return lambda partitions: Topic(kafka_broker.bootstrap, partitions)


MakeTopic = Callable[[int], Topic]


def numbers(first: int, end: int) -> list[str]:
    return [str(n) for n in range(first, end)]


def test_a_span_is_read_exactly(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.write(0, numbers(0, 100))
    assert topic.read(topic.span(0, 10, 60)) == {0: numbers(10, 60)}


@pytest.mark.full
def test_spans_of_several_partitions_are_read_side_by_side(make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    for partition in range(3):
        topic.write(partition, numbers(0, 30_000))
    spans = topic.span(0, 5, 25_000), topic.span(1, 0, 30_000), topic.span(2, 29_999, 30_000)
    assert topic.read(*spans) == {0: numbers(5, 25_000), 1: numbers(0, 30_000), 2: ["29999"]}


def test_the_kept_consumer_starts_anew_each_time(make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    for partition in (0, 1):
        topic.write(partition, numbers(0, 50_000))
    for first in (40_000, 100, 0, 49_000):
        spans = topic.span(0, first, first + 1000), topic.span(1, first, first + 10)
        assert topic.read(*spans) == {0: numbers(first, first + 1000), 1: numbers(first, first + 10)}


def test_nothing_is_asked_of_kafka_for_an_empty_span(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    assert topic.read(topic.span(0, 5, 5), timeout=0) == {}
    assert topic.read(timeout=0) == {}


def test_a_marker_at_the_end_of_a_span_is_passed_at_the_end_of_the_partition(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.transaction(0, numbers(0, 10)).commit_transaction(20)
    assert topic.read(topic.span(0, 0, 11)) == {0: numbers(0, 10)}
    assert topic.read(topic.span(0, 10, 11)) == {}


def test_a_marker_at_the_end_of_a_span_is_passed_inside_the_partition(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.transaction(0, numbers(0, 10)).commit_transaction(20)
    topic.write(0, ["later"])
    assert topic.read(topic.span(0, 0, 11)) == {0: numbers(0, 10)}


def test_aborted_records_are_passed(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.write(0, ["first"])
    topic.transaction(0, numbers(0, 500)).abort_transaction(20)
    assert topic.read(topic.span(0, 0, 502)) == {0: ["first"]}
    topic.write(0, ["last"])
    assert topic.read(topic.span(0, 0, 503)) == {0: ["first", "last"]}


@pytest.mark.full
def test_an_unfinished_transaction_is_reported_with_its_place(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.write(0, ["first"])
    unfinished = topic.transaction(0, ["held back"])
    with pytest.raises(
        UnavailableError, match="reading stopped at offset 1 instead of 2: no records arrived"
    ) as caught:
        topic.read(topic.span(0, 0, 2), timeout=2.5)
    assert "no unfinished Kafka transaction" in str(caught.value)
    unfinished.commit_transaction(20)
    assert topic.read(topic.span(0, 0, 2)) == {0: ["first", "held back"]}


def test_a_truncated_topic_is_an_error_that_says_which_offsets_are_gone(make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    topic.write(1, numbers(0, 10))
    [deleted] = topic.admin.delete_records([TopicPartition(topic.name, 1, 4)]).values()
    deleted.result(300)
    with pytest.raises(RecordsGoneError, match="topic starts at 4: 3 offsets are gone") as caught:
        topic.read(topic.span(1, 1, 10))
    assert str(caught.value).startswith(f"topic {topic.name}, partition 1: ")
    assert topic.read(topic.span(1, 1, 10), may_start_late=True) == {1: numbers(4, 10)}
    assert topic.read(topic.span(1, 1, 3), may_start_late=True) == {}
    with pytest.raises(RecordsGoneError):  # something has been read of it before
        topic.read(replace(topic.span(1, 1, 10), after_lsn=7), may_start_late=True)


def test_a_topic_that_was_made_again_is_an_error(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.write(0, numbers(0, 3))
    with pytest.raises(RecordsGoneError, match="deleted and recreated"):
        topic.read(topic.span(0, 50, 60))


def test_a_topic_that_is_gone_is_an_error(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    with pytest.raises(StateError, match="topic gone has no partition 0, or does not exist"):
        topic.read(OffsetSpan("gone", 0, 0, 5, 0))
    with pytest.raises(StateError, match="has no partition 7"):
        topic.read(topic.span(7, 0, 5), may_start_late=True)


def test_a_broker_that_is_away_is_an_error(make_topic: MakeTopic) -> None:
    reader_of_nothing = make_topic(1)
    reader_of_nothing.bootstrap = "127.0.0.1:1"
    with pytest.raises(UnavailableError, match="check that the brokers are up"):
        reader_of_nothing.read(reader_of_nothing.span(0, 0, 5), timeout=0.3)


def test_topics_begin_with_their_first_committed_records(make_topic: MakeTopic) -> None:
    first, second = make_topic(3), make_topic(1)
    first.transaction(0, ["aborted"]).abort_transaction(20)
    first.write(0, ["a"])
    first.write(2, ["b", "", *numbers(0, 500)])
    first.transaction(2, ["open"])
    topics = [first.name, second.name, f"{second.name}-absent"]
    found = list(first_values(KafkaSettings(first.bootstrap), topics, REQUEST_TIMEOUT))
    assert sorted(found)[-2:] == [b"a", b"b"]
    assert len(found) < 200, "not all of them are read"
    assert list(first_values(KafkaSettings(first.bootstrap), topics[1:], REQUEST_TIMEOUT)) == []
