"""What is read of a compacted topic and written to it: one behaviour over Kafka and over a log in memory."""

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from slackwater.cuts import TopicUnavailableError
from slackwater.cuts.compacted_topic import CompactedTopic
from slackwater.kafka import topic as topic_module
from slackwater.protocol import KafkaSettings
from slackwater_lab.topics import make_topics

SECONDS = 60
NO_OFFSET = -1001
"""As librdkafka names an offset that it does not know."""
Entry = tuple[bytes, bytes, int]
"""Key, value and offset of a record."""
Records = dict[bytes, bytes | None]


class PlainTopic(CompactedTopic[Entry]):
    """Has all records."""

    def _entry(self, value: bytes, offset: int, _: int, key: bytes) -> Entry:
        return key, value, offset


@dataclass
class Log:
    """One partition in memory; what it does not show yet becomes visible while somebody waits for it."""

    records: list[tuple[bytes, bytes | None] | None] = field(default_factory=list)
    """None has an offset, but no consumer sees it."""
    first: int = 0
    hidden: int = 0
    """How many of the newest records are not acknowledged by all replicas yet."""
    is_away: bool = False
    tells_offsets: bool = True
    errors: list[int] = field(default_factory=list)
    """Codes that reading returns, one at a time."""

    @property
    def end(self) -> int:
        return len(self.records) - self.hidden

    def write(self, values: Records) -> None:
        self.records += values.items()

    def write_in_transaction(self, values: Records) -> None:
        self.records += [*values.items(), None]

    def delete_before(self, offset: int) -> None:
        self.first = offset


class LogConsumer:
    """Stands in for Kafka's."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._position: int | None = None
        self._told_end = -1

    def get_watermark_offsets(self, _: TopicPartition, __: float) -> tuple[int, int]:
        if self._log.is_away:
            raise KafkaException(KafkaError(KafkaError.NETWORK_EXCEPTION))
        return self._log.first, self._log.end

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        assert self._position is None, "assigned partitions continue to be fetched"
        self._position, self._told_end = partitions[0].offset, -1

    def unassign(self) -> None:
        self._position = None

    def consume(self, count: int, _: float) -> list[Message]:
        log, position = self._log, self._position
        assert position is not None
        if log.errors:
            return [self._error(-1001, log.errors.pop(0))]
        if position < log.first:
            return [self._error(-1001, KafkaError._AUTO_OFFSET_RESET)]  # noqa: SLF001 - has no public name
        if position == log.end:
            log.hidden = max(0, log.hidden - 1) if self._told_end == position else log.hidden
            self._told_end = position
            return [self._error(position, KafkaError._PARTITION_EOF)]  # noqa: SLF001
        found = list[Message]()
        while position < log.end and len(found) < count:
            record = log.records[position]
            if record is not None:
                found.append(Message(topic="t", partition=0, offset=position, key=record[0], value=record[1]))
            position += 1
        self._position = position
        return found

    def close(self) -> None: ...

    @staticmethod
    def _error(offset: int, code: int) -> Message:
        return Message(topic="t", partition=0, offset=offset, error=KafkaError(code))


class LogProducer:
    """Stands in for Kafka's; what is queued is written later, too, unless it is purged.

    Of several requests under way, an earlier one that fails is sent again behind the later ones.
    """

    def __init__(self, log: Log, settings: Mapping[str, Any]) -> None:
        self._log = log
        self._place = 0 if settings.get("max.in.flight.requests.per.connection") == 1 else -1
        self._queue: list[tuple[bytes, bytes | None, Callable[[KafkaError | None, Message], None]]] = []

    def produce(
        self,
        _: str,
        value: bytes | None,
        key: bytes,
        *,
        partition: int,
        on_delivery: Callable[[KafkaError | None, Message], None],
    ) -> None:
        assert partition == 0
        self._queue.append((key, value, on_delivery))

    def poll(self, _: float) -> None: ...

    def flush(self, _: float) -> int:
        while self._queue and not self._log.is_away:
            key, value, report = self._queue.pop(self._place)
            self._log.records.append((key, value))
            offset = len(self._log.records) - 1 if self._log.tells_offsets else NO_OFFSET
            report(None, Message(topic="t", partition=0, offset=offset))
        return len(self._queue)

    def purge(self) -> None:
        purged, self._queue = self._queue, []
        for *_, report in purged:
            report(KafkaError(KafkaError._PURGE_QUEUE), Message(topic="t"))  # noqa: SLF001


class KafkaPartition:
    """The same of a real topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
        make_topics(bootstrap, [topic], 1)

    def write(self, values: Records) -> None:
        self._produce(Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True}), values)

    def write_in_transaction(self, values: Records) -> None:
        settings = {"bootstrap.servers": self._bootstrap, "transactional.id": self._topic}
        producer = Producer(settings)
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        self._produce(producer, values)
        end = self._end() + len(values) + 1
        producer.commit_transaction(SECONDS)
        while self._end() < end:  # its marker is written after the answer
            pass

    def _end(self) -> int:
        found = self._consumer.get_watermark_offsets(TopicPartition(self._topic, 0), SECONDS)
        assert found is not None
        return found[1]

    def close(self) -> None:
        self._consumer.close()

    def delete_before(self, offset: int) -> None:
        place = TopicPartition(self._topic, 0, offset)
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        admin.delete_records([place])[place].result(SECONDS)

    def _produce(self, producer: Producer, values: Records) -> None:
        for key, value in values.items():
            producer.produce(self._topic, value, key)
        assert producer.flush(SECONDS) == 0


