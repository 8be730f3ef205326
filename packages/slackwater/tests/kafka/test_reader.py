"""What every reader of topics does, whatever the topic and the broker go through."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from slackwater.kafka.reader import Place, TopicReader
from slackwater.kafka.retry import ABSENT_CODES, OUT_OF_RANGE_CODES, TRANSIENT_CODES, code_of, reason_of
from slackwater_lab.fakes.topics import FlakyConsumer
from slackwater_lab.secured_servers import broker_with_user
from slackwater_lab.servers.stack import LabBroker
from slackwater_lab.topics import make_topics

SECONDS = 60.0
USER, PASSWORD = "reader", "secret-of-the-reader"


class StopError(Exception):
    """The request to stop."""


def values(found: Any) -> list[bytes | None]:
    return [message.value() for message in found]


# --- over a broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabBroker]:
    """Lets a user do what ACLs say, and everybody else everything."""
    with broker_with_user(tmp_path_factory.mktemp("kafka"), USER, PASSWORD) as server:
        yield server


class Topic:
    """A topic, and how others write to it."""

    def __init__(self, broker: LabBroker, partitions: int = 1) -> None:
        self.name = f"t-{uuid.uuid4().hex[:10]}"
        self.place: Place = (self.name, 0)
        self._config: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap}
        self._admin = AdminClient(self._config)
        self._watching = Consumer({**self._config, "group.id": "test", "isolation.level": "read_committed"})
        self._left: list[Producer] = []
        self.make(partitions)

    def make(self, partitions: int = 1) -> None:
        make_topics(str(self._config["bootstrap.servers"]), [self.name], partitions)

    def delete(self) -> None:
        self._admin.delete_topics([self.name])[self.name].result(SECONDS)
        while self.name in self._admin.list_topics(timeout=SECONDS).topics:
            pass

    def write(self, *found: bytes, partition: int = 0, time_ms: int = 0) -> None:
        self._produce(Producer({**self._config, "enable.idempotence": True}), found, partition, time_ms)

    def commit(self, *found: bytes) -> None:
        producer, end = self._begun(found), self.end() + len(found) + 1
        producer.commit_transaction(SECONDS)
        self._await(end)

    def abort(self, *found: bytes) -> None:
        producer, end = self._begun(found), self.end() + len(found) + 1
        producer.abort_transaction(SECONDS)
        self._await(end)

    def leave_open(self, *found: bytes) -> Callable[[], None]:
        """Returns what commits it."""
        producer = self._begun(found)
        self._left.append(producer)
        return lambda: producer.commit_transaction(SECONDS)

    def delete_before(self, offset: int) -> None:
        place = TopicPartition(*self.place, offset)
        self._admin.delete_records([place])[place].result(SECONDS)

    def end(self) -> int:
        found = self._watching.get_watermark_offsets(TopicPartition(*self.place), SECONDS)
        assert found is not None
        return found[1]

    def close(self) -> None:
        self._watching.close()

    def _begun(self, found: tuple[bytes, ...]) -> Producer:
        producer = Producer({**self._config, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        self._produce(producer, found, 0, 0)
        return producer

    def _await(self, end: int) -> None:
        while self.end() < end:  # a marker is written after the answer
            pass

    def _produce(self, producer: Producer, found: tuple[bytes, ...], partition: int, time_ms: int) -> None:
        for value in found:
            producer.produce(self.name, value, partition=partition, timestamp=time_ms)
        assert producer.flush(SECONDS) == 0


@pytest.fixture
def make_topic(broker: LabBroker) -> Iterator[Callable[..., Topic]]:
    made: list[Topic] = []

    def make(partitions: int = 1) -> Topic:
        made.append(Topic(broker, partitions))
        return made[-1]

    yield make
    for topic in made:
        topic.close()


@pytest.fixture
def topic(make_topic: Callable[..., Topic]) -> Topic:
    return make_topic()


@pytest.fixture
def reader(broker: LabBroker) -> Iterator[TopicReader]:
    with TopicReader({"bootstrap.servers": broker.bootstrap}, SECONDS) as reader:
        yield reader


@pytest.mark.full
@pytest.mark.integration
def test_bounds_are_those_of_what_can_be_read(topic: Topic, reader: TopicReader) -> None:
    assert reader.bounds(topic.place) == (0, 0)
    topic.commit(b"a", b"b")
    topic.delete_before(1)
    topic.leave_open(b"c")
    assert reader.bounds(topic.place) == (1, 3)
    places = [topic.place]
    assert reader.ends(places, is_committed=True) == {topic.place: 3}
    assert reader.ends(places, is_committed=False) == {topic.place: 4}
    assert reader.ends([], is_committed=True) == {}


@pytest.mark.integration
def test_a_span_is_read_once_and_ends_where_no_record_is(topic: Topic, reader: TopicReader) -> None:
    """Behind a transaction comes its marker, and an aborted one leaves only gaps."""
    topic.write(b"a", b"b", b"c")
    topic.commit(b"d")
    topic.abort(b"e", b"f")
    low, end = reader.bounds(topic.place)
    assert (low, end) == (0, 8)
    assert values(reader.read({topic.place: (low, end)})) == [b"a", b"b", b"c", b"d"]
    assert values(reader.read({topic.place: (1, 3)})) == [b"b", b"c"]
    assert values(reader.read({topic.place: (3, 4)})) == [b"d"]
    assert values(reader.read({topic.place: (5, 8)})) == []
    assert values(reader.read({topic.place: (2, 2)})) == []


@pytest.mark.integration
def test_partitions_are_read_together(make_topic: Callable[..., Topic], reader: TopicReader) -> None:
    topic = make_topic(2)
    topic.write(*(b"a%d" % number for number in range(2_500)))
    topic.write(b"b0", b"b1", partition=1)
    assert reader.topics()[topic.name] == 2
    places = reader.places(topic.name)
    found = list(reader.read({place: reader.bounds(place) for place in places}))
    of = {number: [m.value() for m in found if m.partition() == number] for number in (0, 1)}
    assert of == {0: [b"a%d" % number for number in range(2_500)], 1: [b"b0", b"b1"]}


@pytest.mark.integration
def test_what_is_no_longer_read_can_be_read_again(topic: Topic, reader: TopicReader) -> None:
    topic.write(b"a", b"b", b"c")
    with closing(reader.read({topic.place: (0, 3)})) as found:
        assert next(found).value() == b"a"
    assert values(reader.read({topic.place: (0, 2)})) == [b"a", b"b"]


@pytest.mark.integration
def test_new_records_are_followed_behind_an_open_transaction(topic: Topic, reader: TopicReader) -> None:
    topic.write(b"a", b"b")
    found = reader.follow(topic.place, 1)
    assert next(found).value() == b"b"
    commit = topic.leave_open(b"c")
    topic.write(b"d")
    commit()
    assert values([next(found), next(found)]) == [b"c", b"d"]


@pytest.mark.full
@pytest.mark.integration
def test_the_newest_records_are_found_behind_others_and_gaps(topic: Topic, reader: TopicReader) -> None:
    assert reader.newest(topic.place) == []
    topic.write(b"a", b"b", b"c")
    for _ in range(20):
        topic.abort(b"x")
    topic.leave_open(b"y")
    assert values(reader.newest(topic.place)) == [b"c"]
    assert values(reader.newest(topic.place, 2)) == [b"b", b"c"]
    assert values(reader.newest(topic.place, 9)) == [b"a", b"b", b"c"]
    assert values(reader.newest(topic.place, is_wanted=lambda found: found.value() == b"a")) == [b"a"]
    assert values(reader.newest(topic.place, is_wanted=lambda _: False)) == []


@pytest.mark.integration
def test_the_newest_record_may_be_in_a_transaction_that_is_open(
    topic: Topic, broker: LabBroker, reader: TopicReader
) -> None:
    """Up to the high watermark, and not only up to the first transaction that is open."""
    topic.commit(b"a")
    commit = topic.leave_open(b"b")
    assert values(reader.newest(topic.place)) == [b"a"]
    with (
        TopicReader({"bootstrap.servers": broker.bootstrap}, SECONDS, patience=0.5) as impatient,
        pytest.raises(KafkaException, match=r"at offset 2 of 3, tried for 0\.5 s"),
    ):
        impatient.newest(topic.place, waits=True)
    commit()
    assert values(reader.newest(topic.place, waits=True)) == [b"b"]


@pytest.mark.integration
def test_records_of_a_time_are_read_to_the_present_end(
    make_topic: Callable[..., Topic], reader: TopicReader
) -> None:
    first, second = make_topic(2), make_topic()
    first.write(b"a", time_ms=1_000)
    first.write(b"b", time_ms=3_000, partition=1)
    second.write(b"c", b"d", time_ms=2_000)
    found = reader.since([first.name, second.name], 2_000)
    assert sorted(value or b"" for value in values(found)) == [b"b", b"c", b"d"]
    assert list(reader.since([first.name], 4_000)) == []


@pytest.mark.integration
def test_a_transaction_that_stays_open_ends_the_wait_for_what_is_behind_it(
    topic: Topic, broker: LabBroker
) -> None:
    topic.leave_open(b"a")
    with (
        TopicReader({"bootstrap.servers": broker.bootstrap}, SECONDS, patience=0.5) as reader,
        pytest.raises(
            KafkaException, match=r"/0 at offset 0 of 1, tried for 0\.5 s: no record came; an open"
        ),
    ):
        list(reader.since([topic.name], 0))


@pytest.mark.integration
def test_who_wants_uncommitted_records_gets_them(topic: Topic, broker: LabBroker) -> None:
    topic.abort(b"a")
    topic.leave_open(b"b")
    config = {"bootstrap.servers": broker.bootstrap}
    with TopicReader(config, SECONDS, is_committed=False) as reader:
        assert values(reader.read({topic.place: reader.bounds(topic.place)})) == [b"a", b"b"]


@pytest.mark.integration
def test_records_that_retention_took_are_named(topic: Topic, reader: TopicReader) -> None:
    topic.write(b"a", b"b", b"c")
    bounds = reader.bounds(topic.place)
    topic.delete_before(2)
    with pytest.raises(KafkaException, match="/0 holds offsets 2 to 3, not 0") as caught:
        list(reader.read({topic.place: bounds}))
    assert code_of(caught.value) in OUT_OF_RANGE_CODES
    assert values(reader.newest(topic.place, 9)) == [b"c"]


@pytest.mark.integration
def test_a_topic_that_does_not_exist_is_no_empty_one(broker: LabBroker, reader: TopicReader) -> None:
    name = f"absent-{uuid.uuid4().hex}"
    for ask in (
        lambda: reader.bounds((name, 0)),
        lambda: reader.places(name),
        lambda: reader.newest((name, 0)),
    ):
        with pytest.raises(KafkaException) as caught:
            ask()
        assert code_of(caught.value) in ABSENT_CODES
    assert name not in reader.topics()


@pytest.mark.integration
def test_a_recreated_topic_has_no_old_offsets(topic: Topic, reader: TopicReader) -> None:
    topic.write(b"a", b"b", b"c")
    assert reader.bounds(topic.place) == (0, 3)
    topic.delete()
    topic.make()
    topic.write(b"d")
    with pytest.raises(KafkaException, match="/0 holds offsets 0 to 1, not 3"):
        list(reader.read({topic.place: (3, 4)}))
    assert values(reader.newest(topic.place)) == [b"d"]


class Rights:
    """What the user may do."""

    def __init__(self, broker: LabBroker) -> None:
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def grant(self, topic: str, operation: AclOperation) -> None:
        words: tuple[Any, ...] = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL)
        words += (f"User:{USER}", "*", operation, AclPermissionType.ALLOW)
        binding = AclBinding(*words)
        self._admin.create_acls([binding])[binding].result(SECONDS)
        while not self._admin.describe_acls(AclBindingFilter(*words)).result(SECONDS):
            pass


@pytest.mark.integration
def test_rights_on_a_topic_are_named_and_none_on_a_group_is_needed(topic: Topic, broker: LabBroker) -> None:
    topic.write(b"a")
    config = {
        "bootstrap.servers": broker.bootstrap_for("users"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    rights = Rights(broker)
    with TopicReader(config, SECONDS) as reader:
        for ask in (reader.bounds, lambda place: reader.places(place[0]), reader.newest):
            with pytest.raises(KafkaException, match="authorization failed"):
                ask(topic.place)
        rights.grant(topic.name, AclOperation.DESCRIBE)
    with TopicReader(config, SECONDS) as reader:
        assert reader.bounds(topic.place) == (0, 1)
        with pytest.raises(KafkaException, match="authorization failed"):
            list(reader.read({topic.place: (0, 1)}))
        rights.grant(topic.name, AclOperation.READ)
    with TopicReader(config, SECONDS) as reader:
        assert values(reader.read({topic.place: (0, 1)})) == [b"a"]


# --- errors, one at a time


T: Place = ("t", 0)
LASTING = (
    KafkaError._AUTHENTICATION,  # noqa: SLF001 - librdkafka's own codes have no other name
    KafkaError._FATAL,  # noqa: SLF001
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN,
)
ASK: dict[str, Callable[[TopicReader], Any]] = {
    "bounds": lambda reader: reader.bounds(T),
    "topics": lambda reader: reader.topics(),
    "places": lambda reader: reader.places("t"),
    "read": lambda reader: values(reader.read({T: (0, 2)})),
    "follow": lambda reader: next(reader.follow(T, 1)).value(),
    "newest": lambda reader: values(reader.newest(T)),
}
ANSWERS = {
    "bounds": (0, 2),
    "topics": {"t": 1},
    "places": [T],
    "read": [b"a", b"b"],
    "follow": b"b",
    "newest": [b"b"],
}


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> FlakyConsumer:
    consumer = FlakyConsumer({T: [b"a", b"b"]})
    monkeypatch.setattr("slackwater.kafka.reader.Consumer", lambda *_, **__: consumer)
    return consumer


@pytest.mark.usefixtures("consumer")
@pytest.mark.parametrize("way", ASK)
def test_every_way_to_read_has_an_answer(way: str) -> None:
    assert ASK[way](TopicReader({}, SECONDS)) == ANSWERS[way]


@pytest.mark.parametrize("way", ASK)
@pytest.mark.parametrize("code", sorted(TRANSIENT_CODES))
def test_errors_that_pass_are_waited_for(consumer: FlakyConsumer, way: str, code: int) -> None:
    consumer.errors = [code]
    assert ASK[way](TopicReader({}, SECONDS)) == ANSWERS[way]
    assert consumer.errors == []


@pytest.mark.parametrize("succeeding", [0, 1])
@pytest.mark.parametrize("way", ["read", "follow", "newest"])
def test_a_group_that_is_refused_is_none_of_its_business(
    consumer: FlakyConsumer, way: str, succeeding: int
) -> None:
    if way == "newest":
        succeeding += 1  # it asks for the bounds first
    consumer.errors = [KafkaError.NO_ERROR] * succeeding + [KafkaError.GROUP_AUTHORIZATION_FAILED]
    assert ASK[way](TopicReader({}, SECONDS)) == ANSWERS[way]


@pytest.mark.parametrize("way", ASK)
@pytest.mark.parametrize("code", LASTING)
def test_other_errors_end_it_at_once(consumer: FlakyConsumer, way: str, code: int) -> None:
    consumer.errors = [code, KafkaError.NETWORK_EXCEPTION]
    with pytest.raises(KafkaException) as caught:
        ASK[way](TopicReader({}, SECONDS))
    assert (code_of(caught.value), len(consumer.errors)) == (code, 1)


@pytest.mark.parametrize("way", ["bounds", "topics", "places", "read", "newest"])
def test_it_gives_up_at_its_time_out_with_what_was_reported_last(consumer: FlakyConsumer, way: str) -> None:
    consumer.errors = [KafkaError.NOT_LEADER_FOR_PARTITION] * 1_000_000
    with pytest.raises(KafkaException, match=r"tried for 0\.05 s: Broker: Not leader") as caught:
        ASK[way](TopicReader({}, 0.05))
    assert code_of(caught.value) == KafkaError.NOT_LEADER_FOR_PARTITION
    assert ("t/0 at offset 0 of 2" in reason_of(caught.value)) == (way == "read")


@pytest.mark.parametrize("code", ABSENT_CODES)
def test_a_topic_that_was_seen_or_is_expected_is_waited_for(consumer: FlakyConsumer, code: int) -> None:
    reader = TopicReader({}, SECONDS)
    for ask in (reader.bounds, lambda place: reader.places(place[0])):
        consumer.errors = [code]
        with pytest.raises(KafkaException):
            TopicReader({}, SECONDS, expected=["other"]).bounds(T)
        consumer.errors = [code]
        assert TopicReader({}, SECONDS, expected=["t"]).bounds(T) == (0, 2)
        ask(T)
        consumer.errors = [code]
        ask(T)
        consumer.errors = [code]
        assert values(reader.read({T: (0, 2)})) == [b"a", b"b"]


@pytest.mark.parametrize("way", ASK)
def test_a_request_to_stop_ends_every_wait(consumer: FlakyConsumer, way: str) -> None:
    def stop(_: float) -> None:
        raise StopError

    consumer.errors = [KafkaError.NETWORK_EXCEPTION]
    if way in ("read", "follow"):
        consumer.consume = lambda *_: list[Message]()  # type: ignore[method-assign]
    with pytest.raises(StopError):
        ASK[way](TopicReader({}, SECONDS, pause=stop))


@pytest.mark.usefixtures("consumer")
def test_what_an_open_transaction_holds_back_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two records can be read, and one is behind them."""

    def offsets(_: Any, places: list[Place], spec: Any, __: float, *, is_committed: bool) -> dict[Place, int]:
        assert places == [T]
        return {T: 0 if getattr(spec, "_value", None) == 5 else 2 if is_committed else 3}

    monkeypatch.setattr("slackwater.kafka.reader.list_offsets", offsets)
    reader = TopicReader({"bootstrap.servers": "nowhere:1", "log_level": 0}, SECONDS, patience=0.05)
    assert reader.ends([T], is_committed=True) == {T: 2}
    with pytest.raises(KafkaException, match=r"t/0 at offset 2 of 3, tried for 0\.05 s"):
        reader.newest(T, waits=True)
    with pytest.raises(KafkaException, match=r"t/0 at offset 2 of 3, tried for 0\.05 s"):
        list(reader.since(["t"], 5))


