"""Fixtures of the devstack's own tests."""

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from slackwater_devstack.deadline import Deadline


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Waits for a condition; fails the test after the timeout."""

    def wait(condition: Callable[[], bool], timeout: timedelta = timedelta(seconds=30)) -> None:
        deadline = Deadline(timeout)
        pause = threading.Event()
        while not condition():
            assert not deadline.is_expired, "the condition was not met in time"
            pause.wait(0.02)

    return wait
