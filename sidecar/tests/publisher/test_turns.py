"""Several sidecars of one source write one sequence of cuts."""

from dataclasses import replace

import pytest

from slackwater.protocol import Cut, PublishedCut
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
)
from slackwater_sidecar import Publisher
from slackwater_sidecar.publisher import PATIENCE


def test_what_another_sidecar_has_written_is_not_appended_again(
    publisher: Publisher, other: Publisher, log: WatchedLog, store: FailingStore
) -> None:
    publisher.publish([cut(1), cut(2), cut(3)], STATUS)
    other.publish([cut(1)], OTHER)
    other.publish([cut(2)], OTHER)

    assert logged(log) == held(store) == [1, 2, 3]
    assert other.state.newest == PublishedCut(cut(2), 2)
    assert not other.state.is_waiting


def test_rows_of_snapshots_in_cuts_that_another_sidecar_has_written_are_told_with_the_next_one(
    publisher: Publisher, other: Publisher, log: WatchedLog, clock: StillClock
) -> None:
    """The other sidecar's cuts of the same commits may end before those rows."""
    publisher.publish([cut(1), cut(2), cut(3)], STATUS)
    other.publish(
        [replace(cut(1), has_incremental_rows=True), replace(cut(2), repeated=frozenset({1}))], OTHER
    )
    other.publish([replace(cut(3), late_snapshots=(7,))], OTHER)

    other.publish([cut(4)], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    other.publish([cut(5)], OTHER)

    fourth, fifth = (c.cut for c in log.tail(2))
    assert (fourth.late_snapshots, fourth.has_incremental_rows, fourth.repeated) == (
        (7,),
        True,
        frozenset({1}),
    )
    assert fifth == cut(5)


def test_what_cuts_of_another_sidecar_did_not_tell_is_told_once(
    publisher: Publisher, other: Publisher, log: WatchedLog, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    other.publish([replace(cut(1), repeated=frozenset({1}))], OTHER)
    other.publish([cut(2)], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    other.publish([], OTHER)
    other.publish([cut(3)], OTHER)

    assert [c.cut.repeated for c in log.tail(0)] == [{1}, frozenset()]


def test_a_sidecar_that_goes_on_from_another_cut_forgets_what_it_had_not_told(
    publisher: Publisher, other: Publisher, log: WatchedLog, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    other.publish([replace(cut(1), repeated=frozenset({1}))], OTHER)
    other.state.resume_from(log.newest())
    other.publish([cut(2)], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    other.publish([], OTHER)

    assert log.newest() == PublishedCut(cut(2), 1)


def test_a_cut_lists_only_what_no_cut_of_another_sidecar_lists(
    publisher: Publisher, other: Publisher, log: WatchedLog, clock: StillClock
) -> None:
    publisher.publish([cut(1), cut(2)], STATUS)
    transactions = (*cut(1).transactions, *cut(2).transactions, *cut(3).transactions)
    other.publish([replace(cut(3), previous_lsn=0, transactions=transactions)], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    other.publish([], OTHER)

    assert log.newest() == PublishedCut(cut(3), 2)


@pytest.mark.parametrize(
    "own",
    [replace(cut(1), skipped=(700,)), replace(cut(2), previous_lsn=0, skipped=(700,))],
    ids=["at the same commit", "above it"],
)
@pytest.mark.parametrize("has_told_redis", [True, False])
def test_a_sidecar_is_overruled_where_another_one_has_written_what_is_skipped(
    publisher: Publisher,
    other: Publisher,
    log: WatchedLog,
    clock: StillClock,
    own: Cut,
    *,
    has_told_redis: bool,
) -> None:
    """What was readable to the one that wrote first decides, so the other one writes nothing of its own."""
    other.publish([], OTHER)
    if has_told_redis:
        publisher.publish([cut(1)], STATUS)
    else:
        log.append([cut(1)])
    other.publish([own], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    other.publish([cut(3)], OTHER)

    assert other.state.is_overruled
    assert (logged(log), other.state.is_waiting) == ([1], False)
    other.state.resume_from(log.newest())
    assert not other.state.is_overruled


def test_a_skip_above_what_another_sidecar_has_written_is_published(
    publisher: Publisher, other: Publisher, log: WatchedLog, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    other.publish([cut(1), replace(cut(2), skipped=(700,))], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    other.publish([], OTHER)

    assert log.newest() == PublishedCut(replace(cut(2), skipped=(700,)), 1)
    assert not other.state.is_overruled


@pytest.mark.parametrize("behind", [[], [cut(3)]], ids=["alone", "with a cut that skips nothing"])
def test_without_redis_a_sidecar_looks_at_the_log_before_it_writes_what_is_skipped(
    log: WatchedLog, behind: list[Cut]
) -> None:
    one, two = (Publisher(SOURCE, log, None, restored_cuts=100) for _ in range(2))
    one.publish([cut(1)], STATUS)
    two.publish([cut(1)], OTHER)
    one.publish([cut(2)], STATUS)
    two.publish([replace(cut(2), skipped=(700,)), *behind], OTHER)

    assert logged(log) == [1, 2]
    assert two.state.is_overruled


def test_cuts_of_another_timeline_shorten_nothing(
    publisher: Publisher, other: Publisher, log: WatchedLog, clock: StillClock
) -> None:
    publisher.publish([cut(5)], STATUS)
    begun = replace(cut(7), timeline=2, previous_lsn=0, transactions=cut(3).transactions)
    other.publish([begun], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    other.publish([], OTHER)

    assert log.newest() == PublishedCut(begun, 1)


def test_the_newest_cut_of_another_timeline_is_none_of_this_one(
    publisher: Publisher, other: Publisher, log: WatchedLog
) -> None:
    publisher.state.resume_from(None)
    publisher.publish([replace(cut(1), timeline=2)], STATUS)
    other.publish([cut(6)], OTHER)

    assert logged(log) == [1]
    assert other.state.newest is None


def test_cuts_of_a_timeline_that_is_over_are_not_appended(
    publisher: Publisher, other: Publisher, log: WatchedLog
) -> None:
    publisher.publish([cut(5)], STATUS)
    publisher.state.resume_from(None)
    publisher.publish([replace(cut(1), timeline=2)], STATUS)
    other.publish([cut(6)], OTHER)

    assert [(c.cut.timeline, c.cut.lsn) for c in log.tail(-1)] == [(1, 5), (2, 1)]


def test_cuts_are_left_for_a_moment_to_the_sidecar_that_published_last(
    publisher: Publisher, other: Publisher, log: WatchedLog, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    other.publish([cut(1), cut(2)], OTHER)
    assert other.state.is_waiting
    publisher.publish([cut(2)], STATUS)
    other.publish([], OTHER)

    assert logged(log) == [1, 2]
    assert not other.state.is_waiting


@pytest.mark.parametrize("asked_by", ["publish", "report"])
def test_a_sidecar_goes_on_alone_when_the_other_one_is_gone(
    publisher: Publisher, other: Publisher, log: WatchedLog, clock: StillClock, asked_by: str
) -> None:
    publisher.publish([cut(1)], STATUS)
    other.publish([cut(2)], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    if asked_by == "publish":
        other.publish([cut(3)], OTHER)
    else:
        other.report(OTHER, [])
        other.publish([cut(3)], OTHER)
    other.publish([cut(4)], OTHER)

    assert logged(log) == [1, 2, 3, 4]


def test_a_sidecar_that_lost_its_turn_leaves_cuts_to_the_other(
    publisher: Publisher, other: Publisher, log: WatchedLog, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    other.publish([cut(2)], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    other.publish([cut(3)], OTHER)
    publisher.publish([cut(2), cut(3), cut(4)], STATUS)

    assert logged(log) == [1, 2, 3]
    assert publisher.state.is_waiting


def test_patience_begins_anew_with_each_turn_of_the_other(
    publisher: Publisher, other: Publisher, log: WatchedLog, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    other.publish([cut(1), cut(2)], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    publisher.publish([cut(2)], STATUS)
    other.publish([cut(3)], OTHER)
    assert other.state.is_waiting
    assert logged(log) == [1, 2]


def test_a_cut_whose_publisher_the_store_does_not_name_is_nobodys_turn(
    publisher: Publisher, log: WatchedLog, store: FailingStore
) -> None:
    log.append([cut(1)])
    store.put_cut(PublishedCut(cut(1), 0), replace(STATUS, sidecar=""))
    publisher.publish([cut(2)], STATUS)

    assert logged(log) == [1, 2]


def test_two_sidecars_without_redis_both_append(log: WatchedLog) -> None:
    both = [(Publisher(SOURCE, log, None, restored_cuts=100), status) for status in (STATUS, OTHER)]
    for lsn in (1, 2):
        for each, status in both:
            each.publish([cut(lsn)], status)

    assert logged(log) == [1, 2, 2]


def test_a_cut_that_the_other_sidecar_appended_before_it_was_killed_is_not_appended_again(
    publisher: Publisher, other: Publisher, log: WatchedLog, store: FailingStore, clock: StillClock
) -> None:
    """It had no time to tell Redis."""
    publisher.publish([cut(1)], STATUS)
    log.append([cut(2)])
    other.publish([cut(2), cut(3)], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    other.publish([], OTHER)

    assert logged(log) == [1, 2, 3]


def test_a_sidecar_that_lost_its_turn_looks_at_the_end_of_the_log_before_it_goes_on(
    publisher: Publisher, other: Publisher, log: WatchedLog, store: FailingStore, clock: StillClock
) -> None:
    """The other one was killed before it told Redis what it had appended."""
    publisher.publish([cut(1)], STATUS)
    other.publish([cut(2)], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    other.publish([], OTHER)
    log.append([cut(3)])
    publisher.publish([cut(2), cut(3), cut(4)], STATUS)
    clock.seconds += PATIENCE.total_seconds()
    publisher.publish([], STATUS)

    assert logged(log) == [1, 2, 3, 4]


def test_a_sidecar_that_waits_confirms_each_cut_of_the_other_in_the_log_once(
    publisher: Publisher, other: Publisher, log: WatchedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish([cut(1)], STATUS)
    reads = []
    records = log.records
    monkeypatch.setattr(log, "records", lambda *a, **k: reads.append(a) or records(*a, **k))  # type: ignore[func-returns-value]
    publisher.publish([cut(2)], STATUS)
    publisher.publish([cut(3)], STATUS)
    assert reads == [], "its own cuts it knows"
    for _ in range(3):
        other.publish([cut(3), cut(4)], OTHER)
    assert len(reads) == 1
