import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import pytest

from slackwater.cdc.batch import Record
from slackwater.client import AsyncTransaction, AsyncTransactionalConsumer, TransactionalConsumer
from slackwater.protocol import KafkaSettings
from slackwater_lab.fakes.broker import MemoryBroker
from slackwater_lab.fakes.outputs import KafkaTopics, MemoryTopics, World

Make = Callable[..., TransactionalConsumer]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The asynchronous consumer over a real broker is in `make soak`; that over memory is in every lane."""
    for item in items:
        if "[kafka-asyncio" in item.name:
            item.add_marker(pytest.mark.slow)


class Driven:
    """Calls the methods of something asynchronous in an event loop, so that it looks synchronous."""

    def __init__(self, target: Any, runner: asyncio.Runner) -> None:
        self._target, self._runner = target, runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return partial(self._call, found) if asyncio.iscoroutinefunction(found) else found

    def __enter__(self) -> "Driven":
        self._call(self._target.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._call(self._target.__aexit__, *error)

    def __iter__(self) -> Iterator[Record]:
        async def step() -> Record | None:
            return await anext(records, None)

        records = aiter(self._target)
        while (record := self._runner.run(step())) is not None:
            yield record

    def _call(self, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        found = self._runner.run(method(*args, **named))
        return Driven(found, self._runner) if isinstance(found, AsyncTransaction) else found


@pytest.fixture
def interface(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes consumers; with the parameter "asyncio" those that are asynchronous."""
    if getattr(request, "param", "synchronous") == "synchronous":
        yield TransactionalConsumer
        return
    with asyncio.Runner() as runner:
        yield lambda *args, **named: cast(
            "TransactionalConsumer", Driven(AsyncTransactionalConsumer(*args, **named), runner)
        )


@pytest.fixture
def memory(interface: Make) -> Iterator[World]:
    with ExitStack() as running:
        broker = MemoryBroker(at_once=50)
        yield World(broker, MemoryTopics(broker), running, interface)


@pytest.fixture
def kafka(request: pytest.FixtureRequest, interface: Make) -> Iterator[World]:
    bootstrap = request.getfixturevalue("kafka_broker").bootstrap
    options = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
    with ExitStack() as running:
        topics = KafkaTopics(bootstrap, f"t{uuid.uuid4().hex[:10]}")
        yield World(KafkaSettings(bootstrap, options), topics, running, interface)


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.integration)])
def world(request: pytest.FixtureRequest, interface: Make) -> World:
    """The same behaviour over a broker in memory and a real one."""
    found: World = request.getfixturevalue(request.param)
    return found
