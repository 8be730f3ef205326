"""The rules of publishing: when it is due, whose turn it is, what is still to be written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.cuts import StoredPosition
from slackwater.protocol import CommitPosition, CommittedTransaction, Cut, KafkaSettings, Servers
from slackwater_sidecar import SidecarSettings
from slackwater_sidecar.publisher import Due, PublishingSchedule, PublishingState, Spacing

SETTINGS = SidecarSettings(source="inv", servers=Servers(KafkaSettings("h:1")))
START = 1000.0


def due(
    schedule: PublishingSchedule,
    seconds: float,
    *,
    has_cuts: bool = False,
    has_events: bool = False,
    is_waiting: bool = False,
    is_behind: bool = True,
) -> Due:
    """What is due this long after the start."""
    return schedule.due(
        START + seconds,
        has_cuts=has_cuts,
        has_events=has_events,
        is_waiting=is_waiting,
        is_behind=is_behind,
    )


@pytest.fixture
def schedule() -> PublishingSchedule:
    return PublishingSchedule(SETTINGS, START)


def test_something_cheap_is_done_at_its_interval() -> None:
    spacing = Spacing()
    assert spacing.is_due(0, 5)
    spacing.record(0, 0)
    assert not spacing.is_due(4.9, 5)
    assert spacing.is_due(5, 5)


@pytest.mark.parametrize("cost", [0.004, 0.02, 0.06])
def test_something_dear_takes_a_fifth_of_the_time(cost: float) -> None:
    spacing, now, busy = Spacing(), 0.0, 0.0
    while busy < 20 * cost:
        if spacing.is_due(now, 0.005):
            spacing.record(now, now + cost)
            now, busy = now + cost, busy + cost
        else:
            now += cost / 100
    assert busy / now == pytest.approx(0.2, rel=0.15)


def test_a_rest_is_not_taken_when_nothing_else_is_to_be_done() -> None:
    spacing = Spacing()
    spacing.record(0, 0.02)
    assert not spacing.is_due(0.03, 0.005)
    assert spacing.is_due(0.03, 0.005, others_wait=False)


def test_something_that_had_to_wait_is_not_put_off_for_long() -> None:
    spacing = Spacing()
    spacing.record(0, 5)
    assert spacing.is_due(5.25, 0.005)


def test_markers_ahead_wait_until_the_frontier_has_stood_still(schedule: PublishingSchedule) -> None:
    assert due(schedule, 0.499) is Due.NOTHING
    assert due(schedule, 0.5) is Due.MARKERS_AHEAD

    schedule.markers_ahead.record(START + 0.5, START + 0.5)
    assert due(schedule, 0.5) is Due.NOTHING
    assert due(schedule, 0.75) is Due.MARKERS_AHEAD


def test_markers_ahead_begin_to_wait_anew_with_each_cut(schedule: PublishingSchedule) -> None:
    assert due(schedule, 0.4, has_cuts=True, has_events=True) is Due.CUTS
    schedule.record_cuts(START + 0.4, START + 0.4)

    assert due(schedule, 0.8) is Due.NOTHING
    assert due(schedule, 0.9) is Due.MARKERS_AHEAD


def test_a_frontier_that_moves_has_no_markers_ahead(schedule: PublishingSchedule) -> None:
    schedule.record_cuts(START, START)

    assert due(schedule, 0.75, has_cuts=True) is Due.NOTHING


def test_markers_ahead_rest_as_long_as_they_cost(schedule: PublishingSchedule) -> None:
    schedule.markers_ahead.record(START + 5, START + 5.25)

    assert due(schedule, 5.25 + 0.125) is Due.NOTHING
    assert due(schedule, 5.25 + 0.25) is Due.MARKERS_AHEAD


def test_cuts_without_events_are_published_at_a_slower_pace(schedule: PublishingSchedule) -> None:
    assert due(schedule, 0, has_cuts=True) is Due.CUTS
    schedule.record_cuts(START, START)

    assert due(schedule, 0.5, has_cuts=True) is Due.NOTHING
    assert due(schedule, 0.5, has_cuts=True, has_events=True) is Due.CUTS
    assert due(schedule, 1, has_cuts=True) is Due.CUTS


def test_what_was_left_to_another_sidecar_is_tried_again_at_the_pace_of_events(
    schedule: PublishingSchedule,
) -> None:
    schedule.record_cuts(START, START)

    assert due(schedule, 0.004, is_waiting=True) is Due.NOTHING
    assert due(schedule, 0.005, is_waiting=True) is Due.CUTS


def test_publishing_rests_while_much_is_to_be_read(schedule: PublishingSchedule) -> None:
    schedule.record_cuts(START, START + 0.02)

    assert due(schedule, 0.09, has_cuts=True, has_events=True, is_behind=True) is Due.NOTHING
    assert due(schedule, 0.09, has_cuts=True, has_events=True, is_behind=False) is Due.CUTS


def held(lsn: int, publisher: str = "other") -> StoredPosition:
    return StoredPosition(CommitPosition(1, lsn), lsn, publisher)


def cuts_of(sizes: list[int]) -> list[Cut]:
    """Cuts one behind the other, of this many transactions each, of which every third was skipped."""
    cuts, end = [], 0
    for number, size in enumerate(sizes):
        begin, end = end, end + size
        lsns = range(begin + 1, end + 1)
        cuts.append(
            Cut(
                source="inv",
                timeline=1,
                lsn=end,
                previous_lsn=begin,
                commit_ts_ms=5,
                event_count=end,
                transactions=tuple(CommittedTransaction(1000 + lsn, lsn, 5) for lsn in lsns),
                end_offsets={},
                transaction_offset=end,
                skipped=tuple(1000 + lsn for lsn in lsns if lsn % 3 == 0),
                repeated=frozenset({number}),
                late_snapshots=(number,) if number % 2 else (),
            )
        )
    return cuts


def test_the_turn_is_left_for_a_moment_to_whoever_published_last() -> None:
    pending = PublishingState()
    pending.add_cuts(cuts_of([1, 1]))

    assert [pending.take_turn(held(1), "me", at) for at in (10.0, 10.4)] == [False, False]
    assert pending.is_waiting
    assert pending.take_turn(held(1), "me", 10.5)


@pytest.mark.parametrize("known", [None, held(1, "me"), held(1, "")])
def test_without_another_sidecar_it_is_always_the_own_turn(known: StoredPosition | None) -> None:
    pending = PublishingState()
    pending.add_cuts(cuts_of([1, 1]))

    assert pending.take_turn(known, "me", 10.0)
    assert not pending.is_waiting


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    written=st.lists(st.integers(0, 40), min_size=1, max_size=4),
)
def test_what_is_left_to_write_follows_from_the_furthest_cut_that_is_written(
    sizes: list[int], written: list[int]
) -> None:
    """In whatever order, and however often, this sidecar hears of the cuts of another one."""
    cuts = cuts_of(sizes)
    stepwise, at_once = PublishingState(), PublishingState()
    for pending, positions in ((stepwise, written), (at_once, [max(written)])):
        pending.add_cuts(cuts)
        for lsn in positions:
            pending.drop_written(held(lsn))

    left = stepwise.cuts_to_write()
    assert left == at_once.cuts_to_write()
    is_overruled = any(cut.skipped and cut.previous_lsn < max(written) for cut in cuts)
    assert [stepwise.is_overruled, at_once.is_overruled] == [is_overruled] * 2
    if is_overruled:
        assert not left, "what is skipped was decided by the other one"
        return
    listed = [t.commit_lsn for cut in left for t in cut.transactions]
    assert listed == [lsn for lsn in range(1, sum(sizes) + 1) if lsn > max(written)]
    assert {xid for cut in left for xid in cut.skipped} == {1000 + lsn for lsn in listed if lsn % 3 == 0}
    if left:
        assert {n for cut in left for n in cut.repeated} == set(range(len(sizes))), "rows stay told"
        assert {n for cut in left for n in cut.late_snapshots} == set(range(1, len(sizes), 2))
