"""What only the asynchronous consumer promises: cancellation, the event loop, the group meanwhile.

That it does what the synchronous one does, test_outputs.py and test_changes.py show.

How the promises were seen to fail. Cancellation: ``_take`` does not take back. Lanes that are held:
``_HeldConsumer._give_away`` does not wait. The group meanwhile: ``_serve`` does not take part in it.
"""

import asyncio
import gc
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from slackwater.client import (
    AsyncTransaction,
    AsyncTransactionalConsumer,
    ByPartition,
    ByUnit,
    ConsumerSettings,
    OutputTopics,
    Share,
    TransactionalConsumer,
    TransactionLostError,
)
from slackwater.client.async_consumer import _ConsumerThread, _HeldConsumer
from slackwater.client.finishing import finished
from slackwater.client.kafka import Stored
from slackwater.protocol import ConfigError, KafkaSettings, SystemClock, UnavailableError
from slackwater_lab.fakes.broker import MemoryBroker, MemoryMember, MemoryReader
from slackwater_lab.fakes.outputs import OutputWriter, Ticking, World

LONG, NOTHING = timedelta(minutes=5), timedelta(0)
MOMENT = timedelta(seconds=0.3)
CLOCK = SystemClock()
SECONDS = 120.0


def inputs(output: OutputWriter) -> OutputTopics:
    return OutputTopics(*output.outputs)


def consumer(world: World, output: OutputWriter, **others: Any) -> AsyncTransactionalConsumer:
    settings = {name: others.pop(name) for name in ("max_bytes", "stores_positions") if name in others}
    if isinstance(world.kafka, MemoryBroker):
        others.setdefault("clock", Ticking())
    return AsyncTransactionalConsumer(
        world.kafka,
        inputs(output),
        group=f"{world.name}.g",
        settings=ConsumerSettings(**settings),
        **others,
    )


def written(world: World, count: int) -> OutputWriter:
    output = world.output(orders=1)
    for number in range(count):
        output.commit([("orders", 0, f"k{number}", f"{number}")])
    return output


async def got(member: AsyncTransactionalConsumer, timeout: timedelta = LONG) -> AsyncTransaction:
    found = await member.poll(timeout)
    assert found is not None
    return found


async def until(is_so: Callable[[], bool]) -> None:
    deadline = CLOCK.monotonic() + SECONDS
    while not is_so():
        assert CLOCK.monotonic() < deadline
        await asyncio.sleep(0.01)


async def cancelled(work: Awaitable[Any], steps: int = 1) -> Any:
    """Cancels work after some turns of the event loop; returns what it returned if it was faster."""
    task = asyncio.ensure_future(work)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


class Gate:
    """Stops the thread of a consumer where it takes its lane over."""

    def __init__(self) -> None:
        self.is_reached, self._opened = threading.Event(), threading.Event()

    def __call__(self, lane: int) -> None:
        self.is_reached.set()
        assert self._opened.wait(SECONDS)

    def open(self) -> None:
        self._opened.set()


def test_a_transaction_that_was_found_for_a_cancelled_caller_comes_next_and_counts_as_not_processed(
    memory: World,
) -> None:
    async def act() -> None:
        output, gate = written(memory, 2), Gate()
        async with consumer(memory, output, positions=gate) as member:
            poll = asyncio.ensure_future(member.poll(LONG))
            await until(gate.is_reached.is_set)  # the event loop continues meanwhile
            poll.cancel()
            with pytest.raises(asyncio.CancelledError):
                await poll
            gate.open()
            assert await member.offsets() == []
            await member.commit()
            assert memory.stored() == {}
            assert [(await got(member)).commit.lsn for _ in range(2)] == [100, 200]
            assert await cancelled(member.poll(LONG), 1) is None
            await member.commit()
        assert set(memory.stored().values()) == {3}

    asyncio.run(act())


def test_a_seek_forgets_what_was_found_for_a_cancelled_caller(memory: World) -> None:
    async def act() -> None:
        output, gate = written(memory, 4), Gate()
        async with consumer(memory, output, positions=gate) as member:
            poll = asyncio.ensure_future(member.poll(LONG))
            await until(gate.is_reached.is_set)
            poll.cancel()
            with pytest.raises(asyncio.CancelledError):
                await poll
            gate.open()
            await member.seek(300)
            assert (await got(member)).commit.lsn == 300

    asyncio.run(act())


