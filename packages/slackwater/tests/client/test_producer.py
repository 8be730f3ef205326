"""A service writes transactions; consumers and the frontier of a sidecar read them whole.

One suite over a broker in memory and a real one.
"""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from slackwater.cdc import Frontier
from slackwater.cdc.envelope import Begin, End, decode_change, decode_transaction
from slackwater.cdc.postgres import xid_of_position
from slackwater.client import (
    Commit,
    OutputTopics,
    ProducerSettings,
    TransactionalProducer,
    TransactionLostError,
)
from slackwater.protocol import (
    CommitPosition,
    ConfigError,
    KafkaSettings,
    OvertakenError,
    StateError,
    decode_commit_record,
)
from slackwater.protocol.keys import commit_topic
from slackwater_lab.fakes.broker import MemoryBroker
from slackwater_lab.fakes.outputs import World, contents

STEP = 1 << 24
INVOICES = "public.invoice"
SETTINGS = ProducerSettings(transaction_timeout=timedelta(seconds=20), partitions=2)


@pytest.fixture
def producer(world: World) -> Iterator[TransactionalProducer]:
    with started(world) as producer:
        producer.make_table(INVOICES)
        world.topics.make(f"{world.name}-mails", 2)
        yield producer


def started(world: World) -> TransactionalProducer:
    kafka = world.kafka
    if isinstance(kafka, KafkaSettings):  # those of the fixture are for members of a group
        kafka = KafkaSettings(kafka.bootstrap)
    return TransactionalProducer(kafka, world.name, settings=SETTINGS)


def topics(world: World) -> OutputTopics:
    invoices, mails = f"{world.name}.{INVOICES}", f"{world.name}-mails"
    return OutputTopics(invoices, mails, commits=commit_topic(world.name))


def values(world: World, topic: str) -> list[bytes]:
    """All committed values of a topic with one partition, by a consumer of nothing else."""
    broker = world.kafka
    if isinstance(broker, MemoryBroker):
        return [record.value() or b"" for record in broker.partition((topic, 0)).records]
    from slackwater_lab.topics import read_to_end

    return [message.value() or b"" for message in read_to_end(broker.bootstrap, topic)]


def image(raw: msgspec.Raw | None) -> Any:
    return None if raw is None else json.loads(bytes(raw))


def test_a_transaction_is_read_whole_with_changes_and_other_records(
    world: World, producer: TransactionalProducer
) -> None:
    with producer.transaction() as transaction:
        for number in range(10):
            transaction.insert(INVOICES, {"id": number}, {"total": number * 2})
        transaction.send(f"{world.name}-mails", b"k", b"hello", [("kind", b"mail")])
    with producer.transaction() as transaction:
        transaction.delete(INVOICES, {"id": 3})
    first, second = world.read(world.consumer(topics(world)), 2)
    assert (first.commit.source, first.commit.lsn, first.commit.xid) == (
        world.name,
        STEP,
        xid_of_position(STEP),
    )
    records = {record.key(): record for record in first}
    assert len(records) == 11
    assert records[b"k"].value() == b"hello"
    assert ("kind", b"mail") in list(records[b"k"].headers() or ())
    assert image(decode_change(records[b'{"id":4}'].value() or b"").after) == {"id": 4, "total": 8}
    assert [key for key, _ in contents(second)] == ['{"id":3}']
    assert second.commit.lsn == 2 * STEP == (producer.position or CommitPosition(0, 0)).lsn


def test_an_error_within_the_block_aborts_and_the_next_transaction_takes_the_position(
    world: World, producer: TransactionalProducer
) -> None:
    def fail() -> None:
        with producer.transaction() as transaction:
            transaction.insert(INVOICES, {"id": 1}, {})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with producer.transaction() as transaction:
        transaction.insert(INVOICES, {"id": 2}, {})
    assert transaction.position == CommitPosition(1, STEP)
    consumer = world.consumer(topics(world))
    (found,) = world.read(consumer, 1)
    assert [key for key, _ in contents(found)] == ['{"id":2}']
    assert world.is_idle(consumer)


def test_after_an_error_of_the_transaction_that_the_service_swallows_it_is_not_committed(
    memory: World,
) -> None:
    """END would count a change that is not there, and readers would wait for it for ever."""

    producer = TransactionalProducer(memory.kafka, memory.name)
    producer.make_table(INVOICES)

    def swallow() -> None:
        with producer.transaction() as transaction:
            transaction.insert(INVOICES, {"id": 1}, {})
            with pytest.raises(StateError, match="does not exist"):
                transaction.insert("public.nowhere", {"id": 1}, {})

    with pytest.raises(StateError, match="does not exist"):
        swallow()
    with producer.transaction():
        pass
    (found,) = (decode_commit_record(value) for value in values(memory, producer.commit_topic))
    assert found.record_count == 0


