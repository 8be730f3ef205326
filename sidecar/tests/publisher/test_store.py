"""A store may be away, emptied, set back, exchanged or written to by others at any moment."""

import copy
from dataclasses import replace

import pytest

from slackwater.cuts import StoredPosition
from slackwater.protocol import (
    CommitPosition,
    CommittedTransaction,
    Cut,
    Marker,
    OpenTransaction,
    PublishedCut,
)
from slackwater_lab.fakes.memory import InMemoryMarkerStore
from slackwater_lab.fakes.sources import (
    OTHER,
    SOURCE,
    STATUS,
    FailingStore,
    StillClock,
    WatchedLog,
    cut,
    held,
    logged,
    shown,
)
from slackwater_sidecar import Publisher


def test_the_log_goes_on_without_the_store_which_is_filled_when_it_is_back(
    publisher: Publisher, log: WatchedLog, store: FailingStore
) -> None:
    publisher.publish([cut(1)], STATUS)
    store.is_away = True
    publisher.publish([cut(2)], STATUS)
    publisher.report(STATUS, [])
    assert publisher.mirror.error is not None
    publisher.publish([cut(3)], STATUS)
    assert len(log.tail(-1)) == 3

    store.is_away = False
    publisher.report(STATUS, [])

    assert held(store) == [1, 2, 3]
    assert publisher.mirror.error is None


def newest(cut: Cut, log_offset: int) -> dict[str, object]:
    return {"forged_newest": (PublishedCut(cut, log_offset),)}


@pytest.mark.parametrize("noticed_by", ["report", "publish"])
def test_an_emptied_store_is_filled_from_the_log(log: WatchedLog, noticed_by: str) -> None:
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


def test_a_new_process_fills_a_store_that_is_behind_the_log(log: WatchedLog, store: FailingStore) -> None:
    log.append([cut(1), cut(2)])
    publisher = Publisher(SOURCE, log, store, restored_cuts=100)
    publisher.state.resume_from(log.newest())

    publisher.report(STATUS, [])

    assert held(store) == [1, 2]


def test_what_stands_at_the_end_of_the_log_is_not_in_it(
    publisher: Publisher, log: WatchedLog, store: FailingStore
) -> None:
    publisher.publish([cut(1)], STATUS)
    store.put_cut(PublishedCut(cut(50), 1), OTHER)

    publisher.report(STATUS, [])

    assert held(store) == [1]


