"""Which commits are covered by the tables of records, in whatever order these are in the log."""

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.pipeline.source.segments import (
    Segment,
    Segments,
    find_snapshot_rows,
    make_segment,
    merge_windows,
    skipped_xids,
)
from slackwater.protocol import AheadMarkers, CommittedTransaction, PublishedCut

Published = Callable[..., PublishedCut]


def segment(lsn: int, previous: int, log: int = 0, *, is_cut: bool = True) -> Segment:
    return Segment(previous, lsn, log, lsn, lsn if is_cut else None, frozenset(), ())


def read(
    ranges: Sequence[tuple[int, int]], after_lsn: int = 0, *, may_start_anywhere: bool = False
) -> Segments:
    """Cuts over ``(previous, lsn]``, in the order of the log."""
    segments = Segments(after_lsn, may_start_anywhere=may_start_anywhere)
    for log, (previous, lsn) in enumerate(ranges):
        segments.add(segment(lsn, previous, log))
    return segments


def chain(segments: Segments, after_lsn: int, up_to_lsn: int) -> tuple[list[int], int]:
    found, reached = segments.chain((after_lsn, up_to_lsn), segments.within(0, 10**6))
    return [s.lsn for s in found], reached


def test_cuts_connect_in_order_of_their_lsns() -> None:
    segments = read([(20, 30), (5, 10), (10, 20)], 5)
    assert segments.covered_lsn == 30
    assert chain(segments, 5, 30) == ([10, 20, 30], 30)


def test_a_hole_ends_the_chain() -> None:
    cuts = [(5, 10), (11, 20), (20, 30)]
    segments = read(cuts, 5)
    assert (segments.covered_lsn, segments.find_hole()) == (10, (10, 20))
    assert chain(segments, 5, 30) == ([10], 10)
    assert read(cuts, 4).find_hole() == (4, 10)
    assert chain(read(cuts, 4), 4, 30) == ([], 4)


def test_cuts_of_two_sidecars_may_overlap() -> None:
    segments = read([(0, 10), (5, 14), (10, 12), (12, 13), (13, 20)])
    assert chain(segments, 10, 20) == ([14, 20], 20)
    assert chain(segments, 0, 13) == ([10, 14], 14)


def test_a_cut_that_connects_to_nothing_does_not_hide_one_that_does() -> None:
    assert chain(read([(80, 81), (90, 105)], 90), 90, 105) == ([105], 105)


def test_the_first_cut_of_a_source_follows_nothing_wherever_it_stands() -> None:
    """A log that was recreated under a sidecar begins with a cut that follows another."""
    assert read([(0, 10)]).find_hole() is None
    assert read([(7, 10)]).find_hole() == (0, 10)
    assert read([(7, 10)], 1).find_hole() == (1, 10)


def test_a_truncated_beginning_connects_only_when_allowed() -> None:
    segments = read([(7, 10), (11, 20)], may_start_anywhere=True)
    assert (segments.covered_lsn, segments.find_hole()) == (10, (10, 20))
    assert chain(segments, 0, 10) == ([10], 10)
    assert read([(7, 10)], 1, may_start_anywhere=True).find_hole() == (1, 10)
    ahead = Segments(may_start_anywhere=True)
    ahead.add(segment(10, 7, is_cut=False))
    assert ahead.covered_lsn == 0, "markers are no beginning"


def test_markers_ahead_wait_for_what_is_missing() -> None:
    segments = Segments(10)
    segments.add(segment(40, 20, is_cut=False))
    assert (segments.covered_lsn, segments.find_hole()) == (10, None)
    segments.add(segment(20, 10, 1))
    assert segments.covered_lsn == 40


def test_where_a_query_stands_is_covered() -> None:
    segments = read([(0, 10), (20, 30)])
    segments.move_to(1, 20)
    assert (segments.covered_lsn, segments.find_hole()) == (30, None)
    assert [s.lsn for s in segments.within(0, 9)] == [30]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_what_is_covered_does_not_depend_on_the_order(steps: list[int], chance: random.Random) -> None:
    ends = [sum(steps[: n + 1]) for n in range(len(steps))]
    ranges = [(end - step - chance.randint(0, 3), end) for step, end in zip(steps, ends, strict=True)]
    chance.shuffle(ranges)
    after, up_to = sorted((chance.randint(0, ends[-1]), ends[-1]))
    segments = read(ranges)

    assert (segments.covered_lsn, segments.find_hole()) == (ends[-1], None)
    found, reached = segments.chain((after, up_to), segments.within(0, len(ranges)))
    assert reached >= up_to
    covered = after
    for each in found:
        assert each.previous_lsn <= covered < each.lsn
        covered = each.lsn


def test_only_the_range_of_the_log_that_is_asked_for_counts() -> None:
    segments = read([(0, 10), (10, 20), (20, 30)])
    assert [s.lsn for s in segments.within(1, 2)] == [20]
    assert segments.chain((0, 30), segments.within(0, 2))[1] == 20


