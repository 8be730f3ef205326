"""Operators' decisions are read from the cut log."""

import pytest

from slackwater.protocol import Refusal, SkipDecision, TimelineDecision
from slackwater_lab.fakes.memory import InMemoryCutLog
from slackwater_sidecar.resume import LoggedDecisions


def skip(to_lsn: int, timeline: int = 1) -> SkipDecision:
    return SkipDecision(source="inv", timeline=timeline, to_lsn=to_lsn, wall_ms=1, decided_by="ann")


def begins(timeline: int) -> TimelineDecision:
    return TimelineDecision(
        source="inv", timeline=timeline, transaction_offset=4, wall_ms=1, decided_by="ann"
    )


def refused(timeline: int) -> Refusal:
    return Refusal(source="inv", timeline=timeline, since_lsn=1, newest_lsn=4, reason="a.setting: wrong")


@pytest.fixture
def log() -> InMemoryCutLog:
    return InMemoryCutLog("inv")


def test_decisions_are_read_once_each_and_only_those_of_this_timeline(log: InMemoryCutLog) -> None:
    log.append_records([skip(1), skip(2, timeline=3)])
    decisions = LoggedDecisions(log, 1, -1)

    assert decisions.new() == [skip(1)]
    assert decisions.new() == []
    log.append_records([skip(5), begins(1), begins(2)])
    assert decisions.new() == [skip(5), begins(2)]


def test_refusals_of_this_timeline_are_told_in_order(log: InMemoryCutLog) -> None:
    log.append_records([refused(1), refused(2), skip(5, timeline=2), refused(3)])

    assert LoggedDecisions(log, 2, -1).new() == [refused(2), skip(5, timeline=2)]


def test_a_refusal_that_a_skip_has_ended_is_not_told_again_once_cuts_have_followed(
    log: InMemoryCutLog,
) -> None:
    log.append_records([refused(1), skip(3), skip(4), refused(1)])

    assert LoggedDecisions(log, 1, newest_offset=1).new() == [refused(1), skip(3), skip(4), refused(1)]
    assert LoggedDecisions(log, 1, newest_offset=2).new() == [refused(1), skip(3), skip(4), refused(1)]
    assert LoggedDecisions(log, 1, newest_offset=3).new() == [skip(3), skip(4), refused(1)]
    assert LoggedDecisions(log, 1, newest_offset=9).new() == [skip(3), skip(4), refused(1)]


def test_a_decision_shortly_before_the_newest_cut_is_read_again_and_one_long_before_it_is_not(
    log: InMemoryCutLog,
) -> None:
    """It may not have been carried out in full."""
    log.append_records([skip(1), skip(2)])

    assert LoggedDecisions(log, 1, newest_offset=5_000).new() == [skip(1), skip(2)]
    assert LoggedDecisions(log, 1, newest_offset=5_001).new() == [skip(2)]


def test_a_decision_that_comes_while_the_log_is_read_is_told_once(
    log: InMemoryCutLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append_records([skip(1), skip(2)])
    decisions = LoggedDecisions(log, 1, -1)
    with monkeypatch.context() as patched:
        patched.setattr(log, "end", lambda: 1)  # before the second one came
        assert decisions.new() == [skip(1), skip(2)]

    assert decisions.new() == []


def test_a_log_that_has_not_grown_is_not_read(log: InMemoryCutLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append_bytes(b"of somebody else")
    decisions = LoggedDecisions(log, 1, -1)
    assert decisions.new() == []
    monkeypatch.setattr(log, "records", lambda *_args, **_named: pytest.fail("read again"))

    assert decisions.new() == []
