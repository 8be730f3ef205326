"""Redis may be right, empty, behind, wrong or away: every cut is found, and no other, in both scopes."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from slackwater.cuts import CutLogReplacedError, RecordsGoneError, TopicUnavailableError
from slackwater.engine.settings import Scope
from slackwater.pipeline.source import feed as feeds
from slackwater.pipeline.source.position import Position, TopicPosition
from slackwater.protocol import PublishedCut, SkipDecision
from slackwater_lab.fakes.sources import World

Published = Callable[..., PublishedCut]

SKIP = SkipDecision(source="inv", timeline=1, to_lsn=5, wall_ms=0, decided_by="ann")


@pytest.fixture(params=list(Scope))
def world(published: Published, request: pytest.FixtureRequest) -> World:
    return World(published, request.param)


def at_lsn(world: World, lsn: int, log: int, floor: int = 0) -> Position:
    """The position of a query that has read ``s.a`` up to an LSN that is its offset, too."""
    topics = {"inv.s.a": (TopicPosition((lsn,), lsn, (lsn,)),)}
    return replace(world.beginning, lsns=(lsn,), log=log, floor=floor, cut=lsn, topics=topics)


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
    assert world.after() == [10, 20]
    assert world.feed.newest() == cuts[-1]
    assert world.listed(world.beginning, world.at(cuts[1])) == [10, 20]


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
    assert "names a cut that the cut log does not contain" in caplog.text
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
    start = world.at(first)
    assert world.after(start) == [20]
    [history] = world.feed.known_markers.histories["inv.s.a"]
    assert history.lsns(0, 100) == [20]


def test_a_batch_that_needs_more_of_the_log_than_the_one_before_it_is_planned_from_there(
    world: World,
) -> None:
    """The same place in the data topics may be reached by records that lie lower in the log."""
    world.cut(10, 0)
    world.cut(30, 20)
    here = world.at(world.cut(20, 10))
    world.feed.move_to(replace(here, floor=here.log))
    world.cut(40, 30)
    while world.feed.read_page():
        pass
    assert world.after(replace(here, log=world.feed.log_position, floor=0)) == [30, 40]


def test_reading_stops_when_the_limit_is_exceeded(world: World) -> None:
    for lsn in range(10, 2000, 10):
        world.cut(lsn, lsn - 10)
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
    assert caplog.text.count("instead of Redis") == 1, "it is said once"
    world.store.is_away = False
    world.clock.seconds += 6
    world.after()
    world.after()
    world.store.is_away = True
    world.after()
    assert caplog.text.count("instead of Redis") == 2


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
        world.cut(lsn, lsn - 10, to_store=lsn == 30)
    assert world.after() == [10, 20, 30]


def test_cuts_of_other_timelines_are_passed(published: Published) -> None:
    """A new timeline begins somewhere in the log, so its first cut names 0 as the one before."""
    world = World(published, Scope.STRICT, timeline="2")
    for lsn in range(10, 2000, 10):
        world.cut(lsn, lsn - 10, to_store=False)
    world.cut(5, 0, timeline=2, to_store=False)
    assert world.after() == [5]


def test_cuts_of_other_timelines_lead_nowhere_even_where_they_connect(published: Published) -> None:
    world = World(published, Scope.STRICT, timeline="2")
    world.cut(10, 0, timeline=1)
    first = world.cut(5, 0, timeline=2, to_store=False)
    world.cut(20, 5, timeline=1, to_store=False)
    second = world.cut(7, 5, timeline=2, to_store=False)
    world.store.is_away = True

    assert world.after(world.at(first)) == [7]
    assert world.listed(world.at(first), world.at(second)) == [7]
    with pytest.raises(RecordsGoneError):
        world.listed(world.at(first), replace(world.at(second), lsns=(20,), cut=20))


def test_the_newest_cut_of_another_timeline_is_no_target(world: World) -> None:
    world.cut(10, 0)
    world.cut(5, 0, timeline=2)
    assert world.log.newest() is not None
    newest = world.feed.newest()
    assert newest is None or newest.cut.timeline == 1


def test_a_planned_batch_that_begins_below_what_is_remembered_is_read_from_the_log(world: World) -> None:
    first = world.cut(10, 0)
    second = world.cut(20, 10)
    at_first = world.at(first)
    world.after(at_first)

    assert world.listed(world.beginning, world.at(second)) == [10, 20]


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
    start = world.at(last)
    assert start.log > early.log_offset
    world.cut(40, 30, to_store=False)
    assert world.after(start) == [30, 40]


def test_what_another_sidecar_appended_below_the_known_place_is_found_after_a_restart(world: World) -> None:
    """Nothing may follow for a long time."""
    world.cut(30, 5)
    high = world.cut(40, 30)
    start = world.at(world.cut(20, 0))
    assert start.log > high.log_offset
    assert world.after(start) == [30, 40]


def test_transactions_that_no_cut_lists_are_an_error(world: World) -> None:
    world.cut(10, 0)
    world.cut(30, 20)
    with pytest.raises(RecordsGoneError, match="after commit LSN 10, up to 30"):
        world.after()


def test_a_planned_batch_is_found_again_in_the_log_with_the_store_gone(world: World) -> None:
    cuts = [world.cut(lsn, lsn - 10) for lsn in (10, 20, 30, 40)]
    world.store.is_away = True
    start, end = world.at(cuts[0]), world.at(cuts[2])
    assert world.listed(start, end) == [20, 30]


def test_a_planned_batch_comes_from_memory_when_it_was_just_planned(world: World) -> None:
    cuts = [world.cut(lsn, lsn - 10) for lsn in (10, 20, 30)]
    world.after()
    looks = world.log.looks
    assert world.listed(world.beginning, world.at(cuts[1])) == [10, 20]
    assert world.log.looks == looks


def test_a_planned_batch_is_found_when_sidecars_appended_out_of_order(world: World) -> None:
    early = world.cut(30, 5, to_store=False)
    last = world.cut(20, 0)
    start = world.at(last)
    end = replace(world.at(early), log=start.log)
    assert world.listed(start, end) == [30]


def test_a_planned_batch_is_found_below_its_place_as_far_as_a_truncated_log_goes(world: World) -> None:
    for lsn, previous in ((5, 0), (20, 10), (6, 5), (30, 20)):
        world.cut(lsn, previous, to_store=False)
    world.log.delete_before(1)
    start, end = at_lsn(world, 10, log=3, floor=3), at_lsn(world, 30, log=4)
    assert world.listed(start, end) == [20, 30]


def test_a_planned_batch_ends_at_its_end_whatever_else_stands_there(world: World) -> None:
    for lsn, previous in ((10, 0), (20, 10), (25, 20)):
        world.cut(lsn, previous)
    end = at_lsn(world, 20, log=3)
    assert world.listed(world.beginning, end) == [10, 20]
    world.after()
    assert world.listed(world.beginning, end) == [10, 20]


def test_a_planned_batch_that_goes_beyond_what_is_remembered_is_read_from_the_log(world: World) -> None:
    world.cut(10, 0)
    world.after()
    world.cut(20, 10)
    assert world.listed(world.beginning, at_lsn(world, 20, log=2)) == [10, 20]


def test_a_query_may_stand_where_no_cut_ends(world: World) -> None:
    for lsn, previous in ((10, 0), (20, 10), (30, 5)):
        world.cut(lsn, previous)
    world.after()
    assert world.after(at_lsn(world, 5, log=0)) == [10, 20, 30]


def test_a_planned_batch_that_the_log_lost_is_an_error(world: World) -> None:
    cuts = [world.cut(lsn, lsn - 10) for lsn in (10, 20, 30)]
    world.log.delete_before(2)
    start, end = world.at(cuts[0]), world.at(cuts[2])
    with pytest.raises(RecordsGoneError, match="after commit LSN 10, up to 30"):
        world.listed(start, end)


@pytest.mark.parametrize("scope", Scope)
def test_a_truncated_log_may_be_the_beginning_when_allowed(published: Published, scope: Scope) -> None:
    world = World(published, scope, allow_truncated_start="true")
    cuts = [world.cut(lsn, lsn - 10, to_store=False) for lsn in (10, 20, 30)]
    world.log.delete_before(1)
    assert world.after() == [20, 30]
    world.planner = world.new_planner(has_store=False)
    assert world.listed(world.beginning, world.at(cuts[2])) == [20, 30]


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
    start, end = (world.at(c, world.feed.log_id) for c in cuts)
    world.log.recreate()
    for lsn in (20, 30, 40):
        world.cut(lsn, lsn - 10)
    for planner in (world.planner, world.new_planner()):
        world.clock.seconds += 6
        with pytest.raises(CutLogReplacedError, match="when the query read it before"):
            planner.next(start, None, None)
        with pytest.raises(CutLogReplacedError, match="when the query read it before"):
            planner.tasks(start, end)


def test_a_log_that_is_made_anew_while_it_is_read_is_refused_though_no_id_was_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cut(10, 0)
    world.after()
    with monkeypatch.context() as patched:
        patched.setattr(world.log, "identity", lambda: None)
        world.clock.seconds += 6
        assert world.after() == [10], "it is deleted, or could not be named for a moment"
    world.log.recreate()
    for lsn in (10, 20):
        world.cut(lsn, lsn - 10)
    world.clock.seconds += 6
    with pytest.raises(CutLogReplacedError, match="when the query read it before"):
        world.after()


def test_a_log_that_has_become_shorter_is_refused_though_no_id_was_noted(world: World) -> None:
    cuts = [world.cut(lsn, lsn - 10) for lsn in range(10, 1010, 10)]
    start = world.at(cuts[-1])
    world.log.recreate()
    world.cut(10, 0)
    with pytest.raises(CutLogReplacedError, match="it ends at offset 1, but was read up to"):
        world.after(start)


def test_a_new_query_does_not_take_the_middle_for_the_beginning(world: World) -> None:
    """With the first record of the log taken for the first cut, it would begin at LSN 30."""
    world.cut(30, 20)
    with pytest.raises(RecordsGoneError, match="recreated while a sidecar was running"):
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


# --- looking further down in the log


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps down, of 2 and 4 records."""
    monkeypatch.setattr(feeds, "_WIDENING", (2, 4))


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("between", [0, 2, 20])
def test_what_stands_below_the_place_of_a_position_is_looked_for(world: World, between: int) -> None:
    """The position is of an earlier version, or began at the newest cut."""
    world.cut(20, 5)
    world.log.append_records([SKIP] * between)
    begin = world.log.end()
    world.cut(10, 0)
    last = world.cut(30, 20)
    start = at_lsn(world, 10, log=begin + 1, floor=begin)

    assert world.after(start) == [20, 30]
    end = world.next(start)
    assert (end.lsn, end.floor) == (30, last.log_offset + 1)
    assert world.listed(start, end) == [20, 30]
    looks = world.log.looks
    assert world.listed(start, end) == [20, 30], "it is remembered"
    assert world.log.looks == looks
    world.planner = world.new_planner()
    assert world.listed(start, end) == [20, 30], "a planned batch finds it again"


