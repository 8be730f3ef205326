import pytest

from slackwater_lab.fakes.sources import OTHER, SOURCE, STATUS, FailingLog, FailingStore, StillClock
from slackwater_sidecar import Publisher


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def log() -> FailingLog:
    return FailingLog(SOURCE)


@pytest.fixture
def store() -> FailingStore:
    return FailingStore()


@pytest.fixture
def publisher(log: FailingLog, store: FailingStore, clock: StillClock) -> Publisher:
    result = Publisher(SOURCE, log, store, restored_cuts=100, clock=clock)
    result.report(STATUS, [])
    return result


@pytest.fixture
def other(log: FailingLog, store: FailingStore, clock: StillClock) -> Publisher:
    result = Publisher(SOURCE, log, store, restored_cuts=100, clock=clock)
    result.report(OTHER, [])
    return result
