"""Planning in the driver, over cuts in memory."""

import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest

from slackwater_markers import InMemoryCutLog
from slackwater_markers.errors import CutLogTruncatedError
from slackwater_protocol import PublishedCut, TimelineDecision, decode_batch_header
from slackwater_spark.source.cut_feed import CutFeed, FeedKey
from slackwater_spark.source.offset import SourceOffset
from slackwater_spark.source.options import SourceOptions
from slackwater_spark.source.readers import Planner

Published = Callable[..., PublishedCut]

BEGINNING = SourceOffset.before_everything("inv", 1)
OPTIONS = {
    "source": "inv",
    "bootstrap": "b:9092",
    "tables": "s.a,s.b",
    "parallelism": "3",
    "min_task_events": "10",
}


class World:
    def __init__(self, published: Published, **options: str) -> None:
        self._published = published
        self.log = InMemoryCutLog("inv")
        feed = CutFeed(FeedKey("inv", 1), store=None, log=self.log, monotonic=lambda: 0.0)
        self.planner = Planner(SourceOptions.parse(OPTIONS | options), feed)

    def cut(self, lsn: int, previous: int, ends: list[int], **fields: object) -> SourceOffset:
        """Appends a cut at which ``s.a`` has these end offsets; returns the offset of the query there."""
        cut = self._published(lsn, previous, end_offsets={"inv.s.a": tuple(ends)}, **fields).cut
        [appended] = self.log.append([cut])
        return BEGINNING.advanced_to(appended, ["inv.s.a", "inv.s.b"])


@pytest.fixture
def world(published: Published) -> World:
    return World(published)


def test_a_query_starts_before_everything_or_at_the_newest_cut(published: Published) -> None:
    earliest, latest = World(published), World(published, starting="latest")
    assert latest.planner.start() == BEGINNING
    for each in (earliest, latest):
        newest = each.cut(10, 0, [5])
    assert earliest.planner.start() == BEGINNING
    assert latest.planner.start() == replace(newest, log_id=latest.log.identity() or "")


def test_without_a_newer_cut_the_offset_stays(world: World) -> None:
    assert world.planner.next(BEGINNING, None, None) == BEGINNING
    here = world.cut(10, 0, [5])
    assert world.planner.next(here, None, None) == here
    assert world.planner.tasks(here, here) == []


def test_a_frozen_target_is_reached_and_not_passed(world: World) -> None:
    for lsn in (10, 20, 30):
        world.cut(lsn, lsn - 10, [lsn], events=lsn)
    position, visited = BEGINNING, []
    while (after := world.planner.next(position, 10, 20)) != position:
        visited.append(after.lsn)
        position = after
    assert visited == [10, 20]


def test_a_small_batch_is_one_task(world: World) -> None:
    end = world.cut(10, 0, [5, 5, 4])
    [task] = world.planner.tasks(BEGINNING, end)
    assert [(s.partition, s.from_offset, s.to_offset) for s in task.spans] == [
        (0, 0, 5),
        (1, 0, 5),
        (2, 0, 4),
    ]
    assert task.header is None


def test_a_large_batch_is_divided_unless_it_holds_repeated_rows(published: Published) -> None:
    plain, repeated = World(published), World(published)
    end = plain.cut(10, 0, [300])
    assert [t.spans[0].size for t in plain.planner.tasks(BEGINNING, end)] == [100, 100, 100]
    end = repeated.cut(10, 0, [300], repeated=frozenset({10}))
    [task] = repeated.planner.tasks(BEGINNING, end)
    assert task.repeated == frozenset({10})


def test_a_packed_batch_has_one_header_even_without_rows(published: Published) -> None:
    world = World(published, packing="{}")
    full = world.cut(10, 0, [300], events=300)
    empty = world.cut(20, 10, [300], events=300, transactions={})
    headers = [t.header for t in world.planner.tasks(BEGINNING, full)]
    assert headers[0] is not None
    assert headers[1:] == [None, None]
    header = decode_batch_header(headers[0])
    assert (header.from_lsn, header.to_lsn, header.event_count) == (0, 10, 300)
    [task] = world.planner.tasks(full, empty)
    assert task.spans == ()
    assert task.header is not None
    assert decode_batch_header(task.header).to_lsn == 20


