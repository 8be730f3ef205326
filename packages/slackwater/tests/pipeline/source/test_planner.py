"""Planning in the driver, over cuts in memory; scope ``aggregate`` alone: test_aggregate.py."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from slackwater.cdc.batch import BatchContent
from slackwater.cuts import RecordsGoneError
from slackwater.engine.settings import Scope
from slackwater.pipeline.source.data_source import SlackwaterStreamReader
from slackwater.pipeline.source.planner import batch_header
from slackwater.pipeline.source.position import GroupWindow, Position
from slackwater.protocol import ConfigError, PublishedCut, TimelineDecision
from slackwater_lab.fakes.sources import World

Published = Callable[..., PublishedCut]

BEGINNING = Position(source="inv", timeline=1, scope=Scope.STRICT)
POLICY = {"parallelism": "3", "min_task_events": "10"}


@pytest.fixture
def world(published: Published) -> World:
    return World(published, Scope.STRICT, **POLICY)


@pytest.fixture(params=list(Scope))
def any_world(published: Published, request: pytest.FixtureRequest) -> World:
    return World(published, request.param, **POLICY)


@pytest.mark.parametrize("scope", Scope)
def test_a_query_starts_before_everything_or_at_the_newest_cut(published: Published, scope: Scope) -> None:
    earliest, latest = World(published, scope), World(published, scope, starting="latest")
    assert latest.planner.start() == latest.beginning
    for each in (earliest, latest):
        newest = each.cut(10, 0, [5])
    assert earliest.planner.start() == earliest.beginning
    assert latest.planner.start() == latest.at(newest, latest.log.identity() or "")
    assert latest.next(latest.planner.start()) == latest.planner.start()
    latest.cut(20, 10, [6])
    assert latest.next(latest.planner.start()) == latest.planner.start(), "which is now the newer one"


def test_without_a_newer_cut_the_offset_stays(any_world: World) -> None:
    world = any_world
    assert world.next() == world.beginning
    here = world.at(world.cut(10, 0, [5]))
    assert world.next(here) == here
    assert world.tasks(here, here) == []


def test_without_a_newer_cut_an_offset_of_an_earlier_version_stays_as_it_was_written(world: World) -> None:
    """Spark compares the text: with another one it would run a batch."""
    world.cut(10, 0, [5])
    log_id = world.log.identity()
    old = {"version": 1, "source": "inv", "timeline": 1, "lsn": 10, "event_count": 5, "log": 1}
    old |= {"log_id": log_id, "end": {"inv.s.a": [5]}}
    reader = SlackwaterStreamReader(world.planner.options, StructType())
    reader._connected = world.planner  # noqa: SLF001 - the servers of the test are in memory
    assert reader.latestOffset(old, ReadAllAvailable()) is old
    world.cut(20, 10, [9])
    end = reader.latestOffset(old, ReadAllAvailable())
    assert (end["version"], end["lsns"], end["topics"]) == (3, [20], {"inv.s.a": [[9]], "inv.s.b": [[]]})


def test_a_batch_that_an_earlier_version_planned_is_planned_again(world: World) -> None:
    for lsn in (10, 20, 30):
        world.cut(lsn, lsn - 10, [lsn], commit_ts_ms=lsn)
    old = {"version": 1, "source": "inv", "timeline": 1}
    start = old | {"lsn": 10, "event_count": 5, "log": 1, "end": {"inv.s.a": [10]}}
    end = old | {"lsn": 20, "event_count": 9, "log": 2, "end": {"inv.s.a": [20]}}
    content = world.planner.content(world.planner.offset(start), world.planner.offset(end))

    assert [t.commit_lsn for t in content.transactions] == [20]
    assert content.commit_ts_ms == 20
    [task] = world.planner.tasks(world.planner.offset(start), world.planner.offset(end))
    assert [(s.from_offset, s.to_offset) for s in task.spans] == [(10, 20)]


def test_a_frozen_target_is_reached_and_not_passed(any_world: World) -> None:
    world = any_world
    for lsn in (10, 20):
        world.cut(lsn, lsn - 10, [lsn])
    target = world.planner.target()
    world.cut(30, 20, [30])
    position, visited = world.beginning, []
    while (after := world.next(position, 10, target)) != position:
        visited.append(after.lsn)
        position = after
    assert visited == [10, 20]


def test_batches_end_at_the_newest_barrier_and_what_follows_is_the_next_batch(any_world: World) -> None:
    world = any_world
    for lsn, barrier in ((10, 10), (20, 20), (30, 20)):
        world.cut(lsn, lsn - 10, [lsn], barrier_lsn=barrier)

    first = world.next()
    assert (first.lsn, world.next(first).lsn) == (20, 30)


def test_two_pipelines_that_look_at_different_moments_end_batches_at_a_common_barrier(world: World) -> None:
    slow, position, ends = world.new_planner(), world.beginning, []
    for lsn, barrier in ((10, 0), (20, 0), (30, 20), (40, 20)):
        world.cut(lsn, lsn - 10, [lsn], barrier_lsn=barrier)
        position = world.next(position)
        ends.append(position.lsn)

    assert ends == [10, 20, 30, 40]
    assert slow.next(world.beginning, None, None).lsn == 20


def test_a_small_batch_is_one_task(world: World) -> None:
    end = world.at(world.cut(10, 0, [5, 5, 4]))
    [task] = world.tasks(BEGINNING, end)
    assert [(s.partition, s.from_offset, s.to_offset) for s in task.spans] == [
        (0, 0, 5),
        (1, 0, 5),
        (2, 0, 4),
    ]
    assert task.touch_lsn == 10


def test_a_large_batch_is_divided_unless_it_holds_repeated_rows(published: Published) -> None:
    plain, repeated = (World(published, Scope.STRICT, **POLICY) for _ in range(2))
    end = plain.at(plain.cut(10, 0, [300]))
    assert [t.spans[0].size for t in plain.tasks(BEGINNING, end)] == [100, 100, 100]
    end = repeated.at(repeated.cut(10, 0, [300], repeated=frozenset({10})))
    [task] = repeated.tasks(BEGINNING, end)
    assert task.repeated == frozenset({10})
    assert task.has_whole_topics


def test_one_task_of_a_batch_says_from_where_on_groups_of_no_columns_exist(world: World) -> None:
    full = world.at(world.cut(10, 0, [300], transactions={1: 4, 2: 10}))
    planned = world.planner.plan(BEGINNING, full)
    assert planned is not None
    assert [task.touch_lsn for task in planned.tasks] == [4, None, None]
    header = planned.header
    assert (header.from_lsn, header.to_lsn, header.event_count) == (0, 10, 10)


def test_a_batch_without_rows_is_one_task_that_reads_nothing(any_world: World) -> None:
    """Documents may depend on it all the same: a global aggregate of an empty table is a row."""
    world = any_world
    full = world.at(world.cut(10, 0, [300]))
    empty = world.at(world.cut(20, 10, [300], transactions={}))
    planned = world.planner.plan(full, empty)
    assert planned is not None
    [task] = planned.tasks
    assert (task.spans, task.touch_lsn) == ((), 20)
    assert planned.header.to_lsn == 20


def test_between_equal_positions_there_is_no_batch(any_world: World) -> None:
    here = any_world.at(any_world.cut(10, 0, [5]))
    assert any_world.planner.plan(here, here) is None


def test_a_batch_without_rows_needs_no_task(any_world: World) -> None:
    world = any_world
    before = world.at(world.cut(10, 0, [300]))
    assert world.tasks(before, world.at(world.cut(20, 10, [300], transactions={}))) == []


def test_planning_again_gives_the_same_tasks(any_world: World) -> None:
    world = any_world
    world.cut(10, 0, [300, 7])
    end = world.next()
    world.cut(20, 10, [400, 9], repeated=frozenset({10}))
    world.next(end)
    stored = [json.loads(json.dumps(offset.to_json())) for offset in (world.beginning, end)]
    first = world.tasks(world.beginning, end)
    planner = world.new_planner()
    again = planner.tasks(*map(planner.offset, stored))
    assert [t.spans for t in first] == [t.spans for t in again]
    assert pickle.dumps(first) == pickle.dumps(again)
    assert first[0].repeated == frozenset(), "what was read later does not count"


def test_rows_of_one_batch_are_divided_by_what_its_cuts_say(published: Published) -> None:
    plain, told = (World(published, Scope.STRICT, **POLICY) for _ in range(2))
    ends = plain.at(plain.cut(10, 0, [5])), plain.at(plain.cut(20, 10, [1000], has_incremental_rows=False))
    assert len(plain.tasks(*ends)) == 3

    ends = told.at(told.cut(10, 0, [5])), told.at(told.cut(20, 10, [1000], has_incremental_rows=True))
    (task,) = told.tasks(*ends)
    assert (task.needs_look_ahead, task.end_lsn) == (True, 20)


@pytest.mark.parametrize("scope", Scope)
def test_a_batch_may_miss_its_beginning_only_at_the_beginning_of_everything(
    published: Published, scope: Scope
) -> None:
    world = World(published, scope, allow_truncated_start="true")
    first, second = world.at(world.cut(10, 0, [5])), world.at(world.cut(20, 10, [9]))

    assert [t.may_start_late for t in world.tasks(world.beginning, first)] == [True]
    assert [t.may_start_late for t in world.tasks(first, second)] == [False]


def test_a_batch_does_not_hold_late_rows_and_a_snapshot_with_their_lsn(any_world: World) -> None:
    world = any_world
    world.cut(10, 0, transactions={0: 8, 5: 10})
    world.cut(20, 10)
    late = [world.cut(30, 20, late_snapshots=(8,)), world.cut(40, 30)]
    first = world.next()
    second = world.next(first)

    assert (first.lsn, second.lsn) == (10, 40)
    assert world.planner.content(world.beginning, first).late_snapshots == frozenset()
    assert world.planner.content(first, second).late_snapshots == frozenset({8})
    assert world.planner.content(world.at(late[0]), world.at(late[1])).late_snapshots == frozenset()


# --- what a batch holds


def content_of(
    world: World, after_lsn: int, up_to_lsn: int, floor: int = 0, log: int | None = None
) -> BatchContent:
    """What a batch between two LSNs holds, by the log's range that its positions name."""
    start = replace(world.beginning, lsns=(after_lsn,), floor=floor, log=floor)
    end = replace(start, lsns=(up_to_lsn,), log=world.log.end() if log is None else log)
    return world.planner.content(start, end)


