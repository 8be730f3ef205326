"""What partials do to groups, one fact each."""

import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from slackwater.engine.evaluate.groups import AccumulateEvaluation
from slackwater.engine.evaluate.points import route_of
from slackwater.engine.index import BucketIndex
from slackwater.engine.local import MemoryIndex
from slackwater.engine.payloads import EMPTY_KEY, TOUCH_INPUT, Outcome, Partial
from slackwater.protocol import StateError
from slackwater.sql.catalog import carried
from slackwater.sql.errors import EvaluationError
from slackwater.sql.plan import (
    AccumulatePart,
    Accumulator,
    AccumulatorKind,
    DocumentsOutput,
    KeyColumn,
    Output,
)
from slackwater_lab.fakes.buckets import AccumulateBucket, CountingIndex, Processed

MakeIndex = Callable[[], BucketIndex]
Published = list[tuple[int, Any, Any]]

KINDS = (
    Accumulator(AccumulatorKind.COUNT, "count(q)"),
    Accumulator(AccumulatorKind.SUM, "sum(a)", scale=2),
    Accumulator(AccumulatorKind.MIN, "min(q)", multiset=2),
    Accumulator(AccumulatorKind.MAX, "max(q)", multiset=2),
    Accumulator(AccumulatorKind.DISTINCT, "count(DISTINCT q)", multiset=2),
)
SHOWN = "{'n': n, 'count': a0, 'sum_n': a1_n, 'sum': a1, 'min': a2, 'max': a3, 'distinct': a4}"
ADDED = 4
"""Numbers in a partial."""


def part(
    *, is_global: bool = False, shown: str = SHOWN, kinds: tuple[Accumulator, ...] = KINDS
) -> AccumulatePart:
    key = "'{}'" if is_global else "CAST(to_json({'g': k0}) AS VARCHAR)"
    return AccumulatePart(
        key=() if is_global else (KeyColumn("g", carried("VARCHAR")),),
        accumulators=kinds,
        is_global=is_global,
        statement=(
            f"SELECT __slackwater_point, {key}, encode(CAST(to_json({shown}) AS VARCHAR)) "  # noqa: S608
            "FROM __slackwater_accumulators"
        ),
        output=DocumentsOutput(0),
    )


def bucket(
    accumulate: AccumulatePart | None = None,
    make_index: MakeIndex = MemoryIndex,
    *,
    every_commit: bool = True,
) -> AccumulateBucket:
    logic = AccumulateEvaluation(accumulate or part(), name="totals", every_commit=every_commit, max_points=3)
    return AccumulateBucket(logic, make_index)


def packed(*values: Any) -> bytes:
    return msgspec.msgpack.encode(values)


def numbers(lsn: int, group: str, *values: Any) -> Partial:
    return lsn, -1, packed(group), packed(*values)


def value(lsn: int, group: str, number: int, more: int) -> Partial:
    return lsn, 2, packed(group), packed(f"{number:04X}", str(number), more)


def row(lsn: int, group: str, number: int, amount: str, more: int = 1) -> list[Partial]:
    """What a row adds, or, with `more` -1 and the negative amount, takes away."""
    return [numbers(lsn, group, more, more, more, amount), value(lsn, group, number, more)]


def published(batch: Processed, output: Output | None = None) -> Published:
    outcome = Outcome(buckets=4)
    route = route_of(output or DocumentsOutput(0), 1)
    for points, rows in batch.results:
        route(points, rows, outcome)
    return [
        (lsn, json.loads(key), None if document is None else json.loads(document))
        for lsn, key, document in outcome.view(0)
    ]


def only(documents: Published, *names: str) -> list[Any]:
    return [None if d is None else tuple(d[name] for name in names) for _, _, d in documents]


def test_a_group_has_what_was_added_to_it(make_index: MakeIndex) -> None:
    outcome = bucket(make_index=make_index).process(
        [*row(10, "red", 5, "1.25"), *row(10, "red", 7, "2.50"), *row(10, "tan", 1, "-0.05")]
    )
    assert published(outcome) == [
        (
            10,
            {"g": "red"},
            {"n": 2, "count": 2, "sum_n": 2, "sum": "3.75", "min": "5", "max": "7", "distinct": 2},
        ),
        (
            10,
            {"g": "tan"},
            {"n": 1, "count": 1, "sum_n": 1, "sum": "-0.05", "min": "1", "max": "1", "distinct": 1},
        ),
    ]


