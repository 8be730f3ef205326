"""Decisions about a source: what is refused, what is recorded, what is shown."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

import pytest

from slackwater.cdc.envelope import End
from slackwater.cli import main
from slackwater.cli.commands.source import Plan, plan_skip, plan_timeline, refusal_in_force
from slackwater.cli.examination import PartitionFacts, SourceFacts, Sources
from slackwater.cuts import FrontierState, FrontierStatus, RegressionNotice
from slackwater.protocol import (
    Cut,
    InputError,
    LogRecord,
    OpenTransaction,
    PassDecision,
    Refusal,
    SkipDecision,
    SourceTopics,
    SystemClock,
    TimelineDecision,
)
from slackwater_lab.fakes.memory import InMemoryCutLog, InMemoryMarkerStore, InMemoryPipelineLog
from slackwater_lab.fakes.topics import REGISTRATION

CUT = Cut(
    source="inv",
    timeline=1,
    lsn=0x600,
    previous_lsn=0,
    commit_ts_ms=1,
    event_count=5,
    transactions=(),
    end_offsets={},
    transaction_offset=8,
)
MISSING = OpenTransaction(
    xid=77, commit_lsn=0x700, since_ms=1, expected={"s.a": 3}, received={"s.a": 2}, hint="rows are missing"
)
WITHOUT_END = OpenTransaction(xid=78, commit_lsn=None, since_ms=1, expected={}, received={"s.a": 1})
STALLED = FrontierStatus(state=FrontierState.STALLED, wall_ms=1, sidecar="me", timeline=1)
NOTICE = RegressionNotice(transaction_offset=42, xid=9, commit_lsn=0x100, newest_lsn=0x600, has_snapshot=True)
REGRESSED = replace(STALLED, state=FrontierState.REGRESSED, regression=NOTICE)
FACTS = SourceFacts(
    topics=SourceTopics("inv"),
    now_ms=1_000,
    status=STALLED,
    cut=CUT,
    open=(MISSING, WITHOUT_END),
    ends=((19, End(xid=80, commit_lsn=0x800, commit_ts_ms=1, counts={})),),
)
BEGUN = TimelineDecision(source="inv", timeline=2, transaction_offset=42, wall_ms=1, decided_by="ann")


def _passed(plan: Plan[SkipDecision]) -> list[int]:
    return [int(xid) for xid in re.findall(r"  transaction (\d+)", "\n".join(plan.lines))]


def test_a_skip_names_everything_up_to_the_lsn_and_what_has_no_end() -> None:
    plan = plan_skip(FACTS, 0x700, None)
    assert (plan.decision.timeline, _passed(plan)) == (1, [77, 78])


def test_a_skip_leaves_later_transactions_alone() -> None:
    later = replace(MISSING, xid=79, commit_lsn=0x780)
    assert _passed(plan_skip(replace(FACTS, open=(MISSING, later)), 0x700, None)) == [77]


REFUSED = replace(STALLED, state=FrontierState.MISCONFIGURED, detail="a.setting: wrong")


@pytest.mark.parametrize("to_lsn", [0x600, 0x700])
def test_a_source_that_is_refused_may_be_skipped_without_an_open_transaction(to_lsn: int) -> None:
    plan = plan_skip(replace(FACTS, status=REFUSED, open=()), to_lsn, None)
    assert plan.decision.to_lsn == to_lsn
    assert plan.lines[1:] == (
        "The source is refused: a.setting: wrong",
        "With this decision you say that all values up to this commit are right.",
    )


def test_a_source_that_is_refused_may_be_skipped_to_its_cut_when_no_end_is_there_any_more() -> None:
    known = replace(FACTS, status=REFUSED, open=(), ends=())
    assert plan_skip(known, 0x600, None).decision.to_lsn == 0x600
    with pytest.raises(InputError, match="0/601 is above it"):
        plan_skip(known, 0x601, None)


FAULTY = Refusal(source="inv", timeline=1, since_lsn=0x600, newest_lsn=0x780, reason="a.setting: wrong")


@pytest.mark.parametrize("status", [REFUSED, STALLED, replace(STALLED, state=FrontierState.STOPPED), None])
def test_what_was_read_with_a_fault_is_not_skipped_in_part(status: FrontierStatus | None) -> None:
    known = replace(FACTS, status=status)
    with pytest.raises(InputError) as refused:
        plan_skip(known, 0x77F, FAULTY)
    assert "commits after 0/600, up to 0/780, of source inv" in str(refused.value)
    assert "a.setting: wrong" in str(refused.value)
    assert "--to 0/780" in refused.value.hint
    assert "timeline 2" in refused.value.hint


@pytest.mark.parametrize("status", [REFUSED, None])
def test_what_was_read_with_a_fault_is_skipped_as_a_whole(status: FrontierStatus | None) -> None:
    known = replace(FACTS, status=status, open=(), ends=())  # its ENDs are kept no longer
    plan = plan_skip(known, 0x780, FAULTY)
    assert plan.decision.to_lsn == 0x780
    assert "The source is refused: a.setting: wrong" in plan.lines


def test_a_refusal_of_an_earlier_timeline_matters_no_more() -> None:
    known = replace(FACTS, cut=replace(CUT, timeline=2), status=replace(STALLED, timeline=2))
    assert not any("The source is refused" in line for line in plan_skip(known, 0x700, FAULTY).lines)


def _skip(to_lsn: int, timeline: int = 1) -> SkipDecision:
    return SkipDecision(source="inv", timeline=timeline, to_lsn=to_lsn, wall_ms=1, decided_by="ann")


HIGHER = replace(FAULTY, newest_lsn=0x790)


@pytest.mark.parametrize(
    ("records", "in_force"),
    [
        ([], None),
        ([FAULTY, CUT], FAULTY),
        ([FAULTY, HIGHER, FAULTY], HIGHER),
        ([FAULTY, _skip(0x77F), _skip(0x780, timeline=2)], FAULTY),
        ([FAULTY, _skip(0x780)], None),
        ([FAULTY, _skip(0x780), HIGHER], HIGHER),
        ([FAULTY, BEGUN], None),
        ([BEGUN, replace(FAULTY, timeline=2)], replace(FAULTY, timeline=2)),
        ([replace(FAULTY, timeline=2), HIGHER, replace(BEGUN, timeline=2)], replace(FAULTY, timeline=2)),
    ],
)
def test_a_refusal_is_in_force_until_it_is_lifted(records: list[LogRecord], in_force: Refusal | None) -> None:
    assert refusal_in_force(records) == in_force


@pytest.mark.parametrize(
    ("known", "to_lsn", "reason"),
    [
        (FACTS, 0x600, "the frontier is at 0/600"),
        (FACTS, 0x801, "the newest END seen is 0/800, 0/801 is above it"),
        (replace(FACTS, ends=()), 0x701, "the newest END seen is 0/700"),
        (replace(FACTS, ends=(), open=()), 0x700, "no END was seen"),
        (replace(FACTS, open=()), 0x700, "no transaction up to 0/700 has been open"),
        (replace(FACTS, kafka_error="refused"), 0x700, "refused"),
        (replace(FACTS, cut=None, status=None), 0x700, "nothing is known about inv"),
    ],
)
def test_a_skip_is_refused_when_it_makes_no_sense(known: SourceFacts, to_lsn: int, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        plan_skip(known, to_lsn, None)


def test_a_timeline_begins_where_lsns_went_back() -> None:
    plan = plan_timeline(replace(FACTS, status=REGRESSED), [], without_snapshot=False)
    assert (plan.decision.timeline, plan.decision.transaction_offset) == (2, 42)


def test_a_timeline_is_counted_from_the_one_that_is_followed() -> None:
    followed = replace(REGRESSED, timeline=5)
    assert (
        plan_timeline(replace(FACTS, status=followed), [BEGUN], without_snapshot=False).decision.timeline == 6
    )


def test_a_timeline_needs_a_regression_a_snapshot_and_no_other_decision() -> None:
    with pytest.raises(InputError, match="is stalled, not regressed"):
        plan_timeline(FACTS, [], without_snapshot=True)
    regressed = replace(FACTS, status=REGRESSED)
    with pytest.raises(InputError, match="timeline 2 has already been decided"):
        plan_timeline(regressed, [BEGUN], without_snapshot=True)
    bare = replace(FACTS, status=replace(REGRESSED, regression=replace(NOTICE, has_snapshot=False)))
    with pytest.raises(InputError, match="--without-snapshot"):
        plan_timeline(bare, [], without_snapshot=False)
    assert plan_timeline(bare, [], without_snapshot=True).decision.timeline == 2


class World:
    """A source in memory behind the commands."""

    def __init__(self) -> None:
        self.facts = FACTS
        self.log = InMemoryCutLog("inv")
        self.store = InMemoryMarkerStore()
        self.pipelines = InMemoryPipelineLog()

    @property
    def recorded(self) -> list[LogRecord]:
        return [r.record for r in self.log.records(-1)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()

    def probe() -> NoReturn:
        pytest.fail("the facts are given")

    @contextmanager
    def open_sources(*_: object) -> Iterator[Sources]:
        log, pipelines = world.log, world.pipelines
        yield Sources(SourceTopics("inv"), {}, world.store, log, pipelines, probe, SystemClock())

    for command in ("source", "status"):
        monkeypatch.setattr(f"slackwater.cli.commands.{command}.open_sources", open_sources)
        monkeypatch.setattr(f"slackwater.cli.commands.{command}.examine", lambda _: world.facts)
    return world


def test_a_skip_is_recorded_with_who_and_why(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--source", "inv", "--to", "0/700", "--reason", "ticket 17", "--yes"]
    assert main.run(["source", "skip", *flags]) == 0

    (decision,) = world.recorded
    assert isinstance(decision, SkipDecision)
    assert (decision.timeline, decision.to_lsn, decision.reason) == (1, 0x700, "ticket 17")
    assert "@" in decision.decided_by
    shown = capsys.readouterr().out
    assert "transaction 77" in shown
    assert "transaction 78" in shown
    assert "offset 0" in shown


def test_a_skip_below_the_refusal_in_the_cut_log_is_refused_by_name(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.log.append_records([FAULTY])
    assert main.run(["source", "skip", "--source", "inv", "--to", "0/700", "--yes"]) == 1
    shown = capsys.readouterr().err
    assert "up to 0/780, of source inv were read while the connector had a fault (a.setting: wrong)" in shown
    assert world.recorded == [FAULTY]


def test_without_a_yes_nothing_is_recorded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "n")
    assert main.run(["source", "skip", "--source", "inv", "--to", "0/700"]) == 130
    assert world.recorded == []


def test_a_refused_decision_is_not_recorded_and_says_why(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["source", "skip", "--source", "inv", "--to", "9/0", "--yes"]) == 1
    assert "nothing was decided: the newest END seen is 0/800" in capsys.readouterr().err
    assert world.recorded == []


def test_a_new_timeline_is_recorded_and_pipelines_are_told(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.facts = replace(FACTS, status=REGRESSED)
    for name, source in (("orders", "inv"), ("others", "crm")):
        world.pipelines.register(replace(REGISTRATION, pipeline=name, source=source))
    assert main.run(["source", "new-timeline", "--source", "inv", "--yes"]) == 0

    (decision,) = world.recorded
    assert isinstance(decision, TimelineDecision)
    assert (decision.timeline, decision.transaction_offset) == (2, 42)
    shown = capsys.readouterr().out
    assert "new --checkpoint" in shown
    assert "SLACKWATER_TIMELINE=2" in shown
    assert "Registered: orders\n" in shown


def test_show_lists_the_decisions(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.log.append([CUT])
    world.log.append_records([BEGUN])
    world.store.set_status("inv", replace(REGRESSED, detail="LSNs went back"))
    assert main.run(["source", "show", "--source", "inv"]) == 0
    shown = capsys.readouterr().out
    assert "0/600 on timeline 1" in shown
    assert "regressed: LSNs went back" in shown
    assert "begin timeline 2 at transaction offset 42" in shown


def test_the_doctor_ends_with_1_when_something_is_wrong_and_with_0_otherwise(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["doctor", "--source", "inv"]) == 1
    assert "transaction 77: commit 0/700" in capsys.readouterr().out
    healthy = FrontierStatus(state=FrontierState.RUNNING, wall_ms=1_000, sidecar="me")
    transactions = PartitionFacts(low=0, stable_end=9, end=9)
    world.facts = replace(FACTS, open=(), status=healthy, transactions=transactions)
    assert main.run(["doctor", "--source", "inv", "--json"]) == 0
    assert '"is_healthy": true' in capsys.readouterr().out


def test_without_a_source_the_doctor_examines_all_of_the_settings(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLACKWATER_SOURCES", "inv,crm")
    assert main.run(["doctor"]) == 1
    assert capsys.readouterr().out.count("needs attention") == 2
    monkeypatch.delenv("SLACKWATER_SOURCES")
    assert main.run(["doctor"]) == 2
    assert "SLACKWATER_SOURCE" in capsys.readouterr().err


def test_a_damaged_record_of_the_cut_log_may_be_passed(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.log.append_bytes(b"not ours")
    at = world.log.append_bytes(b'{"v":2,"source":7}')
    flags = ["source", "pass-record", "--source", "inv", "--reason", "ticket 18", "--yes", "--offset"]
    for offset in ("0", "2", "-1"):
        assert main.run([*flags, offset]) == 1
        assert "there is no damaged record" in capsys.readouterr().err
    assert main.run([*flags, str(at)]) == 0
    assert "damaged: " in capsys.readouterr().out

    (decision,) = world.recorded
    assert isinstance(decision, PassDecision)
    assert (decision.log_offset, decision.reason) == (at, "ticket 18")
    assert main.run([*flags, str(at)]) == 1, "it is decided"
    capsys.readouterr()
    assert main.run(["source", "show", "--source", "inv"]) == 0
    assert "read on past offset 1 of the cut log" in capsys.readouterr().out
