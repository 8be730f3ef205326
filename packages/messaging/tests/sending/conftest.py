from collections.abc import Iterator

import pytest

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater_lab.messaging.sending.world import World


@pytest.fixture
def world(postgres_server: PostgresServer, kafka_broker: KafkaBroker) -> Iterator[World]:
    made = World(postgres_server.dsn(), kafka_broker.bootstrap)
    yield made
    made.connection.close()
