"""Redis may be right, empty, behind, wrong or away: the feed finds every cut, and no other."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from slackwater_markers import (
    CutLogReplacedError,
    CutLogTruncatedError,
    FrontierState,
    FrontierStatus,
    InMemoryCutLog,
    InMemoryMarkerStore,
    LoggedRecord,
    MarkerStoreUnavailableError,
    StoredPosition,
)
from slackwater_protocol import PublishedCut, SkipDecision
from slackwater_spark.source.cut_feed import CutFeed, FeedKey
from slackwater_spark.source.errors import MissingCutsError
from slackwater_spark.source.offset import SourceOffset

Published = Callable[..., PublishedCut]

STATUS = FrontierStatus(state=FrontierState.RUNNING, wall_ms=0, sidecar="a")
SKIP = SkipDecision(source="inv", timeline=1, to_lsn=5, wall_ms=0, decided_by="ann")
KEY = FeedKey("inv", 1)
BEGINNING = SourceOffset.before_everything("inv", 1)


class Clock:
    """Moves only when told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class FlakyStore(InMemoryMarkerStore):
    """A store that can be switched off and counts questions."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.questions = 0

    def position(self, source: str) -> StoredPosition | None:
        self.questions += 1
        if self.is_away:
            raise MarkerStoreUnavailableError("any", "nowhere", "away")
        return super().position(source)


class CountingLog(InMemoryCutLog):
    """A log that counts looks at its end."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.looks = 0

    def records(
        self, after_offset: int, *, limit: int | None = None, with_cuts: bool = True
    ) -> list[LoggedRecord]:
        self.looks += 1
        return super().records(after_offset, limit=limit, with_cuts=with_cuts)


class World:
    """A cut log, a store, a clock, and the feed over them."""

    def __init__(self, published: Published, key: FeedKey = KEY) -> None:
        self.log = CountingLog("inv")
        self.store = FlakyStore()
        self.clock = Clock()
        self._key = key
        self.feed = self.feed_over()
        self._published = published

    def feed_over(self) -> CutFeed:
        return CutFeed(self._key, store=self.store, log=self.log, monotonic=self.clock)

    def cut(self, lsn: int, previous: int, *, to_store: bool = True, **fields: object) -> PublishedCut:
        [appended] = self.log.append([self._published(lsn, previous, **fields).cut])
        if to_store:
            self.to_store(appended)
        return appended

    def forge(self, lsn: int, previous: int, *, log: int, **fields: object) -> None:
        """Makes the store say what no sidecar published."""
        self.store.clear("inv", 9)
        self.to_store(replace(self._published(lsn, previous, **fields), log_offset=log))

    def to_store(self, cut: PublishedCut) -> None:
        self.store.publish(cut, STATUS)

    def after(self, start: SourceOffset = BEGINNING, max_events: int | None = None) -> list[int]:
        return [c.cut.lsn for c in self.feed.after(start, max_events=max_events)]


@pytest.fixture
def world(published: Published) -> World:
    return World(published)


def test_nothing_is_found_before_the_first_cut(world: World) -> None:
    assert world.after() == []
    assert world.feed.newest() is None


def test_a_cut_is_found_as_soon_as_the_store_knows_of_it(world: World) -> None:
    world.cut(10, 0)
    assert world.after() == [10]
    world.cut(20, 10)
    assert world.after() == [10, 20], "no time has passed"


