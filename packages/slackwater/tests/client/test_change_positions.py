"""Where a consumer of change topics continues, and what it does with cuts that do not fit into its memory."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from slackwater.client import ByPartition, ByUnit, ChangeTopics, Transaction
from slackwater.client.kafka import Stored
from slackwater.protocol import CommittedTransaction, StateError, from_epoch_ms
from slackwater.protocol.keys import cut_log_topic, data_topic
from slackwater_lab.fakes.broker import MemoryBroker
from slackwater_lab.fakes.outputs import COMMIT_MS, ChangeWriter, World

ORDERS, LINES = "s.orders", "s.lines"
TABLES = {ORDERS: 2, LINES: 2}


@pytest.fixture
def source(memory: World) -> ChangeWriter:
    return memory.changes(TABLES)


def inputs(world: World, *tables: str) -> ChangeTopics:
    return ChangeTopics(source=world.name, tables=tables or tuple(TABLES))


def write(source: ChangeWriter, *numbers: int, cuts: bool = True) -> None:
    """Writes a transaction of an order and a line for each number, each in a cut of its own."""
    for number in numbers:
        source.transaction([(ORDERS, number, {"id": number}), (LINES, number + 1, {"id": 10 * number})])
        if cuts:
            source.cut()


def lsns(found: list[Transaction]) -> list[int]:
    return [each.commit.lsn for each in found]


def ids(transaction: Transaction) -> list[int]:
    return [json.loads(record.value() or b"")["after"]["id"] for record in transaction]


def cut_of(*numbers: int, world: World, source: ChangeWriter) -> None:
    write(source, *numbers, cuts=False)
    source.cut()


def test_a_consumer_goes_to_a_commit_within_a_cut_between_cuts_and_to_one_of_the_future(
    memory: World, source: ChangeWriter
) -> None:
    for numbers in ((1, 2, 3), (4, 5), (6,)):
        cut_of(*numbers, world=memory, source=source)
    consumer = memory.consumer(inputs(memory))
    for lsn, first in ((200, 200), (201, 300), (300, 300), (301, 400), (400, 400), (600, 600), (1, 100)):
        consumer.seek(lsn)
        assert lsns(memory.read(consumer, 1)) == [first], lsn
    consumer.seek(601)
    assert memory.is_idle(consumer)
    write(source, 7)
    assert lsns(memory.read(consumer, 2, tries=10)) == [700]


def test_a_consumer_goes_to_a_time(memory: World, source: ChangeWriter) -> None:
    for numbers in ((1, 2), (3,)):
        cut_of(*numbers, world=memory, source=source)
    consumer = memory.consumer(inputs(memory))
    for ms, expected in ((100, [100, 200, 300]), (101, [200, 300]), (200, [200, 300]), (300, [300])):
        consumer.seek_to_time(from_epoch_ms(COMMIT_MS + ms))
        assert lsns(memory.read(consumer, 4, tries=10)) == expected, ms
    consumer.seek_to_time(from_epoch_ms(COMMIT_MS + 301))
    assert memory.is_idle(consumer)


def test_a_new_group_may_begin_behind_the_newest_cut(memory: World, source: ChangeWriter) -> None:
    write(source, 1, 2)
    consumer = memory.consumer(inputs(memory), latest=True)
    assert memory.is_idle(consumer)
    write(source, 3)
    assert lsns(memory.read(consumer, 2, tries=10)) == [300]


def test_records_of_a_transaction_are_in_the_order_of_the_log_over_tables_and_partitions(
    memory: World, source: ChangeWriter
) -> None:
    rows = [(ORDERS, 1, 1), (LINES, 2, 2), (ORDERS, 2, 3), (LINES, 1, 4), (ORDERS, 1, 5), (LINES, 2, 6)]
    source.transaction([(table, key, {"id": number}) for table, key, number in rows])
    source.cut()
    (found,) = memory.read(memory.consumer(inputs(memory)), 1)
    assert ids(found) == [1, 2, 3, 4, 5, 6]


def test_changes_with_one_lsn_are_in_the_order_of_their_transaction(
    memory: World, source: ChangeWriter
) -> None:
    """PostgreSQL logs several rows of a COPY together."""
    rows = [(ORDERS, 1, 1), (LINES, 2, 2), (ORDERS, 2, 3), (LINES, 1, 4), (ORDERS, 1, 5), (LINES, 2, 6)]
    xid = source.begin()
    source.rows(xid, [(table, key, {"id": number}) for table, key, number in rows], lsn=50)
    source.cut(transactions=(CommittedTransaction(xid, 100, COMMIT_MS),))
    (found,) = memory.read(memory.consumer(inputs(memory)), 1)
    assert ids(found) == [1, 2, 3, 4, 5, 6]


def test_rows_before_the_first_cut_of_a_group_and_those_without_a_commit_are_left_out(
    memory: World, source: ChangeWriter
) -> None:
    source.transaction([(ORDERS, 1, {"id": 9})], is_listed=False)
    write(source, 1, 2)
    found = memory.read(memory.consumer(inputs(memory)), 3, tries=10)
    assert [(each.commit.lsn, ids(each)) for each in found] == [(200, [1, 10]), (300, [2, 20])]


def test_tables_that_are_not_read_do_not_matter(memory: World, source: ChangeWriter) -> None:
    source.transaction([(LINES, 1, {"id": 1})])
    source.cut()
    write(source, 2)
    consumer = memory.consumer(inputs(memory, ORDERS))
    assert [ids(each) for each in memory.read(consumer, 2, tries=10)] == [[2]]


def by_partition(memory: World) -> ByPartition:
    return ByPartition(data_topic(memory.name, ORDERS), data_topic(memory.name, LINES))


def set_offsets(memory: World, topic: str, offsets: dict[tuple[str, int], int]) -> None:
    """Sets offsets of the group as another tool does, which knows no positions."""
    member = memory.broker.member(f"{memory.name}.g", topic, lambda _: None)
    member.store({place: Stored(offset) for place, offset in offsets.items()})
    member.close()


@pytest.mark.parametrize(
    ("orders", "lines", "expected"),
    [(0, 0, [200, 400, 600]), (2, 0, [200, 400, 600]), (2, 2, [400, 600]), (4, 2, [400, 600]), (6, 6, [])],
)
def test_offsets_that_another_tool_has_set_mean_the_newest_cut_that_they_have_passed(
    memory: World, source: ChangeWriter, orders: int, lines: int, expected: list[int]
) -> None:
    """Offsets of partition 0, in which the even orders are, are the ends of the cuts with these numbers."""
    topics = data_topic(memory.name, ORDERS), data_topic(memory.name, LINES)
    ends: list[Mapping[str, tuple[int, ...]]] = [dict.fromkeys(topics, (0, 0))]
    for number in range(1, 7):
        source.transaction([(ORDERS, number, {"id": number}), (LINES, number, {"id": number})])
        ends.append(source.cut().end_offsets)
    found = {(topic, 0): ends[cut][topic][0] for topic, cut in zip(topics, (orders, lines), strict=True)}
    set_offsets(memory, topics[0], found | {(topic, 1): ends[6][topic][1] for topic in topics})

    consumer = memory.consumer(inputs(memory), share=by_partition(memory))
    assert lsns(memory.read(consumer, 6, tries=20)) == expected


def test_the_offset_of_a_partition_passes_a_cut_with_its_last_transaction(
    memory: World, source: ChangeWriter
) -> None:
    """A tool that knows only offsets continues with a cut that was processed in part, not behind it."""
    topics = data_topic(memory.name, ORDERS), data_topic(memory.name, LINES)
    write(source, 2, 4, cuts=False)
    ends = source.cut().end_offsets
    consumer = memory.consumer(inputs(memory), share=by_partition(memory))
    stored = []
    for _ in range(4):
        memory.read(consumer, 1)
        consumer.commit()
        stored.append({memory.stored().get((topic, 0), 0) for topic in topics})
    assert stored[0] == {0}
    assert stored[-1] == {ends[topic][0] for topic in topics}


def test_a_position_of_the_log_that_another_tool_has_set_means_the_newest_cut_below(
    memory: World, source: ChangeWriter
) -> None:
    write(source, 1, 2, 3)
    with memory.consumer(inputs(memory)) as consumer:
        memory.read(consumer, 1)
    log = cut_log_topic(memory.name), 0
    cuts = [record.offset() or 0 for record in memory.broker.partition(log).records]
    for offset, expected in (
        (cuts[1] + 1, [300]),
        (cuts[1], [200, 300]),
        (cuts[0] + 1, [200, 300]),
        (0, [100, 200, 300]),
    ):
        set_offsets(memory, log[0], {log: offset})
        consumer = memory.consumer(inputs(memory))
        assert lsns(memory.read(consumer, 4, tries=10)) == expected
        consumer.close()


def test_lanes_that_stand_at_different_commits_get_each_commit_once(
    memory: World, source: ChangeWriter
) -> None:
    """A handler that stores positions itself may have stored other ones for other lanes."""
    rows = [(ORDERS, unit, {"id": unit}) for unit in range(8)]
    for _ in range(4):
        source.transaction(rows)
        source.cut()
    share = ByUnit(lambda record: str(json.loads(record.value() or b"")["after"]["id"]), lanes=2)
    with memory.consumer(inputs(memory), share=share) as first:
        _, second, third, _ = memory.read(first, 4)
        own = [
            sorted(json.loads(r.value() or b"")["after"]["id"] for r in second if share.lane_of(r) == lane)
            for lane in (0, 1)
        ]
        positions = {0: third.positions[0], 1: second.positions[1]}
    assert all(own)

    again = memory.consumer(inputs(memory), share=share, positions=positions.get, stores_positions=False)
    found = [(each.commit.lsn, each.lanes, sorted(ids(each))) for each in memory.read(again, 4, tries=10)]
    assert found == [(300, (1,), own[1]), (400, (0, 1), list(range(8)))]


SMALL = 20_000
"""Bytes of memory; a row of 1,000 bytes takes 1,700 about."""


def fill(source: ChangeWriter, number: int, rows: int) -> int:
    return source.transaction([(ORDERS, n, {"id": n, "text": f"{number}" * 1000}) for n in range(rows)])


def small(memory: World, **others: Any) -> Any:
    assert isinstance(memory.kafka, MemoryBroker)
    memory.kafka.at_once = 3
    return memory.consumer(inputs(memory, ORDERS), max_bytes=SMALL, **others)


def test_a_cut_that_is_too_large_is_handed_out_while_it_is_read(memory: World, source: ChangeWriter) -> None:
    for number in range(1, 9):
        fill(source, number, 6)
    source.cut()
    fill(source, 9, 1)
    source.cut()
    consumer = small(memory)
    found = []
    for _ in range(9):
        (each,) = memory.read(consumer, 1)
        assert not each.is_streamed, "it is handed out as soon as all of it was read"
        found.append((each.commit.lsn, sorted(ids(each))))
    assert found == [*((100 * n, [0, 1, 2, 3, 4, 5]) for n in range(1, 9)), (900, [0])]
    assert memory.is_idle(consumer)


def test_a_transaction_that_is_too_large_is_streamed_and_the_next_ones_are_whole(
    memory: World, source: ChangeWriter
) -> None:
    fill(source, 1, 2)
    fill(source, 2, 100)
    fill(source, 3, 2)
    source.cut()
    consumer = small(memory)
    sizes = []
    for _ in range(3):
        (each,) = memory.read(consumer, 1)
        found = ids(each)
        for lane in (0, 1):
            assert [n for n in found if n % 2 == lane] == list(range(lane, len(found), 2))
        sizes.append((each.commit.lsn, len(found)))
    assert sizes == [(100, 2), (200, 100), (300, 2)]
    consumer.commit()
    consumer.close()
    assert memory.is_idle(small(memory))


def test_of_a_large_cut_the_rest_follows_at_the_next_start(memory: World, source: ChangeWriter) -> None:
    for number in range(1, 6):
        fill(source, number, 12)
    source.cut()
    with small(memory) as consumer:
        assert lsns(memory.read(consumer, 2)) == [100, 200]
    assert [(each.commit.lsn, len(ids(each))) for each in memory.read(small(memory), 1)] == [(300, 12)]


def test_rows_that_are_repeated_within_a_cut_are_delivered_once_and_together(
    memory: World, source: ChangeWriter
) -> None:
    write(source, 1, cuts=False)
    source.rows(107, [(ORDERS, 1, {"id": 1}), (LINES, 2, {"id": 10})])
    write(source, 2, cuts=False)
    source.cut(repeated=frozenset({100}))
    write(source, 3)
    found = memory.read(memory.consumer(inputs(memory)), 4, tries=10)
    assert [(each.commit.lsn, ids(each)) for each in found] == [
        (100, [1, 10]),
        (200, [2, 20]),
        (300, [3, 30]),
    ]


def test_repeated_rows_are_delivered_once_to_each_partition(memory: World, source: ChangeWriter) -> None:
    write(source, 1, cuts=False)
    source.rows(107, [(ORDERS, 1, {"id": 1}), (LINES, 2, {"id": 10})])
    source.cut(repeated=frozenset({100}))
    consumer = memory.consumer(inputs(memory), share=by_partition(memory))
    found = memory.read(consumer, 4, tries=10)
    assert sorted((each.lanes, ids(each)) for each in found if each.records) == [((0,), [10]), ((1,), [1])]


def test_a_table_that_loses_its_snapshot_while_it_is_followed_is_refused(
    memory: World, source: ChangeWriter
) -> None:
    write(source, 1)
    consumer = memory.consumer(inputs(memory))
    assert lsns(memory.read(consumer, 1)) == [100]
    write(source, 2, cuts=False)
    source.cut(without_snapshot=(data_topic(memory.name, LINES),))
    with pytest.raises(StateError, match=r"s\.lines, so nothing of them is delivered"):
        memory.read(consumer, 1)


def test_cuts_of_before_a_complete_snapshot_are_not_refused_afterwards(
    memory: World, source: ChangeWriter
) -> None:
    for _ in range(6):
        write(source, 1, cuts=False)
        source.cut(without_snapshot=(data_topic(memory.name, LINES),))
    write(source, 7)
    assert lsns(memory.read(memory.consumer(inputs(memory)), 8, tries=10)) == [100 * n for n in range(1, 8)]
