"""Fixtures of the devstack's own tests."""

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from slackwater.dev.server import Deadline


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Waits for a condition; fails the test after the timeout."""

    def wait(condition: Callable[[], bool], timeout: timedelta = timedelta(seconds=300)) -> None:
        deadline = Deadline(timeout)
        pause = threading.Event()
        while not condition():
            assert not deadline.is_expired, "the condition was not met in time"
            pause.wait(0.02)

    return wait


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every account reaches, unlike pytest's own; so all data is in it and goes with it."""
    folder = Path(tempfile.mkdtemp(prefix="devstack-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
