"""Joining a group of a topic that brokers deny, over a real broker."""

from typing import NoReturn
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater.client.kafka import KafkaBroker as ClientBroker
from slackwater.client.kafka import KafkaMember
from slackwater.dev import KafkaBroker
from slackwater.protocol import KafkaSettings, StateError

pytestmark = pytest.mark.integration


@pytest.fixture
def topic() -> str:
    return f"t{uuid4().hex[:10]}"


def member_of(kafka_broker: KafkaBroker, topic: str) -> KafkaMember:
    return ClientBroker(KafkaSettings(kafka_broker.bootstrap), topic, 1).member(
        f"{topic}.g", topic, lambda _: None
    )


def poll_for_ever(member: KafkaMember) -> NoReturn:
    while True:
        member.poll(0.1)


@pytest.mark.full
def test_a_topic_that_stays_absent_is_an_error(kafka_broker: KafkaBroker, topic: str) -> None:
    member = member_of(kafka_broker, topic)
    with pytest.raises(StateError, match=f"topic {topic} does not exist"):
        poll_for_ever(member)
    member.close()


def test_a_topic_that_a_broker_first_denies_is_joined(
    kafka_broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker denies a new topic until it has heard of it."""
    look_again, denials = KafkaMember._look_again, []  # noqa: SLF001

    def create_first(self: KafkaMember) -> None:
        admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(60)
        denials.append(topic)
        look_again(self)

    monkeypatch.setattr(KafkaMember, "_look_again", create_first)
    member = member_of(kafka_broker, topic)
    while not member.lanes:
        member.poll(0.1)
    assert member.lanes == {0, 1}
    assert denials == [topic]
    member.close()