def test_a_batch_holds_each_transaction_of_its_range_once_in_commit_order(any_world: World) -> None:
    any_world.cut(20, 5, transactions={1: 8, 2: 12, 3: 20})
    any_world.cut(30, 12, transactions={3: 20, 4: 25, 5: 30})
    content = content_of(any_world, 10, 30)
    assert [(t.xid, t.commit_lsn) for t in content.transactions] == [(2, 12), (3, 20), (4, 25), (5, 30)]


def test_the_transaction_at_which_a_batch_begins_belongs_to_the_one_before(any_world: World) -> None:
    any_world.cut(20, 5, transactions={1: 10, 2: 20})
    assert [t.xid for t in content_of(any_world, 10, 20).transactions] == [2]


def test_transactions_are_in_commit_order_and_none_is_above_the_end(any_world: World) -> None:
    any_world.cut(40, 20, transactions={5: 30, 6: 40})
    any_world.cut(20, 5, transactions={2: 12, 3: 20})
    assert [t.commit_lsn for t in content_of(any_world, 5, 30).transactions] == [12, 20, 30]


def test_a_cut_that_is_partly_in_an_earlier_batch_says_what_rows_of_snapshots_it_has(
    any_world: World,
) -> None:
    any_world.cut(20, 5, late_snapshots=(8,), has_incremental_rows=True)
    any_world.cut(30, 20)
    content = content_of(any_world, 10, 30)
    assert content.late_snapshots == {8}
    assert content.has_incremental_rows
    assert not content.may_split


