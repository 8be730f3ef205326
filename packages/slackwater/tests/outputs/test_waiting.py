"""Attempts at something whose server is away: how long, how often they are logged, and what a stop does."""

import logging
import threading
from datetime import UTC, datetime, timedelta

import pytest

from slackwater.outputs.sink import Waiting, retry_for
from slackwater.protocol import UnavailableError


class FakeClock:
    seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.seconds


class FakeWaiting(Waiting):
    """Time continues while it waits."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self.steps: list[str] = []
        self._clock = clock

    def pause(self, seconds: float, step: str) -> None:
        self.pauses.append(seconds)
        self.steps.append(step)
        self._clock.seconds += seconds


def test_pauses_grow_until_the_patience_is_over_and_the_log_hears_of_some(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    waiting = FakeWaiting(clock)
    retry = retry_for("batch 7", "a server", timedelta(seconds=9), waiting, clock)
    with caplog.at_level(logging.WARNING):
        while not retry.is_over:
            retry.note("no answer")
            retry.pause()
    assert waiting.pauses[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert set(waiting.pauses[5:-1]) == {1.0}
    assert clock.seconds == pytest.approx(9.0)
    assert set(waiting.steps) == {"waiting for a server: batch 7, until 00:00:09 UTC at most: no answer"}
    line = "waiting for a server: batch 7: no answer; trying again, for %d s at most"
    assert caplog.messages == [line % 9, line % 3], "at once, and after five seconds"


def test_the_time_of_attempts_begins_before_the_first_one() -> None:
    clock = FakeClock()
    retry = retry_for("batch 7", "a server", timedelta(seconds=9), FakeWaiting(clock), clock)
    clock.seconds = 9.0
    assert retry.is_over


def test_a_stop_ends_the_pause() -> None:
    stop, steps = threading.Event(), list[str]()
    waiting = Waiting(stop, steps.append)
    waiting.pause(0.0, "waiting")
    stop.set()
    with pytest.raises(UnavailableError, match="asked to stop while it was waiting for a server"):
        waiting.pause(1e6, "waiting for a server")
    assert steps == ["waiting", "waiting for a server"]
    assert waiting.is_over
