"""Two brokers with a route through proxies: what uses the route is disturbed, others are not."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater.dev import Lifetime
from slackwater.protocol import ConfigError
from slackwater_lab.servers.stack import LabStack, LabStackSettings

pytestmark = pytest.mark.integration

TOPIC = "spread"
SECONDS = 300.0


@pytest.fixture(scope="module")
def stack(dev_stack: Callable[..., LabStack]) -> LabStack:
    """Partition n of the topic is led by broker n + 1."""
    started = dev_stack(
        postgres=False, redis=False, connect=False, second_kafka=True, kafka_routes=("client",)
    )
    admin = AdminClient({"bootstrap.servers": started.kafka.bootstrap})
    topic = NewTopic(TOPIC, 2, replica_assignment=[[1], [2]])
    for created in admin.create_topics([topic]).values():
        created.result(SECONDS)
    return started


class Client:
    """Writes to both partitions and knows what arrived."""

    def __init__(self, bootstrap: str) -> None:
        self.arrived: list[int] = []
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True}
        )

    def write(self, partition: int) -> None:
        self._producer.produce(
            TOPIC, b"x", partition=partition, on_delivery=lambda *_: self.arrived.append(partition)
        )

    def has(self, count: int) -> bool:
        """Whether this many of its records arrived, as of now."""
        self._producer.poll(0)
        return len(self.arrived) == count


def test_a_route_leads_to_both_brokers(stack: LabStack, wait_until: Callable[..., None]) -> None:
    client = Client(stack.kafka.bootstrap_over("client"))
    for partition in (0, 1):
        client.write(partition)
    wait_until(partial(client.has, 2))
    assert sorted(client.arrived) == [0, 1]
    assert stack.kafka.proxy("client").connections > 0
    assert stack.second_kafka.proxy("client").connections > 0


def test_a_paused_proxy_holds_back_one_partition_on_one_route(
    stack: LabStack, wait_until: Callable[..., None]
) -> None:
    slow, quick = Client(stack.kafka.bootstrap_over("client")), Client(stack.kafka.bootstrap)
    for client in (slow, quick):
        for partition in (0, 1):
            client.write(partition)
        wait_until(partial(client.has, 2))
    stack.second_kafka.proxy("client").pause()
    for client in (slow, quick):
        for partition in (0, 1):
            client.write(partition)
    wait_until(partial(slow.has, 3))
    wait_until(partial(quick.has, 4))
    assert slow.arrived[2] == 0
    stack.second_kafka.proxy("client").resume()
    wait_until(partial(slow.has, 4))


@pytest.mark.slow
def test_a_killed_second_broker_comes_back_with_its_records(
    stack: LabStack, wait_until: Callable[..., None]
) -> None:
    stack.second_kafka.kill()
    stack.second_kafka.start()
    client = Client(stack.kafka.bootstrap_over("client"))
    client.write(1)
    wait_until(partial(client.has, 1), timedelta(seconds=SECONDS))


def test_a_stack_that_outlives_us_has_no_routes(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = LabStackSettings(folder=tmp_path_factory.mktemp("detached"), kafka_routes=("client",))
    with pytest.raises(ConfigError):
        LabStack(settings, Lifetime.DETACHED)