def test_a_batch_without_repeats_and_rows_of_snapshots_may_be_divided(any_world: World) -> None:
    any_world.cut(20, 5)
    any_world.cut(30, 20, repeated=frozenset({30}))
    any_world.cut(40, 30, late_snapshots=(8,))
    batches = ((5, 20, 0, 1), (20, 30, 1, 2), (30, 40, 2, 3))
    assert [content_of(any_world, *batch).may_split for batch in batches] == [True, False, False]


def test_a_batch_is_as_new_as_its_newest_cut(any_world: World) -> None:
    any_world.cut(20, 0, commit_ts_ms=7)
    any_world.cut(30, 20, commit_ts_ms=9)
    end = any_world.next()
    assert any_world.planner.content(any_world.beginning, end).commit_ts_ms == 9


def test_only_repeated_transactions_of_the_batch_are_compared(any_world: World) -> None:
    any_world.cut(20, 10, repeated=frozenset({7, 20}))
    any_world.cut(30, 20, repeated=frozenset({15}))
    assert content_of(any_world, 10, 30).repeated == frozenset({20})


def test_what_a_later_record_says_of_repeated_rows_counts(any_world: World) -> None:
    """The one of another sidecar, which has seen more."""
    any_world.cut(20, 10)
    any_world.cut(30, 20, repeated=frozenset({20}))
    assert content_of(any_world, 10, 30).repeated == frozenset({20})