@pytest.mark.parametrize("seed", range(4))
def test_however_often_callers_are_cancelled_each_transaction_comes_once(memory: World, seed: int) -> None:
    async def act() -> None:
        rng = random.Random(seed)
        output = written(memory, 40)
        found: list[int] = []
        async with consumer(memory, output) as member:
            while len(found) < 40:
                transaction = await cancelled(member.poll(LONG), rng.randrange(8))
                found += [] if transaction is None else [transaction.commit.lsn]
                if rng.random() < 0.2:
                    await cancelled(member.commit(), rng.randrange(4))
        assert found == list(range(100, 4100, 100))
        async with consumer(memory, output) as member:
            assert await member.poll(NOTHING) is None

    asyncio.run(act())


def test_a_streamed_transaction_is_iterated_on_after_callers_were_cancelled(memory: World) -> None:
    async def act() -> None:
        rng = random.Random(3)
        output = memory.output(lines=2)
        output.commit([("lines", n % 2, f"k{n}", "x" * 1000) for n in range(1000)])
        output.commit([("lines", 0, "end", "")])
        async with consumer(memory, output, max_bytes=20_000) as member:
            large = await got(member)
            assert large.is_streamed
            with pytest.raises(ConfigError, match="too large to be held in memory"):
                iter(large)
            records = aiter(large)
            keys: list[bytes | None] = []
            while len(keys) < 1000:
                record = await cancelled(anext(records, None), rng.randrange(6))
                keys += [] if record is None else [record.key()]
            assert [record async for record in large] == []
            assert sorted(keys, key=str) == sorted([f"k{n}".encode() for n in range(1000)], key=str)
            assert [record.key() for record in await got(member)] == [b"end"]

    asyncio.run(act())


def test_a_whole_transaction_can_be_iterated_both_ways_and_again(memory: World) -> None:
    async def act() -> None:
        async with consumer(memory, written(memory, 1)) as member:
            transaction = await got(member)
            for _ in range(2):
                assert [record.key() async for record in transaction] == [b"k0"]
                assert [record.key() for record in transaction] == [b"k0"]

    asyncio.run(act())


def test_a_task_that_is_cancelled_leaves_the_group_and_its_transaction_to_others(world: World) -> None:
    async def act() -> None:
        output = written(world, 3)
        handled = asyncio.Event()

        async def work() -> None:
            async with consumer(world, output) as member:
                async for transaction in member:
                    if transaction.commit.lsn == 200:
                        handled.set()
                        await asyncio.sleep(SECONDS)

        task = asyncio.ensure_future(work())
        await handled.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert members(world) == 0
        async with consumer(world, output) as member:
            assert (await got(member)).commit.lsn == 200

    asyncio.run(act())


def members(world: World, group: str = "g") -> int:
    """How many members the group has, as the broker says."""
    if isinstance(world.kafka, MemoryBroker):
        return world.kafka.members(f"{world.name}.{group}")
    return len(described(world, group).members)


def is_stable(world: World) -> bool:
    return described(world).state is ConsumerGroupState.STABLE


def described(world: World, group: str = "g") -> Any:
    assert isinstance(world.kafka, KafkaSettings)
    admin, name = AdminClient({"bootstrap.servers": world.kafka.bootstrap}), f"{world.name}.{group}"
    return admin.describe_consumer_groups([name])[name].result(SECONDS)


def test_a_consumer_that_nobody_has_closed_leaves_the_group_when_it_is_forgotten(memory: World) -> None:
    async def act() -> None:
        output = written(memory, 1)
        member = consumer(memory, output)
        assert (await got(member)).commit.lsn == 100
        assert members(memory) == 1
        del member
        gc.collect()
        await until(lambda: members(memory) == 0)
        async with consumer(memory, output) as other:
            assert (await got(other)).commit.lsn == 100

    asyncio.run(act())