def test_a_store_that_has_everything_is_not_filled_again(
    publisher: Publisher, log: WatchedLog, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish([cut(1)], STATUS)
    monkeypatch.setattr(log, "records", lambda *_args, **_named: pytest.fail("the log was read back"))

    publisher.publish([cut(2)], STATUS)
    publisher.report(STATUS, [])

    assert held(store) == [1, 2]


def test_an_emptied_store_gets_cuts_of_the_newest_timeline_only(log: WatchedLog, store: FailingStore) -> None:
    second = [replace(cut(lsn), timeline=2) for lsn in (1, 2)]
    log.append([cut(5), second[0], cut(6), second[1]])
    publisher = Publisher(SOURCE, log, store, restored_cuts=100)
    publisher.state.resume_from(log.newest())
    publisher.report(STATUS, [])

    assert [c.cut.lsn for c in store.cuts_after(SOURCE, 2, 0, limit=9)] == [1, 2]
    assert held(store) == []


def test_a_store_that_holds_a_late_cut_of_an_earlier_timeline_is_filled_from_the_newest_one(
    log: WatchedLog, store: FailingStore
) -> None:
    """A sidecar that had not heard of the new timeline appended behind it."""
    log.append([cut(5), replace(cut(1), timeline=2), cut(6)])
    store.bind(log.identity() or "")
    store.put_cut(PublishedCut(cut(6), 2), OTHER)
    publisher = Publisher(SOURCE, log, store, restored_cuts=100)
    publisher.state.resume_from(PublishedCut(replace(cut(1), timeline=2), 1))

    publisher.report(STATUS, [])

    assert [c.cut.lsn for c in store.cuts_after(SOURCE, 2, 0, limit=9)] == [1]
    assert publisher.mirror.corrections == 0, "nothing in it is wrong"


def test_a_cut_that_lies_beyond_the_end_of_the_log_is_not_believed(
    publisher: Publisher, log: WatchedLog, store: FailingStore
) -> None:
    """Redis is no authority: whatever it holds, nothing is missing in the log."""
    publisher.publish([cut(1)], STATUS)
    store.put_cut(PublishedCut(cut(50), 40), OTHER)
    publisher.publish([cut(2)], STATUS)

    assert logged(log) == [1, 2]
    publisher.report(STATUS, [])
    assert held(store) == [1, 2]


def pretend_to_be_a_copy_of_another(store: InMemoryMarkerStore) -> None:
    own_log = store.bound
    store.clear(SOURCE, 1)
    store.bind("another log")
    store.put_cut(PublishedCut(cut(2_000), 1), OTHER)
    store.bind(own_log)


def test_a_copy_of_another_store_is_removed_and_filled_from_the_log(
    publisher: Publisher, log: WatchedLog, store: FailingStore
) -> None:
    publisher.publish([cut(1), cut(2)], STATUS)
    pretend_to_be_a_copy_of_another(store)
    publisher.publish([cut(3)], STATUS)
    assert logged(log) == [1, 2, 3]

    publisher.report(STATUS, [])

    assert held(store) == [1, 2, 3]
    assert store.position(SOURCE) == StoredPosition(cut(3).position, 2, "me")


def test_what_another_log_has_left_in_the_store_is_removed_before_there_is_a_cut(
    log: WatchedLog, store: FailingStore
) -> None:
    store.bind("another log")
    store.put_cut(PublishedCut(cut(50), 0), OTHER)
    Publisher(SOURCE, log, store, restored_cuts=100).report(STATUS, [])

    store.bind("")  # shows what it has, of whatever log
    assert (store.position(SOURCE), held(store)) == (None, [])


@pytest.mark.parametrize("noticed_by", ["report", "publish"])
def test_an_older_copy_of_the_store_is_filled_without_a_hole(
    publisher: Publisher, log: WatchedLog, store: FailingStore, noticed_by: str
) -> None:
    publisher.publish([cut(1), cut(2)], STATUS)
    older = copy.deepcopy(store.__dict__)
    publisher.publish([cut(3), cut(4)], STATUS)
    store.__dict__.update(older)

    if noticed_by == "report":
        publisher.report(STATUS, [])
        assert held(store) == [1, 2, 3, 4]
    else:
        publisher.publish([cut(5)], STATUS)
        assert held(store) == logged(log) == [1, 2, 3, 4, 5]


def test_a_copy_from_an_earlier_timeline_is_filled_with_the_newest(
    publisher: Publisher, store: FailingStore, clock: StillClock
) -> None:
    publisher.publish([cut(5)], STATUS)
    older = copy.deepcopy(store.__dict__)
    publisher.state.resume_from(None)
    publisher.publish([replace(cut(1), timeline=2)], STATUS)
    store.__dict__.update(older)

    publisher.publish([replace(cut(2), timeline=2)], STATUS)

    assert [c.cut.lsn for c in store.cuts_after(SOURCE, 2, 0, limit=9)] == [1, 2]
    assert shown(publisher, store, clock)["inv.s.a", 0] == Marker(2, 2)


def test_filling_a_store_ends_early_when_cuts_are_large(log: WatchedLog, store: FailingStore) -> None:
    """It is done by the thread that publishes."""
    large = tuple(CommittedTransaction(n, 1, 5) for n in range(10_000))
    log.append([replace(cut(lsn), transactions=large) for lsn in range(1, 61)])
    publisher = Publisher(SOURCE, log, store, restored_cuts=100)
    publisher.state.resume_from(log.newest())

    publisher.report(STATUS, [])

    assert held(store) == list(range(37, 61))


def test_a_store_that_is_slow_to_fail_is_left_alone_for_a_while(
    publisher: Publisher, store: FailingStore, clock: StillClock
) -> None:
    store.is_away, store.answers_after, store.clock = True, 1.0, clock
    publisher.publish([cut(1)], STATUS)
    questions = store.questions
    for lsn in range(2, 5):
        clock.seconds += 0.4
        publisher.publish([cut(lsn)], STATUS)
        publisher.report(STATUS, [])
    assert store.questions == questions

    clock.seconds += 0.4  # what shows health waits three seconds for a report when the store is back
    store.is_away = False
    publisher.report(STATUS, [])
    assert held(store) == [1, 2, 3, 4]


def frontier(lsn: int, log_offset: int, timeline: int = 1) -> dict[str, object]:
    return {"forged_position": (StoredPosition(CommitPosition(timeline, lsn), log_offset, "me"),)}


FORGED: dict[str, dict[str, object]] = {
    "a frontier far ahead": frontier(2**62, 1),
    "a frontier far ahead, beyond the log": frontier(2**62, 2**62),
    "a frontier on a later timeline": frontier(2, 1, timeline=99),
    "a frontier at the offset of another cut": frontier(2, 0),
    "a frontier behind, at the offset of another cut": frontier(1, 1),
    "no frontier": {"forged_position": (None,)},
    "no cut": {"forged_newest": (None,)},
    "an older cut than the frontier": newest(cut(1), 0),
    "a newer cut than the frontier": newest(cut(9), 1),
    "other end offsets": newest(replace(cut(2), end_offsets={"inv.s.a": (7, 7)}), 1),
    "a cut with the log offset of another": newest(cut(2), 0),
    "something that cannot be read": {"is_damaged": True},
}


@pytest.mark.parametrize("forged", FORGED)
def test_what_somebody_else_wrote_to_the_store_is_removed_and_said(
    publisher: Publisher,
    log: WatchedLog,
    store: FailingStore,
    forged: str,
    clock: StillClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publisher.publish([cut(1), cut(2)], STATUS)
    store.__dict__.update(FORGED[forged])
    publisher.report(STATUS, [])

    assert held(store) == logged(log) == [1, 2]
    assert (publisher.mirror.corrections, publisher.mirror.error) == (1, None)
    assert caplog.text.count("Redis contained data that the cut log does not confirm") == 1
    clock.seconds += 60
    publisher.report(STATUS, [])
    assert publisher.mirror.corrections == 1, "it is right now"


@pytest.mark.parametrize("forged", FORGED)
def test_what_somebody_else_wrote_to_the_store_holds_no_cut_back(
    publisher: Publisher, log: WatchedLog, store: FailingStore, forged: str
) -> None:
    publisher.publish([cut(1), cut(2)], STATUS)
    store.__dict__.update(FORGED[forged])
    publisher.publish([cut(3)], STATUS)
    publisher.publish([cut(4)], STATUS)
    assert logged(log) == [1, 2, 3, 4]
    publisher.report(STATUS, [])
    assert held(store) == [1, 2, 3, 4]
    assert publisher.mirror.corrections == 1, "the first that notices it says so"


def test_a_store_that_takes_no_cuts_is_begun_anew(publisher: Publisher, store: FailingStore) -> None:
    """Somebody has used up its ids."""
    publisher.publish([cut(1)], STATUS)
    store.refuses = True
    publisher.publish([cut(2)], STATUS)
    publisher.report(STATUS, [])
    assert held(store) == [1, 2]
    assert publisher.mirror.corrections == 1


def test_putting_a_store_right_takes_no_more_than_a_fifth_of_the_time(
    publisher: Publisher, store: FailingStore, clock: StillClock
) -> None:
    """Else a client that keeps on writing to it would slow down the cuts."""
    publisher.publish([cut(1)], STATUS)
    store.clock, store.clears_after = clock, 1.0
    counts = []
    for _ in range(6):
        store.is_damaged = True
        publisher.publish([], STATUS)
        publisher.report(STATUS, [])
        counts.append(publisher.mirror.corrections)
        clock.seconds += 1
    assert counts == [1, 1, 1, 1, 2, 2]


def test_a_cut_at_an_offset_that_was_deleted_is_not_confirmed_by_the_next_one(
    publisher: Publisher, log: WatchedLog, store: FailingStore
) -> None:
    publisher.publish([cut(1), cut(2)], STATUS)
    log.delete_before(1)
    store.forged_position = (StoredPosition(cut(2).position, 0, "me"),)
    publisher.report(STATUS, [])
    assert publisher.mirror.corrections == 1


def waiting(xid: int, commit_lsn: int | None) -> OpenTransaction:
    return OpenTransaction(xid=xid, commit_lsn=commit_lsn, since_ms=xid, expected={}, received={})


@pytest.mark.parametrize("commit_lsn", [5, None])
def test_a_sidecar_that_is_behind_names_its_wait_beside_those_of_the_one_that_is_ahead(
    publisher: Publisher, other: Publisher, store: FailingStore, commit_lsn: int | None
) -> None:
    publisher.publish([cut(1), cut(2), cut(3)], STATUS)
    publisher.report(STATUS, [waiting(705, commit_lsn), waiting(702, 3)])
    other.report(OTHER, [waiting(701, 2)])
    assert [each.xid for each in store.open(SOURCE)] == [701, 705]

    other.report(OTHER, [waiting(704, 4)])
    assert [each.xid for each in store.open(SOURCE)] == [704]