def test_a_batch_holds_what_its_positions_name_however_far_the_log_was_read(any_world: World) -> None:
    """Otherwise a batch that is computed again would differ from the first attempt."""
    any_world.cut(20, 10)
    any_world.cut(30, 20, repeated=frozenset({20}))
    first = content_of(any_world, 10, 20, log=1)
    assert content_of(any_world, 10, 30).repeated == frozenset({20})
    assert content_of(any_world, 10, 20, log=1) == first
    assert first.repeated == frozenset()


# --- timelines


def second_timeline(published: Published, scope: Scope, *, first: int = 0) -> tuple[World, Position]:
    """A log in which timeline 2 begins behind a cut at offset 7, beside later cuts of the one before."""
    world = World(published, scope, timeline="2")
    for lsn, end in ((10, 5), (20, 7)):
        world.cut(lsn, lsn - 10, [end])
    decision = TimelineDecision(source="inv", timeline=2, transaction_offset=3, wall_ms=1, decided_by="ann")
    world.log.append_records([decision])
    world.cut(30, 20, [9])
    appended = world.cut(4, 0, [12], timeline=2)
    world.log.delete_before(first)
    return world, world.at(appended)


@pytest.mark.parametrize("scope", Scope)
def test_a_timeline_is_read_from_where_the_one_before_ended(published: Published, scope: Scope) -> None:
    """Seen to fail: rows of the old database came again, where their xids were used again."""
    world, end = second_timeline(published, scope)
    start = world.planner.start()

    for planned in (end, world.next(start)):
        [task] = world.tasks(start, planned)
        assert [(s.from_offset, s.to_offset) for s in task.spans] == [(7, 12)]


@pytest.mark.parametrize("scope", Scope)
def test_a_timeline_whose_beginning_the_log_has_lost_is_refused(published: Published, scope: Scope) -> None:
    world, end = second_timeline(published, scope, first=2)
    start = world.planner.start()

    with pytest.raises(RecordsGoneError):
        world.next(start)
    with pytest.raises(RecordsGoneError):
        world.tasks(start, end)


def test_where_a_timeline_begins_is_looked_up_once_and_only_when_it_has_begun(published: Published) -> None:
    world = World(published, Scope.STRICT, timeline="2")
    world.cut(10, 0, [5])
    start = world.next()
    looks = world.log.looks
    for _ in range(9):
        assert world.next(start) == start
    assert world.log.looks == looks
    world.cut(4, 0, [12], timeline=2)
    end = world.next(start)
    looks = world.log.looks
    world.tasks(start, end)
    assert world.log.looks == looks


