"""Whole transactions from Debezium's own topics, by the cuts of a sidecar, and how members share them.

How the promises were seen to fail. Whole transactions: ``ChangeMerge`` receives a cut's transactions and
not of its end offsets. Units: ``ByUnit.lane_of`` gives every record lane 0.
"""

import json
import random
from collections import defaultdict
from typing import Any

import pytest

from slackwater.client import ByPartition, ByUnit, ChangeTopics, Transaction
from slackwater.protocol import StateError
from slackwater.protocol.keys import data_topic
from slackwater_lab.fakes.outputs import COMMIT_MS, World

pytestmark = pytest.mark.parametrize("interface", ["synchronous", "asyncio"], indirect=True)

TABLES = {"s.orders": 3, "s.lines": 2}


def inputs(world: World) -> ChangeTopics:
    return ChangeTopics(source=world.name, tables=tuple(TABLES))


def row(number: int, order: int) -> dict[str, int]:
    return {"id": number, "order_id": order}


def an_order(number: int, lines: int) -> list[tuple[str, int, Any]]:
    """Changes of an order and its lines; lines are partitioned by ids of their own."""
    changes: list[tuple[str, int, Any]] = [("s.orders", number, row(number, number))]
    return changes + [("s.lines", 10 * number + n, row(10 * number + n, number)) for n in range(lines)]


def rows_of(transaction: Transaction) -> list[tuple[int, int]]:
    """Ids and orders of its rows, sorted."""
    found = [json.loads(record.value() or b"")["after"] for record in transaction]
    return sorted((each["id"], each["order_id"]) for each in found)


def wanted(changes: list[tuple[str, int, Any]]) -> list[tuple[int, int]]:
    return sorted((each["id"], each["order_id"]) for _, _, each in changes)


def test_transactions_come_whole_and_in_commit_order_with_their_lsns(world: World) -> None:
    rng = random.Random(5)
    source = world.changes(TABLES)
    written: dict[int, list[tuple[str, int, Any]]] = {}
    for number in range(40):
        changes = an_order(number, rng.randrange(4))
        written[source.transaction(changes)] = changes
        if rng.random() < 0.3:
            source.cut()
    source.cut()
    consumer = world.consumer(inputs(world))
    found = world.read(consumer, 40)
    assert [each.commit.lsn for each in found] == list(written)
    assert [rows_of(each) for each in found] == [wanted(changes) for changes in written.values()]
    first = found[0].commit
    assert (first.source, first.xid, first.commit_ts_ms) == (world.name, 107, COMMIT_MS + 100)
    assert world.is_idle(consumer)


@pytest.mark.full
def test_nothing_comes_before_a_cut_says_that_it_is_complete(world: World) -> None:
    source = world.changes(TABLES)
    changes = an_order(1, 3)
    xid = source.begin()
    source.rows(xid, changes[:2])
    consumer = world.consumer(inputs(world))
    assert world.is_idle(consumer)
    source.rows(xid, changes[2:], first=3)
    assert world.is_idle(consumer)


def test_an_initial_snapshot_is_one_transaction(world: World) -> None:
    source = world.changes(TABLES)
    rows = [change for number in range(20) for change in an_order(number, 2)]
    source.snapshot(rows)
    source.cut()
    source.transaction(an_order(50, 1))
    source.cut()
    snapshot, later = world.read(world.consumer(inputs(world)), 2)
    assert (snapshot.commit.xid, rows_of(snapshot)) == (0, wanted(rows))
    assert rows_of(later) == wanted(an_order(50, 1))


def test_nothing_comes_of_a_table_without_a_complete_snapshot(world: World) -> None:
    source = world.changes(TABLES)
    consumer = world.consumer(inputs(world))
    source.transaction(an_order(1, 1))
    source.cut(without_snapshot=(data_topic(world.name, "s.lines"),))
    for refused in (consumer, world.consumer(inputs(world), group="later")):
        with pytest.raises(StateError, match=r"s\.lines, so nothing of them is delivered") as error:
            world.read(refused, 1)
        assert "execute-snapshot" in str(error.value)
    others = world.consumer(ChangeTopics(source=world.name, tables=("s.orders",)), group="others")
    assert [each.commit.lsn for each in world.read(others, 1)] == [100]

    source.transaction(an_order(2, 1))
    source.cut()
    found = world.read(world.consumer(inputs(world), group="last"), 2)
    assert [each.commit.lsn for each in found] == [100, 200]


def test_a_member_that_goes_on_begins_behind_what_was_committed(world: World) -> None:
    source = world.changes(TABLES)
    for number in range(6):
        source.transaction(an_order(number, 2))
        source.cut()
    with world.consumer(inputs(world)) as consumer:
        assert [each.commit.lsn for each in world.read(consumer, 2)] == [100, 200]
    assert [each.commit.lsn for each in world.read(world.consumer(inputs(world)), 4)] == [300, 400, 500, 600]


def order_of(record: Any) -> str:
    return str(json.loads(record.value())["after"]["order_id"])


def test_members_get_all_of_their_units_and_are_told_of_parts(memory: World) -> None:
    """Not kept: the parts of a transaction that spans units come to their owners at different times."""
    source = memory.changes(TABLES)
    written: dict[int, list[tuple[str, int, Any]]] = {}
    for number in range(0, 60, 2):
        changes = an_order(number, 2) + an_order(number + 1, 1)
        written[source.transaction(changes)] = changes
        source.cut()
    share = ByUnit(order_of, lanes=8)
    members = [memory.consumer(inputs(memory), share=share) for _ in range(2)]
    rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
    owners: dict[int, set[int]] = defaultdict(set)
    order: list[tuple[int, int]] = []
    for _ in range(100):
        for name, member in enumerate(members):
            for transaction in memory.read(member, 1, tries=3):
                found = rows_of(transaction)
                rows[transaction.commit.lsn] += found
                order.append((name, transaction.commit.lsn))
                assert transaction.is_part == (len(found) < len(written[transaction.commit.lsn]))
                for _, unit in found:
                    owners[unit].add(name)
    assert {lsn: sorted(found) for lsn, found in rows.items()} == {
        lsn: wanted(changes) for lsn, changes in written.items()
    }
    assert all(len(names) == 1 for names in owners.values())
    assert {name for names in owners.values() for name in names} == {0, 1}
    for name in (0, 1):
        own = [lsn for who, lsn in order if who == name]
        assert own == sorted(own)
    assert [lsn for _, lsn in order] != sorted(lsn for _, lsn in order), "no order over all members"


def test_partitions_are_lanes_with_an_order_of_their_own(memory: World) -> None:
    """What is not kept: a transaction over several partitions comes in parts, and nothing says so."""
    tables = {"s.orders": 2}
    source = memory.changes(tables)
    for number in range(10):
        source.transaction([("s.orders", number, row(number, number))])
        source.cut()
    source.transaction([("s.orders", number, row(number, number)) for number in (20, 21)])
    source.cut()
    topic = data_topic(memory.name, "s.orders")
    consumer = memory.consumer(
        ChangeTopics(source=memory.name, tables=tuple(tables)), share=ByPartition(topic)
    )
    found = memory.read(consumer, 12)
    by_lane: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for each in found:
        by_lane[each.lanes].append(each.commit.lsn)
        assert not each.is_part
    assert all(lsns == sorted(lsns) for lsns in by_lane.values())
    assert sorted(len(lsns) for lsns in by_lane.values()) == [6, 6]
    assert sum(len(rows_of(each)) for each in found if each.commit.lsn == 1100) == 2
    assert sum(each.commit.lsn == 1100 for each in found) == 2
