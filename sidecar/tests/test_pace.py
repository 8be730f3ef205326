"""Spacing of what costs time, and what is measured of waiting."""

import pytest

from slackwater_sidecar.delays import Delays
from slackwater_sidecar.distribution import Distribution
from slackwater_sidecar.pace import Pace


def test_something_cheap_is_done_at_its_interval() -> None:
    pace = Pace()
    assert pace.is_due(0, 5)
    pace.note(0, 0)
    assert not pace.is_due(4.9, 5)
    assert pace.is_due(5, 5)


@pytest.mark.parametrize("cost", [0.004, 0.02, 0.06])
def test_something_dear_takes_a_fifth_of_the_time(cost: float) -> None:
    pace, now, busy = Pace(), 0.0, 0.0
    while busy < 20 * cost:
        if pace.is_due(now, 0.005):
            pace.note(now, now + cost)
            now, busy = now + cost, busy + cost
        else:
            now += cost / 100
    assert busy / now == pytest.approx(0.2, rel=0.15)


def test_a_rest_is_not_taken_when_nothing_else_is_to_be_done() -> None:
    pace = Pace()
    pace.note(0, 0.02)
    assert not pace.is_due(0.03, 0.005)
    assert pace.is_due(0.03, 0.005, others_wait=False)


def test_something_that_had_to_wait_is_not_put_off_for_long() -> None:
    pace = Pace()
    pace.note(0, 5)
    assert pace.is_due(5.25, 0.005)


def test_a_delay_runs_from_reading_the_newest_end_of_a_poll_until_it_is_published() -> None:
    delays = Delays()
    delays.read(10, 1.0)
    delays.read(10, 2.0)
    delays.read(20, 3.0)
    assert delays.published(15, 5.0) == [4.0]
    assert delays.published(20, 5.0) == [2.0]
    assert delays.published(20, 6.0) == []


def test_a_frontier_that_stands_still_does_not_fill_memory_with_delays() -> None:
    delays = Delays()
    for lsn in range(1, 20_000):
        delays.read(lsn, float(lsn))
    assert len(delays.published(30_000, 1.0)) == 10_000


def test_a_distribution_counts_values_up_to_each_bound() -> None:
    seen = Distribution((1, 2))
    for value in (0.5, 1, 1.5, 9):
        seen.observe(value)
    assert seen.cumulative() == [("1", 2), ("2", 3), ("+Inf", 4)]
    assert seen.total == 12
