"""Leases as a reader takes them; outputs and pipelines answer as a test decides, the topic is in memory.

That pipelines really keep what they say is shown in ``tests/system/test_barriers.py``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slackwater.client import (
    NotVisibleError,
    ReadableStates,
    ReadLevel,
    StateNotKeptError,
    TypedRows,
    ViewSnapshot,
    VisibleCommit,
    end_lease,
    find_lease,
    read_views,
    renew_lease,
    take_lease,
)
from slackwater.client.snapshot import Key
from slackwater.control import LeaseState
from slackwater.protocol import CommitPosition, ConfigError, Hold, Lease, LeaseRecord, SystemClock, epoch_ms
from slackwater_lab.fakes.memory import InMemoryLeaseLog

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
NO_TIME = timedelta(0)


def at(lsn: int) -> CommitPosition:
    return CommitPosition(1, lsn)


class StoppedClock(SystemClock):
    """Stands still until it is moved."""

    moment = NOW

    def now(self) -> datetime:
        return self.moment


@dataclass(eq=False)
class Output:
    """An output of one view, readable where batches ended."""

    pipeline: str
    ends: list[int]
    source: str = "inv"
    reads: list[CommitPosition | None] = field(default_factory=list)

    def views(self) -> Sequence[str]:
        return [f"{self.pipeline}_view"]

    def newest(self) -> VisibleCommit | None:
        return VisibleCommit(self.source, at(self.ends[-1]))

    def states(self, views: Sequence[str]) -> ReadableStates | None:
        return ReadableStates(VisibleCommit(self.source, at(self.ends[-1])), NOW, [at(e) for e in self.ends])

    def read(self, views: Sequence[str], at: CommitPosition | None, key: Key | None) -> ViewSnapshot:
        self.reads.append(at)
        assert at is not None
        return ViewSnapshot(self.source, at, {view: [] for view in views})

    def rows(self, view: str, at: CommitPosition) -> TypedRows:
        raise NotImplementedError

    def close(self) -> None: ...


class Topic(InMemoryLeaseLog):
    """A topic in which pipelines answer as soon as they see a lease."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: Callable[[Lease, str], str | None] = lambda lease, pipeline: ""

    def write(self, *records: LeaseRecord) -> None:
        super().write(*records)
        for lease in (each for each in records if isinstance(each, Lease)):
            for name in lease.pipelines:
                reason = self.answer(lease, name)
                if reason is not None:
                    end = lease.expires_ms
                    super().write(Hold(lease=lease.id, pipeline=name, until_ms=end, refusal=reason))


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


@pytest.fixture
def outputs() -> list[Output]:
    return [Output("left", [100, 200, 300]), Output("right", [100, 200, 400])]


def take(topic: Topic, outputs: Sequence[Output], clock: StoppedClock, **options: Any) -> Lease:
    return take_lease(
        topic, outputs, duration=HOUR, holder="a report", timeout=NO_TIME, clock=clock, **options
    )


def test_a_lease_is_of_the_newest_common_commit_and_names_its_pipelines(
    topic: Topic, outputs: list[Output], clock: StoppedClock
) -> None:
    lease = take(topic, outputs, clock)
    assert (lease.source, lease.position, lease.pipelines) == ("inv", at(200), ("left", "right"))
    assert (lease.taken_ms, lease.expires_ms) == (epoch_ms(NOW), epoch_ms(NOW + HOUR))
    assert find_lease(topic, lease.id, epoch_ms(NOW)).state is LeaseState.HELD


def test_a_pipeline_that_shows_no_view_yet_is_not_left_out(
    topic: Topic, outputs: list[Output], clock: StoppedClock
) -> None:
    class Empty(Output):
        def views(self) -> Sequence[str]:
            return []

    with pytest.raises(NotVisibleError, match="pipeline 'new': nothing is visible yet"):
        take(topic, [*outputs, Empty("new", [100])], clock)
    assert topic.read() == []


