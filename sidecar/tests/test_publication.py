"""When cuts and markers ahead are published, and what is counted of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from slackwater_cdc import Frontier
from slackwater_markers import FrontierState, FrontierStatus
from slackwater_protocol import AheadMarkers, CommittedTransaction, Cut, PublishedCut, SystemClock
from slackwater_sidecar import Publisher, SidecarSettings, SourceMonitor
from slackwater_sidecar.publication import Publication

SETTINGS = SidecarSettings(source="inv", bootstrap="h:1")
STATUS = FrontierStatus(state=FrontierState.RUNNING, wall_ms=1, sidecar="me")


def cut(lsn: int, events: int = 2, timeline: int = 1) -> Cut:
    return Cut(
        source="inv",
        timeline=timeline,
        lsn=lsn,
        previous_lsn=lsn - 1,
        commit_ts_ms=5,
        event_count=events,
        transactions=(CommittedTransaction(700 + lsn, lsn, 5),),
        end_offsets={},
        transaction_offset=lsn,
        skipped=(700 + lsn,),
    )


AHEAD = AheadMarkers(source="inv", timeline=1, previous_lsn=1, lsn=2, transactions=(), markers={})


class StillClock(SystemClock):
    """Moves only when told to."""

    seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class World:
    """Stands in for frontier and publisher."""

    clock: StillClock
    costs_seconds: float = 0.0
    """Of publishing."""
    ready: list[Cut] = field(default_factory=list)
    published: list[int] = field(default_factory=list)
    asked: int = 0
    told_ahead: int = 0
    shown: int = 0
    is_ahead: bool = False
    newest: PublishedCut | None = None
    newest_lsn: int = 0
    is_waiting: bool = False
    log_error: str | None = None

    @property
    def has_moved(self) -> bool:
        return bool(self.ready)

    def cuts(self) -> list[Cut]:
        cuts, self.ready = self.ready, []
        return cuts

    def markers_ahead(self) -> AheadMarkers | None:
        return AHEAD if self.is_ahead else None

    def publish(self, cuts: Sequence[Cut], _status: FrontierStatus) -> None:
        self.published += [each.lsn for each in cuts]
        self.asked += 1
        self.clock.seconds += self.costs_seconds

    def show_markers(self) -> None:
        self.shown += 1

    def publish_ahead(self, _markers: AheadMarkers) -> None:
        self.told_ahead += 1
        self.clock.seconds += self.costs_seconds


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def world(clock: StillClock) -> World:
    return World(clock)


@pytest.fixture
def monitor(clock: StillClock) -> SourceMonitor:
    return SourceMonitor("inv", clock)


@pytest.fixture
def publication(world: World, monitor: SourceMonitor, clock: StillClock) -> Publication:
    return Publication(SETTINGS, cast(Frontier, world), cast(Publisher, world), monitor, clock)


def test_markers_ahead_wait_until_the_frontier_has_stood_still(
    publication: Publication, world: World, clock: StillClock
) -> None:
    world.is_ahead = True
    clock.seconds += 0.499
    publication.publish_if_due(0, lambda: STATUS)
    assert world.told_ahead == 0

    clock.seconds += 0.001
    publication.publish_if_due(0, lambda: STATUS)
    publication.publish_if_due(0, lambda: STATUS)
    assert world.told_ahead == 1

    clock.seconds += 0.25
    publication.publish_if_due(0, lambda: STATUS)
    assert world.told_ahead == 2


def test_markers_ahead_begin_to_wait_anew_with_each_cut(
    publication: Publication, world: World, clock: StillClock
) -> None:
    world.is_ahead = True
    clock.seconds += 0.4
    world.ready = [cut(1)]
    publication.publish_if_due(2, lambda: STATUS)
    clock.seconds += 0.4
    publication.publish_if_due(0, lambda: STATUS)

    assert (world.published, world.told_ahead) == ([1], 0)


def test_what_is_not_ahead_is_not_told(publication: Publication, world: World, clock: StillClock) -> None:
    clock.seconds += 5
    publication.publish_if_due(0, lambda: STATUS)

    assert world.told_ahead == 0


def test_cuts_without_events_are_published_at_a_slower_pace(
    publication: Publication, world: World, clock: StillClock
) -> None:
    for lsn in (1, 2):
        world.ready = [cut(lsn)]
        publication.publish_if_due(0, lambda: STATUS)
        clock.seconds += 0.5
    assert world.published == [1]

    publication.publish_if_due(1, lambda: STATUS)
    assert world.published == [1, 2]


def test_what_was_left_to_another_sidecar_is_tried_again_at_the_pace_of_events(
    publication: Publication, world: World, clock: StillClock
) -> None:
    world.is_waiting = True
    publication.publish_if_due(0, lambda: STATUS)
    clock.seconds += SETTINGS.publish_interval.total_seconds()
    publication.publish_if_due(0, lambda: STATUS)

    assert world.asked == 2


def test_publishing_rests_while_much_is_to_be_read(
    publication: Publication, world: World, clock: StillClock
) -> None:
    world.costs_seconds = 0.02
    world.ready = [cut(1)]
    publication.publish_if_due(2, lambda: STATUS, is_behind=True)
    clock.seconds += 0.07
    world.ready = [cut(2)]
    publication.publish_if_due(2, lambda: STATUS, is_behind=True)
    assert world.published == [1]

    publication.publish_if_due(2, lambda: STATUS, is_behind=False)
    assert world.published == [1, 2]


def test_markers_ahead_rest_as_long_as_they_cost(
    publication: Publication, world: World, clock: StillClock
) -> None:
    world.is_ahead, world.costs_seconds = True, 0.25
    clock.seconds += 5
    publication.publish_if_due(0, lambda: STATUS)
    clock.seconds += 0.125
    publication.publish_if_due(0, lambda: STATUS)
    assert world.told_ahead == 1

    clock.seconds += 0.125
    publication.publish_if_due(0, lambda: STATUS)
    assert world.told_ahead == 2


def test_markers_are_shown_whether_or_not_there_are_cuts(publication: Publication, world: World) -> None:
    publication.publish_if_due(0, lambda: STATUS)
    world.ready = [cut(1)]
    publication.publish_if_due(2, lambda: STATUS)

    assert world.shown == 2


def test_cuts_are_counted_when_they_stand(
    publication: Publication, world: World, monitor: SourceMonitor
) -> None:
    world.ready, world.log_error = [cut(1, events=2)], "away"
    publication.publish(STATUS)
    assert (monitor.cuts, monitor.newest) == (0, None)

    world.log_error, world.is_waiting = None, True
    publication.publish(STATUS)
    assert monitor.cuts == 0, "another sidecar may write them"

    world.ready, world.is_waiting = [cut(2, events=5)], False
    publication.publish(STATUS)
    publication.publish(STATUS)
    assert (monitor.cuts, monitor.transactions, monitor.skipped) == (2, 2, 2)
    assert monitor.newest == cut(2, events=5)


def test_events_are_counted_from_the_cut_before_within_a_timeline(
    publication: Publication, world: World, monitor: SourceMonitor
) -> None:
    for each in (cut(1, events=2), cut(2, events=5), cut(1, events=3, timeline=2)):
        world.ready = [each]
        publication.publish(STATUS)

    assert monitor.events == 5 + 3


def test_events_are_counted_from_the_cut_that_was_gone_on_from(
    world: World, monitor: SourceMonitor, clock: StillClock
) -> None:
    world.newest = PublishedCut(cut(1, events=10), 0)
    publication = Publication(SETTINGS, cast(Frontier, world), cast(Publisher, world), monitor, clock)
    world.ready = [cut(2, events=13)]
    publication.publish(STATUS)

    assert monitor.events == 3


def test_sizes_of_cuts_are_measured_now_and_then(
    publication: Publication, world: World, monitor: SourceMonitor, clock: StillClock
) -> None:
    """A size costs an encoding."""
    for lsn, measured in ((1, 1), (2, 1), (3, 2)):
        world.ready = [cut(lsn)]
        publication.publish(STATUS)
        assert monitor.cut_bytes.cumulative()[-1] == ("+Inf", measured)
        clock.seconds += 0.0625
