"""Whole transactions from a pipeline's outputs, over a broker in memory and a real one.

How the promises were seen to fail. Whole transactions: ``OutputMerge._missing`` returns nothing. At least
once: ``_hand_out`` finishes what it hands out. Nothing of an aborted batch: another isolation level.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from slackwater.client import (
    ByPartition,
    ByUnit,
    OutputTopics,
    Transaction,
    TransactionalConsumer,
    TransactionLostError,
)
from slackwater.client.kafka import Stored
from slackwater.client.transaction import Place
from slackwater.protocol import ConfigError, KafkaSettings, StateError, UnavailableError, from_epoch_ms
from slackwater.protocol.keys import commit_topic
from slackwater_lab.fakes.broker import MemoryMember
from slackwater_lab.fakes.outputs import COMMIT_MS, OutputWriter, World, contents

pytestmark = pytest.mark.parametrize("interface", ["synchronous", "asyncio"], indirect=True)


def order(number: int) -> list[tuple[str, int, str, str | None]]:
    """An order, two lines of it, and a deleted one: in two topics and three partitions."""
    return [
        ("orders", number % 2, f"o{number}", f"order {number}"),
        ("lines", 0, f"l{number}.1", "first"),
        ("lines", 1, f"l{number}.2", "second"),
        ("lines", 1, f"l{number}.3", None),
    ]


def expected(number: int) -> list[tuple[str, str]]:
    return [(key, value or "") for _, _, key, value in order(number)]


def lsns(transactions: list[Transaction]) -> list[int]:
    return [transaction.commit.lsn for transaction in transactions]


def inputs(output: OutputWriter, *names: str) -> OutputTopics:
    return OutputTopics(*(f"{output.name}.{name}" for name in names or ("orders", "lines")))


def test_transactions_come_whole_in_commit_order_over_topics_and_partitions(world: World) -> None:
    output = world.output(orders=2, lines=2)
    for number in range(1, 6):
        output.commit(order(number))
        output.commit(order(99), commits=False)
        output.commit()  # changed no document
    consumer = world.consumer(inputs(output))
    found = world.read(consumer, 5)
    assert [contents(t) for t in found] == [expected(n) for n in range(1, 6)]
    assert lsns(found) == [100, 300, 500, 700, 900]
    first = found[0].commit
    assert (first.source, first.xid, first.id) == ("src", 107, "00000001-0000000000000064")
    assert first.commit_ts_ms == COMMIT_MS + 100
    assert (found[0].is_streamed, found[0].is_part, found[0].lanes) == (False, False, (0,))


def test_topics_that_are_not_asked_for_are_left_out(world: World) -> None:
    output = world.output(orders=2, lines=2)
    output.commit(order(1))
    output.commit([("lines", 0, "l", "alone")])
    output.commit(order(2))
    found = world.read(world.consumer(inputs(output, "orders")), 2)
    assert [contents(t) for t in found] == [expected(1)[:1], expected(2)[:1]]


@pytest.mark.full
def test_an_idle_source_yields_nothing_and_does_not_end(world: World) -> None:
    output = world.output(orders=2, lines=2)
    consumer = world.consumer(inputs(output))
    assert world.is_idle(consumer)
    output.commit(order(1))
    assert lsns(world.read(consumer, 1)) == [100]
    assert world.is_idle(consumer)
    output.commit(order(2))
    assert lsns(world.read(consumer, 1)) == [200]


def test_the_group_s_offset_is_that_of_the_next_commit_record(world: World) -> None:
    output = world.output(orders=2, lines=2)
    for number in range(1, 4):
        output.commit(order(number))
    consumer = world.consumer(inputs(output))
    found = world.read(consumer, 2)
    consumer.commit()
    assert lsns(found) == [100, 200]
    log = commit_topic(f"{output.name}.orders"), 0
    assert world.stored() == {log: 3}  # offsets 0 and 2; behind each is a marker
    consumer.close()
    again = world.consumer(inputs(output))
    assert lsns(world.read(again, 1)) == [300]


def test_what_was_not_processed_comes_again(world: World) -> None:
    output = world.output(orders=2, lines=2)
    for number in range(1, 4):
        output.commit(order(number))
    found: list[Transaction] = []

    def fail_at_the_second() -> None:
        with world.consumer(inputs(output)) as consumer:
            found.extend(world.read(consumer, 2))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_at_the_second()
    assert lsns(found) == [100, 200]
    with world.consumer(inputs(output)) as again:
        assert lsns(world.read(again, 2)) == [200, 300]
    with world.consumer(inputs(output)) as finished:
        assert world.is_idle(finished)


def test_a_transaction_that_is_too_large_is_streamed_from_its_beginning_to_its_end(world: World) -> None:
    output = world.output(orders=2, lines=2)
    big = [("lines", n % 2, f"k{n}", "x" * 1000) for n in range(3000)]
    output.commit(order(1))
    output.commit(big)
    output.commit(order(2))
    consumer = world.consumer(inputs(output), max_bytes=50_000)
    (small,) = world.read(consumer, 1)
    # Small ones may be streamed as well, since memory is full of the large one: then pieces follow arrival.
    assert sorted(contents(small)) == sorted(expected(1))
    (large,) = world.read(consumer, 1)
    assert large.is_streamed
    with pytest.raises(ConfigError, match="too large to be held in memory"):
        _ = large.records
    keys = [key for key, _ in contents(large)]
    assert len(keys) == 3000
    for partition in (0, 1):
        assert [k for k in keys if int(k[1:]) % 2 == partition] == [
            f"k{n}" for n in range(partition, 3000, 2)
        ]
    assert sorted(contents(world.read(consumer, 1)[0])) == sorted(expected(2))


def test_what_of_a_streamed_transaction_is_not_iterated_is_passed_over(world: World) -> None:
    output = world.output(orders=2, lines=2)
    output.commit([("lines", n % 2, f"k{n}", "x" * 1000) for n in range(3000)])
    output.commit(order(2))
    consumer = world.consumer(inputs(output), max_bytes=50_000)
    (large,) = world.read(consumer, 1)
    assert large.is_streamed
    assert next(iter(large)) is not None
    (small,) = world.read(consumer, 1)
    assert contents(small) == expected(2)


@pytest.mark.full
def test_a_consumer_goes_to_a_commit_or_a_time(world: World) -> None:
    output = world.output(orders=2, lines=2)
    for number in range(1, 10):
        output.commit(order(number))
    consumer = world.consumer(inputs(output))
    assert lsns(world.read(consumer, 2)) == [100, 200]
    consumer.seek(700)
    assert lsns(world.read(consumer, 1)) == [700]
    consumer.seek(301)
    assert [contents(t) for t in world.read(consumer, 2)] == [expected(4), expected(5)]
    consumer.seek_to_time(from_epoch_ms(COMMIT_MS + 800))
    assert lsns(world.read(consumer, 1)) == [800]
    consumer.seek(100_000)
    assert world.is_idle(consumer)
    output.commit(order(10))
    assert lsns(world.read(consumer, 1)) == [1000]


def test_a_new_group_may_begin_at_what_is_written_from_now_on(world: World) -> None:
    output = world.output(orders=2, lines=2)
    output.commit(order(1))
    consumer = world.consumer(inputs(output), latest=True)
    assert world.is_idle(consumer)
    consumer.close()
    output.commit(order(2))
    assert lsns(world.read(world.consumer(inputs(output), latest=True), 1)) == [200]


def test_of_two_members_one_works_and_the_other_takes_over(world: World) -> None:
    output = world.output(orders=2, lines=2)
    for number in range(1, 5):
        output.commit(order(number))
    first = world.consumer(inputs(output))
    assert lsns(world.read(first, 2)) == [100, 200]
    second = world.consumer(inputs(output))
    assert world.is_idle(second)
    first.commit()
    first.close()
    assert lsns(world.read(second, 2)) == [300, 400]


def test_new_partitions_and_topics_need_nothing(world: World) -> None:
    output = world.output(orders=1, lines=1)
    output.commit([("orders", 0, "a", "1")])
    consumer = world.consumer(inputs(output))
    assert contents(world.read(consumer, 1)[0]) == [("a", "1")]
    output.commit([("lines", 0, "b", "2"), ("orders", 0, "c", "3")])
    assert contents(world.read(consumer, 1)[0]) == [("c", "3"), ("b", "2")]


def test_documents_that_compaction_removed_are_not_waited_for(memory: World) -> None:
    output = memory.output(orders=2, lines=2)
    for number in range(1, 4):
        output.commit(order(number))
    broker = memory.broker
    for offset in (0, 1, 3):
        broker.remove((f"{output.name}.lines", 1), offset)
    found = memory.read(memory.consumer(inputs(output)), 3)
    assert [contents(t) for t in found] == [expected(1)[:2], [*expected(2)[:2], expected(2)[3]], expected(3)]


def test_documents_without_a_commit_are_left_out(memory: World) -> None:
    output = memory.output(orders=1)
    output.commit([("orders", 0, "a", "1")])
    memory.broker.append((f"{output.name}.orders", 0), b"foreign", b"x")
    output.commit([("orders", 0, "b", "2")])
    found = memory.read(memory.consumer(inputs(output, "orders")), 2)
    assert [contents(t) for t in found] == [[("a", "1")], [("b", "2")]]


def test_documents_that_are_gone_are_an_error_and_never_a_gap(world: World) -> None:
    output = world.output(orders=1)
    for number in range(3):
        output.commit([("orders", 0, f"k{number}", "v")])
    place = f"{output.name}.orders", 0
    if isinstance(world.kafka, KafkaSettings):
        admin = AdminClient(dict(world.kafka.client_config))
        for done in admin.delete_records([TopicPartition(*place, 3)]).values():
            done.result(60)
    else:
        world.broker.truncate(place, 3)
    consumer = world.consumer(inputs(output, "orders"))
    with pytest.raises(StateError, match="offset 0 is needed"):
        world.read(consumer, 1)


def refused(self: MemoryMember, offsets: Mapping[Place, Stored]) -> bool:
    """What a member of Kafka answers while its group divides the partitions again."""
    return False


def test_positions_that_the_group_refuses_are_stored_with_the_next_ones_or_at_the_end(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = memory.output(orders=1)
    output.commit([("orders", 0, "a", "1")])
    consumer = memory.consumer(inputs(output, "orders"))
    assert len(memory.read(consumer, 1)) == 1
    with monkeypatch.context() as patch:
        patch.setattr(MemoryMember, "store", refused)
        consumer.commit()
    assert memory.stored() == {}
    consumer.close()
    assert list(memory.stored().values()) == [1]


def test_positions_that_were_refused_are_not_stored_over_those_of_whoever_had_the_lane_since(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = memory.output(orders=1)
    for number in range(20):
        output.commit([("orders", 0, f"k{number}", "1")])
    consumer = memory.consumer(inputs(output, "orders"))
    assert len(memory.read(consumer, 1)) == 1
    with monkeypatch.context() as patch:
        patch.setattr(MemoryMember, "store", refused)
        consumer.commit()
    memory.broker.upset(f"{memory.name}.g")
    log = commit_topic(f"{output.name}.orders"), 0
    other = memory.broker.member(f"{memory.name}.g", log[0], lambda _: None)
    other.store({log: Stored(39)})
    other.close()
    while consumer.poll(timedelta(0)) is not None:
        pass  # until it looks after its group
    consumer.close()
    assert list(memory.stored().values()) == [39]


def test_a_consumer_that_cannot_store_its_positions_is_closed_all_the_same(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = memory.output(orders=1)
    output.commit([("orders", 0, "a", "1")])
    consumer = memory.consumer(inputs(output, "orders"))
    assert len(memory.read(consumer, 1)) == 1
    asked: list[Mapping[Place, Stored]] = []

    def unavailable(self: MemoryMember, offsets: Mapping[Place, Stored]) -> bool:
        asked.append(offsets)
        raise UnavailableError("no answer", "wait")

    monkeypatch.setattr(MemoryMember, "store", unavailable)
    with pytest.raises(UnavailableError):
        consumer.commit()
    with pytest.raises(UnavailableError):
        consumer.close()
    assert len(asked) == 2, "the broker is not waited for a third time"
    other = memory.consumer(inputs(output, "orders"))
    assert len(memory.read(other, 1)) == 1


def test_a_commit_topic_that_was_made_anew_is_refused(memory: World) -> None:
    output = memory.output(orders=1)
    output.commit([("orders", 0, "a", "1")])
    log = commit_topic(f"{output.name}.orders"), 0
    member = memory.broker.member(f"{memory.name}.g", log[0], lambda _: None)
    member.store({log: Stored(17)})
    member.close()
    with pytest.raises(StateError, match="ends at offset 2, but was read up to 17"):
        memory.read(memory.consumer(inputs(output, "orders")), 1)


def test_a_member_that_loses_its_lane_within_a_streamed_transaction_cannot_finish_it(memory: World) -> None:
    output = memory.output(orders=2, lines=2)
    output.commit([("lines", n % 2, f"k{n}", "x" * 1000) for n in range(4000)])
    output.commit(order(1))
    first = memory.consumer(inputs(output), max_bytes=50_000)
    (large,) = memory.read(first, 1)
    records = iter(large)
    next(records)
    memory.broker.expel(f"{memory.name}.g")  # as when the handler was away for too long
    with pytest.raises(TransactionLostError):
        list(records)
    second = memory.consumer(inputs(output), max_bytes=50_000)
    (again,) = memory.read(second, 1)
    assert len(contents(again)) == 4000
    assert lsns(memory.read(second, 1)) == [200]
    assert first.poll(timedelta(0)) is None


def test_a_lane_that_was_lost_and_came_back_is_read_from_where_it_was_stored(memory: World) -> None:
    """Fails when only the set of lanes is examined: somebody else may have continued with it meanwhile."""
    output = memory.output(orders=2, lines=2)
    output.commit([("lines", n % 2, f"k{n}", "x" * 1000) for n in range(4000)])
    consumer = memory.consumer(inputs(output), max_bytes=50_000)
    (large,) = memory.read(consumer, 1)
    records = iter(large)
    next(records)
    memory.broker.upset(f"{memory.name}.g")
    with pytest.raises(TransactionLostError):
        list(records)
    (again,) = memory.read(consumer, 1)
    assert len(contents(again)) == 4000


def stream(memory: World, **settings: Any) -> tuple[TransactionalConsumer, Transaction]:
    """Returns a consumer in the middle of the first of two transactions."""
    output = memory.output(orders=2, lines=2)
    output.commit([("lines", n % 2, f"k{n}", "x" * 1000) for n in range(4000)])
    output.commit(order(2))
    consumer = memory.consumer(inputs(output), max_bytes=50_000, **settings)
    (large,) = memory.read(consumer, 1)
    assert large.is_streamed
    return consumer, large


def test_offsets_are_those_behind_the_newest_transaction_also_if_it_was_not_read_to_its_end(
    memory: World,
) -> None:
    """Its effects are committed with them: before it, it would come and have its effects again."""
    consumer, _ = stream(memory, stores_positions=False)
    assert [each.offset for each in consumer.offsets()] == [1]
    assert lsns(memory.read(consumer, 1)) == [200]


def test_offsets_are_refused_if_the_newest_transaction_was_lost_before_its_end(memory: World) -> None:
    """Also by a handler that continues: what it has done may have been done by another member in between."""
    consumer, large = stream(memory, stores_positions=False)
    memory.broker.upset(f"{memory.name}.g")
    with pytest.raises(TransactionLostError):
        list(large)
    with pytest.raises(TransactionLostError, match="was handed to another member"):
        consumer.offsets()
    assert lsns(memory.read(consumer, 2)) == [100, 200]


@pytest.mark.parametrize("stores", [True, False])
def test_a_lane_that_is_gained_within_a_streamed_transaction_waits_for_its_end(
    memory: World, stores: bool
) -> None:
    output = memory.output(lines=2)
    share = ByUnit(lambda record: record.key(), lanes=2)
    other = memory.consumer(inputs(output, "lines"), share=share)
    assert memory.is_idle(other)
    consumer = memory.consumer(
        inputs(output, "lines"), share=share, max_bytes=50_000, stores_positions=stores
    )
    for _ in range(3):
        assert memory.is_idle(other)
        assert memory.is_idle(consumer)
    assert len(consumer.lanes) == 1
    output.commit([("lines", n % 2, f"k{n}", "x" * 1000) for n in range(4000)])
    output.commit([("lines", 0, "a", ""), ("lines", 1, "b", "")])
    (mine,) = memory.read(consumer, 1)
    assert mine.is_streamed
    other.close()
    count = len(contents(mine))
    assert count + mine.elsewhere == 4000
    (rest,) = memory.read(consumer, 1)
    assert rest.commit.lsn == 100
    assert len(contents(rest)) == 4000 - count


@pytest.mark.parametrize("lose", ["expel", "upset", "at the next poll"])
def test_offsets_of_a_transaction_that_another_member_may_have_are_refused(
    memory: World, lose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With them, or with none, a Kafka transaction would commit what the other member commits, too."""
    output = memory.output(orders=2, lines=2)
    output.commit(order(1))
    output.commit(order(2))
    consumer = memory.consumer(inputs(output))
    memory.read(consumer, 1)
    assert [each.offset for each in consumer.offsets()] == [1]
    memory.read(consumer, 1)
    if lose == "at the next poll":
        monkeypatch.setattr(MemoryMember, "poll", lambda self, _: self.lose())
    else:
        getattr(memory.broker, lose)(f"{memory.name}.g")
    with pytest.raises(TransactionLostError, match="was handed to another member"):
        consumer.offsets()