def test_a_value_without_a_form_breaks_the_transaction(producer: TransactionalProducer) -> None:
    def write() -> None:
        with (
            producer.transaction() as transaction,
            pytest.raises(ConfigError, match="'odd' has the value"),
        ):
            transaction.insert(INVOICES, {"id": 1}, {"odd": object()})

    with pytest.raises(ConfigError, match="'odd' has the value"):
        write()
    assert producer.position is None


def test_positions_go_on_behind_those_of_earlier_instances(
    world: World, producer: TransactionalProducer
) -> None:
    for _ in range(3):
        with producer.transaction():
            pass
    with started(world) as again:
        assert again.position == CommitPosition(1, 3 * STEP)
        with again.transaction() as transaction:
            pass
        assert transaction.position == CommitPosition(1, 4 * STEP)
    records = [decode_commit_record(value) for value in values(world, producer.commit_topic)]
    assert [(r.previous_lsn // STEP, r.commit_lsn // STEP) for r in records] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
    ]


def test_the_newest_commit_is_found_behind_many_aborted_ones(
    world: World, producer: TransactionalProducer
) -> None:
    with producer.transaction():
        pass
    world.topics.begin()
    for _ in range(200):
        world.topics.write((producer.commit_topic, 0), b"not committed")
    world.topics.written()
    world.topics.end(commits=False)
    with started(world) as again:
        assert again.position == CommitPosition(1, STEP)


def test_an_earlier_instance_is_fenced_also_within_a_transaction(
    world: World, producer: TransactionalProducer
) -> None:
    def write(after_begin: bool) -> None:
        with producer.transaction() as transaction:
            if after_begin:
                with started(world) as newer, newer.transaction() as other:
                    other.insert(INVOICES, {"id": 2}, {})
            transaction.insert(INVOICES, {"id": 1}, {})

    with pytest.raises(OvertakenError):
        write(after_begin=True)
    with pytest.raises(OvertakenError):
        write(after_begin=False)
    consumer = world.consumer(topics(world))
    (found,) = world.read(consumer, 1)
    assert [key for key, _ in contents(found)] == ['{"id":2}']
    assert world.is_idle(consumer)


def test_a_commit_of_another_source_gives_its_place(world: World, producer: TransactionalProducer) -> None:
    commit = Commit(source="inv", timeline=1, lsn=5000, xid=77, commit_ts_ms=1_700_000_000_000)
    with producer.transaction(commit) as transaction:
        transaction.insert(INVOICES, {"id": 1}, {})
    (found,) = world.read(world.consumer(topics(world)), 1)
    assert (found.commit.lsn, found.commit.xid, found.commit.commit_ts_ms) == (5000, 77, 1_700_000_000_000)
    with pytest.raises(ConfigError, match="not above the newest commit"), producer.transaction(commit):
        pass
    later = Commit(source="inv", timeline=2, lsn=40, xid=78, commit_ts_ms=1_700_000_000_001)
    with producer.transaction(later):
        pass
    assert producer.position == CommitPosition(2, 40)
    records = [decode_commit_record(value) for value in values(world, producer.commit_topic)]
    assert [(r.timeline, r.previous_lsn) for r in records] == [(1, 0), (2, 0)]


def test_one_transaction_is_open_at_a_time(producer: TransactionalProducer) -> None:
    with producer.transaction() as transaction:
        with pytest.raises(ConfigError, match="is already open"), producer.transaction():
            pass
        transaction.insert(INVOICES, {"id": 1}, {})
    assert producer.position is not None


def test_topics_in_which_sidecars_expect_changes_take_no_other_records(
    world: World, producer: TransactionalProducer
) -> None:
    for topic in (f"{world.name}.public.mails", producer.transaction_topic, producer.commit_topic):

        def write(topic: str = topic) -> None:
            with producer.transaction() as transaction:
                transaction.send(topic, b"k", b"v")

        with pytest.raises(ConfigError, match="is reserved for changes"):
            write()
    with producer.transaction() as transaction:
        transaction.send(f"{world.name}-mails", None, None)
    assert producer.position == CommitPosition(1, STEP)


def test_an_async_service_writes_without_blocking(world: World, producer: TransactionalProducer) -> None:
    async def serve(number: int, *, fails: bool) -> None:
        async with producer.transaction() as transaction:
            transaction.insert(INVOICES, {"id": number}, {})
            if fails:
                raise ZeroDivisionError

    asyncio.run(serve(1, fails=False))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(serve(2, fails=True))
    consumer = world.consumer(topics(world))
    assert [contents(found)[0][0] for found in world.read(consumer, 1)] == ['{"id":1}']
    assert world.is_idle(consumer)


def test_tasks_that_share_a_producer_are_refused_or_written_whole(
    world: World, producer: TransactionalProducer
) -> None:
    """Each task begins in a thread, so all of them find the producer free at first."""
    refused: list[int] = []

    async def write(number: int) -> None:
        try:
            async with producer.transaction() as transaction:
                transaction.insert(INVOICES, {"id": number}, {})
                await asyncio.sleep(0)
                transaction.insert(INVOICES, {"id": 100 + number}, {})
        except ConfigError as error:
            assert "asyncio.Lock" in str(error)  # noqa: PT017 - of some of them
            refused.append(number)

    async def work() -> None:
        for first in (0, 8):
            await asyncio.gather(*(write(number) for number in range(first, first + 8)))

    asyncio.run(work())
    assert 0 < len(refused) < 16
    read = world.read(world.consumer(topics(world)), 16 - len(refused))
    written = sorted(json.loads(key)["id"] for found in read for key, _ in contents(found))
    done = [number for number in range(16) if number not in refused]
    assert written == [*done, *(100 + number for number in done)]


def test_a_transaction_whose_producer_was_closed_meanwhile_is_not_committed(
    world: World, producer: TransactionalProducer
) -> None:
    def write() -> None:
        with producer.transaction() as transaction:
            transaction.insert(INVOICES, {"id": 1}, {})
            producer.close()

    with pytest.raises(StateError, match="has already ended; nothing was committed"):
        write()
    assert world.is_idle(world.consumer(topics(world)))


def test_what_is_read_and_what_is_written_are_one_transaction(
    world: World, producer: TransactionalProducer
) -> None:
    output = world.output(orders=1)
    for number in range(4):
        output.commit([("orders", 0, f"o{number}", "x")])

    def process(count: int, *, fails: bool) -> None:
        consumer = world.consumer(OutputTopics(*output.outputs), stores_positions=False)
        try:
            for _ in range(count):
                (found,) = world.read(consumer, 1)
                with producer.transaction(found.commit, consumer=consumer) as transaction:
                    for key, _ in contents(found):
                        transaction.insert(INVOICES, {"id": key}, {})
                    if fails:
                        raise ZeroDivisionError
        finally:
            consumer.close()

    process(2, fails=False)
    with pytest.raises(ZeroDivisionError):
        process(1, fails=True)
    process(2, fails=False)
    found = world.read(world.consumer(topics(world), group="h"), 4)
    assert [key for each in found for key, _ in contents(each)] == [f'{{"id":"o{n}"}}' for n in range(4)]
    assert [each.commit.lsn for each in found] == [100, 200, 300, 400]


def test_what_a_consumer_has_given_away_is_not_committed(
    world: World, producer: TransactionalProducer
) -> None:
    output = world.output(orders=1)
    output.commit([("orders", 0, "o", "x")])
    consumer = world.consumer(OutputTopics(*output.outputs), stores_positions=False)
    (found,) = world.read(consumer, 1)

    def write() -> None:
        with producer.transaction(found.commit, consumer=consumer) as transaction:
            transaction.insert(INVOICES, {"id": 1}, {})
            consumer.close()

    with pytest.raises(TransactionLostError, match="has no transaction whose offsets to commit"):
        write()
    assert producer.position is None
    with producer.transaction():
        pass


def test_a_sidecar_s_frontier_finds_each_transaction_complete_by_counts(
    world: World, producer: TransactionalProducer
) -> None:
    """And not before the last of its events is read."""
    for number in range(3):
        with producer.transaction() as transaction:
            transaction.insert(INVOICES, {"id": number}, {"n": 1})
            transaction.upsert(INVOICES, {"id": number}, {"n": 2}, before={"n": 1})
            transaction.upsert(INVOICES, {"id": number}, {"n": 3}, before={"n": 2})
    events = [
        record.value() or b""
        for found in world.read(world.consumer(topics(world)), 3)
        for record in sorted(found, key=lambda r: decode_change(r.value() or b"").order)
    ]
    told = values(world, producer.transaction_topic)
    assert [type(decode_transaction(value)) for value in told] == [Begin, End] * 3
    frontier = Frontier(world.name)
    part = frontier.add_partition(f"{world.name}.{INVOICES}", 0, 0)
    frontier.read_transactions([(n, value, 0) for n, value in enumerate(told)])
    part.read(list(enumerate(events[:-1])))
    assert advanced(frontier, {part.key: len(events), (producer.transaction_topic, 0): len(told)}) == [
        2 * STEP
    ]
    part.read([(part.position, events[-1])])
    assert advanced(frontier, {}) == [3 * STEP]


def advanced(frontier: Frontier, ends: dict[tuple[str, int], int]) -> list[int]:
    """The cuts that a frontier makes when it receives the end offsets that it requests."""
    for _ in range(5):
        frontier.advance()
        if frontier.end_offsets_wanted:
            frontier.end_offsets(ends)
    assert frontier.obstacles == []
    return [cut.lsn for cut in frontier.cuts()]


def test_events_say_what_was_and_what_is(world: World, producer: TransactionalProducer) -> None:
    with producer.transaction() as transaction:
        transaction.insert(INVOICES, {"id": 1}, {"n": 1})
        transaction.upsert(INVOICES, {"id": 1}, {"n": 2})
        transaction.upsert(INVOICES, {"id": 1}, {"n": 3}, before={"n": 2})
        transaction.delete(INVOICES, {"id": 1})
        transaction.delete(INVOICES, {"id": 1}, before={"n": 4})
    (found,) = world.read(world.consumer(topics(world)), 1)
    events = [decode_change(record.value() or b"") for record in found]
    assert [(e.op, image(e.before), image(e.after)) for e in events] == [
        ("c", None, {"id": 1, "n": 1}),
        ("u", None, {"id": 1, "n": 2}),
        ("u", {"id": 1, "n": 2}, {"id": 1, "n": 3}),
        ("d", {"id": 1}, None),
        ("d", {"id": 1, "n": 4}, None),
    ]
    assert [e.order for e in events] == [1, 2, 3, 4, 5]
    assert len({e.lsn for e in events}) == 5, "equal ones are taken for repetitions"


def test_a_row_that_contradicts_its_key_is_refused(producer: TransactionalProducer) -> None:
    problem = "column id is 2 in a row of public.invoice, but 1 in its key"
    with pytest.raises(ConfigError, match=problem), producer.transaction() as transaction:
        transaction.insert(INVOICES, {"id": 1}, {"id": 2})


@pytest.mark.parametrize("table", ["invoice", "public.", ".invoice"])
def test_a_table_has_a_schema_and_a_name(memory: World, table: str) -> None:
    producer = TransactionalProducer(memory.kafka, memory.name)
    with (
        pytest.raises(ConfigError, match="is not the name of a table"),
        producer.transaction() as transaction,
    ):
        transaction.insert(table, {"id": 1}, {})


def test_a_table_with_dots_in_its_name_is_read_under_this_name(
    world: World, producer: TransactionalProducer
) -> None:
    topic = producer.make_table("public.a.b")
    with producer.transaction() as transaction:
        transaction.insert("public.a.b", {"id": 1}, {"total": 2})

    consumer = world.consumer(OutputTopics(topic, commits=commit_topic(world.name)))
    ((record,),) = world.read(consumer, 1)

    change = decode_change(record.value() or b"")
    assert (record.topic(), change.table) == (topic, "public.a.b")
    assert image(change.after) == {"id": 1, "total": 2}


def test_commit_times_do_not_go_back(memory: World) -> None:
    class Back:
        def __init__(self) -> None:
            self.year = 2030

        def now(self) -> datetime:
            self.year -= 1
            return datetime(self.year, 1, 1, tzinfo=UTC)

        def monotonic(self) -> float:
            return 0.0

    producer = TransactionalProducer(memory.kafka, memory.name, clock=Back())
    for _ in range(2):
        with producer.transaction():
            pass
    first, second = (decode_commit_record(value) for value in values(memory, producer.commit_topic))
    assert first.commit_ts_ms == second.commit_ts_ms


def test_a_commit_topic_that_lost_the_newest_commit_is_refused(memory: World) -> None:
    with TransactionalProducer(memory.kafka, memory.name) as producer, producer.transaction():
        pass
    memory.broker.truncate((producer.commit_topic, 0), 2)
    with pytest.raises(StateError, match="has lost the newest commit"):
        TransactionalProducer(memory.kafka, memory.name)


def test_keys_are_equal_whatever_the_order_of_their_columns(memory: World) -> None:
    with TransactionalProducer(memory.kafka, memory.name) as producer:
        topic = producer.make_table("public.line")
        with producer.transaction() as transaction:
            transaction.insert("public.line", {"b": 1, "a": 2}, {})
            transaction.insert("public.line", {"a": 2, "b": 1}, {})
    found = [r.key() for n in range(4) for r in memory.broker.partition((topic, n)).records]
    assert found == [b'{"a":2,"b":1}'] * 2
    assert json.loads(found[0] or b"") == {"a": 2, "b": 1}
