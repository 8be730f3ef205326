"""Every way to receive, killed at each of its steps: nothing is lost or repeated, and answers are right."""

import pytest

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater_lab.messaging.receiving.member import Twin, Way
from slackwater_lab.messaging.receiving.world import (
    ITEMS,
    RIGHT,
    ReceivePoint,
    World,
    steps_of,
    suffer_and_finish,
)
from slackwater_lab.probes import Servers
from slackwater_messaging.receiving import ReceiverStep

pytestmark = pytest.mark.integration


def world(broker: KafkaBroker, server: PostgresServer, way: Way | Twin | None) -> World:
    made = World(broker.bootstrap, server.dsn(), way)
    made.write(range(ITEMS))
    return made


@pytest.mark.full
@pytest.mark.parametrize(
    "way",
    [
        Way.TABLE,
        None,
        *(pytest.param(way, marks=pytest.mark.slow) for way in Way if way is not Way.TABLE),
    ],
)
def test_a_member_that_is_killed_at_each_step_in_turn_does_everything_once(
    kafka_broker: KafkaBroker, postgres_server: PostgresServer, way: Way | None
) -> None:
    made = world(kafka_broker, postgres_server, way)
    for n, step in enumerate(steps_of(way)):
        made.run_until_killed(step)
        made.write(range(ITEMS + 5 * n, ITEMS + 5 * (n + 1)))
    made.finish()
    assert made.judge() == RIGHT


@pytest.mark.full
def test_without_an_inbox_the_same_crash_repeats_effects(
    kafka_broker: KafkaBroker, postgres_server: PostgresServer
) -> None:
    point = ReceivePoint(Twin.OFFSETS, ReceiverStep.COMMITTED)
    assert suffer_and_finish(point, Servers(postgres_server, kafka_broker)).repeated > 0


@pytest.mark.full
def test_with_keys_in_another_transaction_than_effects_the_same_crash_loses_effects(
    kafka_broker: KafkaBroker, postgres_server: PostgresServer
) -> None:
    point = ReceivePoint(Twin.KEY_APART, ReceiverStep.HANDLED)
    assert suffer_and_finish(point, Servers(postgres_server, kafka_broker)).lost > 0


LETTER_STEPS = (ReceiverStep.RECEIVED, ReceiverStep.HANDLED, ReceiverStep.COMMITTED)
SHORT = (Way.TABLE, ReceiverStep.HANDLED)


@pytest.mark.full
@pytest.mark.parametrize(
    ("way", "step"),
    [
        pytest.param(way, step, marks=() if (way, step) == SHORT else pytest.mark.slow)
        for way in Way
        for step in LETTER_STEPS
    ],
)
def test_a_message_is_processed_or_a_dead_letter_and_processed_once_when_it_is_handed_back(
    kafka_broker: KafkaBroker, postgres_server: PostgresServer, way: Way, step: ReceiverStep
) -> None:
    """Also if a member is killed before it has answered the letter."""
    point = ReceivePoint(way, step, has_bad_items=True)
    assert suffer_and_finish(point, Servers(postgres_server, kafka_broker)) == RIGHT
