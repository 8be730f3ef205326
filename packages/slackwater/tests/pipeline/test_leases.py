"""What a run does for leases of readers; the topic is in memory, the output notes its calls.

How they were seen to fail: each condition of ``LeaseHolder`` has a test that fails when it is left out.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slackwater.cuts import TopicUnavailableError
from slackwater.outputs.contract import OutputRefusedError
from slackwater.pipeline.leases import CLOCK_MARGIN, LeaseHolder
from slackwater.protocol import (
    CommitPosition,
    Hold,
    Lease,
    LeaseRecord,
    OvertakenError,
    SystemClock,
    epoch_ms,
)
from slackwater.protocol.errors import run_overtaken
from slackwater_lab.fakes.memory import InMemoryLeaseLog

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
LEASE = Lease(
    id="4f",
    source="inv",
    timeline=1,
    commit_lsn=700,
    pipelines=("orders", "stock"),
    holder="somebody",
    taken_ms=epoch_ms(NOW),
    expires_ms=epoch_ms(NOW + HOUR),
)
AT = LEASE.position
HELD = Hold(lease="4f", pipeline="orders", until_ms=LEASE.expires_ms)


class MovedClock(SystemClock):
    """A clock that is where it is put."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> datetime:
        return self.time


class Output:
    """Notes what it is to hold."""

    def __init__(self) -> None:
        self.told: list[Mapping[CommitPosition, datetime]] = []
        self.root = "inv"
        self.refuses: Mapping[CommitPosition, str] = {}
        self.error: Exception | None = None

    def hold(self, commits: Mapping[CommitPosition, datetime]) -> Mapping[CommitPosition, str]:
        self.told.append(commits)
        if self.error is not None:
            raise self.error
        return self.refuses


class Topic(InMemoryLeaseLog):
    """A topic that can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.error: TopicUnavailableError | None = None
        self.on_answer: Callable[[], None] = lambda: None

    def write(self, *records: LeaseRecord) -> None:
        super().write(*records)
        if any(isinstance(each, Hold) for each in records):
            self.on_answer()

    def read(self) -> list[Any]:
        if self.error is not None:
            raise self.error
        return super().read()


class Run:
    """A holder whose two threads are the test's."""

    def __init__(self) -> None:
        self.topic, self.output, self.clock = Topic(), Output(), MovedClock()
        self.holder = self.new()

    def new(self, refusal: str = "") -> LeaseHolder:
        output: Any = self.output
        return LeaseHolder(
            self.topic,
            pipeline="orders",
            refusal=refusal,
            longest=timedelta(days=1),
            sink=output,
            clock=self.clock,
        )

    def step(self) -> None:
        """Lets the holder read, tell the output, and answer."""
        self.holder.look()
        self.holder.hold()
        self.holder.look()

    def answer(self) -> Hold:
        (found,) = (each for each in self.topic.read() if isinstance(each, Hold))
        return found


@pytest.fixture
def run() -> Run:
    return Run()


def test_a_lease_is_held_until_its_end_and_a_margin_and_answered(run: Run) -> None:
    run.topic.write(LEASE)
    run.step()
    assert run.output.told == [{AT: NOW + HOUR + CLOCK_MARGIN}]
    assert run.answer() == HELD


def test_an_answer_that_changes_while_the_one_before_is_written_is_written_next(run: Run) -> None:
    renewed = replace(LEASE, expires_ms=LEASE.expires_ms + 1)
    run.topic.write(LEASE)
    run.holder.look()
    run.holder.hold()
    seen = []

    def hold_anew() -> None:
        seen.append(run.answer().until_ms)
        run.holder._known = {LEASE.id: renewed}  # noqa: SLF001 - as another look would have found it
        run.holder.hold()

    run.topic.on_answer = hold_anew
    run.holder.look()
    run.holder.look()
    assert seen == [LEASE.expires_ms, renewed.expires_ms]


def test_nothing_is_answered_before_the_output_holds_it(run: Run) -> None:
    run.topic.write(LEASE)
    run.holder.look()
    run.holder.look()
    assert run.topic.read() == [LEASE]


def test_the_output_is_told_only_of_news(run: Run) -> None:
    run.topic.write(LEASE)
    run.step()
    run.step()
    assert len(run.output.told) == 1
    run.topic.write(replace(LEASE, expires_ms=LEASE.expires_ms + 1))
    run.step()
    assert len(run.output.told) == 2
    assert run.answer().until_ms == LEASE.expires_ms + 1


def test_the_output_is_told_once_that_nothing_is_held_but_not_before_that_is_known(run: Run) -> None:
    run.holder.hold()
    assert run.output.told == []
    run.step()
    run.step()
    assert run.output.told == [{}]


def test_of_leases_on_one_commit_the_last_end_counts(run: Run) -> None:
    run.topic.write(LEASE, replace(LEASE, id="5", expires_ms=epoch_ms(NOW + 2 * HOUR)))
    run.topic.write(replace(LEASE, id="6"))
    run.step()
    assert run.output.told == [{AT: NOW + 2 * HOUR + CLOCK_MARGIN}]