def test_a_lease_on_some_views_binds_only_their_pipelines(
    topic: Topic, outputs: list[Output], clock: StoppedClock
) -> None:
    lease = take(topic, outputs, clock, views=["right_view"])
    assert (lease.position, lease.pipelines) == (at(400), ("right",))


def test_whatever_happens_meanwhile_a_lease_is_read_at_its_commit(
    topic: Topic, outputs: list[Output], clock: StoppedClock
) -> None:
    lease = take(topic, outputs, clock)
    for output in outputs:
        output.ends += [500]
    assert read_views(outputs, clock=clock).position == at(500)
    assert read_views(outputs, at=lease, clock=clock).position == at(200)
    assert read_views(outputs, at=lease, level=ReadLevel.REPEATABLE, clock=clock).position == at(200)


def test_outputs_of_another_database_are_not_read_by_a_lease(
    topic: Topic, outputs: list[Output], clock: StoppedClock
) -> None:
    lease = take(topic, outputs, clock)
    with pytest.raises(ConfigError, match=f"different sources: lease {lease.id} of inv, left of other"):
        read_views([Output("left", [100, 200, 300], source="other")], at=lease, clock=clock)


def test_a_lease_that_is_over_is_not_read(topic: Topic, outputs: list[Output], clock: StoppedClock) -> None:
    lease = take(topic, outputs, clock)
    clock.moment += HOUR - timedelta(milliseconds=1)
    read_views(outputs, at=lease, clock=clock)
    clock.moment += timedelta(milliseconds=1)
    with pytest.raises(StateNotKeptError, match=r"ended at 2026-11-26 13:00:00 UTC.*take a new one"):
        read_views(outputs, at=lease, clock=clock)


def test_level_and_lease_have_to_go_together(
    topic: Topic, outputs: list[Output], clock: StoppedClock
) -> None:
    lease = take(topic, outputs, clock)
    with pytest.raises(ConfigError, match="repeatable was requested without a lease"):
        read_views(outputs, level=ReadLevel.REPEATABLE)
    with pytest.raises(ConfigError, match="without a lease"):
        read_views(outputs, at=at(200), level=ReadLevel.REPEATABLE)
    with pytest.raises(ConfigError, match="commit 1/0/C8 was requested at level uncommitted"):
        read_views(outputs, at=lease, level=ReadLevel.UNCOMMITTED, clock=clock)


def test_a_refusal_is_told_with_its_reason_and_leaves_nothing_behind(
    topic: Topic, outputs: list[Output], clock: StoppedClock
) -> None:
    topic.answer = lambda lease, pipeline: "it has no history" if pipeline == "right" else ""
    with pytest.raises(StateNotKeptError, match="1/0/C8 cannot be held: pipeline 'right': it has no history"):
        take(topic, outputs, clock)
    assert topic.read() == []


def test_who_does_not_answer_is_named_and_nothing_is_left_behind(
    topic: Topic, outputs: list[Output], clock: StoppedClock
) -> None:
    topic.answer = lambda lease, pipeline: "" if pipeline == "right" else None
    with pytest.raises(StateNotKeptError, match=r"'left' did not answer within 0 s.*only a running pipeline"):
        take(topic, outputs, clock)
    assert topic.read() == []


def test_a_state_that_went_before_it_was_held_is_no_lease(
    topic: Topic, outputs: list[Output], clock: StoppedClock
) -> None:
    def answer_late(lease: Lease, pipeline: str) -> str:
        outputs[1].ends = [400]
        return ""

    topic.answer = answer_late
    with pytest.raises(StateNotKeptError, match="'right' holds commit 1/0/C8, but parts of that state had"):
        take(topic, outputs, clock)
    assert topic.read() == []


