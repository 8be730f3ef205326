"""Services killed at random moments, many times: what the cheap ways lose, and that the others do not."""

import sys

import pytest

from slackwater_devstack import KafkaBroker, PostgresServer
from slackwater_testing.messaging.sending import WAYS
from slackwater_testing.messaging.sending.losses import measure_losses

pytestmark = pytest.mark.integration

KILLS = 50
SEED = 7


@pytest.mark.slow
@pytest.mark.parametrize("way", [name for name, way in WAYS.items() if not way.needs_capture])
def test_many_deaths_cost_what_the_way_says(
    way: str, postgres_server: PostgresServer, kafka_broker: KafkaBroker
) -> None:
    found = measure_losses(way, postgres_server.dsn(), kafka_broker.bootstrap, kills=KILLS, seed=SEED)
    sys.stdout.write(f"{found}\n")
    assert found.messages > KILLS
    assert found.disordered == 0
    assert found.lost == 0 or way == "chained-database-first"
    assert found.ghosts == 0 or way == "chained-kafka-first"
    assert found.repeated == 0 or way == "polling"


def test_a_few_deaths_are_counted(postgres_server: PostgresServer, kafka_broker: KafkaBroker) -> None:
    found = measure_losses("saved", postgres_server.dsn(), kafka_broker.bootstrap, kills=2, seed=SEED)
    assert (found.way, found.kills) == ("saved", 2)
    assert found.messages > 0
    assert (found.lost, found.repeated, found.ghosts, found.disordered) == (0, 0, 0, 0)
