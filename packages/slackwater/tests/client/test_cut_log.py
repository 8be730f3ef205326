"""What a consumer does with holes, repetitions and new timelines in the cut log."""

import json

import pytest

from slackwater.client import ChangeTopics, Transaction
from slackwater.cuts import CutLogDamagedError
from slackwater.protocol import CommittedTransaction, Refusal, StateError, encode_cut, encode_log_record
from slackwater.protocol.keys import cut_log_topic
from slackwater_lab.fakes.outputs import COMMIT_MS, ChangeWriter, World

TABLES = {"s.orders": 2}


@pytest.fixture
def source(memory: World) -> ChangeWriter:
    return memory.changes(TABLES)


def inputs(world: World) -> ChangeTopics:
    return ChangeTopics(source=world.name, tables=tuple(TABLES))


def write(source: ChangeWriter, *numbers: int) -> None:
    """Writes a transaction of two rows for each number."""
    for number in numbers:
        source.transaction([("s.orders", number, {"id": number}), ("s.orders", number + 1, {"id": number})])


def delivered(found: list[Transaction]) -> list[tuple[int, list[int]]]:
    """Returns LSN and ids of each transaction."""
    return [
        (each.commit.lsn, [json.loads(record.value() or b"")["after"]["id"] for record in each])
        for each in found
    ]


ONE, TWO, THREE = (100, [1, 1]), (200, [2, 2]), (300, [3, 3])


def test_a_hole_of_one_transaction_is_noticed(memory: World, source: ChangeWriter) -> None:
    write(source, 1)
    source.cut()
    write(source, 2)
    source.cut(previous_lsn=101)
    consumer = memory.consumer(inputs(memory))
    with pytest.raises(StateError, match=r"up to 1/0/64, but the next cut, at offset \d+, begins"):
        memory.read(consumer, 2)


def test_a_cut_that_cannot_be_read_is_not_passed_over(memory: World, source: ChangeWriter) -> None:
    """Unless an operator has decided so: the transactions that it names would be missing without a word."""
    write(source, 1)
    source.append(encode_cut(source.cut())[:-9])
    write(source, 2)
    source.cut()
    consumer = memory.consumer(inputs(memory))
    with pytest.raises(CutLogDamagedError):
        memory.read(consumer, 2)


def test_a_refusal_delivers_nothing_and_stops_nobody(memory: World, source: ChangeWriter) -> None:
    refusal = Refusal(
        source=memory.name, timeline=1, since_lsn=100, newest_lsn=200, reason="a.setting: wrong"
    )
    write(source, 1)
    source.cut()
    source.append(encode_log_record(refusal))
    write(source, 2)
    source.cut()
    assert delivered(memory.read(memory.consumer(inputs(memory)), 3, tries=20)) == [ONE, TWO]


def test_cuts_that_are_repeated_deliver_nothing_again(memory: World, source: ChangeWriter) -> None:
    write(source, 1)
    first = source.cut()
    write(source, 2)
    second = source.cut()
    for cut in (first, second):
        source.append(encode_cut(cut))
    write(source, 3)
    source.cut()
    assert delivered(memory.read(memory.consumer(inputs(memory)), 4, tries=20)) == [ONE, TWO, THREE]


def test_a_cut_that_overlaps_another_one_delivers_what_is_new(memory: World, source: ChangeWriter) -> None:
    write(source, 1)
    first = source.cut()
    consumer = memory.consumer(inputs(memory))
    assert delivered(memory.read(consumer, 1)) == [ONE]
    write(source, 2)
    newest = CommittedTransaction(207, 200, COMMIT_MS)
    source.cut(previous_lsn=0, transactions=(*first.transactions, newest))
    assert delivered(memory.read(consumer, 2, tries=20)) == [TWO]


def test_a_hole_behind_a_cut_that_ends_above_its_last_transaction_is_noticed(
    memory: World, source: ChangeWriter
) -> None:
    write(source, 1)
    source.cut(lsn=150)
    write(source, 2)
    source.cut(previous_lsn=150)
    consumer = memory.consumer(inputs(memory))
    assert delivered(memory.read(consumer, 2)) == [ONE, TWO]
    write(source, 3)
    source.cut(previous_lsn=201)
    with pytest.raises(StateError, match="cuts are missing"):
        memory.read(consumer, 1)


def test_a_new_timeline_may_begin_at_a_smaller_lsn(memory: World, source: ChangeWriter) -> None:
    write(source, 1)
    source.cut(lsn=5_000, transactions=(CommittedTransaction(107, 5_000, COMMIT_MS),))
    write(source, 2)
    source.cut(timeline=2, previous_lsn=0)
    found = memory.read(memory.consumer(inputs(memory)), 2)
    assert [(each.commit.timeline, each.commit.lsn) for each in found] == [(1, 5_000), (2, 200)]