FORGED = {
    "far ahead": lambda w: w.forge(2**62, 2**62, log=99),
    "at an offset of the log": lambda w: w.forge(30, 20, log=1),
    "in place of one that the log has": lambda w: w.forge(20, 10, log=1, events=7, transactions={9: 20}),
    "on a later timeline": lambda w: w.forge(30, 20, log=99, timeline=9),
    "behind": lambda w: w.forge(5, 0, log=0),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_cut_that_somebody_else_wrote_to_the_store_is_in_no_batch(world: World, forged: str) -> None:
    """With cuts taken from the store, the forged ones are in."""
    cuts = [world.cut(10, 0)]
    assert world.after() == [10]
    FORGED[forged](world)
    assert world.after() == [10]
    cuts.append(world.cut(20, 10, to_store=False))
    world.clock.seconds += 1
    assert world.feed.after(BEGINNING, max_events=None) == cuts
    assert world.feed.newest() == cuts[-1]
    assert world.feed.between(BEGINNING, BEGINNING.advanced_to(cuts[1], [])) == cuts


def test_a_store_that_promises_what_the_log_does_not_have_is_left_alone_for_a_while(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Else every question would be followed by a look into the log that finds nothing."""
    world.cut(10, 0)
    world.after()
    world.forge(20, 10, log=99)
    world.after()
    asked, looks = world.store.questions, world.log.looks
    for _ in range(50):
        world.after()
    assert (world.store.questions, world.log.looks) == (asked, looks)
    assert "names a cut that the cut log does not have" in caplog.text
    world.cut(20, 10, to_store=False)
    world.clock.seconds += 0.06
    assert world.after() == [10, 20], "the log is asked more often meanwhile"
    world.clock.seconds += 6
    world.after()
    world.after()
    assert world.store.questions > asked


def test_new_cuts_are_appended_to_what_was_read(world: World) -> None:
    world.cut(10, 0)
    assert world.after() == [10]
    world.cut(20, 10)
    assert world.after() == [10, 20]


def test_used_cuts_are_forgotten(world: World) -> None:
    first = world.cut(10, 0)
    world.cut(20, 10)
    world.after()
    assert world.after(BEGINNING.advanced_to(first, [])) == [20]


def test_reading_stops_when_the_limit_is_exceeded(world: World) -> None:
    for lsn in range(10, 2000, 10):
        world.cut(lsn, lsn - 10, events=lsn)
    assert len(world.after(max_events=100)) == 50
    assert len(world.after(max_events=None)) == 199


def test_everything_there_is_includes_what_only_the_log_has(world: World) -> None:
    world.cut(10, 0)
    world.cut(20, 10, to_store=False)
    assert world.after(max_events=None) == [10, 20]


def test_a_store_that_is_away_is_replaced_by_the_log(world: World) -> None:
    world.cut(10, 0)
    world.store.is_away = True
    world.cut(20, 10)
    assert world.after() == [10, 20]


def test_a_store_that_failed_is_left_alone_for_a_while(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.store.is_away = True
    world.after()
    world.after()
    asked = world.store.questions
    assert asked == 1
    world.after()
    assert world.store.questions == asked
    world.clock.seconds += 6
    world.after()
    world.after()
    assert world.store.questions > asked
    assert caplog.text.count("not Redis") == 1, "it is said once"
    world.store.is_away = False
    world.clock.seconds += 6
    world.after()
    world.after()
    world.store.is_away = True
    world.after()
    assert caplog.text.count("not Redis") == 2


def test_an_empty_store_is_replaced_by_the_log(world: World) -> None:
    world.cut(10, 0, to_store=False)
    world.cut(20, 10, to_store=False)
    assert world.after() == [10, 20]


def test_a_store_that_stopped_does_not_stop_the_feed(world: World) -> None:
    world.cut(10, 0)
    assert world.after() == [10]
    world.cut(20, 10, to_store=False)
    world.clock.seconds += 1
    assert world.after() == [10, 20]


def test_an_idle_feed_asks_the_log_now_and_then_only(world: World) -> None:
    world.cut(10, 0)
    assert world.after() == [10]
    world.cut(20, 10, to_store=False)
    assert world.after() == [10]


def test_a_hole_in_the_store_is_filled_from_the_log(world: World) -> None:
    world.cut(10, 0)
    world.cut(20, 10, to_store=False)
    world.cut(30, 20)
    assert world.after() == [10, 20, 30]


def test_a_store_trimmed_above_the_start_is_replaced_by_the_log(world: World) -> None:
    for lsn in (10, 20, 30):
        world.cut(lsn, lsn - 10)
    world.store.trim("inv", 1, 30)
    assert world.after() == [10, 20, 30]


def test_cuts_of_other_timelines_are_passed(published: Published) -> None:
    """A new timeline begins somewhere in the log, so its first cut names 0 as the one before."""
    world = World(published, FeedKey("inv", 2))
    for lsn in range(10, 2000, 10):
        world.cut(lsn, lsn - 10, to_store=False)
    world.cut(5, 0, timeline=2, to_store=False)
    start = SourceOffset.before_everything("inv", 2)
    assert [c.cut.lsn for c in world.feed.after(start, max_events=None)] == [5]


def test_cuts_of_other_timelines_lead_nowhere_even_where_they_connect(published: Published) -> None:
    world = World(published, FeedKey("inv", 2))
    world.cut(10, 0, timeline=1)
    world.cut(5, 0, timeline=2, to_store=False)
    world.cut(20, 5, timeline=1, to_store=False)
    world.cut(7, 5, timeline=2, to_store=False)
    world.store.is_away = True
    beginning = SourceOffset.before_everything("inv", 2)
    end = SourceOffset(source="inv", timeline=2, lsn=7, event_count=7, log=4)

    assert world.after(SourceOffset(source="inv", timeline=2, lsn=5, event_count=5, log=0)) == [7]
    start = SourceOffset(source="inv", timeline=2, lsn=5, event_count=5, log=2)
    assert [c.cut.lsn for c in world.feed.between(start, end)] == [7]
    with pytest.raises(MissingCutsError):
        world.feed.between(beginning, SourceOffset(source="inv", timeline=2, lsn=20, event_count=9, log=4))


def test_the_newest_cut_of_another_timeline_is_no_target(world: World) -> None:
    world.cut(10, 0)
    world.cut(5, 0, timeline=2)
    assert world.log.newest() is not None
    newest = world.feed.newest()
    assert newest is None or newest.cut.timeline == 1


def test_a_planned_batch_that_begins_below_what_is_remembered_is_read_from_the_log(world: World) -> None:
    first = world.cut(10, 0)
    second = world.cut(20, 10)
    at_first = BEGINNING.advanced_to(first, [])
    world.after(at_first)

    planned = world.feed.between(BEGINNING, at_first.advanced_to(second, []))
    assert [c.cut.lsn for c in planned] == [10, 20]


def test_repetitions_of_a_second_sidecar_are_passed(world: World) -> None:
    for lsn in (10, 20):
        world.cut(lsn, lsn - 10, to_store=False)
    for lsn in (10, 20):
        world.cut(lsn, lsn - 10, to_store=False)
    world.cut(30, 20, to_store=False)
    assert world.after() == [10, 20, 30]


def test_a_connecting_cut_below_the_known_place_in_the_log_is_found(world: World) -> None:
    """The other sidecar appended it earlier, but it came into the store later."""
    early = world.cut(30, 5, to_store=False)
    last = world.cut(20, 0)
    start = BEGINNING.advanced_to(last, [])
    assert start.log > early.log_offset
    world.cut(40, 30, to_store=False)
    assert world.after(start) == [30, 40]


def test_what_another_sidecar_appended_below_the_known_place_is_found_after_a_restart(world: World) -> None:
    """Nothing may follow for a long time."""
    world.cut(30, 5)
    high = world.cut(40, 30)
    start = BEGINNING.advanced_to(world.cut(20, 0), [])
    assert start.log > high.log_offset
    assert world.after(start) == [30, 40]


def test_transactions_that_no_cut_lists_are_an_error(world: World) -> None:
    world.cut(10, 0)
    world.cut(30, 20)
    with pytest.raises(MissingCutsError, match="after commit LSN 10, up to 30"):
        world.after()


def test_a_planned_batch_is_found_again_in_the_log_with_the_store_gone(world: World) -> None:
    cuts = [world.cut(lsn, lsn - 10) for lsn in (10, 20, 30, 40)]
    world.store.is_away = True
    start, end = BEGINNING.advanced_to(cuts[0], []), BEGINNING.advanced_to(cuts[2], [])
    assert world.feed.between(start, end) == cuts[1:3]


def test_a_planned_batch_comes_from_memory_when_it_was_just_planned(world: World) -> None:
    cuts = [world.cut(lsn, lsn - 10) for lsn in (10, 20, 30)]
    world.after()
    world.log.delete_before(99)
    assert world.feed.between(BEGINNING, BEGINNING.advanced_to(cuts[1], [])) == cuts[:2]


def test_a_planned_batch_is_found_when_sidecars_appended_out_of_order(world: World) -> None:
    early = world.cut(30, 5, to_store=False)
    last = world.cut(20, 0)
    start = BEGINNING.advanced_to(last, [])
    end = start.advanced_to(early, [])
    assert world.feed.between(start, end) == [early]


def test_a_planned_batch_is_found_below_its_place_as_far_as_a_truncated_log_goes(world: World) -> None:
    for lsn, previous in ((5, 0), (20, 10), (6, 5), (30, 20)):
        world.cut(lsn, previous, to_store=False)
    world.log.delete_before(1)
    start = SourceOffset(source="inv", timeline=1, lsn=10, event_count=10, log=3)
    end = SourceOffset(source="inv", timeline=1, lsn=30, event_count=30, log=4)
    assert [c.cut.lsn for c in world.feed.between(start, end)] == [20, 30]


def test_a_planned_batch_ends_at_its_end_whatever_else_stands_there(world: World) -> None:
    for lsn, previous in ((10, 0), (20, 10), (25, 20)):
        world.cut(lsn, previous)
    end = SourceOffset(source="inv", timeline=1, lsn=20, event_count=20, log=3)
    assert [c.cut.lsn for c in world.feed.between(BEGINNING, end)] == [10, 20]
    world.after()
    assert [c.cut.lsn for c in world.feed.between(BEGINNING, end)] == [10, 20]


def test_a_planned_batch_that_goes_beyond_what_is_remembered_is_read_from_the_log(world: World) -> None:
    world.cut(10, 0)
    world.after()
    world.cut(20, 10)
    end = SourceOffset(source="inv", timeline=1, lsn=20, event_count=20, log=2)
    assert [c.cut.lsn for c in world.feed.between(BEGINNING, end)] == [10, 20]


def test_a_start_that_no_cut_has_forgets_what_was_read(world: World) -> None:
    for lsn, previous in ((10, 0), (20, 10), (30, 5)):
        world.cut(lsn, previous)
    world.after()
    start = SourceOffset(source="inv", timeline=1, lsn=5, event_count=5, log=0)
    assert [c.cut.lsn for c in world.feed.after(start, max_events=None)] == [10, 20, 30]


def test_a_planned_batch_that_the_log_lost_is_an_error(world: World) -> None:
    cuts = [world.cut(lsn, lsn - 10) for lsn in (10, 20, 30)]
    world.log.delete_before(2)
    start, end = BEGINNING.advanced_to(cuts[0], []), BEGINNING.advanced_to(cuts[2], [])
    with pytest.raises(CutLogTruncatedError):
        world.feed.between(start, end)


def test_a_truncated_log_may_be_the_beginning_when_allowed(published: Published) -> None:
    world = World(published, FeedKey("inv", 1, may_start_anywhere=True))
    cuts = [world.cut(lsn, lsn - 10, to_store=False) for lsn in (10, 20, 30)]
    world.log.delete_before(1)
    assert world.after() == [20, 30]
    again = CutFeed(
        FeedKey("inv", 1, may_start_anywhere=True), store=None, log=world.log, monotonic=world.clock
    )
    assert again.between(BEGINNING, BEGINNING.advanced_to(cuts[2], [])) == cuts[1:]


def test_records_of_other_kinds_are_passed_and_read_once(world: World) -> None:
    world.cut(10, 0, to_store=False)
    world.log.append_records([SKIP] * 120)
    world.cut(20, 10, to_store=False)
    world.log.append_records([SKIP] * 120)
    assert world.after() == [10, 20]
    world.clock.seconds += 1
    looks = world.log.looks
    assert world.after() == [10, 20]
    assert world.log.looks == looks + 1


def test_what_a_store_has_of_another_log_is_no_news(world: World, published: Published) -> None:
    world.store.bind("a log of the same name in another cluster")
    world.to_store(published(10, 0))
    world.to_store(published(25, 10))
    assert world.after() == []
    looks = world.log.looks
    assert world.after() == []
    assert world.log.looks == looks
    world.cut(20, 0, to_store=False)
    world.clock.seconds += 1
    assert world.after() == [20]


def test_before_there_is_a_log_nothing_in_the_store_is_believed(
    world: World, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.log, "identity", lambda: None)
    world.to_store(published(10, 0))
    assert world.after() == []
    assert world.after() == []
    assert world.store.questions == 0


def test_newest_is_the_newest_of_the_log(world: World, published: Published) -> None:
    world.cut(10, 0)
    newer = world.cut(20, 10, to_store=False)
    world.to_store(published(30, 20))
    assert world.feed.newest() == newer
    assert world.feed.log_id == world.log.identity(), "a query that begins there notes it"
    world.cut(5, 0, timeline=2)
    assert world.feed.newest() is None


def test_a_log_that_was_made_anew_is_refused_by_whoever_has_read_the_one_before(world: World) -> None:
    """The new one may be longer than the old one was, and begin in the middle."""
    cuts = [world.cut(10, 0), world.cut(20, 10)]
    world.after()
    start, end = (BEGINNING.advanced_to(c, [], world.feed.log_id) for c in cuts)
    world.log.make_anew()
    for lsn in (20, 30, 40):
        world.cut(lsn, lsn - 10)
    for feed in (world.feed, world.feed_over()):
        world.clock.seconds += 6
        with pytest.raises(CutLogReplacedError, match="when the query read it before"):
            feed.after(start, max_events=None)
        with pytest.raises(CutLogReplacedError, match="when the query read it before"):
            feed.between(start, end)


def test_a_log_that_is_made_anew_while_it_is_read_is_refused_though_no_id_was_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cut(10, 0)
    world.after()
    with monkeypatch.context() as patched:
        patched.setattr(world.log, "identity", lambda: None)
        world.clock.seconds += 6
        assert world.after() == [10], "it is deleted, or could not be named for a moment"
    world.log.make_anew()
    for lsn in (10, 20):
        world.cut(lsn, lsn - 10)
    world.clock.seconds += 6
    with pytest.raises(CutLogReplacedError, match="when the query read it before"):
        world.after()


def test_a_log_that_has_become_shorter_is_refused_though_no_id_was_noted(world: World) -> None:
    cuts = [world.cut(lsn, lsn - 10) for lsn in range(10, 1010, 10)]
    start = BEGINNING.advanced_to(cuts[-1], [])
    world.log.make_anew()
    world.cut(10, 0)
    with pytest.raises(CutLogReplacedError, match="it ends at offset 1, but was read up to"):
        world.after(start)


def test_a_new_query_does_not_take_the_middle_for_the_beginning(world: World) -> None:
    """With the first record of the log taken for the first cut, it would begin at LSN 30."""
    world.cut(30, 20)
    with pytest.raises(MissingCutsError, match="made anew under a sidecar"):
        world.after()


def test_the_log_is_asked_for_its_id_every_few_seconds_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cut(10, 0)
    world.after()
    with monkeypatch.context() as patched:
        patched.setattr(world.log, "identity", lambda: pytest.fail("asked"))
        world.clock.seconds += 4.9
        assert world.after() == [10]


def test_a_log_that_appears_later_is_noted_then(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(world.log, "identity", lambda: None)
        assert world.after() == []
    assert world.feed.log_id == ""
    world.cut(10, 0)
    world.clock.seconds += 6
    assert world.after() == [10]
    assert world.feed.log_id == world.log.identity()
