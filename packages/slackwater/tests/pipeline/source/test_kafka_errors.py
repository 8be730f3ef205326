"""What a task does when Kafka reports errors while it reads: waits for those that pass, names the others."""

import pytest
from confluent_kafka import KafkaError

from slackwater.cdc.batch import OffsetSpan
from slackwater.cuts import RecordsGoneError
from slackwater.pipeline.source.kafka_reader import SpanReader
from slackwater.protocol import StateError, UnavailableError
from slackwater_lab.fakes.topics import FlakyConsumer

VALUES = [b"a", b"b", b"c"]
SPAN = OffsetSpan("t", 0, 0, 3, 0)
OTHER = KafkaError.NO_ERROR


def code(name: str) -> int:
    return int(getattr(KafkaError, name))


def read(
    *errors: str, seconds: float = 20.0, may_start_late: bool = False, topic: str = "t"
) -> tuple[list[bytes | None], FlakyConsumer]:
    consumer = FlakyConsumer({(topic, 0): VALUES}, [code(name) for name in errors])
    reader = SpanReader(
        consumer,  # type: ignore[arg-type]
        timeout_seconds=seconds,
        may_start_late=may_start_late,
    )
    return [m.value() for _, messages in reader.read([SPAN]) for m in messages], consumer


@pytest.mark.parametrize(
    "name", ["NOT_LEADER_FOR_PARTITION", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT"]
)
def test_a_task_goes_on_after_transient_errors(name: str) -> None:
    """Seen to raise UnavailableError while every error ended the task."""
    values, consumer = read(name, name, name)
    assert (values, consumer.errors) == (VALUES, [])


@pytest.mark.parametrize("name", ["NOT_LEADER_FOR_PARTITION", "_TRANSPORT"])
def test_asking_where_a_partition_begins_is_repeated(name: str) -> None:
    values, consumer = read(name, name, may_start_late=True)
    assert (values, consumer.errors) == (VALUES, [])


@pytest.mark.parametrize("name", ["TOPIC_AUTHORIZATION_FAILED", "UNSUPPORTED_VERSION", "UNKNOWN"])
@pytest.mark.parametrize("may_start_late", [False, True])
def test_other_errors_end_the_task_at_once(name: str, may_start_late: bool) -> None:
    with pytest.raises(
        UnavailableError, match=r"topic t, partition 0: reading stopped at offset 0 instead of 3"
    ):
        read(name, may_start_late=may_start_late)


@pytest.mark.parametrize("name", ["_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"])
def test_offsets_that_are_gone_are_not_waited_for(name: str) -> None:
    with pytest.raises(RecordsGoneError):
        read(name)


@pytest.mark.parametrize(
    ("earliest", "end", "told"),
    [(2, 3, "topic starts at 2: 2 offsets are gone"), (0, -1, "deleted and recreated")],
)
def test_a_topic_that_was_made_again_is_told_from_a_truncated_one(earliest: int, end: int, told: str) -> None:
    class Bounded(FlakyConsumer):
        def get_watermark_offsets(self, *_: object, **_named: object) -> tuple[int, int]:
            return earliest, end

    consumer = Bounded({("t", 0): VALUES}, [code("OFFSET_OUT_OF_RANGE")])
    reader = SpanReader(consumer, timeout_seconds=20.0)  # type: ignore[arg-type]
    with pytest.raises(RecordsGoneError, match=told):
        list(reader.read([SPAN]))


@pytest.mark.parametrize("name", ["UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"])
def test_a_topic_is_missing_when_the_broker_says_so_in_its_list_of_topics(name: str) -> None:
    assert read(name)[0] == VALUES
    assert read(name, "LEADER_NOT_AVAILABLE", name)[0] == VALUES  # the list does not come
    with pytest.raises(StateError):
        read(name, topic="another")


def test_a_topic_without_a_leader_is_not_missing() -> None:
    class Leaderless(FlakyConsumer):
        def list_topics(self, topic: str | None = None, timeout: float = -1) -> object:
            listed = super().list_topics(topic, timeout)
            listed.topics["t"].error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
            listed.topics["t"].partitions = {}
            return listed

    consumer = Leaderless({("t", 0): VALUES}, [code("UNKNOWN_TOPIC_OR_PART")])
    reader = SpanReader(consumer, timeout_seconds=20.0)  # type: ignore[arg-type]
    assert [m.value() for _, messages in reader.read([SPAN]) for m in messages] == VALUES


@pytest.mark.parametrize("name", ["NOT_LEADER_FOR_PARTITION", "_ALL_BROKERS_DOWN"])
def test_errors_are_no_progress_and_the_last_one_is_named(name: str) -> None:
    """While each error counted as progress, this waited for ever."""
    with pytest.raises(
        UnavailableError, match=r"no records arrived for 0\.2 s \(tried for 0\.2 s: "
    ) as caught:
        read(*[name] * 1_000_000, seconds=0.2)
    assert KafkaError(code(name)).str() in str(caught.value)


def test_errors_of_the_connection_are_told_only_when_nothing_comes() -> None:
    """librdkafka reports a connection that breaks while it is being secured as refused."""

    class Nameless(FlakyConsumer):
        def consume(self, count: int, timeout: float = -1) -> list[object]:  # type: ignore[override]
            from confluent_kafka import Message

            if self.errors:
                return [Message(topic=None, error=KafkaError(self.errors.pop(0)))]
            return list(super().consume(count, timeout))

    failed = [code("_AUTHENTICATION")] * 3
    reader = SpanReader(Nameless({("t", 0): VALUES}, failed), timeout_seconds=20.0)  # type: ignore[arg-type]
    assert [m.value() for _, messages in reader.read([SPAN]) for m in messages] == VALUES
    reader = SpanReader(Nameless({("t", 0): VALUES}, failed * 400_000), timeout_seconds=0.2)  # type: ignore[arg-type]
    with pytest.raises(UnavailableError, match="Authentication failure"):
        list(reader.read([SPAN]))


def test_errors_of_partitions_that_are_read_no_more_are_ignored() -> None:
    class Stale(FlakyConsumer):
        def consume(self, count: int, timeout: float = -1) -> list[object]:  # type: ignore[override]
            from confluent_kafka import Message

            stale = [Message(topic="t", partition=7, error=KafkaError(e)) for e in self.errors[:1]]
            del self.errors[:1]
            return [*stale, *super().consume(count, timeout)]

    consumer = Stale({("t", 0): VALUES}, [code("TOPIC_AUTHORIZATION_FAILED")])
    reader = SpanReader(consumer, timeout_seconds=20.0)  # type: ignore[arg-type]
    assert [m.value() for _, messages in reader.read([SPAN]) for m in messages] == VALUES