def topic_of(bootstrap: str, name: str = "t", seconds: float = SECONDS) -> CompactedTopic[Entry]:
    kind = type("OwnTopic", (PlainTopic,), {"topic": name})
    made: CompactedTopic[Entry] = kind(KafkaSettings(bootstrap), timeout=timedelta(seconds=seconds))
    return made


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr("slackwater.kafka.reader.Consumer", lambda *_, **__: LogConsumer(log))
    monkeypatch.setattr(topic_module, "Producer", lambda settings: LogProducer(log, settings))
    return log


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.integration)])
def both(request: pytest.FixtureRequest) -> Iterator[tuple[CompactedTopic[Entry], Log | KafkaPartition]]:
    """A topic and how others write to it; reading in front of its first record is an error."""
    if request.param == "memory":
        yield topic_of("b:1"), request.getfixturevalue("log")
        return
    bootstrap, name = request.getfixturevalue("bootstrap"), f"compacted-{uuid.uuid4().hex[:10]}"
    partition = KafkaPartition(bootstrap, name)
    topic = topic_of(bootstrap, name)
    yield topic, partition
    topic.close()
    partition.close()


Both = tuple[CompactedTopic[Entry], Log | KafkaPartition]


def test_the_newest_record_of_each_key_is_read_in_the_order_of_the_newest_records(both: Both) -> None:
    topic, others = both
    for values in ({b"a": b"1", b"b": b"1", b"c": b"1"}, {b"a": b"2"}, {b"c": None}):
        others.write(dict(values))
    assert topic.read() == [(b"b", b"1", 1), (b"a", b"2", 3)]
    others.write({b"c": b"3", b"b": b"2"})
    assert topic.read() == [(b"a", b"2", 3), (b"c", b"3", 5), (b"b", b"2", 6)]
    others.write({b"a": None})
    assert topic.read() == [(b"c", b"3", 5), (b"b", b"2", 6)]


def test_an_end_that_no_record_has_is_reached(both: Both) -> None:
    """Behind a transaction there is its marker, and compaction removes records."""
    topic, others = both
    others.write_in_transaction({b"a": b"1"})
    assert topic.read() == [(b"a", b"1", 0)]
    others.write({b"b": b"1"})
    others.write_in_transaction({b"a": b"2"})
    assert topic.read() == topic.read() == [(b"b", b"1", 2), (b"a", b"2", 3)]
    assert topic.put("test", {b"c": b"1"}) == 5


def test_reading_begins_behind_what_was_deleted(both: Both) -> None:
    topic, others = both
    others.write({b"a": b"1", b"b": b"1", b"c": b"1"})
    others.delete_before(2)
    assert topic.read() == [(b"c", b"1", 2)]
    others.write({b"d": b"1", b"e": b"1"})
    others.delete_before(4)
    assert topic.read()[-1] == (b"e", b"1", 4)
    others.delete_before(5)
    assert topic.read()[-1] == (b"e", b"1", 4)


