"""The ways to share: what each keeps, and what it does not keep, side by side, over the same transfers.

A transfer is one transaction that takes from one account and gives to another, so the sum over all accounts
is zero at every commit. How what is kept was seen to fail: ``ByUnit.lane_of`` depends on the record's offset;
``select`` gives everything to everybody; ``divide`` does not divide by partition.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

from slackwater.client import (
    ByPartition,
    ByUnit,
    ChangeTopics,
    Everything,
    OutputTopics,
    Transaction,
    TransactionalConsumer,
)
from slackwater.client.inputs import Share
from slackwater.protocol.keys import data_topic
from slackwater_lab.fakes.outputs import OutputWriter, World

pytestmark = pytest.mark.parametrize("interface", ["synchronous", "asyncio"], indirect=True)

ACCOUNTS = 6


def transfers(world: World, count: int) -> OutputWriter:
    """Publishes transfers from each account to the next; accounts are in partition ``account % 2``."""
    output = world.output(accounts=2)
    for number in range(count):
        transfer(output, number)
    return output


def transfer(output: OutputWriter, number: int) -> tuple[int, tuple[int, int]]:
    """Publishes one; returns its LSN and its accounts."""
    debit, credit = number % ACCOUNTS, (number + 1) % ACCOUNTS
    documents = [
        ("accounts", debit % 2, f"{debit}", "-1"),
        ("accounts", credit % 2, f"{credit}", "1"),
    ]
    return output.commit(documents), (debit, credit)


def inputs(output: OutputWriter) -> OutputTopics:
    return OutputTopics(*output.outputs)


def account_of(record: Any) -> bytes | None:
    key: bytes | None = record.key()
    return key


def amounts(transaction: Transaction) -> dict[int, int]:
    return {int(record.key() or b""): int(record.value() or b"") for record in transaction}


def total(transactions: Iterable[Transaction]) -> int:
    """The sum over all accounts that a service has which has processed these."""
    return sum(sum(amounts(each).values()) for each in transactions)


def members(world: World, output: OutputWriter, share: Share, count: int = 2) -> list[TransactionalConsumer]:
    """Returns members that have their lanes."""
    found = [world.consumer(inputs(output), share=share) for _ in range(count)]
    for _ in range(3):
        for member in found:
            assert world.is_idle(member)
    return found


def test_everything_keeps_transactions_and_their_order_over_members_that_come_and_go(memory: World) -> None:
    output = transfers(memory, 12)
    order: list[int] = []
    for _ in range(4):
        with memory.consumer(inputs(output), share=Everything()) as member:
            for transaction in memory.read(member, 3):
                assert total([transaction]) == 0
                order.append(transaction.commit.lsn)
    assert order == [100 * n for n in range(1, 13)]


def test_everything_does_not_scale_a_second_member_gets_nothing(memory: World) -> None:
    output = transfers(memory, 0)
    first, second = members(memory, output, Everything())
    for number in range(20):
        transfer(output, number)
    assert memory.is_idle(second)
    assert len(memory.read(first, 20)) == 20
    assert memory.is_idle(second)


def test_by_unit_keeps_each_unit_with_one_owner_in_commit_order(memory: World) -> None:
    output = transfers(memory, 0)
    both = members(memory, output, ByUnit(account_of, lanes=8))
    written = [transfer(output, number) for number in range(30)]
    owners: dict[int, set[int]] = defaultdict(set)
    seen: dict[int, list[int]] = defaultdict(list)
    for name, member in enumerate(both):
        for transaction in memory.read(member, 30, tries=20):
            for account in amounts(transaction):
                owners[account].add(name)
                seen[account].append(transaction.commit.lsn)
    assert all(len(names) == 1 for names in owners.values())
    assert {name for names in owners.values() for name in names} == {0, 1}
    assert dict(seen) == {
        account: [lsn for lsn, accounts in written if account in accounts] for account in range(ACCOUNTS)
    }


def test_by_unit_does_not_keep_a_transaction_over_units_together_and_says_so(memory: World) -> None:
    output = transfers(memory, 0)
    first, second = members(memory, output, ByUnit(account_of, lanes=8))
    for number in range(ACCOUNTS):
        transfer(output, number)
    mine = memory.read(first, ACCOUNTS, tries=20)
    parts = [each for each in mine if each.is_part]
    assert parts, "some transfer is over accounts of both"
    assert all(total([each]) != 0 for each in parts), "the other side has not been seen: money is missing"
    assert all(each.elsewhere == 1 for each in parts)
    others = memory.read(second, ACCOUNTS, tries=20)
    assert total([*mine, *others]) == 0
    assert {each.commit.lsn for each in others if each.is_part} == {each.commit.lsn for each in parts}


def test_by_unit_leaves_out_what_belongs_to_no_unit(memory: World) -> None:
    output = transfers(memory, 0)
    (member,) = members(
        memory, output, ByUnit(lambda record: account_of(record) if record.key() != b"0" else None), 1
    )
    transfer(output, 0)
    (found,) = memory.read(member, 1)
    assert amounts(found) == {1: 1}
    assert not found.is_part, "nobody else has the rest"


def test_by_unit_does_not_keep_an_order_over_owners(memory: World) -> None:
    output = transfers(memory, 0)
    first, second = members(memory, output, ByUnit(account_of, lanes=8))
    for number in range(ACCOUNTS):
        transfer(output, number)
    order = [
        each.commit.lsn for member in (second, first) for each in memory.read(member, ACCOUNTS, tries=20)
    ]
    assert order != sorted(order)


def test_by_partition_keeps_what_a_transaction_did_in_a_partition_and_its_order(memory: World) -> None:
    output = transfers(memory, 0)
    both = members(memory, output, ByPartition(*output.outputs))
    for lane in (0, 1, 1, 0):
        output.commit([("accounts", lane, f"{account}", "1") for account in range(lane, ACCOUNTS, 2)])
    found = [memory.read(member, 4, tries=20) for member in both]
    assert [[each.commit.lsn for each in own] for own in found] == [[100, 400], [200, 300]]
    assert all(len(amounts(each)) == 3 for own in found for each in own)


def test_by_partition_does_not_keep_a_transaction_over_partitions_and_does_not_say_so(
    memory: World,
) -> None:
    output = transfers(memory, 0)
    first, second = members(memory, output, ByPartition(*output.outputs))
    for number in range(4):
        transfer(output, number)
    mine = memory.read(first, 4, tries=20)
    assert [total([each]) for each in mine] == [-1, 1, -1, 1], "one side of each transfer"
    assert not any(each.is_part or each.elsewhere for each in mine), "and nothing says so"
    assert total([*mine, *memory.read(second, 4, tries=20)]) == 0


def test_by_partition_does_not_keep_an_order_over_partitions(memory: World) -> None:
    output = transfers(memory, 0)
    first, second = members(memory, output, ByPartition(*output.outputs))
    for account in (0, 1):
        output.commit([("accounts", account, f"{account}", "1")])
    order = [each.commit.lsn for member in (second, first) for each in memory.read(member, 1)]
    assert order == [200, 100]


def row(number: int, order: int) -> dict[str, int]:
    return {"id": number, "order_id": order}


def lines_of(transaction: Transaction) -> Counter[int]:
    """How many rows of each order it has: one of the order, and those of its lines."""
    return Counter(json.loads(record.value() or b"")["after"]["order_id"] for record in transaction)


def an_order(number: int, *, by_order: bool) -> list[tuple[str, int, Any]]:
    """An order with two lines; the lines are partitioned by their order, or by numbers of their own."""
    lines = [3 * number + 1, 3 * number + 2]
    return [
        ("s.orders", number, row(number, number)),
        *(("s.lines", number if by_order else line, row(line, number)) for line in lines),
    ]


@pytest.mark.parametrize("is_one_topic", [True, False])
def test_one_topic_or_topics_alike_partitioned_by_a_business_key_keep_all_that_belongs_to_it(
    memory: World, is_one_topic: bool
) -> None:
    """One topic with several schemas, and several topics with one number of partitions: the same promise."""
    tables = {"s.orders": 2, "s.lines": 2}
    topic = f"{memory.name}.everything" if is_one_topic else None
    source = memory.changes(tables, topic)
    for number in range(8):
        source.transaction(an_order(number, by_order=True))
        source.cut()
    source.transaction(an_order(20, by_order=True) + an_order(21, by_order=True))
    source.cut()
    topics = [topic] if topic else [data_topic(memory.name, table) for table in tables]
    routed = dict.fromkeys(tables, topic) if topic else {}
    consumer = memory.consumer(
        ChangeTopics(source=memory.name, tables=tuple(tables), routed=routed), share=ByPartition(*topics)
    )
    found = memory.read(consumer, 10)
    assert sorted(each.commit.lsn for each in found) == [*range(100, 900, 100), 900, 900]
    assert sum(map(lines_of, found), Counter()) == Counter(dict.fromkeys([*range(8), 20, 21], 3))
    assert all(set(lines_of(each).values()) == {3} for each in found), "an order with all its lines"
    last = [each for each in found if each.commit.lsn == 900]
    assert [(len(lines_of(each)), each.is_part) for each in last] == [(1, False)] * 2, (
        "a transaction over two orders is not kept together, and nothing says so"
    )


def test_topics_that_are_partitioned_by_keys_of_their_own_do_not_keep_what_belongs_together(
    memory: World,
) -> None:
    tables = {"s.orders": 2, "s.lines": 2}
    source = memory.changes(tables)
    for number in range(8):
        source.transaction(an_order(number, by_order=False))
        source.cut()
    topics = [data_topic(memory.name, table) for table in tables]
    consumer = memory.consumer(
        ChangeTopics(source=memory.name, tables=tuple(tables)), share=ByPartition(*topics)
    )
    found = memory.read(consumer, 16)
    assert len(found) == 16, "each order comes in two parts"
    assert not any(each.is_part for each in found)
    assert all(set(lines_of(each).values()) < {1, 2, 3} for each in found)
