"""Advice for an error of Kafka is in the words of the client that met it."""

import pytest
from confluent_kafka import KafkaError

from slackwater.kafka.retry import NeededRights

NEEDED = NeededRights(
    user="the mailer's user", on_topics="Read on t", on_group="Read on g", on_id="Write on the id i"
)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "grant the mailer's user Read on t"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "grant the mailer's user Read on t"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "grant the mailer's user Read on g"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "grant the mailer's user Write on the id i"),
    ],
)
def test_a_refused_right_is_named_with_its_user(code: int, advice: str) -> None:
    assert NEEDED.advice(KafkaError(code)) == advice


def test_what_no_right_helps_against_has_its_own_advice() -> None:
    assert "max.message.bytes" in (NEEDED.advice(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)) or "")


@pytest.mark.parametrize(
    "code",
    [KafkaError._TIMED_OUT, KafkaError.UNKNOWN_TOPIC_OR_PART],  # noqa: SLF001 - it has no other name
)
def test_of_what_may_pass_nothing_is_said(code: int) -> None:
    assert NEEDED.advice(KafkaError(code)) is None
