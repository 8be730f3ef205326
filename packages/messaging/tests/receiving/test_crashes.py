"""Every way to receive, killed at each of its steps: nothing is lost or repeated, and answers are right."""

import pytest

from slackwater_devstack import KafkaBroker, PostgresServer
from slackwater_messaging.receiving import ProcessorStep, ReceiverStep
from slackwater_testing.messaging.receiving.ways import Twin, Way
from slackwater_testing.messaging.receiving.world import RIGHT, World

pytestmark = pytest.mark.integration
ITEMS = 24


def world(broker: KafkaBroker, server: PostgresServer, way: Way | Twin | None) -> World:
    made = World(broker.bootstrap, server.dsn(), way)
    made.write(range(ITEMS))
    return made


def steps_of(way: Way) -> list[ReceiverStep]:
    """All that a way has: filters alone keep no answers."""
    return [step for step in ReceiverStep if way is not Way.BLOOM or step is not ReceiverStep.REPLIED]


@pytest.mark.parametrize("way", list(Way))
def test_a_member_that_is_killed_at_each_step_in_turn_does_everything_once(
    kafka_broker: KafkaBroker, postgres_server: PostgresServer, way: Way
) -> None:
    made = world(kafka_broker, postgres_server, way)
    for n, step in enumerate(steps_of(way)):
        made.run_until_killed(step)
        made.write(range(ITEMS + 5 * n, ITEMS + 5 * (n + 1)))
    made.finish()
    assert made.judge() == RIGHT


def test_a_processor_that_is_killed_at_each_step_in_turn_writes_everything_once(
    kafka_broker: KafkaBroker, postgres_server: PostgresServer
) -> None:
    made = world(kafka_broker, postgres_server, None)
    for n, step in enumerate(ProcessorStep):
        made.run_until_killed(step)
        made.write(range(ITEMS + 5 * n, ITEMS + 5 * (n + 1)))
    made.finish()
    assert made.judge() == RIGHT


def test_without_an_inbox_the_same_crash_repeats_effects(
    kafka_broker: KafkaBroker, postgres_server: PostgresServer
) -> None:
    made = world(kafka_broker, postgres_server, Twin.OFFSETS)
    made.run_until_killed(ReceiverStep.COMMITTED)
    made.finish()
    assert made.judge().repeated > 0


def test_with_keys_in_another_transaction_than_effects_the_same_crash_loses_effects(
    kafka_broker: KafkaBroker, postgres_server: PostgresServer
) -> None:
    made = world(kafka_broker, postgres_server, Twin.KEY_APART)
    made.run_until_killed(ReceiverStep.HANDLED)
    made.finish()
    assert made.judge().lost > 0