@pytest.mark.usefixtures("narrow")
def test_no_more_is_looked_at_than_is_needed(world: World) -> None:
    """What is lower may have been damaged, or be long."""
    world.log.append_bytes(b'{"v":1,"kind":"cut"')
    world.cut(20, 5)
    world.log.append_records([SKIP])
    begin = world.log.end()
    world.cut(10, 0)
    world.cut(30, 20)

    assert world.after(at_lsn(world, 10, log=begin + 1, floor=begin)) == [20, 30]


def test_a_log_that_is_shorter_than_it_was_is_refused_where_it_still_has_records(world: World) -> None:
    for lsn in (10, 20, 30):
        world.cut(lsn, lsn - 10)
    with pytest.raises(CutLogReplacedError, match="it ends at offset 3, but was read up to 4"):
        world.next(at_lsn(world, 10, log=4, floor=1))
    with pytest.raises(CutLogReplacedError, match="it ends at offset 3, but was read up to 9"):
        world.listed(at_lsn(world, 10, log=1, floor=1), at_lsn(world, 90, log=9))


def test_a_log_that_cannot_be_found_for_a_moment_is_no_reason_to_say_that_it_lost_something(
    world: World,
) -> None:
    start, end = at_lsn(world, 10, log=2, floor=2), at_lsn(world, 20, log=3)

    assert world.next(start) == start
    with pytest.raises(TopicUnavailableError, match="read up to offset 3"):
        world.listed(start, end)