def test_offsets_of_several_transactions_are_refused_if_an_earlier_one_comes_again(memory: World) -> None:
    """Fails when only the newest transaction is examined: a Kafka transaction would have the first twice."""
    output = memory.output(orders=2, lines=2)
    output.commit(order(1))
    consumer = memory.consumer(inputs(output), stores_positions=False)
    assert lsns(memory.read(consumer, 1)) == [100]
    memory.broker.upset(f"{memory.name}.g")
    assert lsns(memory.read(consumer, 1)) == [100]
    with pytest.raises(TransactionLostError, match="was handed to another member"):
        consumer.offsets()
    output.commit(order(2))
    assert lsns(memory.read(consumer, 1)) == [200]
    assert [each.offset for each in consumer.offsets()] == [3]


def test_arguments_that_cannot_be_used_are_refused(memory: World) -> None:
    with pytest.raises(ConfigError, match="no topic was given"):
        OutputTopics()
    output = memory.output(orders=1)
    with pytest.raises(ConfigError, match="ByPartition names the topics other"):
        memory.read(memory.consumer(inputs(output, "orders"), share=ByPartition("other")), 1)
    with pytest.raises(ConfigError, match="max_bytes is 0"):
        memory.read(memory.consumer(inputs(output, "orders"), max_bytes=0), 1)


