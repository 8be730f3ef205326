"""What a producer says and does when a real broker refuses, or does not answer."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from enum import Enum, auto

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from slackwater.client import (
    OutcomeUnknownError,
    OutputTopics,
    ProducerSettings,
    TransactionalConsumer,
    TransactionalProducer,
    TransactionLostError,
)
from slackwater.client.kafka import KafkaBroker as Broker
from slackwater.client.writer import KafkaWriter
from slackwater.dev import KafkaBroker
from slackwater.protocol import (
    CommitPosition,
    ConfigError,
    KafkaSettings,
    OvertakenError,
    StateError,
    SystemClock,
    UnavailableError,
)
from slackwater.protocol.keys import commit_topic, data_topic
from slackwater_lab.secured_servers import broker_with_user
from slackwater_lab.servers.stack import LabBroker
from slackwater_lab.topics import make_topics

pytestmark = pytest.mark.integration

STEP = 1 << 24
TABLE = "public.invoice"
SECONDS = 120.0
SETTINGS = ProducerSettings(transaction_timeout=timedelta(seconds=10))
CLOCK = SystemClock()


class Loss(Enum):
    """What becomes of a commit whose answer is lost."""

    NONE = auto()
    COMMITTED = auto()
    ABORTED = auto()
    LEFT_OPEN = auto()
    """By a producer that is gone then: Kafka ends it when its time is over."""


class LossyBroker(Broker):
    """Loses the answers to commits."""

    def __init__(self, kafka: KafkaSettings) -> None:
        super().__init__(kafka, "lossy", 1024)
        self._settings = kafka
        self.loss = Loss.NONE
        self.opened = 0

    def writer(self, transactional_id: str, settings: ProducerSettings) -> KafkaWriter:
        self.opened += 1
        return LossyWriter(self, self._settings, transactional_id, settings)


class LossyWriter(KafkaWriter):
    def __init__(
        self, broker: LossyBroker, kafka: KafkaSettings, name: str, settings: ProducerSettings
    ) -> None:
        super().__init__(kafka, name, settings)
        self._broker = broker

    def commit(self) -> None:
        loss = self._broker.loss
        if loss in (Loss.NONE, Loss.COMMITTED):
            super().commit()
        elif loss is Loss.ABORTED:
            self.abort()
        if loss is not Loss.NONE:
            raise OutcomeUnknownError("the answer was lost", "")


@pytest.fixture
def source() -> str:
    return f"s{uuid.uuid4().hex[:10]}"


@pytest.fixture
def lossy(kafka_broker: KafkaBroker) -> LossyBroker:
    return LossyBroker(KafkaSettings(kafka_broker.bootstrap))


def write(producer: TransactionalProducer, number: int) -> None:
    with producer.transaction() as transaction:
        transaction.insert(TABLE, {"id": number}, {})


def visible(kafka: KafkaSettings, source: str, count: int) -> list[bytes | None]:
    """The keys of this many transactions."""
    inputs = OutputTopics(data_topic(source, TABLE), commits=commit_topic(source))
    keys: list[bytes | None] = []
    with TransactionalConsumer(kafka, inputs, group=uuid.uuid4().hex) as consumer:
        deadline = CLOCK.monotonic() + SECONDS
        for _ in range(count):
            while (found := consumer.poll(timedelta(seconds=1))) is None:
                assert CLOCK.monotonic() < deadline
            keys += [record.key() for record in found]
        assert consumer.poll(timedelta(seconds=0.5)) is None
    return keys


def test_a_commit_whose_answer_is_lost_is_one_when_its_record_is_visible(
    lossy: LossyBroker, source: str, kafka_broker: KafkaBroker
) -> None:
    with TransactionalProducer(lossy, source, settings=SETTINGS) as producer:
        producer.make_table(TABLE)
        lossy.loss = Loss.COMMITTED
        write(producer, 1)
        assert producer.position == CommitPosition(1, STEP)
        lossy.loss = Loss.NONE
        write(producer, 2)
        assert lossy.opened == 2, "the producer of a lost answer is not used again"
    kafka = KafkaSettings(kafka_broker.bootstrap)
    assert visible(kafka, source, 2) == [b'{"id":1}', b'{"id":2}']


@pytest.mark.parametrize("loss", [Loss.ABORTED, pytest.param(Loss.LEFT_OPEN, marks=pytest.mark.slow)])
def test_a_commit_whose_answer_is_lost_is_none_when_its_record_never_becomes_visible(
    lossy: LossyBroker, source: str, kafka_broker: KafkaBroker, loss: Loss
) -> None:
    with TransactionalProducer(lossy, source, settings=SETTINGS) as producer:
        producer.make_table(TABLE)
        lossy.loss = loss
        with pytest.raises(UnavailableError, match="the answer was lost"):
            write(producer, 1)
        lossy.loss = Loss.NONE
        write(producer, 2)
        assert producer.position == CommitPosition(1, STEP)
    assert visible(KafkaSettings(kafka_broker.bootstrap), source, 1) == [b'{"id":2}']


def test_an_instance_that_lost_an_answer_does_not_fence_one_that_has_written_since(
    lossy: LossyBroker, source: str, kafka_broker: KafkaBroker
) -> None:
    kafka = KafkaSettings(kafka_broker.bootstrap)
    with (
        TransactionalProducer(lossy, source, settings=SETTINGS) as producer,
        closing(TransactionalProducer(kafka, source, settings=SETTINGS)) as newer,
    ):
        newer.make_table(TABLE)
        lossy.loss = Loss.NONE
        with pytest.raises(OvertakenError):
            write(producer, 1)
        write(newer, 2)
        with pytest.raises(OvertakenError):
            write(producer, 3)
        write(newer, 4)
    again = TransactionalProducer(lossy, source, settings=SETTINGS)
    lossy.loss = Loss.ABORTED
    with pytest.raises(UnavailableError):
        write(again, 5)
    with TransactionalProducer(kafka, source, settings=SETTINGS) as newer:
        write(newer, 6)
        opened = lossy.opened
        with pytest.raises(OvertakenError, match="another instance"):
            write(again, 7)
        assert lossy.opened == opened, "opening would have fenced it"
        write(newer, 8)
    assert visible(kafka, source, 4) == [b'{"id":%d}' % n for n in (2, 4, 6, 8)]


def test_a_record_that_is_too_large_is_named_and_the_next_transaction_is_written(
    source: str, kafka_broker: KafkaBroker
) -> None:
    kafka = KafkaSettings(kafka_broker.bootstrap, {"compression.type": "none"})
    make_topics(kafka_broker.bootstrap, [data_topic(source, TABLE)], 1, max_message_bytes="2000")
    with TransactionalProducer(kafka, source) as producer:

        def too_large() -> None:
            with producer.transaction() as transaction:
                transaction.insert(TABLE, {"id": 1}, {})
                transaction.insert(TABLE, {"id": 2}, {"text": "x" * 10_000})

        with pytest.raises(ConfigError, match=rf'key {{"id":2}} to topic .*{TABLE}.*max.message.bytes'):
            too_large()
        write(producer, 3)
    assert visible(kafka, source, 1) == [b'{"id":3}']


def test_a_topic_that_does_not_exist_is_named(source: str, kafka_broker: KafkaBroker) -> None:
    options = {"topic.metadata.propagation.max.ms": "500"}
    with TransactionalProducer(KafkaSettings(kafka_broker.bootstrap, options), source) as producer:
        with pytest.raises(StateError, match=rf"{TABLE}.*make_table"):
            write(producer, 1)
        producer.make_table(TABLE)
        write(producer, 2)


def test_a_transaction_that_is_larger_than_the_memory_is_written(
    source: str, kafka_broker: KafkaBroker
) -> None:
    kafka = KafkaSettings(kafka_broker.bootstrap)
    with TransactionalProducer(kafka, source, settings=ProducerSettings(max_bytes=64 * 1024)) as producer:
        producer.make_table(TABLE)
        with producer.transaction() as transaction:
            for number in range(5000):
                transaction.insert(TABLE, {"id": number}, {"text": "x" * 100})
    assert len(visible(kafka, source, 1)) == 5000


@pytest.mark.full
def test_a_consumer_that_was_thrown_out_of_its_group_commits_nothing(
    source: str, kafka_broker: KafkaBroker
) -> None:
    kafka = KafkaSettings(kafka_broker.bootstrap)
    with TransactionalProducer(kafka, source) as producer:
        producer.make_table(TABLE)
        write(producer, 1)
    inputs = OutputTopics(data_topic(source, TABLE), commits=commit_topic(source))
    slow = {"max.poll.interval.ms": "6000", "session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
    settings = KafkaSettings(kafka_broker.bootstrap, slow)
    group = uuid.uuid4().hex
    with (
        closing(TransactionalConsumer(settings, inputs, group=group)) as one,
        TransactionalProducer(kafka, f"{source}-copy") as producer,
        ExitStack() as running,
    ):
        producer.make_table(TABLE)
        while (found := one.poll(timedelta(seconds=1))) is None:
            pass

        def copy() -> None:
            with producer.transaction(found.commit, consumer=one) as transaction:
                transaction.insert(TABLE, {"id": 1}, {})
                other = running.enter_context(closing(TransactionalConsumer(settings, inputs, group=group)))
                while not other.lanes:
                    other.poll(timedelta(seconds=0.2))

        with pytest.raises(
            TransactionLostError, match=r"was removed from its group|was handed to another member"
        ):
            copy()
        assert producer.position is None


USER, PASSWORD = "service", "secret-of-the-service"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabBroker]:
    """Its user may do nothing at first."""
    with broker_with_user(tmp_path_factory.mktemp("kafka"), USER, PASSWORD) as server:
        yield server


@pytest.mark.full
def test_rights_that_are_missing_are_named_one_after_the_other(guarded: LabBroker, source: str) -> None:
    kafka = KafkaSettings(
        guarded.bootstrap_for("users"),
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "topic.metadata.propagation.max.ms": "500",
        },
    )
    name, admin = f"slackwater-producer-{source}", AdminClient({"bootstrap.servers": guarded.bootstrap})

    def grant(kind: ResourceType, resource: str, *operations: AclOperation) -> None:
        pattern, allow = ResourcePatternType.PREFIXED, AclPermissionType.ALLOW
        for operation in operations:
            binding = AclBinding(kind, resource, pattern, f"User:{USER}", "*", operation, allow)
            admin.create_acls([binding])[binding].result(SECONDS)

    def answer() -> str:
        try:
            with TransactionalProducer(kafka, source) as producer:
                producer.make_table(TABLE)
                write(producer, 1)
                return f"wrote {producer.position}"
        except UnavailableError as error:
            return str(error)

    def await_answer(*words: str) -> None:
        """Brokers obey a right a moment after it was granted."""
        deadline = CLOCK.monotonic() + SECONDS
        while not all(word in (found := answer()) for word in words):
            assert CLOCK.monotonic() < deadline, found

    await_answer(f"looking up topic {source}.transaction", "Read on the topic")
    grant(ResourceType.TOPIC, source, AclOperation.DESCRIBE)
    await_answer(f"creation of topic {source}.transaction", "grant the client's user Create")
    grant(ResourceType.TOPIC, source, AclOperation.CREATE)
    await_answer(f"Write on the transactional id '{name}'")
    grant(ResourceType.TRANSACTIONAL_ID, name, AclOperation.WRITE, AclOperation.DESCRIBE)
    await_answer("Write on its topics")
    grant(ResourceType.TOPIC, source, AclOperation.WRITE)
    await_answer("wrote 1/0/1000000")
    await_answer(commit_topic(source), "Read on the topic")
    grant(ResourceType.TOPIC, source, AclOperation.READ)
    await_answer("wrote 1/0/2000000")
