import random
from itertools import pairwise

import pytest

from slackwater_bench.arrivals import ARRIVALS, PoissonArrivals, burst, ramp, steady

SECONDS = 60.0


def mean(name: str, rate: float) -> float:
    shape = ARRIVALS[name](rate, SECONDS)
    return sum(shape(step / 100) for step in range(int(SECONDS * 100))) / (SECONDS * 100)


@pytest.mark.parametrize("name", ["steady", "burst"])
def test_a_shape_keeps_the_rate_that_was_asked_for_on_average(name: str) -> None:
    assert mean(name, 200.0) == pytest.approx(200.0, rel=0.01)


def test_a_burst_is_three_times_the_quiet_rate() -> None:
    shape = burst(100.0, SECONDS)
    assert shape(14.0) == pytest.approx(3 * shape(1.0))


def test_a_ramp_ends_at_the_rate() -> None:
    shape = ramp(100.0, SECONDS)
    assert [shape(0.0), shape(SECONDS), shape(2 * SECONDS)] == pytest.approx([10.0, 100.0, 100.0])


def test_all_clients_together_arrive_at_the_rate() -> None:
    arrivals = 0
    for client in range(4):
        schedule = PoissonArrivals(steady(100.0, SECONDS), 4, random.Random(client))
        while schedule.next() < SECONDS:
            arrivals += 1
    assert arrivals == pytest.approx(100.0 * SECONDS, rel=0.05)


def test_intended_starts_only_rise_and_repeat_with_the_seed() -> None:
    first, second = (
        [schedule.next() for _ in range(100)]
        for schedule in (PoissonArrivals(steady(10.0, SECONDS), 1, random.Random(3)) for _ in range(2))
    )
    assert first == second
    assert all(before < after for before, after in pairwise(first))