def test_partials_of_many_buckets_add_up_in_any_order() -> None:
    partials = [*row(10, "red", 5, "1.25"), *row(10, "red", 6, "1.00"), *row(11, "red", 7, "2.50")]
    assert published(bucket().process(partials)) == published(bucket().process(partials[::-1]))
    assert only(published(bucket().process(partials[::-1])), "n", "max") == [(2, "6"), (3, "7")]


def test_each_commit_that_changes_a_group_is_a_point_of_it() -> None:
    outcome = bucket().process(
        [*row(10, "red", 5, "1.00"), *row(20, "red", 7, "1.00"), *row(30, "red", 5, "-1.00", more=-1)]
    )
    documents = published(outcome)
    assert [lsn for lsn, _, _ in documents] == [10, 20, 30]
    assert only(documents, "n", "min", "max") == [(1, "5", "5"), (2, "5", "7"), (1, "7", "7")]


@pytest.mark.parametrize("lsns", [(10, 20, 30), (20, 10, 30), (30, 10, 20)])
def test_with_latest_only_the_last_state_of_a_batch_counts_at_its_newest_commit(
    lsns: Sequence[int],
) -> None:
    of_commits = {
        10: row(10, "red", 7, "1.00"),
        20: row(20, "red", 5, "1.00"),
        30: row(30, "red", 5, "-1.00", more=-1),
    }
    partials = [partial for lsn in lsns for partial in of_commits[lsn]]
    documents = published(bucket(every_commit=False).process(partials))
    assert [lsn for lsn, _, _ in documents] == [30]
    assert only(documents, "n", "min", "sum") == [(1, "7", "1.00")]


def test_a_commit_that_leaves_the_numbers_as_they_are_is_no_point() -> None:
    groups = bucket()
    groups.process([*row(5, "red", 1, "1.00"), *row(5, "red", 9, "1.00"), *row(5, "red", 4, "1.00")])
    inner = [value(10, "red", 4, -1), value(10, "red", 5, 1), numbers(10, "red", 0, 0, 0, None)]
    outcome = groups.process(inner)
    assert published(outcome) == []
    assert outcome.results == []
    assert len(outcome.changes) == 2  # the values of the multiset


def test_what_comes_and_goes_in_a_batch_leaves_no_trace_behind_it() -> None:
    groups = bucket()
    groups.process(row(5, "red", 1, "1.00"))
    outcome = groups.process([*row(10, "red", 2, "1.00"), *row(11, "red", 2, "-1.00", more=-1)])
    assert only(published(outcome), "n") == [(2,), (1,)]
    assert outcome.changes == []
    assert outcome.live_bytes == 0


def test_with_latest_a_batch_that_changes_nothing_in_the_end_gives_nothing() -> None:
    groups = bucket(every_commit=False)
    groups.process(row(5, "red", 1, "1.00"))
    outcome = groups.process([*row(10, "red", 2, "1.00"), *row(11, "red", 2, "-1.00", more=-1)])
    assert (outcome.results, outcome.changes) == ([], [])


def test_a_group_without_rows_vanishes_with_all_its_entries(make_index: MakeIndex) -> None:
    groups = bucket(make_index=make_index)
    groups.process([*row(5, "red", 1, "1.00"), *row(5, "blue", 1, "1.00")])
    outcome = groups.process(row(6, "red", 1, "-1.00", more=-1))
    assert published(outcome) == [(6, {"g": "red"}, None)]
    assert all(name.startswith(packed("blue")) for name, _ in groups.entries())
    groups.process(row(7, "blue", 1, "-1.00", more=-1))
    assert groups.entries() == []
    assert groups.live_bytes == 0


def test_a_group_may_vanish_and_return_within_a_batch() -> None:
    groups = bucket()
    groups.process(row(5, "red", 1, "1.00"))
    outcome = groups.process([*row(6, "red", 1, "-1.00", more=-1), *row(7, "red", 3, "4.00")])
    assert only(published(outcome), "n", "min") == [None, (1, "3")]


def test_the_global_group_is_there_from_the_first_touch_on() -> None:
    groups = bucket(part(is_global=True))
    touch: Partial = (10, TOUCH_INPUT, EMPTY_KEY, b"")
    first = groups.process([touch])
    assert published(first) == [
        (10, {}, {"n": 0, "count": 0, "sum_n": 0, "sum": "0.00", "min": None, "max": None, "distinct": 0})
    ]
    again = groups.process([(11, TOUCH_INPUT, EMPTY_KEY, b"")])
    assert (again.results, again.changes) == ([], [])


