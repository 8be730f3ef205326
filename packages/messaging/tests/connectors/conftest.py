from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from slackwater_devstack import KafkaBroker, PostgresServer
from slackwater_devstack.server import Deadline
from slackwater_testing.messaging.connectors import Place, StatementLog
from slackwater_testing.messaging.world import World

PATIENCE = timedelta(minutes=5)


@pytest.fixture
def world(postgres_server: PostgresServer, kafka_broker: KafkaBroker) -> Iterator[World]:
    made = World(postgres_server.dsn(), kafka_broker.bootstrap)
    yield made
    made.connection.close()
