import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest

from slackwater_markers import (
    CutLogReplacedError,
    CutLogUnavailableError,
    FrontierState,
    FrontierStatus,
    InMemoryCutLog,
    InMemoryMarkerStore,
    MarkerStoreContentError,
    MarkerStoreUnavailableError,
    StoredPosition,
    markers_of,
)
from slackwater_protocol import (
    AheadMarkers,
    CommitPosition,
    CommittedTransaction,
    Cut,
    LogRecord,
    Marker,
    PublishedCut,
    SystemClock,
)
from slackwater_sidecar import Publisher
from slackwater_sidecar.publisher import PATIENCE
from slackwater_sidecar.store_keeper import MARKERS_INTERVAL

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
    """A store that can be away, and slow to say so, or hold what somebody else wrote until it is cleared."""

    is_away = False
    answers_after = 0.0
    clock: StillClock | None = None
    questions = 0
    clears_after = 0.0
    refuses = False
    is_damaged = False
    forged_position: tuple[StoredPosition | None, ...] = ()
    forged_newest: tuple[PublishedCut | None, ...] = ()

    def position(self, source: str) -> StoredPosition | None:
        self._answer()
        return self.forged_position[0] if self.forged_position else super().position(source)

    def newest(self, source: str, timeline: int) -> PublishedCut | None:
        self._answer()
        return self.forged_newest[0] if self.forged_newest else super().newest(source, timeline)

    def publish(self, cut: PublishedCut, status: FrontierStatus) -> bool:
        return not self.refuses and super().publish(cut, status)

    def clear(self, source: str, timeline: int) -> None:
        self.refuses = self.is_damaged = False
        self.forged_position = self.forged_newest = ()
        if self.clock is not None:
            self.clock.seconds += self.clears_after
        super().clear(source, timeline)

    def set_status(self, source: str, status: FrontierStatus) -> None:
        self._answer()
        super().set_status(source, status)

    def _answer(self) -> None:
        self.questions += 1
        if self.clock is not None:
            self.clock.seconds += self.answers_after
        if self.is_away:
            raise MarkerStoreUnavailableError("ask", "h:1", "refused")
        if self.is_damaged:
            raise MarkerStoreContentError("ask", "h:1", "WRONGTYPE")


class FailingLog(InMemoryCutLog):
    """A log that can be away."""

    is_away = False

    def append_records(self, records: Sequence[LogRecord]) -> list[int]:
        if self.is_away:
            raise CutLogUnavailableError("append", "inv.slackwater.cuts", "refused")
        return super().append_records(records)


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


def shown(
    publisher: Publisher, store: InMemoryMarkerStore, clock: StillClock
) -> dict[tuple[str, int], Marker]:
    """The markers in the store when they are due again."""
    clock.seconds += MARKERS_INTERVAL.total_seconds()
    publisher.show_markers()
    return store.markers(SOURCE)


def held(store: InMemoryMarkerStore) -> list[int]:
    return [c.cut.lsn for c in store.cuts_after(SOURCE, 1, 0, limit=1000)]


def test_cuts_reach_the_log_and_the_store_with_their_log_offset(
    publisher: Publisher, log: FailingLog, store: FailingStore
) -> None:
    publisher.publish([cut(1), cut(2)], STATUS)

    assert [c.cut.lsn for c in log.tail(-1)] == [1, 2]
    assert store.newest(SOURCE, 1) == PublishedCut(cut(2), 1)


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


OTHER = FrontierStatus(state=FrontierState.RUNNING, wall_ms=1, sidecar="other")


@pytest.fixture
def other(log: FailingLog, store: FailingStore, clock: StillClock) -> Publisher:
    result = Publisher(SOURCE, log, store, restored_cuts=100, clock=clock)
    result.report(OTHER, [])
    return result


def logged(log: InMemoryCutLog) -> list[int]:
    return [c.cut.lsn for c in log.tail(-1)]


def test_what_another_sidecar_has_written_is_not_appended_again(
    publisher: Publisher, other: Publisher, log: FailingLog, store: FailingStore
) -> None:
    publisher.publish([cut(1), cut(2), cut(3)], STATUS)
    other.publish([cut(1)], OTHER)
    other.publish([cut(2)], OTHER)

    assert logged(log) == held(store) == [1, 2, 3]
    assert other.newest == PublishedCut(cut(2), 2)
    assert not other.is_waiting


