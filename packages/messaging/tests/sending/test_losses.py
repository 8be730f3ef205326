"""Services killed at random moments, many times: what the cheap ways lose, and that the others do not."""

import sys

import pytest

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater_lab.messaging.sending.crash import measure_losses
from slackwater_lab.messaging.sending.service import SendVerdict
from slackwater_lab.messaging.sending.ways import WAYS

pytestmark = pytest.mark.integration

KILLS = 50
SEED = 7


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", [name for name, way in WAYS.items() if not (way.needs_capture or way.is_connector)]
)
def test_many_deaths_cost_what_the_way_says(
    way: str, postgres_server: PostgresServer, kafka_broker: KafkaBroker
) -> None:
    found = measure_losses(way, postgres_server.dsn(), kafka_broker.bootstrap, kills=KILLS, seed=SEED)
    sys.stdout.write(f"{way}: {found}\n")
    assert found.rows > KILLS
    assert found.disordered == 0
    costs = {"lost": found.lost, "repeated": found.repeated, "ghosts": found.ghosts}
    assert {name for name, number in costs.items() if number} <= WAYS[way].costs


def test_a_few_deaths_are_counted(postgres_server: PostgresServer, kafka_broker: KafkaBroker) -> None:
    found = measure_losses("saved", postgres_server.dsn(), kafka_broker.bootstrap, kills=2, seed=SEED)
    assert found.rows > 0
    assert found == SendVerdict(rows=found.rows, lost=0, repeated=0, ghosts=0, disordered=0)
