"""A user of Kafka who may not read what a client reads: what is missing is named. A real broker."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic

from slackwater.client import ConsumerSettings, OutputTopics, TopicOutput, TransactionalConsumer
from slackwater.client import kafka as kafka_client
from slackwater.protocol import (
    KafkaSettings,
    ProgressRecord,
    SystemClock,
    UnavailableError,
    encode_progress_record,
)
from slackwater.protocol.keys import progress_topic
from slackwater_lab.secured_servers import broker_with_user
from slackwater_lab.servers.stack import LabBroker

pytestmark = pytest.mark.integration

USER, PASSWORD = "reader", "secret-of-the-reader"
OPTIONS = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": USER,
    "sasl.password": PASSWORD,
}
SECONDS = 60.0
CLOCK = SystemClock()
TOPIC = progress_topic("p")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabBroker]:
    """Has a progress topic with a record; a user may do nothing at first."""
    with broker_with_user(tmp_path_factory.mktemp("kafka"), USER, PASSWORD) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(SECONDS)
        producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
        record = ProgressRecord(
            pipeline="p", query_id="q", batch_id=0, source="inv", timeline=1, commit_lsn=1, topics={}
        )
        producer.produce(TOPIC, encode_progress_record(record), b"p")
        assert producer.flush(SECONDS) == 0
        yield server


def grant(
    broker: LabBroker, operation: AclOperation, kind: ResourceType = ResourceType.TOPIC, name: str = TOPIC
) -> None:
    pattern, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    binding = AclBinding(kind, name, pattern, f"User:{USER}", "*", operation, allow)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_acls([binding])[binding].result(SECONDS)


def test_rights_that_are_missing_are_named_one_after_the_other(broker: LabBroker) -> None:
    kafka = KafkaSettings(broker.bootstrap_for("users"), OPTIONS)

    def answer() -> str:
        try:
            with closing(TopicOutput(kafka, "p")) as output:
                return f"views {list(output.views())}"
        except UnavailableError as error:
            return str(error)

    def answer_of_a_member() -> str:
        try:
            inputs, settings = OutputTopics("o", commits=TOPIC), ConsumerSettings(latest=True)
            with TransactionalConsumer(kafka, inputs, group="g", settings=settings) as consumer:
                consumer.poll(1.0)
                return f"lanes {sorted(consumer.lanes)}"
        except UnavailableError as error:
            return str(error)

    def await_answer(*words: str, of: Callable[[], str] = answer) -> None:
        """Brokers obey a right a moment after it was granted."""
        deadline = CLOCK.monotonic() + SECONDS
        while not all(word in (found := of()) for word in words):
            assert CLOCK.monotonic() < deadline, found

    await_answer(TOPIC, "no Describe right")
    grant(broker, AclOperation.DESCRIBE)
    await_answer("Topic authorization failed", "Read on the topic")
    grant(broker, AclOperation.READ)
    await_answer("views []")  # who reads without a group needs no right on one
    await_answer("Group authorization failed", "Read on its group", of=answer_of_a_member)
    grant(broker, AclOperation.READ, ResourceType.GROUP, "g")
    await_answer("lanes [0]", of=answer_of_a_member)


def test_a_topic_that_may_not_be_seen_is_named_and_not_waited_for(broker: LabBroker) -> None:
    kafka = KafkaSettings(broker.bootstrap_for("users"), OPTIONS)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("hidden", 1, 1)])["hidden"].result(SECONDS)
    reader = kafka_client.KafkaBroker(kafka, "g", 1 << 20).reader()
    said = r"looking up topic hidden failed: .*; grant the client's user Read on the topic"
    with closing(reader), pytest.raises(UnavailableError, match=said):
        reader.begin({("hidden", 0): 0})