def test_the_floor_is_the_first_record_that_is_needed() -> None:
    segments = read([(10, 30), (0, 10), (10, 20)])
    assert [segments.floor(lsn, 99) for lsn in (0, 10, 20, 30)] == [0, 0, 0, 99]
    segments.move_to(1, 0)
    assert segments.floor(10, 99) == 2


def test_the_commit_time_is_that_of_the_newest_record_below() -> None:
    segments = read([(10, 30), (0, 10), (10, 20)])
    assert [segments.commit_ts_ms(lsn) for lsn in (9, 10, 25, 40)] == [0, 10, 20, 30]


def test_a_group_stops_before_late_rows_with_the_lsn_of_a_snapshot(published: Published) -> None:
    segments = Segments()
    for log, cut in enumerate(
        [
            published(10, 0, transactions={0: 8, 5: 10}),
            published(20, 10),
            published(30, 20, late_snapshots=(8,)),
            published(40, 30, has_incremental_rows=True),
            published(50, 40),
        ]
    ):
        assert segments.stops == (frozenset({10}) if log > 2 else frozenset())
        segments.add(make_segment(cut.cut, log))
    assert (segments.stops, segments.exact_up_to_lsn) == (frozenset({10}), 40)
    segments.move_to(1, 10)
    assert segments.stops == frozenset()


def test_a_group_stops_where_a_transaction_was_skipped(published: Published) -> None:
    """Rows of it that arrived later lie above the cut, and belong to no pipeline."""
    segments = Segments()
    for log, cut in enumerate([published(10, 0), published(20, 10, skipped=(7,)), published(30, 20)]):
        segments.add(make_segment(cut.cut, log))

    assert segments.stops == frozenset({20})
    segments.move_to(2, 20)
    assert segments.stops == frozenset()


def test_barriers_are_known_once_though_every_cut_names_the_newest(published: Published) -> None:
    segments = Segments()
    for lsn, previous, barrier in ((20, 0, 10), (30, 20, 10), (40, 30, 35), (28, 20, 25), (50, 40, 50)):
        segments.add(make_segment(published(lsn, previous, barrier_lsn=barrier).cut, lsn))

    assert segments.barriers == [10, 25, 35, 50]
    segments.move_to(30, 25)
    assert segments.barriers == [35, 50]
    segments.add(make_segment(published(60, 50, barrier_lsn=20).cut, 60))
    assert segments.barriers == [35, 50], "what has been passed does not come back"


def test_cuts_that_lie_partly_in_a_window_say_what_rows_of_snapshots_they_have(published: Published) -> None:
    cuts = [published(20, 5, late_snapshots=(8,)), published(30, 20, has_incremental_rows=True)]
    segments = [make_segment(cut.cut, log) for log, cut in enumerate(cuts)]
    assert find_snapshot_rows([(10, 20)], segments) == (frozenset({8}), False)
    assert find_snapshot_rows([(10, 21)], segments) == (frozenset({8}), True)
    assert find_snapshot_rows([(20, 30)], segments) == (frozenset(), True)
    assert find_snapshot_rows([(30, 40)], segments) == (frozenset(), False)
    assert find_snapshot_rows([(0, 5)], segments) == (frozenset(), False)


def test_skipped_transactions_are_named_once_though_two_sidecars_name_them(published: Published) -> None:
    cuts = [
        published(20, 5, transactions={1: 8, 3: 20}, skipped=(3,)),
        published(30, 10, transactions={3: 20, 4: 25, 5: 30}, skipped=(3, 4)),
    ]
    segments = [make_segment(cut.cut, log) for log, cut in enumerate(cuts)]
    assert skipped_xids((5, 20), segments) == (3,)
    assert skipped_xids((20, 30), segments) == (4,)
    assert skipped_xids((5, 30), segments) == (3, 4)


def test_what_was_skipped_without_a_commit_is_named_with_its_cut(published: Published) -> None:
    cut = make_segment(published(20, 5, transactions={1: 8}, skipped=(3,)).cut, 0)
    assert skipped_xids((8, 20), [cut]) == (3,)
    assert skipped_xids((0, 8), [cut]) == ()


@pytest.mark.parametrize("transactions", [(), (CommittedTransaction(1, 35, 77),)])
def test_markers_ahead_have_the_time_of_their_newest_transaction(
    transactions: tuple[CommittedTransaction, ...],
) -> None:
    record = AheadMarkers(
        source="inv", timeline=1, previous_lsn=30, lsn=40, transactions=transactions, markers={}
    )
    found = make_segment(record, 3)
    assert (found.commit_ts_ms, found.is_cut) == (77 if transactions else 0, False)


def test_windows_that_touch_are_one() -> None:
    assert merge_windows([(30, 40), (0, 10), (10, 20), (15, 18)]) == [(0, 20), (30, 40)]