def test_what_is_deleted_while_it_is_read_is_passed_over(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    assign = LogConsumer.assign

    def assign_late(consumer: LogConsumer, partitions: Sequence[TopicPartition]) -> None:
        assign(consumer, partitions)
        log.delete_before(2)

    monkeypatch.setattr(LogConsumer, "assign", assign_late)
    log.write({b"a": b"1", b"b": b"1", b"c": b"1"})
    assert topic_of("b:1").read() == [(b"c", b"1", 2)]


def test_the_largest_offset_of_what_is_written_is_returned(both: Both) -> None:
    topic, others = both
    others.write({b"x": b"1"})
    assert topic.put("test", {b"a": b"1", b"b": b"1", b"x": None}) == 3
    assert topic.read() == [(b"a", b"1", 1), (b"b", b"1", 2)]


def test_more_records_than_are_fetched_at_once_are_read(both: Both) -> None:
    topic, others = both
    others.write({b"%d" % number: b"1" for number in range(2_500)})
    assert [key for key, *_ in topic.read()] == [b"%d" % number for number in range(2_500)]


@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_what_was_written_is_read_although_its_replicas_show_it_later(log: Log, hidden: int) -> None:
    topic = topic_of("b:1")
    log.write({b"a": b"1"})
    log.hidden = hidden
    topic.put("test", {b"b": b"1", b"c": b"1"})
    assert log.hidden == 0, "nobody has waited"
    assert topic.read() == [(b"a", b"1", 0), (b"b", b"1", 1), (b"c", b"1", 2)]


def test_of_a_topic_that_was_made_anew_only_what_it_has_now_is_read(log: Log) -> None:
    topic = topic_of("b:1")
    log.write({b"a": b"1", b"b": b"1"})
    topic.read()
    log.records.clear()
    log.write({b"b": b"2"})
    assert topic.read() == [(b"b", b"2", 0)]


def test_what_is_said_to_have_failed_is_not_written_later(log: Log) -> None:
    topic = topic_of("b:1")
    log.is_away = True
    with pytest.raises(TopicUnavailableError, match=r"no acknowledgement within 60 s"):
        topic.put("test", {b"a": b"1"})
    log.is_away = False
    topic.put("test", {b"b": b"1"})
    assert topic.read() == [(b"b", b"1", 0)]


def test_a_record_that_is_acknowledged_without_its_offset_does_not_count_as_the_first_one(log: Log) -> None:
    topic = topic_of("b:1")
    log.tells_offsets = False
    with pytest.raises(TopicUnavailableError, match="acknowledged without an offset"):
        topic.put("test", {b"a": b"1"})


def test_errors_that_pass_while_it_is_read_are_waited_for_and_others_are_not(log: Log) -> None:
    topic = topic_of("b:1")
    log.write({b"a": b"1"})
    log.errors = [KafkaError.LEADER_NOT_AVAILABLE, KafkaError.GROUP_AUTHORIZATION_FAILED]
    assert topic.read() == [(b"a", b"1", 0)]
    log.write({b"b": b"1"})
    log.errors = [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(TopicUnavailableError, match="read"):
        topic.read()
    assert topic.read() == [(b"a", b"1", 0), (b"b", b"1", 1)], "nothing is passed over"


def test_a_reader_gives_up_at_its_time_out_and_says_what_it_has_waited_for(log: Log) -> None:
    topic = topic_of("b:1", seconds=0.2)
    log.write({b"a": b"1"})
    log.errors = [KafkaError.LEADER_NOT_AVAILABLE] * 1_000_000
    with pytest.raises(
        TopicUnavailableError,
        match=r"at offset 0 of 1, tried for 0\.2 s: Broker: Leader not available",
    ):
        topic.read()


def test_the_first_record_that_is_lost_is_logged_and_the_first_after_one_that_was_not(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_of("b:1")
    with caplog.at_level(logging.WARNING, topic_module.__name__):
        for is_away, lines in ((True, 1), (True, 1), (False, 1), (True, 2)):
            log.is_away = is_away
            topic.send(b"a", b"1")
            topic.close()
            assert caplog.text.count("was lost") == lines
