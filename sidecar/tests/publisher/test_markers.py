"""Markers of all partitions, and those ahead of the frontier."""

from dataclasses import replace

import pytest

from slackwater.cuts import LoggedRecord, markers_of
from slackwater.protocol import AheadMarkers, Marker
from slackwater_lab.fakes.memory import InMemoryCutLog
from slackwater_lab.fakes.sources import (
    OTHER,
    SOURCE,
    STATUS,
    FailingStore,
    StillClock,
    WatchedLog,
    ahead,
    cut,
    shown,
)
from slackwater_sidecar import Publisher


def test_the_store_gets_the_markers_of_all_partitions_but_not_with_every_cut(
    publisher: Publisher, store: FailingStore, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    assert shown(publisher, store, clock) == markers_of(cut(1))
    publisher.publish([cut(2)], STATUS)
    publisher.show_markers()
    assert store.markers(SOURCE) == markers_of(cut(1)), "there may be thousands of them"
    assert shown(publisher, store, clock) == markers_of(cut(2))


def test_markers_that_have_not_changed_are_not_written_again(
    publisher: Publisher, store: FailingStore, clock: StillClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish([cut(1)], STATUS)
    shown(publisher, store, clock)
    monkeypatch.setattr(store, "set_markers", lambda *_: pytest.fail("written again"))
    shown(publisher, store, clock)


def test_markers_of_a_sidecar_that_is_behind_do_not_replace_those_of_the_newest_cut(
    publisher: Publisher, other: Publisher, store: FailingStore, clock: StillClock
) -> None:
    publisher.publish([cut(1), cut(2)], STATUS)
    other.publish([cut(1)], OTHER)
    shown(publisher, store, clock)
    assert shown(other, store, clock) == markers_of(cut(2))


def others_in(log: InMemoryCutLog) -> list[int]:
    return [r.record.lsn for r in log.records(-1) if isinstance(r.record, AheadMarkers)]


def test_markers_ahead_of_the_frontier_reach_the_log_and_the_store(
    publisher: Publisher, log: WatchedLog, store: FailingStore, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    publisher.publish_ahead(ahead(4))

    assert others_in(log) == [4]
    assert shown(publisher, store, clock) == {("inv.s.a", 0): Marker(4, 4), ("inv.s.a", 1): Marker(1, 2)}


def test_markers_that_another_sidecar_has_written_are_not_appended_again(
    publisher: Publisher, other: Publisher, log: WatchedLog
) -> None:
    publisher.publish([cut(1)], STATUS)
    publisher.publish_ahead(ahead(4))
    other.publish_ahead(ahead(4))
    other.publish_ahead(ahead(3))
    other.publish_ahead(ahead(4, partition=1))

    assert others_in(log) == [4, 4]


def test_markers_in_the_log_are_read_once(
    publisher: Publisher, other: Publisher, log: WatchedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    read = log.records

    def records(after_offset: int, *, limit: int | None = None, with_cuts: bool = True) -> list[LoggedRecord]:
        asked.append(after_offset)
        return read(after_offset, limit=limit, with_cuts=with_cuts)

    publisher.publish([cut(1)], STATUS)
    monkeypatch.setattr(log, "records", records)
    for lsn in (4, 5, 6):
        other.publish_ahead(ahead(lsn))
        asked.clear()
        publisher.publish_ahead(ahead(lsn, partition=1))
        assert asked == [log.end() - 3 - (lsn > 4)], "what both have written since"


def test_markers_of_an_earlier_timeline_do_not_stand_for_those_of_this_one(
    publisher: Publisher, log: WatchedLog, store: FailingStore, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    publisher.publish_ahead(ahead(9))
    publisher.state.resume_from(None)
    publisher.publish([replace(cut(1), timeline=2)], STATUS)
    assert shown(publisher, store, clock)["inv.s.a", 0] == Marker(1, 1)
    publisher.publish_ahead(replace(ahead(4), timeline=2))
    log.append_records([ahead(8)])
    publisher.publish_ahead(replace(ahead(4), timeline=2))

    assert others_in(log) == [9, 4, 8]
    assert shown(publisher, store, clock)["inv.s.a", 0] == Marker(4, 4)


def test_higher_markers_and_those_of_further_partitions_are_appended(
    publisher: Publisher, other: Publisher, log: WatchedLog
) -> None:
    publisher.publish([cut(1)], STATUS)
    publisher.publish_ahead(ahead(4))
    other.publish_ahead(ahead(5))
    both = replace(ahead(5), markers={**ahead(5).markers, **ahead(5, partition=1).markers})
    publisher.publish_ahead(both)

    assert others_in(log) == [4, 5, 5]


def test_markers_at_or_below_the_newest_cut_are_no_news(publisher: Publisher, log: WatchedLog) -> None:
    publisher.publish([cut(4)], STATUS)
    further = replace(ahead(4), markers={("inv.s.new", 0): Marker(4, 4)})
    publisher.publish_ahead(further)
    assert others_in(log) == []

    publisher.publish_ahead(replace(further, lsn=5))
    assert others_in(log) == [5]


def test_markers_of_all_partitions_are_put_back_but_none_of_an_earlier_timeline(
    publisher: Publisher, store: FailingStore, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    publisher.publish_ahead(ahead(9))
    publisher.state.resume_from(None)
    publisher.publish([replace(cut(1), timeline=2)], STATUS)
    publisher.publish_ahead(replace(ahead(4), timeline=2))
    publisher.publish_ahead(replace(ahead(5, partition=1), timeline=2))
    store.clear(SOURCE, 2)

    publisher.report(STATUS, [])

    assert store.markers(SOURCE) == {("inv.s.a", 0): Marker(4, 4), ("inv.s.a", 1): Marker(5, 5)}


def test_markers_that_the_log_has_not_taken_are_in_no_store_and_not_lost(
    publisher: Publisher, log: WatchedLog, store: FailingStore, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    log.is_away = True
    publisher.publish_ahead(ahead(4))
    assert publisher.log_error is not None
    assert shown(publisher, store, clock)["inv.s.a", 0] == Marker(1, 1)

    log.is_away = False
    publisher.publish_ahead(ahead(5, partition=1))

    assert others_in(log) == [4, 5]
    assert shown(publisher, store, clock) == {("inv.s.a", 0): Marker(4, 4), ("inv.s.a", 1): Marker(5, 5)}


def test_an_emptied_store_gets_the_markers_ahead_back(publisher: Publisher, store: FailingStore) -> None:
    publisher.publish([cut(1)], STATUS)
    publisher.publish_ahead(ahead(4))
    store.clear(SOURCE, 1)

    publisher.report(STATUS, [])

    assert store.markers(SOURCE)["inv.s.a", 0] == Marker(4, 4)