def test_leases_that_do_not_name_the_pipeline_are_nothing_to_it(run: Run) -> None:
    run.topic.write(replace(LEASE, pipelines=("stock",)))
    run.step()
    assert run.output.told == [{}]
    assert len(run.topic.read()) == 1


def test_a_new_run_holds_and_answers_what_is_there(run: Run) -> None:
    run.topic.write(LEASE)
    run.step()
    run.holder = run.new()
    run.step()
    assert run.output.told == [{AT: NOW + HOUR + CLOCK_MARGIN}] * 2
    assert run.answer() == HELD


@pytest.mark.parametrize(
    ("lease", "refusal", "reason"),
    [
        (LEASE, "it has no history", "it has no history"),
        (
            replace(LEASE, source="a"),
            "",
            "it shows commits of inv, but the lease is for a commit of a",
        ),
        (
            replace(LEASE, expires_ms=epoch_ms(NOW + timedelta(days=1)) + 1),
            "",
            r"it holds states for at most 86400 s \(run.longest_lease\)",
        ),
    ],
)
def test_what_cannot_be_held_is_refused_with_the_reason_and_the_output_not_told(
    run: Run, lease: Lease, refusal: str, reason: str
) -> None:
    run.holder = run.new(refusal)
    run.topic.write(lease)
    run.step()
    assert run.output.told == [{}]
    assert run.answer().refusal == reason.replace("\\", "")


def test_a_pipeline_that_shows_nothing_yet_refuses(run: Run) -> None:
    run.output.root = ""
    run.topic.write(LEASE)
    run.step()
    assert run.answer().refusal == "it shows nothing yet, but the lease is for a commit of inv"


def test_the_longest_lease_is_held(run: Run) -> None:
    run.topic.write(replace(LEASE, expires_ms=epoch_ms(NOW + timedelta(days=1))))
    run.step()
    assert run.answer().refusal == ""


def test_what_the_output_refuses_is_refused_and_the_rest_held(run: Run) -> None:
    other = replace(LEASE, id="5", commit_lsn=800)
    run.output.refuses = {other.position: "no batch ends there"}
    run.topic.write(LEASE, other)
    run.step()
    answers = {each.lease: each.refusal for each in run.topic.read() if isinstance(each, Hold)}
    assert answers == {"4f": "", "5": "no batch ends there"}


def test_an_output_that_cannot_do_it_refuses_and_the_run_goes_on(run: Run) -> None:
    run.output.error = OutputRefusedError("orders", "the change", "no right", "grant it")
    run.topic.write(LEASE)
    run.step()
    assert "no right" in run.answer().refusal


def test_a_run_that_was_overtaken_ends(run: Run) -> None:
    run.output.error = run_overtaken("orders", "run 2")
    run.topic.write(LEASE)
    run.holder.look()
    with pytest.raises(OvertakenError):
        run.holder.hold()


def end(run: Run) -> None:
    run.clock.time = NOW + HOUR + CLOCK_MARGIN


def revoke(run: Run) -> None:
    run.topic.remove([LEASE])


@pytest.mark.parametrize("ends", [end, revoke])
def test_a_lease_that_is_over_is_let_go_and_leaves_nothing_behind(
    run: Run, ends: Callable[[Run], None]
) -> None:
    run.topic.write(LEASE)
    run.step()
    ends(run)
    run.step()
    assert run.output.told[1:] == [{}]
    assert run.topic.read() == []


def test_a_lease_is_not_let_go_before_the_margin_is_over(run: Run) -> None:
    run.topic.write(LEASE)
    run.step()
    run.clock.time = NOW + HOUR + CLOCK_MARGIN - timedelta(milliseconds=1)
    run.step()
    assert len(run.output.told) == 1
    assert run.topic.read() == [LEASE, HELD]


def test_answers_of_others_stay(run: Run) -> None:
    stock = replace(HELD, pipeline="stock")
    run.topic.write(stock)
    run.step()
    assert run.topic.read() == [stock]


def test_while_the_topic_is_away_what_was_known_counts_and_it_is_said_once(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.topic.write(LEASE)
    run.holder.look()
    run.topic.error = TopicUnavailableError("read", "slackwater.leases", "no answer")
    with caplog.at_level(logging.WARNING, "slackwater.pipeline"):
        run.step()
        run.step()
    assert caplog.text.count("the leases of readers cannot be read") == 1
    assert run.output.told == [{AT: NOW + HOUR + CLOCK_MARGIN}]
    run.topic.error = None
    run.step()
    assert run.answer() == HELD


def test_the_thread_follows_the_topic_and_ends_with_the_run(run: Run) -> None:
    run.topic.write(LEASE)
    run.holder.begin()
    while not run.output.told:
        run.holder.hold()
    run.holder.close()
    run.holder.close()
    assert run.output.told == [{AT: NOW + HOUR + CLOCK_MARGIN}]
