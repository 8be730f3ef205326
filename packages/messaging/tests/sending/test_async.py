"""The same ways over psycopg's AsyncConnection."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from slackwater.protocol import StateError
from slackwater_lab.messaging.sending.world import World
from slackwater_lab.probes import At, Death
from slackwater_messaging import (
    ChainedSender,
    CommitOrder,
    HalfCommittedError,
    PreparedSender,
    ProvenSender,
    SavedSender,
    SendProbe,
    SendStep,
)
from slackwater_messaging.sender import no_probe

pytestmark = pytest.mark.integration

AsyncSender = ChainedSender | SavedSender | PreparedSender
Make = Callable[[World, SendProbe], AsyncSender]
WAYS: dict[str, Make] = {
    "database-first": lambda w, p: ChainedSender(w.kafka, w.name, probe=p),
    "kafka-first": lambda w, p: ChainedSender(w.kafka, w.name, order=CommitOrder.KAFKA_FIRST, probe=p),
    "saved": lambda w, p: SavedSender(w.kafka, w.outbox, w.name, probe=p),
    "proven": lambda w, p: ProvenSender(w.kafka, w.outbox, w.name, probe=p),
    "prepared": lambda w, p: PreparedSender(w.kafka, w.name, probe=p),
}
EVERY_WAY = pytest.mark.parametrize("way", WAYS)


async def connect(world: World) -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection[Any].connect(world.dsn)


async def do(
    world: World, sender: AsyncSender, connection: psycopg.AsyncConnection[Any], number: int
) -> None:
    async with sender.transaction_async(connection) as sending:
        await sending.connection.execute(*world.insert(number))
        sending.send(world.message(str(number)))


@EVERY_WAY
def test_both_sides_commit_or_the_error_of_the_business_undoes_both(world: World, way: str) -> None:
    async def work() -> None:
        with WAYS[way](world, no_probe) as sender:
            async with await connect(world) as connection:
                await do(world, sender, connection, 1)
                with pytest.raises(psycopg.errors.UniqueViolation):
                    await do(world, sender, connection, 1)
                async with sender.transaction_async(connection) as sending:
                    await sending.connection.execute(*world.insert(2))
                await do(world, sender, connection, 3)

    asyncio.run(work())
    assert (world.numbers, world.values()) == ([1, 2, 3], ["1", "3"])
    assert world.waiting == (2 if way == "proven" else 0)


@pytest.mark.full
@pytest.mark.parametrize(
    ("way", "step"),
    [
        *(
            ("saved", step)
            for step in (SendStep.SAVED, SendStep.DATABASE_COMMITTED, SendStep.KAFKA_COMMITTED)
        ),
        ("prepared", SendStep.KAFKA_COMMITTED),
        ("prepared", SendStep.DATABASE_COMMITTED),
    ],
)
def test_a_death_is_recovered_from(world: World, way: str, step: SendStep) -> None:
    async def die() -> None:
        async with await connect(world) as connection:
            await do(world, WAYS[way](world, At(step)), connection, 1)

    async def go_on() -> None:
        with WAYS[way](world, no_probe) as sender:
            async with await connect(world) as connection:
                await do(world, sender, connection, 2)

    with pytest.raises(Death):
        asyncio.run(die())
    asyncio.run(go_on())
    expected = [2] if step is SendStep.SAVED else [1, 2]
    assert (world.numbers, world.values()) == (expected, [str(number) for number in expected])


@EVERY_WAY
def test_an_error_that_was_swallowed_undoes_both_sides(world: World, way: str) -> None:
    async def swallow(sender: AsyncSender) -> None:
        async with await connect(world) as connection, sender.transaction_async(connection) as sending:
            sending.send(world.message("ghost"))
            with pytest.raises(psycopg.errors.UndefinedTable):
                await sending.connection.execute("SELECT * FROM nowhere")

    with (
        WAYS[way](world, no_probe) as sender,
        pytest.raises(StateError, match="has failed or was ended"),
    ):
        asyncio.run(swallow(sender))
    assert (world.values(), world.waiting) == ([], 0)


def test_a_database_that_is_lost_after_kafka_s_commit_is_named(world: World) -> None:
    def end_others() -> None:
        world.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
        )

    async def work() -> None:
        sender = WAYS["kafka-first"](world, At(SendStep.KAFKA_COMMITTED, end_others))
        with sender:
            async with await connect(world) as connection:
                await do(world, sender, connection, 1)

    with pytest.raises(HalfCommittedError, match="Kafka has committed"):
        asyncio.run(work())
    assert (world.numbers, world.values()) == ([], ["1"])


@pytest.mark.parametrize("way", ["database-first", "saved", "prepared"])
def test_a_task_that_is_cancelled_leaves_no_thread_behind_that_still_sends(world: World, way: str) -> None:
    """The thread that ends the transaction is waited for, so both sides commit."""
    reached, release = threading.Event(), threading.Event()

    def block() -> None:
        reached.set()
        assert release.wait(60)

    async def work(sender: AsyncSender) -> None:
        async with await connect(world) as connection:
            task = asyncio.create_task(do(world, sender, connection, 1))
            await asyncio.to_thread(reached.wait, 60)
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
            release.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with await connect(world) as connection:
            await do(world, sender, connection, 2)

    with WAYS[way](world, At(SendStep.PRODUCED, block)) as sender:
        asyncio.run(work(sender))
    assert (world.numbers, world.values()) == ([1, 2], ["1", "2"])


def test_an_outbox_is_written_by_one_statement(world: World) -> None:
    async def work() -> None:
        async with await connect(world) as connection, connection.transaction():
            await world.outbox.send_async(connection)
            await world.outbox.send_async(connection, world.message("1"), world.message("2"))

    asyncio.run(work())
    assert world.waiting == 2
