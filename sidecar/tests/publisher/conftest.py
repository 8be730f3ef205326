import pytest

from slackwater_lab.fakes.sources import OTHER, SOURCE, STATUS, FailingStore, StillClock, WatchedLog
from slackwater_sidecar import Publisher


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def log() -> WatchedLog:
    return WatchedLog(SOURCE)


@pytest.fixture
def store() -> FailingStore:
    return FailingStore()


@pytest.fixture
def publisher(log: WatchedLog, store: FailingStore, clock: StillClock) -> Publisher:
    result = Publisher(SOURCE, log, store, restored_cuts=100, clock=clock)
    result.report(STATUS, [])
    return result


@pytest.fixture
def other(log: WatchedLog, store: FailingStore, clock: StillClock) -> Publisher:
    result = Publisher(SOURCE, log, store, restored_cuts=100, clock=clock)
    result.report(OTHER, [])
    return result
