"""One sender in a service that has many requests at once, and the pool that lets them share a few."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from slackwater.protocol import ConfigError, UnavailableError
from slackwater_lab.messaging.sending.world import World
from slackwater_lab.probes import At, Death
from slackwater_messaging import (
    ChainedSender,
    CommitOrder,
    PreparedSender,
    ProvenSender,
    SavedSender,
    SenderPool,
    SendProbe,
    SendStep,
    find_prepared,
)
from slackwater_messaging.sender import no_probe

pytestmark = pytest.mark.integration

TASKS, EACH = 8, 7
AnySender = ChainedSender | SavedSender | PreparedSender
WAYS: dict[str, Callable[[World, str, SendProbe], AnySender]] = {
    "database-first": lambda w, name, p: ChainedSender(w.kafka, name, probe=p),
    "kafka-first": lambda w, name, p: ChainedSender(w.kafka, name, order=CommitOrder.KAFKA_FIRST, probe=p),
    "saved": lambda w, name, p: SavedSender(w.kafka, w.outbox, name, probe=p),
    "proven": lambda w, name, p: ProvenSender(w.kafka, w.outbox, name, probe=p),
    "prepared": lambda w, name, p: PreparedSender(w.kafka, name, probe=p),
}
EVERY_WAY = pytest.mark.parametrize("way", WAYS)


def pool_of(
    world: World, way: str, size: int, probe: SendProbe = no_probe, **options: Any
) -> SenderPool[AnySender]:
    return SenderPool(lambda name: WAYS[way](world, name, probe), world.name, size=size, **options)


def difference(world: World) -> tuple[list[int], list[int], list[int]]:
    """Returns the numbers whose messages are lost, repeated, and visible without their data."""
    committed, sent = set(world.numbers), Counter(int(value) for value in world.values())
    lost, ghosts = sorted(committed - set(sent)), sorted(set(sent) - committed)
    return lost, sorted(number for number, count in sent.items() if count > 1), ghosts


async def request(
    world: World, sender: AnySender | SenderPool[AnySender], connection: Any, number: int
) -> None:
    async with sender.transaction_async(connection) as sending:
        assert sending.connection is connection
        if isinstance(connection, psycopg.AsyncConnection):
            await connection.execute(*world.insert(number))
        else:
            await connection.execute(f"INSERT INTO {world.table} VALUES ($1)", number)  # noqa: S608
        await asyncio.sleep(0)
        sending.send(world.message(str(number), key=str(number)))


@EVERY_WAY
def test_tasks_that_share_a_sender_are_refused_and_lose_nothing(world: World, way: str) -> None:
    refused: list[int] = []

    async def work(sender: AnySender) -> None:
        async def requests(first: int) -> None:
            async with await psycopg.AsyncConnection[Any].connect(world.dsn) as connection:
                for number in range(first, first + EACH):
                    try:
                        await request(world, sender, connection, number)
                    except ConfigError as error:
                        assert "SenderPool" in str(error)  # noqa: PT017 - some of many
                        refused.append(number)

        await asyncio.gather(*(requests(task * EACH) for task in range(TASKS)))

    with WAYS[way](world, world.name, no_probe) as sender:
        asyncio.run(work(sender))
    assert refused
    assert world.numbers
    assert sorted([*refused, *world.numbers]) == list(range(TASKS * EACH))
    assert difference(world) == ([], [], [])


@pytest.mark.full
@EVERY_WAY
def test_tasks_that_share_a_pool_lose_and_repeat_nothing(world: World, way: str) -> None:
    async def work() -> None:
        async with asyncpg.create_pool(world.dsn, min_size=1, max_size=TASKS) as connections:

            async def requests(first: int) -> None:
                async with await psycopg.AsyncConnection[Any].connect(world.dsn) as connection:
                    for number in range(first, first + EACH - 1):
                        await request(world, pool, connection, number)
                async with connections.acquire() as connection:
                    await request(world, pool, connection, first + EACH - 1)

            await asyncio.gather(*(requests(task * EACH) for task in range(TASKS)))

    with pool_of(world, way, 3) as pool:
        asyncio.run(work())
    assert world.numbers == list(range(TASKS * EACH))
    assert difference(world) == ([], [], [])


def do(world: World, pool: SenderPool[AnySender], number: int) -> None:
    with psycopg.connect(world.dsn) as connection, pool.transaction(connection) as sending:
        sending.connection.execute(*world.insert(number))
        sending.send(world.message(str(number), key=str(number)))


def test_threads_that_share_a_pool_lose_and_repeat_nothing(world: World) -> None:
    with pool_of(world, "saved", 2) as pool, ThreadPoolExecutor(TASKS) as threads:
        list(threads.map(lambda number: do(world, pool, number), range(TASKS * EACH)))
    assert world.numbers == list(range(TASKS * EACH))
    assert difference(world) == ([], [], [])


@pytest.mark.full
@pytest.mark.parametrize(
    ("way", "step", "is_done"),
    [
        ("saved", SendStep.DATABASE_COMMITTED, True),
        ("saved", SendStep.KAFKA_COMMITTED, True),
        ("prepared", SendStep.PREPARED, False),
        ("prepared", SendStep.KAFKA_COMMITTED, True),
    ],
)
def test_a_smaller_pool_recovers_what_all_slots_of_a_larger_one_have_left(
    world: World, way: str, step: SendStep, is_done: bool
) -> None:
    """Every slot of the larger pool dies at the step, at the same time."""
    reached = threading.Barrier(3)

    def die() -> None:
        reached.wait(60)
        raise Death

    def fail(number: int) -> None:
        with pytest.raises(Death):
            do(world, pool, number)

    left: list[AnySender] = []

    def make(name: str) -> AnySender:
        left.append(WAYS[way](world, name, At(step, die)))
        return left[-1]

    pool = SenderPool(make, world.name, size=3)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(fail, range(3)))
    with pool_of(world, way, 1) as smaller:
        do(world, smaller, 3)
    assert world.numbers == ([0, 1, 2, 3] if is_done else [3])
    assert difference(world) == ([], [], [])
    assert [
        each for each in find_prepared(world.connection) if (each.sender or "").startswith(world.name)
    ] == []
    assert world.waiting == 0


def test_a_slot_whose_messages_wait_is_used_first_and_recovers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pool_of(world, "saved", 3, retry_after=timedelta(0)) as pool:
        for number in range(3):
            do(world, pool, number)
        with monkeypatch.context() as away:
            away.setattr(
                "slackwater_messaging.kafka.SenderProducer.write",
                lambda *_: (_ for _ in ()).throw(UnavailableError("away")),
            )
            do(world, pool, 3)
        assert world.waiting == 1
        (failed,) = (each for each in pool._senders.values() if not each.is_settled)  # noqa: SLF001
        monkeypatch.setattr(failed, "_retry_at", float("-inf"))
        do(world, pool, 4)
    assert world.waiting == 0
    assert world.values() == ["0", "1", "2", "3", "4"]


def test_rows_under_names_that_only_begin_like_those_of_a_pool_are_left_alone(world: World) -> None:
    theirs = (f"{world.name}.slot-7x", f"{world.name}-1", f"other-{world.name}.slot-0", world.name)
    for name in theirs:
        world.outbox.save(world.connection, [world.message("9")], name)
    world.outbox.save(world.connection, [world.message("8")], f"{world.name}.slot-7")
    with pool_of(world, "saved", 1) as pool:
        do(world, pool, 1)
        assert pool.recover(world.connection) == set()
    assert (world.values(), world.waiting) == (["8", "1"], len(theirs))


def test_a_transaction_that_finds_no_free_slot_in_time_says_so(world: World) -> None:
    async def crowd(pool: SenderPool[AnySender]) -> None:
        async with await psycopg.AsyncConnection[Any].connect(world.dsn) as connection:
            await request(world, pool, connection, 2)

    with (
        pool_of(world, "saved", 1, wait=timedelta(milliseconds=50)) as pool,
        psycopg.connect(world.dsn) as connection,
    ):
        with pool.transaction(connection) as sending:
            sending.connection.execute(*world.insert(1))
            with pytest.raises(UnavailableError, match=r"all 1 senders of pool .* raise its size"):
                do(world, pool, 2)
            with pytest.raises(UnavailableError, match="all 1 senders"):
                asyncio.run(crowd(pool))
        do(world, pool, 2)
    assert world.numbers == [1, 2]


def test_a_task_that_is_cancelled_while_it_waits_leaves_its_place_to_the_next(world: World) -> None:
    async def work(pool: SenderPool[AnySender]) -> None:
        connect = psycopg.AsyncConnection[Any].connect
        async with (
            await connect(world.dsn) as one,
            await connect(world.dsn) as two,
            await connect(world.dsn) as three,
        ):
            async with pool.transaction_async(one) as sending:
                await one.execute(*world.insert(1))
                sending.send(world.message("1"))
                waiting = asyncio.create_task(request(world, pool, two, 2))
                next_one = asyncio.create_task(request(world, pool, three, 3))
                while len(pool._waiting) < 2:  # noqa: SLF001
                    await asyncio.sleep(0)
                waiting.cancel()
            await next_one
            with pytest.raises(asyncio.CancelledError):
                await waiting

    with pool_of(world, "saved", 1) as pool:
        asyncio.run(work(pool))
        do(world, pool, 4)
    assert world.values() == ["1", "3", "4"]


def test_a_pool_without_slots_is_refused(world: World) -> None:
    with pytest.raises(ConfigError, match="expected at least 1"):
        pool_of(world, "saved", 0)
