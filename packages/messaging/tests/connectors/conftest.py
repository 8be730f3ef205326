"""A database and a broker, and connectors between them that are killed."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater.dev.server import Deadline
from slackwater_lab.messaging.connectors import Ends, StatementLog
from slackwater_lab.messaging.sending.world import World

WaitUntil = Callable[[Callable[[], bool]], None]


@pytest.fixture
def world(postgres_server: PostgresServer, kafka_broker: KafkaBroker) -> Iterator[World]:
    made = World(postgres_server.dsn(), kafka_broker.bootstrap)
    yield made
    made.connection.close()


@pytest.fixture
def ends(world: World) -> Ends:
    return Ends(dsn=world.dsn, bootstrap=world.bootstrap)


@pytest.fixture
def statements(world: World, postgres_server: PostgresServer) -> StatementLog:
    return StatementLog(world.connection, postgres_server.log_path, account=world.name)


@pytest.fixture
def wait_until() -> WaitUntil:
    """Waits for a condition; fails the test when it does not come."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline, pause = Deadline(timedelta(minutes=5)), threading.Event()
        while not condition():
            assert not deadline.is_expired, "the condition was not met in time"
            pause.wait(0.05)

    return wait