def test_a_right_that_is_missing_is_no_absence(consumer: FlakyConsumer) -> None:
    """To a question for offsets, a topic that may not be seen seems to be absent."""
    consumer.errors = [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(KafkaException) as caught:
        TopicReader({}, SECONDS).bounds(T)
    assert code_of(caught.value) == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_the_newest_records_are_looked_for_further_back(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [b"%d" % number for number in range(1_000)]
    monkeypatch.setattr("slackwater.kafka.reader.Consumer", lambda *_, **__: FlakyConsumer({T: found}))
    reader = TopicReader({}, SECONDS)
    assert values(reader.newest(T, is_wanted=lambda each: each.value() == b"3")) == [b"3"]
    assert values(reader.newest(T, 900)) == found[100:]


def test_it_waits_for_no_more_than_one_record(consumer: FlakyConsumer) -> None:
    """Kafka's client waits for as many as it was asked for, as long as it may."""
    asked, consume = list[tuple[int, float]](), consumer.consume

    def note(count: int, timeout: float = -1) -> list[Message]:
        asked.append((count, timeout))
        return consume(count, timeout) if timeout else []

    consumer.consume = note  # type: ignore[method-assign]
    assert ASK["read"](TopicReader({}, SECONDS)) == ANSWERS["read"]
    assert {count for count, timeout in asked if timeout} == {1}
    assert {timeout for _, timeout in asked if timeout} == {0.1}


def test_a_reader_that_was_closed_leaves_nothing_to_end(consumer: FlakyConsumer) -> None:
    with TopicReader({}, SECONDS) as reader:
        found = reader.follow(T, 0)
        next(found)
        consumer.unassign = lambda: pytest.fail("it is closed")  # type: ignore[method-assign]
    found.close()
    assert consumer.is_closed
