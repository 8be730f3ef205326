import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from slackwater_client.memory import MemoryBroker
from slackwater_client.testing import KafkaTopics, MemoryTopics, World
from slackwater_protocol import KafkaSettings


@pytest.fixture
def memory() -> Iterator[World]:
    with ExitStack() as running:
        broker = MemoryBroker(at_once=50)
        yield World(broker, MemoryTopics(broker), running)


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.integration)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The same behaviour over a broker in memory and a real one."""
    if request.param == "memory":
        yield request.getfixturevalue("memory")
        return
    bootstrap = request.getfixturevalue("kafka_broker").bootstrap
    options = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
    with ExitStack() as running:
        topics = KafkaTopics(bootstrap, f"t{uuid.uuid4().hex[:10]}")
        yield World(KafkaSettings(bootstrap, options), topics, running)