# --- memory


def test_a_batch_lists_no_more_transactions_than_it_may_have_events(world: World) -> None:
    """Those of tables that are not read have no offsets here, and one line each in every task."""
    for lsn in range(100, 20_000, 100):
        table = {x: x for x in range(lsn - 9, lsn + 1)}
        world.cut(lsn, lsn - 100, [5], transactions=table)
    ends = [world.beginning]
    while (end := world.next(ends[-1], 200)) != ends[-1]:
        ends.append(end)

    sizes = [len(world.listed(*pair)) for pair in pairwise(ends)]
    assert sizes == [500, 500, 500, 490], "a page of the log is the least"


@pytest.mark.parametrize("kept", [0, 15, 10**6])
def test_what_only_a_slow_group_needs_is_read_again_beyond_a_limit(
    published: Published, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(feeds, "_PASSED_TRANSACTIONS_KEPT", kept)
    world = World(published, Scope.AGGREGATE)
    world.cut(10, 0, [5, 5], [5, 5])
    start = world.next()
    for lsn in (20, 30, 40):
        world.ahead(lsn, lsn - 10, {("a", 0): (lsn, lsn), ("b", 0): (lsn, lsn)})
    held = world.next(start)
    world.cut(50, 40, [50, 50], [50, 50], transactions={50: 50})
    looks = world.log.looks
    end = world.next(held)

    assert (held.lsns, end.lsns) == ((40, 10), (50, 50))
    assert world.listed(held, end) == [*range(11, 41), 50]
    assert world.log.looks - looks == {0: 4, 15: 3, 10**6: 1}[kept]
