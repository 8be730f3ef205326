"""The judge of what consumers were given sees every kind of fault, and nothing where there is none."""

import json

import pytest
from confluent_kafka import Message

from slackwater_lab.chaos.consumers import Delivery, GroupFindings, judge_deliveries, name_change
from slackwater_lab.fakes.broker import memory_record

COMMITTED = {"1": {"a1": "a", "a2": "a", "b1": "b"}, "2": {"a3": "a", "c1": "c"}, "3": {}}
WHOLE = [("x", "1", "a1"), ("x", "1", "a2"), ("x", "1", "b1"), ("y", "2", "a3"), ("y", "2", "c1")]
BY_UNIT = [
    ("x", "1", "a", "a1"),
    ("x", "1", "a", "a2"),
    ("y", "2", "a", "a3"),
    ("z", "1", "b", "b1"),
    ("y", "2", "c", "c1"),
]


def judge(*given: tuple[str, str, str]) -> GroupFindings:
    found = (Delivery(call, commit_id, "", record) for call, commit_id, record in given)
    return judge_deliveries("g", COMMITTED, found)


def judge_units(*given: tuple[str, str, str, str]) -> GroupFindings:
    return judge_deliveries("g", COMMITTED, (Delivery(*each) for each in given))


def faults(found: GroupFindings) -> dict[str, int]:
    names = ("lost", "repeated", "torn", "disordered")
    return {name: number for name in names if (number := getattr(found, name))}


def test_whole_transactions_in_order_are_without_fault() -> None:
    found = judge(*WHOLE)
    assert (found.calls, found.records, faults(found)) == (2, 5, {})
    assert found.is_clean(allows_repeats=False)


def test_parts_by_unit_may_come_apart_but_not_those_of_one_unit() -> None:
    found = judge_units(*BY_UNIT)
    assert (found.calls, found.records, faults(found)) == (3, 5, {})
    torn = [each if each[3] != "a2" else ("other", *each[1:]) for each in BY_UNIT]
    assert faults(judge_units(*torn)) == {"torn": 2}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (WHOLE[:3], {"lost": 2}),
        (WHOLE[1:], {"lost": 1, "torn": 1}),
        ([*WHOLE[:2], ("other", "1", "b1"), *WHOLE[3:]], {"torn": 2}),
        ([*WHOLE, ("again", "2", "a3"), ("again", "2", "c1")], {"repeated": 2}),
        ([*WHOLE[:3], ("y", "2", "a3"), ("y", "2", "a3"), ("y", "2", "c1")], {"repeated": 1}),
        ([*WHOLE[3:], *WHOLE[:3]], {"disordered": 1}),
        ([*WHOLE, ("z", "2", "foreign")], {"torn": 1}),
        ([*WHOLE, ("z", "9", "foreign")], {"torn": 1}),
    ],
)
def test_every_fault_is_seen(given: list[tuple[str, str, str]], expected: dict[str, int]) -> None:
    found = judge(*given)
    assert faults(found) == expected
    assert not found.is_clean(allows_repeats=False)
    assert found.is_clean(allows_repeats=True) == ({"lost", "torn"}.isdisjoint(expected))


def test_the_order_of_units_does_not_matter_and_that_within_one_does() -> None:
    first, second, third, *others = BY_UNIT
    assert faults(judge_units(third, first, second, *others)) == {"disordered": 1}


def test_a_line_belongs_to_its_order_whether_it_is_there_or_gone() -> None:
    row, source = {"id": 3, "order_id": 5}, {"table": "order_lines", "txId": 7, "lsn": 9}

    def change(op: str, before: object, after: object) -> Message:
        value = {"op": op, "before": before, "after": after, "source": source}
        return memory_record(("t", 0), 0, None, json.dumps(value).encode())

    assert name_change(change("c", None, row)) == ("5", "order_lines 3 c 7 9")
    assert name_change(change("d", row, None)) == ("5", "order_lines 3 d 7 9")