def test_a_batch_without_rows_needs_no_task(world: World) -> None:
    before = world.cut(10, 0, [300])
    assert world.planner.tasks(before, world.cut(20, 10, [300], transactions={})) == []


def test_a_planner_travels_without_its_connections(world: World) -> None:
    arrived = pickle.loads(pickle.dumps(world.planner))  # noqa: S301 - our own bytes
    assert arrived.options == world.planner.options


def test_planning_again_gives_the_same_tasks(world: World) -> None:
    end = world.cut(10, 0, [300, 7])
    first, second = (world.planner.tasks(BEGINNING, end) for _ in range(2))
    assert [t.spans for t in first] == [t.spans for t in second]
    assert pickle.dumps(first) == pickle.dumps(second)


def test_rows_of_one_batch_are_divided_by_what_its_cuts_say(published: Published) -> None:
    plain, told = World(published), World(published)
    start, end = plain.cut(10, 0, [5]), plain.cut(20, 10, [1000], has_incremental_rows=False)
    assert len(plain.planner.tasks(start, end)) == 3

    start, end = told.cut(10, 0, [5]), told.cut(20, 10, [1000], has_incremental_rows=True)
    (task,) = told.planner.tasks(start, end)
    assert (task.needs_look_ahead, task.end_lsn) == (True, 20)


def test_a_batch_may_miss_its_beginning_only_at_the_beginning_of_everything(published: Published) -> None:
    world = World(published, allow_truncated_start="true")
    first, second = world.cut(10, 0, [5]), world.cut(20, 10, [9])

    assert [t.may_start_late for t in world.planner.tasks(BEGINNING, first)] == [True]
    assert [t.may_start_late for t in world.planner.tasks(first, second)] == [False]


# --- timelines


def second_timeline(published: Published, *, first: int = 0) -> tuple[Planner, SourceOffset]:
    """A log in which timeline 2 begins behind a cut at offset 7, beside later cuts of the one before."""
    log = InMemoryCutLog("inv")
    ends = [{"inv.s.a": (5,)}, {"inv.s.a": (7,)}, {"inv.s.a": (9,)}]
    cuts = [
        published(lsn, lsn - 10, end_offsets=end).cut for lsn, end in zip((10, 20, 30), ends, strict=True)
    ]
    log.append([*cuts[:2]])
    log.append_records(
        [TimelineDecision(source="inv", timeline=2, transaction_offset=3, wall_ms=1, decided_by="ann")]
    )
    new = replace(published(4, 0, end_offsets={"inv.s.a": (12,)}).cut, timeline=2)
    *_, appended = log.append([cuts[2], new])
    log.delete_before(first)
    feed = CutFeed(FeedKey("inv", 2), store=None, log=log, monotonic=lambda: 0.0)
    planner = Planner(SourceOptions.parse(OPTIONS | {"timeline": "2"}), feed)
    return planner, SourceOffset.before_everything("inv", 2).advanced_to(appended, ["inv.s.a"])


def test_a_timeline_is_read_from_where_the_one_before_ended(published: Published) -> None:
    """Seen to fail: rows of the old database came again, where their xids were used anew."""
    planner, end = second_timeline(published)

    [task] = planner.tasks(planner.start(), end)

    assert [(s.from_offset, s.to_offset) for s in task.spans] == [(7, 12)]


def test_a_timeline_whose_beginning_the_log_has_lost_is_refused(published: Published) -> None:
    planner, end = second_timeline(published, first=2)
    assert planner.next(planner.start(), None, None).lsn == end.lsn

    with pytest.raises(CutLogTruncatedError):
        planner.tasks(planner.start(), end)
