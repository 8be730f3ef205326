"""The delays of the last hours."""

import pytest

from slackwater.control import SAMPLES, DelayHistory, Delays, ViewDelay


def sample(made_ms: int, **delays: int | None) -> Delays:
    """Of pipeline p, by view."""
    views = tuple(
        ViewDelay(pipeline="p", view=view, source="inv", delay_ms=delay, components=())
        for view, delay in delays.items()
    )
    return Delays(made_ms=made_ms, arrivals=(), views=views, causes=())


@pytest.fixture
def history() -> DelayHistory:
    return DelayHistory()


def test_a_view_has_a_value_at_each_time_or_none_where_it_was_not_known(history: DelayHistory) -> None:
    history.add(sample(1, a=10))
    history.add(sample(2, a=None, b=20))
    history.add(sample(3, b=30))
    found = history.of("p")
    assert (found.pipeline, found.times_ms) == ("p", (1, 2, 3))
    assert found.views == {"a": (10, None, None), "b": (None, 20, 30)}


def test_a_pipeline_that_is_not_known_has_no_views(history: DelayHistory) -> None:
    history.add(sample(1, a=10))
    assert history.of("q").views == {}


def test_the_oldest_goes_and_with_its_last_value_the_view(history: DelayHistory) -> None:
    history.add(sample(0, gone=1, a=1))
    for number in range(1, SAMPLES):
        history.add(sample(number, a=number))
    assert history.of("p").views.keys() == {"gone", "a"}
    history.add(sample(SAMPLES, a=7))
    found = history.of("p")
    assert (found.times_ms[0], found.times_ms[-1], len(found.times_ms)) == (1, SAMPLES, SAMPLES)
    assert found.views == {"a": (*range(1, SAMPLES), 7)}


def test_after_the_clock_was_set_back_the_times_ascend(history: DelayHistory) -> None:
    for made_ms in (1, 2, 3):
        history.add(sample(made_ms, a=made_ms, **({"late": 5} if made_ms == 3 else {})))
    history.add(sample(2, a=7))
    history.add(sample(4, a=8))
    found = history.of("p")
    assert (found.times_ms, found.views) == ((1, 2, 4), {"a": (1, 7, 8)})