def test_a_seek_counts_from_where_it_went_to(memory: World) -> None:
    """What was processed beyond it comes again, also to the next owner of the lane."""
    output = memory.output(orders=2, lines=2)
    for number in range(1, 4):
        output.commit(order(number))
    consumer = memory.consumer(inputs(output))
    assert len(memory.read(consumer, 3)) == 3
    consumer.seek(100)
    assert lsns(memory.read(consumer, 1)) == [100]
    consumer.commit()
    assert memory.stored() == {(commit_topic(f"{output.name}.orders"), 0): 1}


def partitions(memory: World, *topics: str) -> tuple[OutputWriter, OutputTopics, ByPartition]:
    output = memory.output(**dict.fromkeys(topics, 2))
    found = inputs(output, *topics)
    return output, found, ByPartition(*found.topics)


def test_a_seek_forgets_the_offsets_of_partitions_beyond_it(memory: World) -> None:
    output, topics, share = partitions(memory, "orders")
    for number in range(2):
        output.commit([("orders", number, "k", "x")])
    consumer = memory.consumer(topics, share=share)
    assert len(memory.read(consumer, 2)) == 2
    consumer.seek(100)
    assert lsns(memory.read(consumer, 1)) == [100]
    consumer.commit()
    assert memory.stored() == {(topics.topics[0], 0): 1}


