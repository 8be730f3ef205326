"""One behaviour of all marker stores."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from slackwater.cuts import (
    FrontierState,
    FrontierStatus,
    RedisMarkerStore,
    RegressionNotice,
    StoredPosition,
)
from slackwater.protocol import (
    CommitPosition,
    ConnectorReport,
    Cut,
    Finding,
    Marker,
    OpenTransaction,
    PublishedCut,
    SlotReport,
    TaskReport,
    Verdict,
)
from slackwater_lab.fakes.memory import InMemoryMarkerStore

MakeCut = Callable[..., Cut]

RUNNING = FrontierStatus(state=FrontierState.RUNNING, wall_ms=1000, sidecar="a")
LARGEST_LSN = 2**64 - 1


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.integration)])
def store(request: pytest.FixtureRequest) -> Iterator[RedisMarkerStore]:
    if request.param == "memory":
        yield InMemoryMarkerStore()
    else:
        redis_store = RedisMarkerStore.connect(request.getfixturevalue("redis_url"))
        yield redis_store
        redis_store.close()


@pytest.fixture
def put_cut(make_cut: MakeCut, store: RedisMarkerStore, source: str) -> Callable[..., bool]:
    def put_lsn(lsn: int, *, timeline: int = 0, log_offset: int = 0) -> bool:
        return store.put_cut(PublishedCut(make_cut(source, lsn, timeline=timeline), log_offset), RUNNING)

    return put_lsn


def test_newest_is_none_before_the_first_cut(store: RedisMarkerStore, source: str) -> None:
    assert store.newest(source, 0) is None
    assert store.cuts_after(source, 0, 0, limit=10) == []
    assert store.markers(source) == {}
    assert store.status(source) is None


def test_newest_returns_the_published_cut_with_its_log_offset(
    make_cut: MakeCut, store: RedisMarkerStore, source: str
) -> None:
    published = PublishedCut(make_cut(source, 100, transactions=3), 17)
    assert store.put_cut(published, RUNNING)
    assert store.newest(source, 0) == published


def test_cut_and_status_appear_together(make_cut: MakeCut, store: RedisMarkerStore, source: str) -> None:
    cut = make_cut(source, 100)
    store.put_cut(PublishedCut(cut, 0), RUNNING)
    assert store.newest(source, 0) == PublishedCut(cut, 0)
    assert store.status(source) == RUNNING


def test_the_position_is_that_of_the_newest_cut(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    assert store.position(source) is None
    put_cut(100, log_offset=17)
    assert store.position(source) == StoredPosition(CommitPosition(0, 100), 17, "a")
    put_cut(99, log_offset=18)
    put_cut(LARGEST_LSN, timeline=1, log_offset=19)
    assert store.position(source) == StoredPosition(CommitPosition(1, LARGEST_LSN), 19, "a")


AT_100 = CommitPosition(0, 100)


def test_markers_are_replaced_as_a_whole(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    put_cut(100)
    first, odd, many = (f"{source}.inv.a", 0), ("odd/name", 7), {("t", n): Marker(n, n) for n in range(5000)}
    for markers in ({first: Marker(LARGEST_LSN, 130), odd: Marker(120, 9)}, {odd: Marker(100, 8)}, many, {}):
        assert store.set_markers(source, AT_100, markers)
        assert store.markers(source) == markers


@pytest.mark.parametrize("older", [CommitPosition(1, 99), CommitPosition(1, 9), CommitPosition(0, 1000)])
def test_markers_of_an_older_cut_than_the_newest_are_refused(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool], older: CommitPosition
) -> None:
    put_cut(100, timeline=1)
    newer = {("t", 0): Marker(100, 5)}
    assert store.set_markers(source, CommitPosition(1, 100), newer)
    assert not store.set_markers(source, older, {("t", 0): Marker(7, 7)})
    assert store.markers(source) == newer


def test_the_lsns_of_markers_are_compared_with_all_64_bits(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    put_cut(LARGEST_LSN)
    assert not store.set_markers(source, CommitPosition(0, LARGEST_LSN - 1), {("t", 0): Marker(7, 7)})
    assert store.set_markers(source, CommitPosition(0, LARGEST_LSN), {("t", 0): Marker(8, 8)})


@pytest.mark.parametrize(
    "newer", [CommitPosition(1, 101), CommitPosition(2, 0), CommitPosition(1, LARGEST_LSN)]
)
def test_markers_of_a_newer_cut_than_the_store_has_are_taken(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool], newer: CommitPosition
) -> None:
    """The cut itself may not have reached it."""
    put_cut(100, timeline=1)
    assert store.set_markers(source, newer, {("t", 0): Marker(101, 5)})
    assert store.markers(source) == {("t", 0): Marker(101, 5)}


def test_what_was_published_from_another_log_counts_as_absent(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    store.bind("one log")
    put_cut(100)
    store.set_markers(source, AT_100, {("t", 0): Marker(150, 170)})
    store.bind("another log")
    assert store.newest(source, 0) is None
    assert store.cuts_after(source, 0, 0, limit=9) == []
    assert store.markers(source) == {}
    assert store.position(source) is None
    assert not put_cut(200)
    assert not store.set_markers(source, CommitPosition(0, 200), {("t", 0): Marker(250, 270)})
    store.bind("one log")
    assert store.newest(source, 0) is not None


def test_markers_before_the_first_cut_belong_to_their_log(store: RedisMarkerStore, source: str) -> None:
    store.bind("one log")
    assert store.set_markers(source, AT_100, {("t", 0): Marker(150, 170)})
    store.bind("another log")
    assert store.markers(source) == {}


def test_a_store_that_is_bound_to_no_log_takes_cuts_of_all(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    store.bind("one log")
    assert put_cut(100)
    store.bind("")
    assert put_cut(200)


def test_a_sidecar_removes_what_another_log_left_and_begins_anew(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    store.bind("one log")
    put_cut(100, timeline=3)
    store.set_markers(source, CommitPosition(3, 100), {("t", 0): Marker(150, 170)})
    store.bind("another log")
    assert store.adopt(source)
    assert not store.adopt(source)
    assert store.status(source) is None
    assert store.markers(source) == {}
    assert put_cut(50, timeline=1)
    store.bind("one log")
    assert store.newest(source, 1) is None


def test_a_cleared_source_is_unknown(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    put_cut(100, timeline=2)
    store.clear(source, 2)
    assert store.position(source) is None
    assert store.newest(source, 2) is None
    assert store.status(source) is None
    assert put_cut(50, timeline=1)


def test_nothing_is_removed_from_a_store_of_the_same_log(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    put_cut(100)
    store.bind("one log")
    assert not store.adopt(source)
    put_cut(110)
    assert not store.adopt(source)
    assert [c.cut.lsn for c in store.cuts_after(source, 0, 0, limit=9)] == [100, 110]


def test_publishing_the_same_cut_again_changes_nothing(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    assert put_cut(100, log_offset=1)
    assert not put_cut(100, log_offset=2)
    newest = store.newest(source, 0)
    assert newest is not None
    assert newest.log_offset == 1


def test_an_older_cut_is_refused(store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]) -> None:
    put_cut(100)
    assert not put_cut(99)
    assert [c.cut.lsn for c in store.cuts_after(source, 0, 0, limit=10)] == [100]


def test_lsns_are_compared_with_all_64_bits(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    assert put_cut(LARGEST_LSN - 1)
    assert not put_cut(LARGEST_LSN - 2)
    assert put_cut(LARGEST_LSN)
    assert [c.cut.lsn for c in store.cuts_after(source, 0, LARGEST_LSN - 1, limit=9)] == [LARGEST_LSN]


def test_cuts_after_is_ascending_exclusive_and_limited(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    for lsn in (10, 20, 30, 40):
        put_cut(lsn)
    assert [c.cut.lsn for c in store.cuts_after(source, 0, 10, limit=2)] == [20, 30]
    assert [c.cut.lsn for c in store.cuts_after(source, 0, 15, limit=9)] == [20, 30, 40]
    assert store.cuts_after(source, 0, 40, limit=9) == []


def test_a_new_timeline_may_start_below_the_old_one(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    put_cut(100)
    assert put_cut(7, timeline=1)
    assert store.newest(source, 1) is not None
    assert store.position(source) == StoredPosition(CommitPosition(1, 7), 0, "a")


def test_an_older_timeline_is_refused(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    put_cut(7, timeline=1)
    assert not put_cut(1000, timeline=0)
    assert store.newest(source, 0) is None


def test_timelines_are_compared_as_numbers(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    assert put_cut(100, timeline=9)
    assert put_cut(7, timeline=10)
    assert not put_cut(1000, timeline=9)


def test_open_transactions_of_a_cleared_source_are_gone(store: RedisMarkerStore, source: str) -> None:
    waiting = OpenTransaction(xid=1, commit_lsn=None, since_ms=0, expected={}, received={})
    store.set_open(source, [waiting])
    store.clear(source, 0)
    assert store.open(source) == []


def test_sources_do_not_see_each_other(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    put_cut(100)
    assert store.newest(source + "x", 0) is None
    assert store.markers(source + "x") == {}


def test_status_can_change_without_a_cut(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    put_cut(100)
    stalled = FrontierStatus(
        state=FrontierState.STALLED, detail="xid 7 waits for inv.a", wall_ms=5, sidecar="b"
    )
    store.set_status(source, stalled)
    assert store.status(source) == stalled
    assert store.newest(source, 0) is not None


def test_a_regression_is_kept_until_a_status_without_one(store: RedisMarkerStore, source: str) -> None:
    notice = RegressionNotice(
        transaction_offset=7, xid=3, commit_lsn=2**63, newest_lsn=2**64 - 1, has_snapshot=True
    )
    regressed = FrontierStatus(
        state=FrontierState.REGRESSED, wall_ms=1, sidecar="a", timeline=4, regression=notice
    )
    store.set_status(source, regressed)
    assert store.status(source) == regressed

    store.set_status(source, RUNNING)
    assert store.status(source) == RUNNING


def test_what_is_known_of_the_connector_outlives_cuts(
    store: RedisMarkerStore, source: str, put_cut: Callable[..., bool]
) -> None:
    report = ConnectorReport(
        read_ms=7,
        since_ms=6,
        state="RUNNING",
        tasks=(TaskReport(number=0, state="FAILED", error="gone"),),
        properties={"slot.name": "inv"},
        heartbeat_ms=5,
        slot=SlotReport(name="inv", exists=True, retained_bytes=2**40),
        findings=(Finding("slot", Verdict.FAULT, "it is lost"),),
    )
    store.set_status(source, replace(RUNNING, connector=report))
    put_cut(100)

    status = store.status(source)

    assert status is not None
    assert status.connector == report
    store.set_status(source, RUNNING)
    assert store.status(source) == RUNNING


def test_open_transactions_are_replaced_as_a_whole(store: RedisMarkerStore, source: str) -> None:
    early, late = (
        OpenTransaction(
            xid=xid, commit_lsn=None, since_ms=ms, expected={"inv.a": 3}, received={"inv.a": 1}, hint="h"
        )
        for xid, ms in ((9, 100), (8, 200))
    )
    store.set_open(source, [late, early])
    assert store.open(source) == [early, late]
    store.set_open(source, [late])
    assert store.open(source) == [late]
    store.set_open(source, [])
    assert store.open(source) == []