def test_a_closed_consumer_says_so(memory: World) -> None:
    async def act() -> None:
        member = consumer(memory, written(memory, 1))
        await got(member)
        await member.close()
        await member.close()
        for call in (member.poll(NOTHING), member.commit(), member.seek(1), member.offsets()):
            with pytest.raises(ConfigError, match="the consumer is closed"):
                await call
        unused = consumer(memory, written(memory, 1))
        await unused.close()
        with pytest.raises(ConfigError, match="the consumer is closed"):
            await unused.poll(NOTHING)
        await until(lambda: consumer_threads() == 0)

    asyncio.run(act())


def consumer_threads() -> int:
    return sum(thread.name == "slackwater-consumer" for thread in threading.enumerate())


def test_a_consumer_that_cannot_begin_leaves_no_thread(memory: World) -> None:
    async def act() -> None:
        with pytest.raises(ConfigError, match="max_bytes is -1"):
            async with consumer(memory, written(memory, 1), max_bytes=-1):
                raise AssertionError
        await until(lambda: consumer_threads() == 0)

    asyncio.run(act())


def test_a_consumer_that_cannot_begin_tries_it_once(memory: World) -> None:
    class Away(MemoryBroker):
        tries = 0

        def member(self, *_: Any) -> MemoryMember:
            self.tries += 1
            raise UnavailableError("Kafka does not answer", "")

    async def act() -> None:
        output = written(memory, 1)
        memory.kafka = broker = Away()
        with pytest.raises(UnavailableError):
            async with consumer(memory, output):
                raise AssertionError
        await until(lambda: consumer_threads() == 0)
        assert broker.tries == 1

    asyncio.run(act())


def test_a_cancelled_poll_does_not_occupy_the_consumer_for_its_whole_time(memory: World) -> None:
    async def act() -> None:
        async with consumer(memory, memory.output(orders=1), clock=CLOCK) as member:
            async with waiting(member.poll(LONG)):
                pass
            assert await asyncio.wait_for(member.poll(NOTHING), 60) is None

    asyncio.run(act())


