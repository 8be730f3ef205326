from collections.abc import Sequence

import pytest

from slackwater_markers import (
    CutLogUnavailableError,
    FrontierState,
    FrontierStatus,
    InMemoryCutLog,
    InMemoryMarkerStore,
    MarkerStoreUnavailableError,
    StoredPosition,
)
from slackwater_protocol import CommittedTransaction, Cut, Marker, PublishedCut, SystemClock
from slackwater_sidecar import Publisher

SOURCE = "inv"
STATUS = FrontierStatus(state=FrontierState.RUNNING, wall_ms=1, sidecar="me")


def cut(lsn: int) -> Cut:
    return Cut(
        source=SOURCE,
        timeline=1,
        lsn=lsn,
        previous_lsn=lsn - 1,
        commit_ts_ms=5,
        event_count=lsn,
        transactions=(CommittedTransaction(700 + lsn, lsn, 5),),
        end_offsets={"inv.s.a": (lsn, 2 * lsn)},
        transaction_offset=lsn,
    )


class StillClock(SystemClock):
    """Its monotonic time moves only when told to."""

    seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


class FailingStore(InMemoryMarkerStore):
    """A store that can be away."""

    is_away = False

    def position(self, source: str) -> StoredPosition | None:
        self._answer()
        return super().position(source)

    def newest(self, source: str, timeline: int) -> PublishedCut | None:
        self._answer()
        return super().newest(source, timeline)

    def set_status(self, source: str, status: FrontierStatus) -> None:
        self._answer()
        super().set_status(source, status)

    def _answer(self) -> None:
        if self.is_away:
            raise MarkerStoreUnavailableError("ask", "h:1", "refused")


class FailingLog(InMemoryCutLog):
    """A log that can be away."""

    is_away = False

    def append(self, cuts: Sequence[Cut]) -> list[PublishedCut]:
        if self.is_away:
            raise CutLogUnavailableError("append", "inv.slackwater.cuts", "refused")
        return super().append(cuts)


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


def held(store: InMemoryMarkerStore) -> list[int]:
    return [c.cut.lsn for c in store.cuts_after(SOURCE, 1, 0, limit=1000)]


def test_cuts_reach_the_log_and_the_store_with_their_log_offset(
    publisher: Publisher, log: FailingLog, store: FailingStore
) -> None:
    publisher.publish([cut(1), cut(2)], STATUS)

    assert [c.cut.lsn for c in log.tail(-1)] == [1, 2]
    assert store.newest(SOURCE, 1) == PublishedCut(cut(2), 1)
    assert store.markers(SOURCE)["inv.s.a", 1] == Marker(2, 4)


def test_a_cut_that_the_log_has_not_acknowledged_is_in_no_store(
    publisher: Publisher, log: FailingLog, store: FailingStore
) -> None:
    log.is_away = True
    publisher.publish([cut(1)], STATUS)

    assert held(store) == []
    assert publisher.log_error is not None

    log.is_away = False
    publisher.publish([cut(2)], STATUS)

    assert held(store) == [1, 2]
    assert publisher.log_error is None


def test_the_log_goes_on_without_the_store_which_is_filled_when_it_is_back(
    publisher: Publisher, log: FailingLog, store: FailingStore
) -> None:
    publisher.publish([cut(1)], STATUS)
    store.is_away = True
    publisher.publish([cut(2)], STATUS)
    publisher.report(STATUS, [])
    assert publisher.store_error is not None
    publisher.publish([cut(3)], STATUS)
    assert len(log.tail(-1)) == 3

    store.is_away = False
    publisher.report(STATUS, [])

    assert held(store) == [1, 2, 3]
    assert publisher.store_error is None


@pytest.mark.parametrize("noticed_by", ["report", "publish"])
def test_an_emptied_store_is_filled_from_the_log(log: FailingLog, noticed_by: str) -> None:
    store = InMemoryMarkerStore()
    publisher = Publisher(SOURCE, log, store, restored_cuts=3)
    publisher.report(STATUS, [])
    publisher.publish([cut(n) for n in range(1, 6)], STATUS)

    store.__init__()  # type: ignore[misc] # as FLUSHALL does
    if noticed_by == "report":
        publisher.report(STATUS, [])
        assert held(store) == [3, 4, 5]
    else:
        publisher.publish([cut(6)], STATUS)
        assert held(store) == [4, 5, 6]
    assert store.newest(SOURCE, 1) == log.newest()


def test_a_new_process_fills_a_store_that_is_behind_the_log(log: FailingLog, store: FailingStore) -> None:
    log.append([cut(1), cut(2)])
    publisher = Publisher(SOURCE, log, store, restored_cuts=100)
    publisher.go_on_from(log.newest())

    publisher.report(STATUS, [])

    assert held(store) == [1, 2]


def test_two_publishers_do_no_harm(publisher: Publisher, log: FailingLog, store: FailingStore) -> None:
    other = Publisher(SOURCE, log, store, restored_cuts=100)
    publisher.publish([cut(1), cut(2)], STATUS)
    other.report(STATUS, [])
    other.publish([cut(1)], STATUS)
    other.publish([cut(2), cut(3)], STATUS)
    publisher.publish([cut(3), cut(4)], STATUS)

    assert held(store) == [1, 2, 3, 4]
