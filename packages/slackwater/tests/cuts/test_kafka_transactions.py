"""What a discarded producer leaves behind."""

import time
import uuid
from datetime import timedelta

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from slackwater.kafka import transactions as kafka_transactions
from slackwater.kafka.transactions import KafkaTransactions
from slackwater.protocol import KafkaSettings, SlackwaterError
from slackwater_lab.topics import make_topics

SECONDS = 60


class Transactions(KafkaTransactions):
    """Raises errors of Kafka as they are."""

    def _meaning(self, what: str, error: KafkaException) -> SlackwaterError:
        raise error


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"transactions-{uuid.uuid4().hex[:10]}"
    make_topics(bootstrap, [name], 1)
    return name


def transactions_of(kafka: KafkaSettings, transactional_id: str) -> Transactions:
    return Transactions(
        kafka,
        transactional_id,
        transaction_timeout=timedelta(minutes=10),
        request_timeout=timedelta(seconds=SECONDS),
    )


@pytest.fixture
def transactions(bootstrap: str, topic: str) -> Transactions:
    """Those of a producer with a transaction that has reached Kafka, and would stay open for ten minutes."""
    opened = transactions_of(KafkaSettings(bootstrap), topic)
    opened.open()
    opened.begin()
    opened.produce(topic, None, b"value", [], None)
    opened.flush()
    return opened


def await_end(admin: AdminClient, topic: str) -> None:
    """Waits until readers of committed transactions may pass the record and the end of its transaction."""
    place, deadline = TopicPartition(topic, 0), time.monotonic() + SECONDS
    while (end := committed_end(admin, place)) != 2:
        assert time.monotonic() < deadline, f"readers wait at offset {end}"


def committed_end(admin: AdminClient, place: TopicPartition) -> int:
    asked = {place: OffsetSpec.latest()}  # type: ignore[no-untyped-call]
    found = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=SECONDS)
    return int(found[place].result(SECONDS).offset)


@pytest.mark.integration
def test_readers_do_not_wait_for_the_transaction_of_a_discarded_producer(
    transactions: Transactions, admin: AdminClient, topic: str
) -> None:
    """The abort also keeps librdkafka from ending the process: see :meth:`KafkaTransactions.discard`."""
    assert committed_end(admin, TopicPartition(topic, 0)) == 0
    transactions.discard()
    await_end(admin, topic)


@pytest.mark.integration
def test_a_producer_that_has_committed_is_discarded_in_silence(
    transactions: Transactions, admin: AdminClient, topic: str
) -> None:
    transactions.commit()
    transactions.discard()
    await_end(admin, topic)


class Failing:
    """A producer that remembers what it was asked for, and fails."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def purge(self) -> None:
        self._fail("purge")

    def abort_transaction(self, timeout: float) -> None:
        assert timeout < SECONDS
        self._fail("abort")

    def _fail(self, what: str) -> None:
        self.asked.append(what)
        raise KafkaException(KafkaError(KafkaError._STATE))  # noqa: SLF001 - librdkafka's name


def test_a_producer_is_aborted_before_it_is_discarded_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Failing()
    monkeypatch.setattr(kafka_transactions, "Producer", lambda *_, **__: producer)
    transactions_of(KafkaSettings("localhost:9092"), "t").discard()
    assert producer.asked == ["purge", "abort"]
