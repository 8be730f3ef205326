"""Members killed and stopped at random moments, many times."""

import sys
from collections.abc import Iterator

import pytest

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater_lab.messaging.receiving.member import Twin, Way
from slackwater_lab.messaging.receiving.world import RIGHT, SOON, receive_through_deaths
from slackwater_lab.probes import Servers

pytestmark = pytest.mark.integration
KILLS = 40
SEED = 11


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer) -> Iterator[Servers]:
    broker = KafkaBroker(tmp_path_factory.mktemp("broker"), overrides=SOON)
    try:
        broker.start()
        yield Servers(postgres_server, broker)
    finally:
        broker.stop()
        broker.delete_data()


@pytest.mark.slow
@pytest.mark.parametrize("way", [*Way, None])
def test_many_deaths_neither_lose_nor_repeat(servers: Servers, way: Way | None) -> None:
    found = receive_through_deaths(way, servers, kills=KILLS, seed=SEED)
    sys.stdout.write(f"{way}: {found}\n")
    assert found == RIGHT


@pytest.mark.slow
def test_without_an_inbox_they_repeat(servers: Servers) -> None:
    found = receive_through_deaths(Twin.OFFSETS, servers, kills=KILLS, seed=SEED)
    assert found.lost == 0
    assert found.repeated > 0


@pytest.mark.full
def test_a_few_deaths_neither_lose_nor_repeat(servers: Servers) -> None:
    assert receive_through_deaths(Way.TABLE, servers, kills=4, seed=SEED) == RIGHT