def test_the_global_group_stays_when_it_has_no_rows() -> None:
    groups = bucket(part(is_global=True))
    one = [(10, -1, EMPTY_KEY, packed(1, 1, 1, "1.00"))]
    groups.process(one)
    outcome = groups.process([(11, -1, EMPTY_KEY, packed(-1, -1, -1, "-1.00"))])
    assert only(published(outcome), "n", "sum") == [(0, "0.00")]
    assert len(groups.entries()) == 1


def test_sums_are_exact_beyond_64_and_128_bits() -> None:
    groups = bucket()
    huge = "9" * 36 + ".99"
    for lsn in range(1, 101):
        outcome = groups.process([numbers(lsn, "red", 1, 1, 1, huge)])
    assert only(published(outcome), "sum") == [("9" * 38 + ".00",)]


@pytest.mark.parametrize(
    ("partials", "what", "count"),
    [
        (row(9, "red", 2, "-1.00", more=-2), "count(*)", -1),
        ([numbers(9, "red", 0, -2, 0, None)], "count(q)", -1),
        ([numbers(9, "red", 0, 0, -2, None)], "sum(a)", -1),
        ([value(9, "red", 4, -1)], "'4' in min(q)", -1),
        (
            [numbers(9, "red", -1, 0, -1, "-1.00"), value(9, "red", 1, -1)],
            "aggregates other than count(*)",
            1,
        ),
        ([numbers(9, "red", -1, -1, -1, "-1.00")], "aggregates other than count(*)", 1),
    ],
)
def test_what_was_never_added_cannot_be_taken_away(partials: list[Partial], what: str, count: int) -> None:
    groups = bucket()
    groups.process(row(5, "red", 1, "1.00"))
    before = groups.entries()
    with pytest.raises(StateError) as failure:
        groups.process([p for p in partials if what != "count(*)" or p[1] == -1])
    error = failure.value
    assert f'group {{"g":"red"}}, commit LSN 9: {what} counts {count} rows' in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - own bytes
    assert groups.entries() == before


def test_sql_that_fails_names_the_group_and_the_commit() -> None:
    groups = bucket(part(shown="{'n': CAST(CASE WHEN a2 = '13' THEN 'x' ELSE '1' END AS INTEGER)}"))
    unlucky = [*row(4, "unlucky", 14, "1.00"), *row(5, "unlucky", 13, "1.00"), *row(6, "unlucky", 12, "1.00")]
    with pytest.raises(EvaluationError) as raised:
        groups.process([*row(5, "a", 1, "1.00"), *unlucky, *row(7, "z", 1, "1.00")])
    assert raised.value.key == '{"g":"unlucky"}'
    assert raised.value.commit_lsn == 5
    assert raised.value.rows[0].startswith("the group {")


def test_many_points_are_evaluated_in_several_calls_that_give_what_one_would() -> None:
    partials = [p for lsn in range(1, 12) for p in row(lsn, "red", lsn % 3, "1.00")] + row(
        4, "blue", 2, "1.00"
    )
    outcome = bucket().process(partials)
    assert len(outcome.results) > 1
    documents = published(outcome)
    assert [(lsn, d["n"]) for lsn, key, d in documents if key == {"g": "red"}] == [
        (n, n) for n in range(1, 12)
    ]
    assert [(lsn, d["n"]) for lsn, key, d in documents if key == {"g": "blue"}] == [(4, 1)]


def test_keys_too_long_for_a_name_are_kept_apart() -> None:
    keys = ["k" * 5000 + end for end in "ab"]
    groups = bucket()
    groups.process([p for key in keys for p in row(5, key, 1, "1.00")])
    documents = published(groups.process(row(6, keys[1], 2, "1.00")))
    assert [(key["g"], d["n"]) for _, key, d in documents] == [(keys[1], 2)]


@pytest.mark.parametrize("rows", [10, 2000])
def test_what_a_changed_row_reads_does_not_depend_on_the_size_of_its_group(rows: int) -> None:
    counting = CountingIndex(MemoryIndex())
    groups = bucket(make_index=lambda: counting)
    groups.process([p for number in range(rows) for p in row(5, "red", number, "1.00")])
    counting.reads = 0
    changed = [*row(6, "red", 5, "-1.00", more=-1), *row(6, "red", rows + 1, "2.00")]
    outcome = groups.process(changed)
    assert only(published(outcome), "n", "min", "max") == [(rows, "0", str(rows + 1))]
    assert counting.reads == 1 + 2 + 1 + 1  # numbers, values, smallest, largest
    assert len(outcome.changes) == 3