def test_events_of_a_batch_are_offsets_where_the_checkpoint_does_not_count_them(world: World) -> None:
    world.cut(10, 0, [100])
    start = replace(world.next(BEGINNING), event_count=None)
    world.cut(20, 10, [130])
    end = world.next(start)
    header = batch_header(start, end, [GroupWindow(0, 10, 20, 10)], world.planner.content(start, end))
    assert (header.event_count, end.event_count) == (30, 20)


def test_the_header_says_what_the_batch_holds(world: World) -> None:
    world.cut(10, 0, [100])
    world.cut(20, 10, [120], transactions={3: 20})
    start = world.next(BEGINNING, 100)
    last = world.cut(30, 20, [150], transactions={}, commit_ts_ms=99)
    end = world.next(start)
    content = world.planner.content(start, end)
    header = batch_header(start, end, [GroupWindow(0, 10, 30, 10)], content)
    assert (start.lsn, end.lsn) == (10, last.cut.lsn)
    assert (header.from_lsn, header.to_lsn, header.event_count) == (10, 30, 20)
    assert [t[:2] for t in header.transactions] == [(3, 20)]
    assert header.commit_ts_ms == max(99, start.commit_ts_ms)


def test_in_scope_strict_a_header_has_no_places_for_rows_of_snapshots(published: Published) -> None:
    world = World(published, Scope.STRICT)
    world.cut(10, 0, [5])
    start = world.next()
    world.cut(11, 10, [6], transactions={}, has_incremental_rows=True)
    planned = world.planner.plan(start, world.next(start))
    assert planned is not None
    assert planned.header.transactions == ()


def test_the_header_of_groups_names_no_transaction_that_they_have_passed_before(published: Published) -> None:
    """Where no marker told exactly where a group's LSN ends, earlier commits are read again, and known."""
    world = World(published, Scope.AGGREGATE)
    start = world.at(world.cut(10, 0, [5]))
    end = world.at(world.cut(30, 10, [9], transactions={1: 15, 2: 25}))
    content = world.planner.content(start, end)
    assert [t.commit_lsn for t in content.transactions] == [15, 25]
    header = batch_header(start, end, [GroupWindow(0, 20, 30, 10)], content)
    assert [lsn for _, lsn, _ in header.transactions] == [25]


# --- tables without a snapshot


def test_a_table_without_a_snapshot_is_refused_by_name(any_world: World) -> None:
    any_world.cut(10, 0, [5], [4], without_snapshot=("inv.s.b",))

    with pytest.raises(ConfigError, match=r"inv\.s\.b: the table of this topic has had no") as refused:
        any_world.next()
    assert "sidecar.complete_tables" in str(refused.value)


def test_a_query_that_starts_at_the_newest_cut_is_refused_there(published: Published) -> None:
    latest = World(published, Scope.STRICT, starting="latest")
    latest.cut(10, 0, [5], [4], without_snapshot=("inv.s.b",))
    with pytest.raises(ConfigError, match="had no complete snapshot"):
        latest.planner.start()


def test_a_table_of_another_pipeline_that_has_had_no_snapshot_changes_nothing(world: World) -> None:
    world.cut(10, 0, [5], without_snapshot=("inv.s.other",))
    assert world.next().lsn == 10


def test_no_batch_ends_before_the_snapshot_of_a_table_is_complete(any_world: World) -> None:
    for lsn in (10, 20):
        any_world.cut(lsn, lsn - 10, [lsn], [lsn], without_snapshot=("inv.s.b",), barrier_lsn=lsn)
    any_world.cut(30, 20, [30], [30], barrier_lsn=20)
    any_world.cut(40, 30, [40], [40], barrier_lsn=20)

    assert any_world.next(max_events=1).lsns[0] == 30


def test_what_was_shown_before_a_table_lost_its_snapshot_is_planned_first(world: World) -> None:
    first = world.cut(10, 0, [5])
    world.cut(20, 10, [9], [4], without_snapshot=("inv.s.b",))

    here = world.next()
    assert here.lsn == first.cut.lsn
    with pytest.raises(ConfigError, match="had no complete snapshot"):
        world.next(here)