def test_a_lease_that_somebody_ends_while_it_is_taken_is_told(
    topic: Topic, outputs: list[Output], clock: StoppedClock
) -> None:
    def ended(lease: Lease, pipeline: str) -> None:
        topic.remove([lease])

    topic.answer = ended
    with pytest.raises(StateNotKeptError, match="was ended by another process"):
        take(topic, outputs, clock)


def test_without_a_common_commit_there_is_no_lease(topic: Topic, clock: StoppedClock) -> None:
    outputs = [Output("left", [100]), Output("right", [200])]
    with pytest.raises(StateNotKeptError, match="'left' is behind"):
        take(topic, outputs, clock)
    assert topic.read() == []


def test_outputs_of_two_sources_have_no_lease(topic: Topic, clock: StoppedClock) -> None:
    with pytest.raises(ConfigError, match=r"different sources: left of inv, right of other"):
        take(topic, [Output("left", [100]), Output("right", [100], source="other")], clock)


def test_a_lease_is_renewed_from_now_on(topic: Topic, outputs: list[Output], clock: StoppedClock) -> None:
    lease = take(topic, outputs, clock)
    clock.moment += HOUR / 2
    renewed = renew_lease(topic, lease.id, duration=2 * HOUR, timeout=NO_TIME, clock=clock)
    assert renewed == replace(lease, expires_ms=epoch_ms(NOW + HOUR / 2 + 2 * HOUR))
    assert find_lease(topic, lease.id, epoch_ms(clock.moment)).state is LeaseState.HELD


def test_a_lease_that_is_over_is_not_renewed(
    topic: Topic, outputs: list[Output], clock: StoppedClock
) -> None:
    lease = take(topic, outputs, clock)
    clock.moment += 2 * HOUR
    with pytest.raises(ConfigError, match="it has expired, was ended, or never existed"):
        renew_lease(topic, lease.id, duration=HOUR, timeout=NO_TIME, clock=clock)


@pytest.mark.parametrize("answer", ["too long", None])
def test_a_renewal_that_is_not_granted_leaves_the_lease_as_it_was(
    topic: Topic, outputs: list[Output], clock: StoppedClock, answer: str | None
) -> None:
    lease = take(topic, outputs, clock)
    topic.answer = lambda asked, pipeline: "" if asked.expires_ms == lease.expires_ms else answer
    with pytest.raises(StateNotKeptError):
        renew_lease(topic, lease.id, duration=2 * HOUR, timeout=NO_TIME, clock=clock)
    found = find_lease(topic, lease.id, epoch_ms(NOW))
    assert (found.lease, found.state) == (lease, LeaseState.HELD)


def test_a_lease_is_ended_by_anybody_and_only_once(
    topic: Topic, outputs: list[Output], clock: StoppedClock
) -> None:
    lease, other = take(topic, outputs, clock), take(topic, outputs, clock)
    assert end_lease(topic, lease.id)
    assert not end_lease(topic, lease.id)
    assert {each.id if isinstance(each, Lease) else each.lease for each in topic.read()} == {other.id}
    with pytest.raises(ConfigError, match=f"there is no lease '{lease.id}'.*leases: {other.id}"):
        find_lease(topic, lease.id, epoch_ms(NOW))
    with pytest.raises(ConfigError, match="there is no lease"):
        renew_lease(topic, lease.id, duration=HOUR, clock=clock)


def test_leases_of_pipelines_that_are_gone_are_removed_by_whoever_takes_the_next_one(
    topic: Topic, outputs: list[Output], clock: StoppedClock
) -> None:
    first = take(topic, outputs, clock)
    clock.moment += HOUR + timedelta(seconds=59)
    second = take(topic, outputs, clock)
    assert {each.id for each in topic.read() if isinstance(each, Lease)} == {first.id, second.id}
    clock.moment += timedelta(seconds=1)
    third = take(topic, outputs, clock)
    assert {each.id for each in topic.read() if isinstance(each, Lease)} == {second.id, third.id}
    assert {each.lease for each in topic.read() if isinstance(each, Hold)} == {second.id, third.id}