def test_a_lane_of_several_topics_goes_on_behind_the_newest_of_their_positions(memory: World) -> None:
    output, topics, share = partitions(memory, "orders", "lines")
    output.commit([("orders", 0, "k", "x"), ("lines", 0, "k", "x")])
    output.commit([("lines", 0, "k", "y")])
    with memory.consumer(topics, share=share) as consumer:
        assert lsns(memory.read(consumer, 2)) == [100, 200]
    output.commit([("orders", 0, "k", "z")])
    again = memory.consumer(topics, share=share)
    assert lsns(memory.read(again, 2, tries=10)) == [300]


def test_offsets_that_another_tool_has_set_count_where_one_of_them_says_no_more(memory: World) -> None:
    output, topics, share = partitions(memory, "orders", "lines")
    for _ in range(2):
        output.commit([("orders", 0, "k", "x"), ("lines", 0, "k", "x")])
    with memory.consumer(topics, share=share) as consumer:
        assert lsns(memory.read(consumer, 2)) == [100, 200]
    member = memory.broker.member(f"{memory.name}.g", topics.topics[0], lambda _: None)
    member.store({(topics.topics[0], 0): Stored(2)})
    member.close()
    assert lsns(memory.read(memory.consumer(topics, share=share), 2, tries=10)) == [200]