def test_rows_of_snapshots_in_cuts_that_another_sidecar_has_written_are_told_with_the_next_one(
    publisher: Publisher, other: Publisher, log: FailingLog, clock: StillClock
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


def test_a_cut_lists_only_what_no_cut_of_another_sidecar_lists(
    publisher: Publisher, other: Publisher, log: FailingLog, clock: StillClock
) -> None:
    publisher.publish([cut(1), cut(2)], STATUS)
    wide = replace(
        cut(3),
        previous_lsn=0,
        transactions=(*cut(1).transactions, *cut(2).transactions, *cut(3).transactions),
        skipped=(702, 703),
    )
    other.publish([wide], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    other.publish([], OTHER)

    assert log.newest() == PublishedCut(replace(cut(3), skipped=(703,)), 2)


def test_cuts_are_left_for_a_moment_to_the_sidecar_that_published_last(
    publisher: Publisher, other: Publisher, log: FailingLog, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    other.publish([cut(1), cut(2)], OTHER)
    assert other.is_waiting
    publisher.publish([cut(2)], STATUS)
    other.publish([], OTHER)

    assert logged(log) == [1, 2]
    assert not other.is_waiting


@pytest.mark.parametrize("asked_by", ["publish", "report"])
def test_a_sidecar_goes_on_alone_when_the_other_one_is_gone(
    publisher: Publisher, other: Publisher, log: FailingLog, clock: StillClock, asked_by: str
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
    publisher: Publisher, other: Publisher, log: FailingLog, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    other.publish([cut(2)], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    other.publish([cut(3)], OTHER)
    publisher.publish([cut(2), cut(3), cut(4)], STATUS)

    assert logged(log) == [1, 2, 3]
    assert publisher.is_waiting


def test_two_sidecars_without_redis_both_append(log: FailingLog) -> None:
    both = [(Publisher(SOURCE, log, None, restored_cuts=100), status) for status in (STATUS, OTHER)]
    for lsn in (1, 2):
        for each, status in both:
            each.publish([cut(lsn)], status)

    assert logged(log) == [1, 2, 2]


def test_a_cut_that_the_other_sidecar_appended_before_it_was_killed_is_not_appended_again(
    publisher: Publisher, other: Publisher, log: FailingLog, store: FailingStore, clock: StillClock
) -> None:
    """It had no time to tell Redis."""
    publisher.publish([cut(1)], STATUS)
    log.append([cut(2)])
    other.publish([cut(2), cut(3)], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    other.publish([], OTHER)

    assert logged(log) == [1, 2, 3]


def test_a_sidecar_that_lost_its_turn_looks_at_the_end_of_the_log_before_it_goes_on(
    publisher: Publisher, other: Publisher, log: FailingLog, store: FailingStore, clock: StillClock
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


def test_a_sidecar_that_goes_on_from_another_cut_forgets_what_it_had_not_told(
    publisher: Publisher, other: Publisher, log: FailingLog, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    other.publish([replace(cut(1), repeated=frozenset({1}))], OTHER)
    other.go_on_from(log.newest())
    other.publish([cut(2)], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    other.publish([], OTHER)

    assert log.newest() == PublishedCut(cut(2), 1)


def test_what_stands_at_the_end_of_the_log_is_not_in_it(
    publisher: Publisher, log: FailingLog, store: FailingStore
) -> None:
    publisher.publish([cut(1)], STATUS)
    store.publish(PublishedCut(cut(50), 1), OTHER)

    publisher.report(STATUS, [])

    assert held(store) == [1]


def test_a_store_that_has_everything_is_not_filled_again(
    publisher: Publisher, log: FailingLog, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish([cut(1)], STATUS)
    monkeypatch.setattr(log, "records", lambda *_args, **_named: pytest.fail("the log was read back"))

    publisher.publish([cut(2)], STATUS)
    publisher.report(STATUS, [])

    assert held(store) == [1, 2]


def test_before_there_is_a_log_the_store_is_left_alone(
    log: FailingLog, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.publish(PublishedCut(cut(50), 0), OTHER)
    monkeypatch.setattr(log, "identity", lambda: None)
    publisher = Publisher(SOURCE, log, store, restored_cuts=100)
    publisher.report(STATUS, [])
    publisher.publish([cut(1)], STATUS)

    assert logged(log) == [1], "what the store says of another log is not believed"
    assert held(store) == [50]


def test_what_cuts_of_another_sidecar_did_not_tell_is_told_once(
    publisher: Publisher, other: Publisher, log: FailingLog, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    other.publish([replace(cut(1), repeated=frozenset({1}))], OTHER)
    other.publish([cut(2)], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    other.publish([], OTHER)
    other.publish([cut(3)], OTHER)

    assert [c.cut.repeated for c in log.tail(0)] == [{1}, frozenset()]


def test_the_newest_cut_of_another_timeline_is_none_of_this_one(
    publisher: Publisher, other: Publisher, log: FailingLog
) -> None:
    publisher.go_on_from(None)
    publisher.publish([replace(cut(1), timeline=2)], STATUS)
    other.publish([cut(6)], OTHER)

    assert logged(log) == [1]
    assert other.newest is None


def test_cuts_of_another_timeline_shorten_nothing(
    publisher: Publisher, other: Publisher, log: FailingLog, clock: StillClock
) -> None:
    publisher.publish([cut(5)], STATUS)
    begun = replace(cut(7), timeline=2, previous_lsn=0, transactions=cut(3).transactions)
    other.publish([begun], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    other.publish([], OTHER)

    assert log.newest() == PublishedCut(begun, 1)


def test_an_error_of_the_log_stays_until_everything_is_written(
    publisher: Publisher, log: FailingLog, store: FailingStore
) -> None:
    log.is_away = True
    publisher.publish([cut(1)], STATUS)
    publisher.publish_ahead(ahead(4))
    assert publisher.log_error is not None

    log.is_away = False
    publisher.publish_ahead(ahead(5))
    assert publisher.log_error is not None, "the cut is not written"
    publisher.publish([], STATUS)
    assert publisher.log_error is None


def test_a_cut_whose_publisher_the_store_does_not_name_is_nobodys_turn(
    publisher: Publisher, log: FailingLog, store: FailingStore
) -> None:
    log.append([cut(1)])
    store.publish(PublishedCut(cut(1), 0), replace(STATUS, sidecar=""))
    publisher.publish([cut(2)], STATUS)

    assert logged(log) == [1, 2]


def test_an_emptied_store_gets_cuts_of_the_newest_timeline_only(log: FailingLog, store: FailingStore) -> None:
    second = [replace(cut(lsn), timeline=2) for lsn in (1, 2)]
    log.append([cut(5), second[0], cut(6), second[1]])
    publisher = Publisher(SOURCE, log, store, restored_cuts=100)
    publisher.go_on_from(log.newest())
    publisher.report(STATUS, [])

    assert [c.cut.lsn for c in store.cuts_after(SOURCE, 2, 0, limit=9)] == [1, 2]
    assert held(store) == []


def test_patience_begins_anew_with_each_turn_of_the_other(
    publisher: Publisher, other: Publisher, log: FailingLog, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    other.publish([cut(1), cut(2)], OTHER)
    clock.seconds += PATIENCE.total_seconds()
    publisher.publish([cut(2)], STATUS)
    other.publish([cut(3)], OTHER)
    assert other.is_waiting
    assert logged(log) == [1, 2]


def test_a_sidecar_that_goes_on_from_another_cut_forgets_what_it_had_not_written(
    publisher: Publisher, log: FailingLog
) -> None:
    log.is_away = True
    publisher.publish([replace(cut(1), has_incremental_rows=True)], STATUS)
    log.is_away = False
    publisher.go_on_from(None)
    publisher.publish([cut(1)], STATUS)

    assert log.newest() == PublishedCut(cut(1), 0)


def test_a_store_that_holds_a_late_cut_of_an_earlier_timeline_is_filled_from_the_newest_one(
    log: FailingLog, store: FailingStore
) -> None:
    """A sidecar that had not heard of the new timeline appended behind it."""
    log.append([cut(5), replace(cut(1), timeline=2), cut(6)])
    store.bind(log.identity() or "")
    store.publish(PublishedCut(cut(6), 2), OTHER)
    publisher = Publisher(SOURCE, log, store, restored_cuts=100)
    publisher.go_on_from(PublishedCut(replace(cut(1), timeline=2), 1))

    publisher.report(STATUS, [])

    assert [c.cut.lsn for c in store.cuts_after(SOURCE, 2, 0, limit=9)] == [1]


def test_a_cut_that_lies_beyond_the_end_of_the_log_is_not_believed(
    publisher: Publisher, log: FailingLog, store: FailingStore
) -> None:
    """Redis is no authority: whatever it holds, nothing is missing in the log."""
    publisher.publish([cut(1)], STATUS)
    store.publish(PublishedCut(cut(50), 40), OTHER)
    publisher.publish([cut(2)], STATUS)

    assert logged(log) == [1, 2]
    publisher.report(STATUS, [])
    assert held(store) == [1, 2]


def test_cuts_of_a_timeline_that_is_over_are_not_appended(
    publisher: Publisher, other: Publisher, log: FailingLog
) -> None:
    publisher.publish([cut(5)], STATUS)
    publisher.go_on_from(None)
    publisher.publish([replace(cut(1), timeline=2)], STATUS)
    other.publish([cut(6)], OTHER)

    assert [(c.cut.timeline, c.cut.lsn) for c in log.tail(-1)] == [(1, 5), (2, 1)]


def test_a_copy_of_another_store_is_removed_and_filled_from_the_log(
    publisher: Publisher, log: FailingLog, store: FailingStore
) -> None:
    publisher.publish([cut(1), cut(2)], STATUS)
    pretend_to_be_a_copy_of_another(store)
    publisher.publish([cut(3)], STATUS)
    assert logged(log) == [1, 2, 3]

    publisher.report(STATUS, [])

    assert held(store) == [1, 2, 3]
    assert store.position(SOURCE) == StoredPosition(cut(3).position, 2, "me")


def pretend_to_be_a_copy_of_another(store: InMemoryMarkerStore) -> None:
    own_log = store.bound
    store.clear(SOURCE, 1)
    store.bind("another log")
    store.publish(PublishedCut(cut(2_000), 1), OTHER)
    store.bind(own_log)


@pytest.mark.parametrize("noticed_by", ["report", "publish"])
def test_an_older_copy_of_the_store_is_filled_without_a_hole(
    publisher: Publisher, log: FailingLog, store: FailingStore, noticed_by: str
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
    publisher.go_on_from(None)
    publisher.publish([replace(cut(1), timeline=2)], STATUS)
    store.__dict__.update(older)

    publisher.publish([replace(cut(2), timeline=2)], STATUS)

    assert [c.cut.lsn for c in store.cuts_after(SOURCE, 2, 0, limit=9)] == [1, 2]
    assert shown(publisher, store, clock)["inv.s.a", 0] == Marker(2, 2)


def test_filling_a_store_ends_early_when_cuts_are_large(log: FailingLog, store: FailingStore) -> None:
    """It is done by the thread that publishes."""
    large = tuple(CommittedTransaction(n, 1, 5) for n in range(10_000))
    log.append([replace(cut(lsn), transactions=large) for lsn in range(1, 61)])
    publisher = Publisher(SOURCE, log, store, restored_cuts=100)
    publisher.go_on_from(log.newest())

    publisher.report(STATUS, [])

    assert held(store) == list(range(37, 61))


def test_a_store_that_is_slow_to_fail_is_left_alone_for_a_while(
    publisher: Publisher, store: FailingStore, clock: StillClock
) -> None:
    store.is_away, store.answers_after, store.clock = True, 1.0, clock
    publisher.publish([cut(1)], STATUS)
    questions = store.questions
    for lsn in range(2, 5):
        clock.seconds += 1
        publisher.publish([cut(lsn)], STATUS)
        publisher.report(STATUS, [])
    assert store.questions == questions

    clock.seconds += 1
    store.is_away = False
    publisher.report(STATUS, [])
    assert held(store) == [1, 2, 3, 4]


def ahead(lsn: int, partition: int = 0) -> AheadMarkers:
    return AheadMarkers(
        source=SOURCE,
        timeline=1,
        previous_lsn=lsn - 1,
        lsn=lsn,
        transactions=(),
        markers={("inv.s.a", partition): Marker(lsn, lsn)},
    )


def others_in(log: InMemoryCutLog) -> list[int]:
    return [r.record.lsn for r in log.records(-1) if isinstance(r.record, AheadMarkers)]


def test_markers_ahead_of_the_frontier_reach_the_log_and_the_store(
    publisher: Publisher, log: FailingLog, store: FailingStore, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    publisher.publish_ahead(ahead(4))

    assert others_in(log) == [4]
    assert shown(publisher, store, clock) == {("inv.s.a", 0): Marker(4, 4), ("inv.s.a", 1): Marker(1, 2)}


def test_markers_that_another_sidecar_has_written_are_not_appended_again(
    publisher: Publisher, other: Publisher, log: FailingLog
) -> None:
    publisher.publish([cut(1)], STATUS)
    publisher.publish_ahead(ahead(4))
    other.publish_ahead(ahead(4))
    other.publish_ahead(ahead(3))
    other.publish_ahead(ahead(4, partition=1))

    assert others_in(log) == [4, 4]


def test_markers_of_an_earlier_timeline_do_not_stand_for_those_of_this_one(
    publisher: Publisher, log: FailingLog, store: FailingStore, clock: StillClock
) -> None:
    publisher.publish([cut(1)], STATUS)
    publisher.publish_ahead(ahead(9))
    publisher.go_on_from(None)
    publisher.publish([replace(cut(1), timeline=2)], STATUS)
    assert shown(publisher, store, clock)["inv.s.a", 0] == Marker(1, 1)
    publisher.publish_ahead(replace(ahead(4), timeline=2))
    log.append_records([ahead(8)])
    publisher.publish_ahead(replace(ahead(4), timeline=2))

    assert others_in(log) == [9, 4, 8]
    assert shown(publisher, store, clock)["inv.s.a", 0] == Marker(4, 4)


def test_higher_markers_and_those_of_further_partitions_are_appended(
    publisher: Publisher, other: Publisher, log: FailingLog
) -> None:
    publisher.publish([cut(1)], STATUS)
    publisher.publish_ahead(ahead(4))
    other.publish_ahead(ahead(5))
    both = replace(ahead(5), markers={**ahead(5).markers, **ahead(5, partition=1).markers})
    publisher.publish_ahead(both)

    assert others_in(log) == [4, 5, 5]


def test_markers_at_or_below_the_newest_cut_are_no_news(publisher: Publisher, log: FailingLog) -> None:
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
    publisher.go_on_from(None)
    publisher.publish([replace(cut(1), timeline=2)], STATUS)
    publisher.publish_ahead(replace(ahead(4), timeline=2))
    publisher.publish_ahead(replace(ahead(5, partition=1), timeline=2))
    store.clear(SOURCE, 2)

    publisher.report(STATUS, [])

    assert store.markers(SOURCE) == {("inv.s.a", 0): Marker(4, 4), ("inv.s.a", 1): Marker(5, 5)}


def test_markers_that_the_log_has_not_taken_are_in_no_store_and_not_lost(
    publisher: Publisher, log: FailingLog, store: FailingStore, clock: StillClock
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


def test_a_log_that_was_made_anew_is_not_written_to(
    publisher: Publisher, log: FailingLog, store: FailingStore
) -> None:
    publisher.publish([cut(1)], STATUS)
    log.make_anew()
    with pytest.raises(CutLogReplacedError, match="its id was"):
        publisher.report(STATUS, [])
    assert log.end() == 0

    failed = replace(STATUS, state=FrontierState.FAILED)
    publisher.report(failed, [])
    assert (store.status(SOURCE), store.position(SOURCE)) == (failed, None)


@pytest.mark.parametrize("count", [1, 2])
def test_a_cut_that_went_into_a_log_made_anew_is_the_last_one(
    publisher: Publisher, log: FailingLog, store: FailingStore, count: int
) -> None:
    """There was no time to notice before."""
    publisher.publish([cut(lsn + 1) for lsn in range(count)], STATUS)
    log.make_anew()
    with pytest.raises(CutLogReplacedError, match=f"to offset 0, the one before it to {count - 1}"):
        publisher.publish([cut(3)], STATUS)
    publisher.report(replace(STATUS, state=FrontierState.FAILED), [])
    assert logged(log) == [3]
    assert store.position(SOURCE) is None


def test_a_log_that_cannot_be_named_for_a_moment_is_no_other_one(
    publisher: Publisher, log: FailingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(log, "identity", lambda: None)
        publisher.report(STATUS, [])
    publisher.publish([cut(1)], STATUS)
    assert logged(log) == [1]
    log.make_anew()
    with pytest.raises(CutLogReplacedError):
        publisher.report(STATUS, [])


def frontier(lsn: int, log_offset: int, timeline: int = 1) -> dict[str, object]:
    return {"forged_position": (StoredPosition(CommitPosition(timeline, lsn), log_offset, "me"),)}


def newest(cut: Cut, log_offset: int) -> dict[str, object]:
    return {"forged_newest": (PublishedCut(cut, log_offset),)}


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
    log: FailingLog,
    store: FailingStore,
    forged: str,
    clock: StillClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publisher.publish([cut(1), cut(2)], STATUS)
    store.__dict__.update(FORGED[forged])
    publisher.report(STATUS, [])

    assert held(store) == logged(log) == [1, 2]
    assert (publisher.corrections, publisher.store_error) == (1, None)
    assert caplog.text.count("Redis held what the cut log does not") == 1
    clock.seconds += 60
    publisher.report(STATUS, [])
    assert publisher.corrections == 1, "it is right now"


@pytest.mark.parametrize("forged", FORGED)
def test_what_somebody_else_wrote_to_the_store_holds_no_cut_back(
    publisher: Publisher, log: FailingLog, store: FailingStore, forged: str
) -> None:
    publisher.publish([cut(1), cut(2)], STATUS)
    store.__dict__.update(FORGED[forged])
    publisher.publish([cut(3)], STATUS)
    publisher.publish([cut(4)], STATUS)
    assert logged(log) == [1, 2, 3, 4]
    publisher.report(STATUS, [])
    assert held(store) == [1, 2, 3, 4]
    assert publisher.corrections == 1, "whoever notices it first says so"


def test_a_store_that_takes_no_cuts_is_begun_anew(publisher: Publisher, store: FailingStore) -> None:
    """Somebody has used up its ids."""
    publisher.publish([cut(1)], STATUS)
    store.refuses = True
    publisher.publish([cut(2)], STATUS)
    publisher.report(STATUS, [])
    assert held(store) == [1, 2]
    assert publisher.corrections == 1


def test_putting_a_store_right_takes_no_more_than_a_fifth_of_the_time(
    publisher: Publisher, store: FailingStore, clock: StillClock
) -> None:
    """Else whoever keeps on writing to it would slow down the cuts."""
    publisher.publish([cut(1)], STATUS)
    store.clock, store.clears_after = clock, 1.0
    counts = []
    for _ in range(6):
        store.is_damaged = True
        publisher.publish([], STATUS)
        publisher.report(STATUS, [])
        counts.append(publisher.corrections)
        clock.seconds += 1
    assert counts == [1, 1, 1, 1, 2, 2]


def test_a_sidecar_that_waits_confirms_each_cut_of_the_other_in_the_log_once(
    publisher: Publisher, other: Publisher, log: FailingLog, monkeypatch: pytest.MonkeyPatch
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


def test_a_log_that_is_away_is_not_asked_for_its_id(
    publisher: Publisher, log: FailingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question may take the time-out, and nothing is read meanwhile."""
    log.is_away = True
    publisher.publish([cut(1)], STATUS)
    with monkeypatch.context() as patched:
        patched.setattr(log, "identity", lambda: pytest.fail("asked"))
        publisher.report(STATUS, [])
        assert publisher.log_error is not None
    log.is_away = False
    publisher.report(STATUS, [])
    assert logged(log) == [1]


def test_a_cut_at_an_offset_that_was_deleted_is_not_confirmed_by_the_next_one(
    publisher: Publisher, log: FailingLog, store: FailingStore
) -> None:
    publisher.publish([cut(1), cut(2)], STATUS)
    log.delete_before(1)
    store.forged_position = (StoredPosition(cut(2).position, 0, "me"),)
    publisher.report(STATUS, [])
    assert publisher.corrections == 1
