"""Repeated rows of tables without keys: each row counts once, or the batch stops."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.cdc import keyless
from slackwater.cdc.keyless import KeylessRow, UndecidableError, doubles_of

PARTITIONS = 3


@dataclass(frozen=True)
class Truth:
    """A row as the database has it."""

    lsn: int
    text: bytes


@dataclass(frozen=True)
class Run:
    """What a run of the connector writes: rows from one on, numbered on or from 1, some of them lost."""

    first: int
    starts_again: bool
    kept: tuple[bool, ...]


def written(truth: Sequence[Truth], runs: Sequence[Run], rng: random.Random) -> list[KeylessRow]:
    ends, rows = [0] * PARTITIONS, []
    for number, run in enumerate(runs):
        for index in range(run.first, len(truth)):
            if not run.kept[index]:
                continue
            partition = rng.randrange(PARTITIONS)
            order = index + 1 - (run.first if run.starts_again else 0)
            content = truth[index].lsn, "c", truth[index].text
            rows.append(KeylessRow(f"run-{number}", order, content, ("t", partition, ends[partition])))
            ends[partition] += 1
    rng.shuffle(rows)
    return rows


def counted(rows: Sequence[KeylessRow]) -> Counter[Truth]:
    doubles = doubles_of(rows)
    return Counter(Truth(row.content[0], row.content[2]) for row in rows if row.place not in doubles)


def row(run: str, order: int, lsn: int, text: bytes = b"x", *, offset: int) -> KeylessRow:
    return KeylessRow(run, order, (lsn, "c", text), ("t", 0, offset))


def offsets(rows: Sequence[KeylessRow]) -> list[int]:
    return sorted(place[2] for place in doubles_of(rows))


def test_a_row_that_a_later_run_repeats_counts_once() -> None:
    assert offsets([row("a", 1, 10, offset=0), row("b", 1, 10, offset=1)]) == [1]


def test_equal_rows_of_one_run_are_different_rows() -> None:
    assert offsets([row("a", 1, 10, offset=0), row("a", 2, 10, offset=1)]) == []


def test_a_batch_that_the_producer_sent_twice_counts_once() -> None:
    assert offsets([row("a", 1, 10, offset=0), row("a", 1, 10, offset=1)]) == [1]


def test_rows_are_recognised_when_they_are_numbered_again() -> None:
    first = [row("a", n, 10 * n, offset=n) for n in (1, 2, 3)]
    again = [row("b", n - 1, 10 * n, offset=10 + n) for n in (2, 3, 4)]
    assert offsets([*first, *again]) == [12, 13]


def test_equal_rows_of_one_lsn_are_told_apart_by_the_rows_around_them() -> None:
    first = [row("a", 1, 10, offset=0), row("a", 2, 20, offset=1), row("a", 3, 20, offset=2)]
    again = [row("b", 1, 10, offset=3), *(row("b", n, 20, offset=2 + n) for n in (2, 3, 4))]
    assert offsets([*first, *again]) == [3, 4, 5]


@pytest.mark.parametrize("orders", [(1, 2), (2, 3)])
def test_it_stops_where_equal_rows_of_one_lsn_may_be_the_same_or_not(orders: tuple[int, int]) -> None:
    first = [row("a", 1, 10, offset=0), row("a", 2, 10, offset=1)]
    with pytest.raises(UndecidableError):
        doubles_of([*first, *(row("b", order, 10, offset=10 + order) for order in orders)])


def test_numbers_that_go_on_are_believed_for_one_row_that_there_is_once() -> None:
    first = [row("a", 1, 10, b"x", offset=1), row("a", 2, 10, b"y", offset=2)]
    again = [row("b", 2, 10, b"y", offset=12), row("b", 3, 10, b"z", offset=13)]
    assert offsets([*first, *again]) == [12]


def test_it_stops_where_only_a_row_that_there_is_several_times_has_its_number() -> None:
    first = [row("a", 1, 10, b"x", offset=1), row("a", 2, 10, b"x", offset=2)]
    again = [row("b", 2, 10, b"x", offset=12), row("b", 3, 10, b"y", offset=13)]
    with pytest.raises(UndecidableError):
        doubles_of([*first, *again])


def test_it_stops_where_rows_may_be_the_same_under_two_numbers() -> None:
    first = [row("a", 1, 10, b"x", offset=1), row("a", 2, 10, b"y", offset=2)]
    again = [row("b", 2, 10, b"y", offset=12), row("b", 3, 10, b"x", offset=13)]
    with pytest.raises(UndecidableError):
        doubles_of([*first, *again])


def test_it_stops_where_all_rows_that_agree_are_of_one_lsn_and_there_several_times() -> None:
    first = [row("a", n, 10, text, offset=n) for n, text in ((1, b"x"), (2, b"x"), (3, b"y"))]
    again = [row("b", n, 10, text, offset=10 + n) for n, text in ((2, b"x"), (3, b"y"), (4, b"y"))]
    with pytest.raises(UndecidableError):
        doubles_of([*first, *again])


def test_it_stops_where_a_single_row_between_others_was_numbered_again() -> None:
    first = [row("a", n, 10 * n, text, offset=n) for n, text in ((1, b"x"), (2, b"y"), (3, b"x"))]
    with pytest.raises(UndecidableError):
        doubles_of([*first, row("b", 1, 20, b"y", offset=11)])


@pytest.mark.parametrize(("order", "lsn"), [(1, 5), (4, 5), (8, 30)])
def test_it_stops_where_rows_with_gaps_between_may_stand_side_by_side(order: int, lsn: int) -> None:
    """Rows 1 and 3 may be 5 and 7, or are right before those, or right behind: two of these, or all."""
    first = [row("a", 5, 10, offset=1), row("a", 7, 20, offset=2), row("a", order, lsn, offset=3)]
    with pytest.raises(UndecidableError):
        doubles_of([*first, row("b", 1, 10, offset=11), row("b", 3, 20, offset=13)])


def test_it_is_decided_where_rows_with_gaps_between_cannot_stand_side_by_side() -> None:
    places = (4, 5), (5, 10), (7, 20), (8, 30)
    first = [row("a", order, lsn, offset=order) for order, lsn in places]
    assert offsets([*first, row("b", 1, 10, offset=11), row("b", 3, 20, offset=13)]) == [11, 13]


def test_numbers_at_which_lsns_would_fall_are_not_those_of_the_rows() -> None:
    first = [row("a", 1, 10, b"x", offset=1), row("a", 2, 20, b"x", offset=2)]
    again = [row("b", 3, 10, b"x", offset=13), row("b", 4, 20, b"x", offset=14)]
    assert offsets([*first, *again]) == [13, 14]


def test_runs_without_a_row_in_common_are_all_counted() -> None:
    first = [row("a", 1, 10, b"x", offset=1)]
    again = [row("b", 1, 20, b"y", offset=11)]
    assert offsets([*first, *again]) == []


def test_too_many_rows_of_one_lsn_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyless, "_MAX_PAIRS", 3)
    rows = [row(run, n, 10, b"%d" % n, offset=n) for run in "ab" for n in (1, 2)]
    with pytest.raises(UndecidableError):
        doubles_of(rows)

    monkeypatch.setattr(keyless, "_MAX_PAIRS", 4)
    assert len(doubles_of(rows)) == 2


def test_it_stops_where_one_row_was_numbered_again_and_nothing_else_was() -> None:
    with pytest.raises(UndecidableError):
        doubles_of([row("a", 2, 10, offset=0), row("b", 1, 10, offset=1)])


def test_it_stops_where_a_run_has_one_number_for_two_rows() -> None:
    """Records whose headers were removed: the runs cannot be told apart."""
    with pytest.raises(UndecidableError):
        doubles_of([row("", 1, 10, b"x", offset=0), row("", 1, 10, b"y", offset=1)])


@st.composite
def transactions(draw: st.DrawFn) -> tuple[list[Truth], list[Run]]:
    """Rows in groups of one LSN, few texts; runs that continue where some row was acknowledged.

    A run that starts numbering again begins with the first row of an LSN.
    """
    sizes = draw(st.lists(st.sampled_from([1, 1, 1, 2, 4]), min_size=1, max_size=6))
    truth = [
        Truth(10 * lsn, draw(st.sampled_from([b"x", b"y"])))
        for lsn, size in enumerate(sizes, 1)
        for _ in range(size)
    ]
    borders = [n for n in range(len(truth)) if n == 0 or truth[n].lsn != truth[n - 1].lsn]
    runs, first = [], 0
    for _ in range(draw(st.integers(0, 3))):
        end = draw(st.integers(first, len(truth)))
        acknowledged = draw(st.integers(first, end))
        kept = [first <= n < end and (n < acknowledged or draw(st.booleans())) for n in range(len(truth))]
        starts_again = draw(st.booleans()) and first in borders
        runs.append(Run(first, starts_again and first > 0, tuple(kept)))
        first = min(acknowledged, len(truth) - 1)
    starts_again = draw(st.booleans()) and first in borders and first > 0
    runs.append(Run(first, starts_again, (True,) * len(truth)))
    return truth, runs


@settings(max_examples=500, deadline=None)
@given(transactions(), st.randoms(use_true_random=False))
def test_every_row_counts_once_or_it_stops(
    example: tuple[list[Truth], list[Run]], rng: random.Random
) -> None:
    truth, runs = example
    rows = written(truth, runs, rng)
    try:
        found = counted(rows)
    except UndecidableError:
        return
    assert found == Counter(truth)


@given(transactions(), st.randoms(use_true_random=False))
def test_the_order_of_reading_does_not_matter(
    example: tuple[list[Truth], list[Run]], rng: random.Random
) -> None:
    rows = written(*example, rng)
    try:
        doubles = doubles_of(rows)
    except UndecidableError:
        return
    rng.shuffle(rows)
    assert doubles_of(rows) == doubles


def test_rows_of_lsns_of_their_own_are_always_decided_when_two_of_them_are_repeated() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        truth = [Truth(10 * n, b"x") for n in range(1, 12)]
        first = rng.randrange(3, 8)
        killed = Run(0, False, tuple(n < first or rng.random() < 0.5 for n in range(11)))
        killed = Run(0, False, killed.kept[: first + 2] + (False,) * (9 - first))
        last = Run(first - 2, rng.random() < 0.5, (True,) * 11)
        assert counted(written(truth, [killed, last], rng)) == Counter(truth), f"seed {seed}"
