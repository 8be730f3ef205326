import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

Wait = Callable[[Callable[[], object]], None]


class MovableClock:
    """A clock that stands still until it is asked to move."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.offset = timedelta()
        """Of the wall clock only."""

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds) + self.offset

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def wait_until() -> Wait:
    """Waits for a condition, for a quarter of an hour at most."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 900
        pause = threading.Event()
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail("the condition did not come true within a quarter of an hour")
            pause.wait(0.02)

    return wait