@asynccontextmanager
async def waiting(work: Awaitable[Any]) -> AsyncIterator[None]:
    """Has work wait meanwhile, and cancels it."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0.05)
    yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_member_without_a_lane_whose_seek_is_cancelled_can_be_closed(memory: World) -> None:
    async def act() -> None:
        output = written(memory, 1)
        async with consumer(memory, output) as first, consumer(memory, output) as second:
            await got(first)
            async with waiting(second.seek(100)):
                assert second.lanes == frozenset()
            assert first.lanes == {0}

    asyncio.run(act())


class Silent(MemoryBroker):
    """Stops giving records when it is asked to."""

    is_silent = False

    def reader(self) -> MemoryReader:
        broker = self

        class Reader(MemoryReader):
            def read(self, seconds: float) -> Any:
                return [] if broker.is_silent else super().read(seconds)

        return Reader(self)


def test_a_consumer_that_waits_for_the_rest_of_a_transaction_can_be_closed(memory: World) -> None:
    async def act() -> None:
        memory.kafka = broker = Silent(at_once=10)
        memory.topics.broker = broker  # type: ignore[attr-defined]
        output = memory.output(lines=1)
        output.commit([("lines", 0, f"k{n}", "x" * 1000) for n in range(100)])
        member = consumer(memory, output, max_bytes=5_000)
        large = await got(member)
        broker.is_silent = True

        async def read() -> None:
            async for _ in large:
                pass

        async with waiting(read()):
            pass
        await member.close()
        assert members(memory) == 0

    asyncio.run(act())


def test_what_goes_wrong_in_the_group_while_nobody_asks_is_told_to_the_next_who_does(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act() -> None:
        async with consumer(memory, written(memory, 2)) as member:
            await got(member)
            is_asked = threading.Event()

            def refuse(self: MemoryMember, seconds: float) -> None:
                is_asked.set()
                raise UnavailableError("Kafka refuses", "")

            with monkeypatch.context() as broken:
                broken.setattr(MemoryMember, "poll", refuse)
                await until(is_asked.is_set)
            member._thread.submit(_HeldConsumer.take_back)  # noqa: SLF001 - as for a caller who was cancelled
            with pytest.raises(UnavailableError, match="Kafka refuses"):
                await member.offsets()
            assert (await got(member)).commit.lsn == 100, "what nobody waits for is done all the same"

    asyncio.run(act())


def test_what_goes_wrong_for_a_cancelled_caller_is_told_to_the_next(memory: World) -> None:
    async def act() -> None:
        opened = threading.Event()

        def position_of(lane: int) -> str:
            opened.wait(SECONDS)
            return "nonsense"

        async with consumer(memory, written(memory, 1), positions=position_of) as member:
            assert await cancelled(member.poll(LONG), 3) is None
            opened.set()
            with pytest.raises(ConfigError, match="'nonsense' is not a position"):
                await member.offsets()

    asyncio.run(act())


def unit_of(record: Any) -> bytes | None:
    key: bytes | None = record.key()
    return key


def held(
    world: World, output: OutputWriter, share: Share | None = None, clock: SystemClock | None = None
) -> _HeldConsumer:
    """Returns a member as its thread has it; by default there are four lanes."""
    share = share or ByUnit(unit_of, lanes=4)
    member = _HeldConsumer(
        world.kafka, inputs(output), group=f"{world.name}.g", share=share, clock=clock or Ticking()
    )
    member.is_closing = lambda: False
    member.in_thread = lambda do: pytest.fail("nothing is streamed")
    return member


@pytest.mark.parametrize("is_processed", [True, False])
def test_lanes_of_the_transaction_in_hand_are_given_away_only_when_that_is_over(
    memory: World, is_processed: bool
) -> None:
    output = written(memory, 8)
    first = held(memory, output)
    assert first.poll(NOTHING) is not None
    second = held(memory, output)
    lanes: list[frozenset[int]] = []

    def end() -> None:
        second.poll(NOTHING)
        lanes.append(second.lanes)
        (first.settle if is_processed else first.take_back)()

    first.wait_for_handler = end
    first.take_part()
    assert lanes == [frozenset()], "it was waited for, and nobody else had the lanes"
    second.poll(NOTHING)
    assert second.lanes == {1, 3}
    assert set(memory.stored().values()) == ({1} if is_processed else set())


def test_lanes_go_at_once_when_no_transaction_of_theirs_is_in_hand(memory: World) -> None:
    output = written(memory, 8)
    first = held(memory, output)
    first.wait_for_handler = lambda: pytest.fail("nothing is in hand")
    assert first.poll(NOTHING) is not None
    first.settle()
    second = held(memory, output)
    first.take_part()
    second.poll(NOTHING)
    assert first.poll(NOTHING) is not None
    assert first.lanes == {0, 2}
    assert second.lanes == {1, 3}


Action = Callable[[AsyncTransactionalConsumer], Awaitable[Any]]


@pytest.mark.parametrize(
    "action",
    [
        lambda member: member.close(),
        lambda member: member.poll(NOTHING),
        lambda member: member.seek(300),
        lambda member: member.commit(),
    ],
    ids=["close", "poll", "seek", "commit"],
)
def test_what_ends_the_wait_for_a_handler_is_done_outside_of_the_rebalance(
    action: Action, memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of Kafka can neither be polled nor closed within a callback of its own."""
    is_waited_for = threading.Event()
    waits, polls, closes = _ConsumerThread._wait_for_handler, MemoryMember.poll, MemoryMember.close  # noqa: SLF001
    nested: list[str] = []
    polling: set[int] = set()

    def wait(self: _ConsumerThread) -> None:
        is_waited_for.set()
        waits(self)

    def poll(self: MemoryMember, seconds: float) -> None:
        nested.extend(["poll"] if id(self) in polling else [])
        polling.add(id(self))
        polls(self, seconds)
        polling.discard(id(self))

    def close(self: MemoryMember) -> None:
        nested.extend(["close"] if id(self) in polling else [])
        closes(self)

    async def act() -> None:
        output = written(memory, 8)
        first = consumer(memory, output, share=ByUnit(unit_of, lanes=4))
        await got(first)
        units = f"{memory.name}.g.units"
        other = memory.broker.member(f"{memory.name}.g", units, lambda _: None)
        await until(is_waited_for.is_set)
        await action(first)
        await first.close()
        assert nested == []
        other.close()

    monkeypatch.setattr(_ConsumerThread, "_wait_for_handler", wait)
    monkeypatch.setattr(MemoryMember, "poll", poll)
    monkeypatch.setattr(MemoryMember, "close", close)
    asyncio.run(act())