def test_offsets_are_those_of_lanes_that_a_member_still_has(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, topics, share = partitions(memory, "orders")
    for number in range(2):
        output.commit([("orders", number, "k", "x")])
    consumer = memory.consumer(topics, share=share, stores_positions=False)
    assert [each.lanes for each in memory.read(consumer, 1)] == [(0,)]
    assert [(each.partition, each.offset) for each in consumer.offsets()] == [(0, 1)]
    assert [each.lanes for each in memory.read(consumer, 1)] == [(1,)]

    def lose_the_first(member: MemoryMember, _: float) -> None:
        member.lanes, member._gone = frozenset({1}), frozenset({0})  # noqa: SLF001

    monkeypatch.setattr(MemoryMember, "poll", lose_the_first)
    assert [(each.partition, each.offset) for each in consumer.offsets()] == [(1, 1)]


@pytest.mark.parametrize("stores", [True, False])
def test_where_a_new_group_begins_is_stored_by_whoever_stores_positions(memory: World, stores: bool) -> None:
    output, topics, share = partitions(memory, "orders")
    for _ in range(3):
        output.commit([("orders", 0, "k", "x")])
    with memory.consumer(topics, share=share, latest=True, stores_positions=stores) as consumer:
        assert memory.is_idle(consumer)
    orders = topics.topics[0]
    assert memory.stored() == ({(orders, 0): 6, (orders, 1): 0} if stores else {})
