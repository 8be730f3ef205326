"""Receivers, processors, relays and listeners as tasks of an event loop."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import pytest
from confluent_kafka import Producer

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater.protocol import ConfigError, KafkaSettings
from slackwater_lab.messaging.sending.world import World
from slackwater_lab.topics import make_topics
from slackwater_messaging import DeliveryListener, Message, PollingRelay, ProvenSender, SendingTransaction
from slackwater_messaging.asyncpg_bridge import AsyncpgBridge
from slackwater_messaging.receiving import (
    AsyncReceiver,
    BloomInbox,
    FilteredInbox,
    FilterPolicy,
    Inbox,
    Receipt,
    ReceivedMessage,
    ReceiverSettings,
    TableInbox,
    TransactionalProcessor,
)
from slackwater_messaging.running import in_thread

pytestmark = pytest.mark.integration
MANY = 20
POLICY = FilterPolicy(capacity=1_000, error_rate=1e-9)


@pytest.fixture
def world(postgres_server: PostgresServer, kafka_broker: KafkaBroker) -> Iterator[World]:
    made = World(postgres_server.dsn(), kafka_broker.bootstrap)
    yield made
    made.connection.close()


def key_of(message: ReceivedMessage) -> bytes:
    return message.key or b""


def inbox_of(name: str, kind: str) -> Inbox:
    if kind == "bloom":
        return BloomInbox(name, key_of=key_of, policy=POLICY)
    table = TableInbox(name, key_of=key_of)
    return table if kind == "table" else FilteredInbox(table, policy=POLICY)


def write_twice(world: World) -> None:
    """Writes each message twice, with one key."""
    producer = Producer({"bootstrap.servers": world.bootstrap, "enable.idempotence": True})
    for number in range(2 * MANY):
        producer.produce(world.topic, b"", str(number % MANY))
    assert producer.flush(60) == 0


async def until(is_done: Callable[[], bool], task: "asyncio.Task[None]") -> None:
    """Waits until something has happened, cancels the task, and waits for its end."""
    while not is_done():
        assert not task.done(), task.exception()
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def connect(world: World, driver: str) -> Any:
    if driver == "asyncpg":
        return await asyncpg.connect(world.dsn)
    return await psycopg.AsyncConnection[Any].connect(world.dsn)


async def insert(world: World, connection: Any, number: int) -> None:
    if isinstance(connection, psycopg.AsyncConnection):
        await connection.execute(*world.insert(number))
    else:
        await connection.execute(f"INSERT INTO {world.table} VALUES ($1)", number)  # noqa: S608


@pytest.mark.full
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("kind", ["table", "filtered", "bloom"])
def test_each_message_has_its_effect_once(world: World, driver: str, kind: str) -> None:
    """A handler fails once, and the database ends a connection: both batches are tried again."""
    write_twice(world)
    inbox_of(f"{world.name}_inbox", kind).create(world.connection)
    answers: list[tuple[bytes, bytes | None]] = []
    is_ended = is_failed = False

    async def handle(connection: Any, message: ReceivedMessage) -> bytes | None:
        nonlocal is_ended, is_failed
        number = int(message.key or b"")
        await insert(world, connection, number)
        if number == 3 and not is_failed:
            is_failed = True
            raise ZeroDivisionError
        if number == 5 and not is_ended:
            is_ended = True
            query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE %s AND pid <> %s"
            world.connection.execute(query, [f"%{world.table}%", world.connection.info.backend_pid])
        return None if kind == "bloom" else str(number).encode()

    async def reply(receipts: Sequence[Receipt]) -> None:
        answers.extend((receipt.key, receipt.answer) for receipt in receipts)

    async def work() -> None:
        for is_first in (True, False):
            async with AsyncReceiver(
                KafkaSettings(world.bootstrap),
                [world.topic],
                group=world.name,
                inbox=inbox_of(f"{world.name}_inbox", kind),
                connect=lambda: connect(world, driver),
                settings=ReceiverSettings(max_batch=7),
            ) as receiver:
                sending = None if kind == "bloom" else reply
                task = asyncio.create_task(receiver.run(handle, reply=sending))
                if is_first:
                    with pytest.raises(ZeroDivisionError):
                        await task
                else:
                    await until(lambda: len(world.numbers) == MANY, task)

    asyncio.run(work())
    assert is_failed
    assert is_ended
    assert world.numbers == list(range(MANY))  # the business table refuses a second effect
    assert all(answer == key for key, answer in answers)


def test_a_processor_s_outputs_are_complete(world: World) -> None:
    write_twice(world)
    out = f"{world.name}.shouted"
    make_topics(world.bootstrap, [out], 1)

    async def process(message: ReceivedMessage) -> list[Message]:
        await asyncio.sleep(0)
        return [Message(topic=out, value=message.key)]

    async def work() -> None:
        with TransactionalProcessor(
            KafkaSettings(world.bootstrap), [world.topic], group=world.name, transactional_id=world.name
        ) as processor:
            task = asyncio.create_task(processor.run_async(process))
            await until(lambda: len(world.values(out)) == 2 * MANY, task)

    asyncio.run(work())
    assert Counter(world.values(out)) == dict.fromkeys(map(str, range(MANY)), 2)


def test_a_relay_and_a_listener_work_as_tasks(world: World) -> None:
    world.outbox.send(world.connection, *(world.message(str(number)) for number in range(MANY)))

    async def work() -> None:
        with (
            PollingRelay(world.dsn, world.kafka, world.outbox) as relay,
            DeliveryListener(
                world.dsn, world.kafka, world.outbox, topics=[world.topic], group=world.name
            ) as listener,
            ProvenSender(world.kafka, world.outbox, world.name) as sender,
        ):
            relaying = asyncio.create_task(relay.run_async())
            listening = asyncio.create_task(listener.run_async())
            async with sender.transaction_async(await connect(world, "psycopg")) as sending:
                sending.send(world.message("last"))
                await sending.connection.execute("SELECT 1")
            await until(lambda: world.waiting == 0, relaying)
            await until(lambda: True, listening)
            await sending.connection.close()

    asyncio.run(work())
    assert sorted(world.values()) == sorted([*map(str, range(MANY)), "last"])


def test_a_connection_of_another_kind_is_refused(world: World) -> None:
    async def use(send: Callable[[object], Awaitable[None]]) -> None:
        with pytest.raises(ConfigError, match=r"is a builtins\.object; expected a psycopg\.Async"):
            await send(object())

    async def by_sender(connection: object) -> None:
        async with ProvenSender(world.kafka, world.outbox, world.name).transaction_async(connection) as each:
            assert isinstance(each, SendingTransaction)

    async def by_outbox(connection: object) -> None:
        await world.outbox.send_async(connection, world.message("1"))

    asyncio.run(use(by_sender))
    asyncio.run(use(by_outbox))
    assert world.waiting == 0


def test_an_error_of_a_handler_s_statement_over_asyncpg_that_a_retry_may_mend_is_recognised() -> None:
    connection = SimpleNamespace(is_closed=lambda: False)

    async def judge() -> None:
        bridge = AsyncpgBridge(connection, asyncio.get_running_loop())
        for mended in (asyncpg.exceptions.DeadlockDetectedError, asyncpg.exceptions.AdminShutdownError):
            assert isinstance(bridge.lost(mended("x")), psycopg.OperationalError)
        for other in (asyncpg.exceptions.UniqueViolationError("x"), OSError("of something else")):
            assert bridge.lost(other) is None
        connection.is_closed = lambda: True
        assert isinstance(bridge.lost(asyncpg.InterfaceError("closed")), psycopg.OperationalError)

    asyncio.run(judge())


def test_a_connection_of_asyncpg_that_is_closed_is_a_lost_one() -> None:
    def refuse(*_: object) -> None:
        raise asyncpg.InterfaceError("connection is closed")

    def use(bridge: AsyncpgBridge) -> None:
        with pytest.raises(psycopg.OperationalError, match="connection is closed"), bridge.transaction():
            pass
        for statement in ("SELECT 1", b"BEGIN"):
            with pytest.raises(psycopg.OperationalError, match="connection is closed"):
                bridge.execute(statement)

    async def run() -> None:
        closed = SimpleNamespace(transaction=refuse, prepare=refuse, is_closed=lambda: True)
        await in_thread(use, AsyncpgBridge(closed, asyncio.get_running_loop()))

    asyncio.run(run())