def test_closing_goes_on_to_its_end_when_it_is_cancelled(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    closes, begun, goes_on = MemoryMember.close, threading.Event(), threading.Event()

    def close(self: MemoryMember) -> None:
        begun.set()
        assert goes_on.wait(SECONDS)
        closes(self)

    async def act() -> None:
        member = consumer(memory, written(memory, 1))
        await got(member)
        closing = asyncio.ensure_future(member.close())
        await until(begun.is_set)
        closing.cancel()
        await asyncio.sleep(0)
        assert not closing.done()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert members(memory) == 0

    monkeypatch.setattr(MemoryMember, "close", close)
    asyncio.run(act())


def test_what_was_taken_back_stays_there_until_it_is_handed_out(memory: World) -> None:
    member = held(memory, written(memory, 2))
    assert [each.commit.lsn for each in memory.read(member, 1)] == [100]
    member.take_back()
    member.take_back()
    assert [each.commit.lsn for each in memory.read(member, 2)] == [100, 200]


def test_lanes_of_other_transactions_go_while_one_is_in_hand(memory: World) -> None:
    output = memory.output(orders=2)
    output.commit([("orders", 0, "k", "v")])
    topic = f"{output.name}.orders"
    first = held(memory, output, ByPartition(topic))
    first.wait_for_handler = lambda: pytest.fail("the transaction in hand is of another lane")
    (transaction,) = memory.read(first, 1)
    assert transaction.lanes == (0,)
    second = held(memory, output, ByPartition(topic))
    first.take_part()
    second.poll(NOTHING)
    assert second.lanes == {1}


def test_a_transaction_that_is_streamed_does_not_hold_its_lanes_and_is_lost(memory: World) -> None:
    async def act() -> None:
        output = memory.output(lines=1)
        output.commit([("lines", 0, f"k{n}", "x" * 1000) for n in range(300)])
        share = ByUnit(unit_of, lanes=4)
        member = consumer(memory, output, share=share, max_bytes=20_000)
        large = await got(member)
        other = consumer(memory, output, share=share, max_bytes=20_000)
        while not other.lanes:
            await other.poll(NOTHING)
        for _ in range(2):
            with pytest.raises(TransactionLostError):
                _ = [record async for record in large]
        await member.close()
        await other.close()

    asyncio.run(act())


def test_positions_of_lanes_that_others_had_meanwhile_are_not_stored(memory: World) -> None:
    output = written(memory, 8)
    member = held(memory, output)
    assert member.poll(NOTHING) is not None
    member.settle()
    memory.broker.upset(f"{memory.name}.g")  # as when it was away for too long
    units = f"{memory.name}.g.units"
    others = memory.broker.member(f"{memory.name}.g", units, lambda _: None)
    others.store({(units, lane): Stored(8) for lane in range(4)})
    others.close()
    member.take_part()
    member.close()
    assert set(memory.stored().values()) == {8}


class Still(SystemClock):
    """Whatever is done now and then is done once."""

    def monotonic(self) -> float:
        return 0.0


def test_lanes_that_others_had_meanwhile_are_read_from_where_those_came_to(memory: World) -> None:
    output = written(memory, 8)
    member = held(memory, output, clock=Still())
    assert len(memory.read(member, 1)) == 1
    memory.broker.upset(f"{memory.name}.g")
    units = f"{memory.name}.g.units"
    others = memory.broker.member(f"{memory.name}.g", units, lambda _: None)
    others.store({(units, lane): Stored(16) for lane in range(4)})
    others.close()
    member.take_part()
    assert memory.is_idle(member)


@pytest.mark.full
def test_members_come_and_go_while_handlers_await_and_no_transaction_comes_twice(world: World) -> None:
    """Fails when lanes are not held: the member that takes them over begins with the transaction in hand."""

    async def act() -> None:
        rng = random.Random(5)
        output = written(world, 60)
        if isinstance(world.kafka, KafkaSettings):  # nobody is thrown out where a machine is busy
            options = {**world.kafka.options, "session.timeout.ms": "60000"}
            world.kafka = replace(world.kafka, options=options)
        handled: dict[str, list[int]] = {}
        in_hand: set[str] = set()

        async def work(stays: int | None) -> None:
            async with consumer(world, output, share=ByUnit(unit_of, lanes=4)) as member:
                while len(handled) < 60 and stays != 0:
                    transaction = await member.poll(MOMENT)
                    if transaction is None:
                        continue
                    keys = [str(record.key()) async for record in transaction]
                    assert in_hand.isdisjoint(keys), "two members work on one transaction"
                    in_hand.update(keys)
                    for _ in range(rng.randrange(20)):
                        await asyncio.sleep(0.01)
                    await member.group_metadata()
                    in_hand.difference_update(keys)
                    for key in keys:
                        handled.setdefault(key, []).append(transaction.commit.lsn)
                    stays = None if stays is None else stays - 1

        await asyncio.gather(work(None), work(3), work(6), work(None))
        assert handled.keys() == {str(f"k{n}".encode()) for n in range(60)}
        if isinstance(world.kafka, MemoryBroker):  # Kafka may refuse positions while a rebalance continues
            assert {len(lsns) for lsns in handled.values()} == {1}

    asyncio.run(asyncio.wait_for(act(), SECONDS))


@pytest.mark.integration
def test_a_group_takes_members_in_while_a_handler_awaits(kafka: World) -> None:
    """Fails when the thread does not take part: the group then waits for it for up to five minutes."""

    async def act() -> None:
        output = written(kafka, 2)
        async with consumer(kafka, output) as first:
            await got(first)
            async with consumer(kafka, output), consumer(kafka, output):
                await until(lambda: (members(kafka), is_stable(kafka)) == (3, True))
            assert first.lanes == {0}
            assert (await got(first)).commit.lsn == 200

    asyncio.run(act())


def impatient(world: World) -> KafkaSettings:
    """Settings with the least time that Kafka takes."""
    assert isinstance(world.kafka, KafkaSettings)
    return replace(world.kafka, options={**world.kafka.options, "max.poll.interval.ms": "6000"})


@pytest.mark.slow
@pytest.mark.integration
def test_a_group_does_not_wait_for_a_handler_for_ever(kafka: World) -> None:
    """Others then begin with the transaction in hand; the member that is late joins again."""

    async def act() -> None:
        kafka.kafka = impatient(kafka)
        output = written(kafka, 12)
        share = ByUnit(unit_of, lanes=4)
        async with consumer(kafka, output, share=share) as slow:
            in_hand = (await got(slow)).commit.lsn
            async with consumer(kafka, output, share=share) as other:
                found: list[int] = []
                while in_hand not in found:
                    found += [transaction.commit.lsn] if (transaction := await other.poll(MOMENT)) else []
                await other.commit()
                stored = kafka.stored()
                await slow.commit()
                assert kafka.stored() == stored, "the member that is late sets nothing back"
                while not slow.lanes.isdisjoint(other.lanes) or not slow.lanes:
                    await slow.poll(MOMENT)
                    await other.poll(MOMENT)

    asyncio.run(asyncio.wait_for(act(), SECONDS))


@pytest.mark.full
@pytest.mark.integration
def test_a_handler_may_await_for_longer_than_the_poll_interval(kafka: World) -> None:
    """Beside it a synchronous consumer that does not come back in time loses its place in its group."""

    async def act() -> None:
        kafka.kafka = impatient(kafka)
        output = written(kafka, 2)
        async with consumer(kafka, output) as member:
            await got(member)
            beside = TransactionalConsumer(kafka.kafka, inputs(output), group=f"{kafka.name}.beside")
            while beside.poll(NOTHING) is None:
                pass
            assert members(kafka, "beside") == 1
            await until(lambda: members(kafka, "beside") == 0)
            assert members(kafka) == 1
            (again,) = kafka.read(beside, 1)
            assert again.commit.lsn == 100, "it has its lane again, from what was stored"
            beside.close()
            await member.commit()
        assert set(kafka.stored().values()) == {1}

    asyncio.run(act())


def test_a_call_that_is_cancelled_again_and_again_ends_when_its_work_has() -> None:
    async def act() -> None:
        work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(finished(work))
        for _ in range(3):
            await asyncio.sleep(0)
            waiting.cancel()
        await asyncio.sleep(0)
        assert not waiting.done()
        work.set_result(1)
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(act())
