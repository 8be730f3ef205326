import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater_bench.latencies import latencies_ms, percentile, relative_spread, summary

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@given(VALUES, st.floats(1, 100))
def test_at_least_so_many_percent_do_not_exceed_the_percentile(values: list[float], percent: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, percent)
    assert found in ordered
    assert sum(value <= found for value in ordered) * 100 >= percent * len(ordered) * (1 - 1e-9)


def test_a_percentile_is_the_nearest_rank() -> None:
    assert [percentile([1, 2, 3, 4], percent) for percent in (1, 25, 26, 50, 99, 100)] == [1, 1, 2, 2, 4, 4]
    assert percentile([7.0], 50) == 7.0


def test_a_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_a_summary_names_the_percentiles_of_values_in_any_order() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert summary(values) == {"count": 100, "p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}


def test_the_spread_is_relative_to_the_median() -> None:
    assert relative_spread([90.0, 100.0, 120.0]) == pytest.approx(0.3)
    assert relative_spread([5.0]) == 0.0
    assert relative_spread([0.0, 0.0, 1.0]) == 0.0


def test_a_transaction_counts_from_its_intended_time_to_the_first_commit_that_covers_it() -> None:
    due = [(10, 1.0), (20, 1.1), (30, 1.2)]
    seen = [(20, 1.5), (25, 1.6), (40, 2.0)]
    assert list(latencies_ms(due, seen, since=0.0)) == pytest.approx([500.0, 400.0, 800.0])


def test_transactions_of_the_warm_up_and_those_that_nothing_covers_are_left_out() -> None:
    due = [(10, 1.0), (20, 2.0), (30, 3.0)]
    assert list(latencies_ms(due, [(20, 2.5)], since=1.5)) == pytest.approx([500.0])


def test_a_stall_is_charged_to_every_transaction_that_had_to_wait() -> None:
    due = [(number, number / 10) for number in range(1, 101)]
    found = list(latencies_ms(due, [(100, 20.0)], since=0.0))
    assert len(found) == 100
    assert min(found) == pytest.approx(10_000)
    assert max(found) == pytest.approx(19_900)
