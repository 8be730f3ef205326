"""What is counted and measured of a source."""

import pytest

from slackwater.protocol import CommittedTransaction, Cut
from slackwater.protocol.metrics import Distribution
from slackwater_lab.fakes.sources import StillClock
from slackwater_sidecar import SourceMonitor


def cut(lsn: int, events: int = 2, timeline: int = 1) -> Cut:
    return Cut(
        source="inv",
        timeline=timeline,
        lsn=lsn,
        previous_lsn=lsn - 1,
        commit_ts_ms=5,
        event_count=events,
        transactions=(CommittedTransaction(700 + lsn, lsn, 5),),
        end_offsets={},
        transaction_offset=lsn,
        skipped=(700 + lsn,),
    )


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def monitor(clock: StillClock) -> SourceMonitor:
    return SourceMonitor("inv", clock)


def test_a_delay_runs_from_reading_the_newest_end_of_a_poll_until_it_is_published(
    monitor: SourceMonitor, clock: StillClock
) -> None:
    for clock.seconds, newest in ((1.0, 10), (2.0, 10), (3.0, 20)):
        monitor.record_read(newest)
    for lsn, now, total in ((15, 5.0, 4.0), (20, 5.0, 6.0), (20, 6.0, 6.0)):
        monitor.record_cuts([cut(lsn)], now, now)
        assert monitor.delay_seconds.total == total


def test_a_frontier_that_stands_still_does_not_fill_memory_with_delays(monitor: SourceMonitor) -> None:
    for lsn in range(1, 20_000):
        monitor.record_read(lsn)
    monitor.record_cuts([cut(30_000)], 1.0, 1.0)
    assert monitor.delay_seconds.cumulative()[-1] == ("+Inf", 10_000)


def test_a_distribution_counts_values_up_to_each_bound() -> None:
    seen = Distribution((1, 2))
    for value in (0.5, 1, 1.5, 9):
        seen.observe(value)
    assert seen.cumulative() == [("1", 2), ("2", 3), ("+Inf", 4)]
    assert seen.total == 12


def test_cuts_are_counted_with_their_transactions(monitor: SourceMonitor) -> None:
    monitor.record_cuts([cut(1), cut(2, events=5)], 0.0, 0.25)

    assert (monitor.cuts, monitor.transactions, monitor.skipped) == (2, 2, 2)
    assert monitor.newest == cut(2, events=5)
    assert monitor.publication_seconds.total == 0.25


def test_events_are_counted_from_the_cut_before_within_a_timeline(monitor: SourceMonitor) -> None:
    for each in (cut(1, events=2), cut(2, events=5), cut(1, events=3, timeline=2)):
        monitor.record_cuts([each], 0.0, 0.0)

    assert monitor.events == 5 + 3


def test_events_are_counted_from_the_cut_that_a_timeline_is_followed_from(monitor: SourceMonitor) -> None:
    monitor.begin_timeline(cut(1, events=10))
    monitor.record_cuts([cut(2, events=13)], 0.0, 0.0)

    assert monitor.events == 3


def test_sizes_of_cuts_are_measured_now_and_then(monitor: SourceMonitor) -> None:
    """A size costs an encoding."""
    for lsn, now, measured in ((1, 0.0, 1), (2, 0.0625, 1), (3, 0.125, 2)):
        monitor.record_cuts([cut(lsn)], now, now)
        assert monitor.cut_bytes.cumulative()[-1] == ("+Inf", measured)