def test_of_a_cut_that_was_handed_out_in_part_the_rest_follows_once(
    memory: World, source: ChangeWriter
) -> None:
    write(source, 1, 2, 3)
    source.cut()
    with memory.consumer(inputs(memory)) as consumer:
        assert delivered(memory.read(consumer, 1)) == [ONE]
    with memory.consumer(inputs(memory)) as consumer:
        assert delivered(memory.read(consumer, 3, tries=20)) == [TWO, THREE]
    write(source, 4)
    source.cut()
    assert delivered(memory.read(memory.consumer(inputs(memory)), 2, tries=20)) == [(400, [4, 4])]


@pytest.mark.parametrize("interval", [1, 3])
def test_a_member_that_goes_on_needs_the_log_from_its_position_on(
    memory: World, source: ChangeWriter, interval: int
) -> None:
    for number in range(1, 7):
        write(source, number)
        if number % interval == 0:
            source.cut()
    with memory.consumer(inputs(memory)) as consumer:
        memory.read(consumer, 4)
    memory.broker.truncate(
        (cut_log_topic(memory.name), 0), memory.broker.partition((cut_log_topic(memory.name), 0)).end
    )
    with pytest.raises(StateError, match="must be kept forever"):
        memory.read(memory.consumer(inputs(memory)), 1)


def test_rows_of_a_transaction_that_the_connector_repeats_are_delivered_once(
    memory: World, source: ChangeWriter
) -> None:
    write(source, 1)
    source.cut()
    consumer = memory.consumer(inputs(memory))
    assert delivered(memory.read(consumer, 1)) == [ONE]
    source.rows(107, [("s.orders", 1, {"id": 1}), ("s.orders", 2, {"id": 1})])
    write(source, 2)
    source.cut(repeated=frozenset({100}))
    assert delivered(memory.read(consumer, 2, tries=20)) == [TWO]


def test_rows_of_an_incremental_snapshot_come_with_what_follows_them(
    memory: World, source: ChangeWriter
) -> None:
    source.loose_rows([("s.orders", 4, {"id": 4})])
    write(source, 1, 2)
    source.cut(has_incremental_rows=True)
    found = delivered(memory.read(memory.consumer(inputs(memory)), 3, tries=20))
    assert found == [(100, [4, 1, 1]), TWO]


def test_rows_of_an_incremental_snapshot_that_nothing_follows_end_their_cut(
    memory: World, source: ChangeWriter
) -> None:
    write(source, 1)
    source.loose_rows([("s.orders", 4, {"id": 4})])
    source.cut(lsn=150, has_incremental_rows=True)
    found = delivered(memory.read(memory.consumer(inputs(memory)), 3, tries=20))
    assert found == [ONE, (150, [4])]


def test_a_late_row_of_a_snapshot_comes_with_the_next_change_of_its_key(
    memory: World, source: ChangeWriter
) -> None:
    source.loose_rows([("s.orders", 3, {"id": 9})], lsn=50)
    write(source, 1, 2)
    source.cut(late_snapshots=(50,))
    found = delivered(memory.read(memory.consumer(inputs(memory)), 3, tries=20))
    assert found == [ONE, (200, [9, 2, 2])]


def test_rows_without_keys_that_the_connector_repeats_are_delivered_once(
    memory: World, source: ChangeWriter
) -> None:
    rows = [("s.orders", number, {"id": 1}) for number in (1, 2)]
    for _ in range(2):
        source.rows(107, rows, has_keys=False)
    source.begin()
    source.cut(repeated=frozenset({100}), transactions=(CommittedTransaction(107, 100, COMMIT_MS),))
    assert delivered(memory.read(memory.consumer(inputs(memory)), 2, tries=20)) == [ONE]


def test_a_transaction_that_an_operator_released_says_so(memory: World, source: ChangeWriter) -> None:
    write(source, 1, 2)
    source.cut(skipped=(107,))
    found = memory.read(memory.consumer(inputs(memory)), 2)
    assert [each.commit.skipped for each in found] == [(107,), ()]


def test_a_transaction_without_end_that_an_operator_released_is_named_at_the_end_of_its_cut(
    memory: World, source: ChangeWriter
) -> None:
    """Its rows are delivered to nobody: nothing says which commit they belong to."""
    source.rows(99, [("s.orders", 1, {"id": 9})])
    write(source, 1, 2)
    source.cut(skipped=(99, 107))
    write(source, 3)
    source.cut()
    found = memory.read(memory.consumer(inputs(memory)), 3)
    assert delivered(found) == [ONE, TWO, THREE]
    assert [each.commit.skipped for each in found] == [(107,), (99,), ()]


def test_a_log_that_was_made_anew_is_named(memory: World, source: ChangeWriter) -> None:
    write(source, 1)
    source.cut()
    with memory.consumer(inputs(memory)) as consumer:
        memory.read(consumer, 1)
    log = memory.broker.partition((cut_log_topic(memory.name), 0))
    log.records, log.low, log.end = [], 0, 0
    with pytest.raises(StateError, match="the topic was recreated"):
        memory.read(memory.consumer(inputs(memory)), 1)
