"""What ``slackwater status`` says."""

import json
from collections.abc import Container
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from slackwater.cli import main, pipelines
from slackwater.cli.commands.status import source_status, status_lines
from slackwater.control import ComponentKind, PipelineState, SourceSigns, make_topology
from slackwater.cuts import FrontierState, FrontierStatus, RedisMarkerStore
from slackwater.protocol import (
    ConnectorReport,
    Cut,
    OpenTransaction,
    PublishedCut,
    SlotReport,
    SystemClock,
    TaskReport,
    epoch_ms,
)
from slackwater.settings.model import RedisSection, Settings
from slackwater_lab.fakes.memory import InMemoryCutLog, InMemoryMarkerStore, InMemoryPipelineLog
from slackwater_lab.fakes.topics import REGISTRATION

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW_MS = epoch_ms(NOW)


def published(lsn: int) -> PublishedCut:
    cut = Cut(
        source="inv",
        timeline=1,
        lsn=lsn,
        previous_lsn=0,
        commit_ts_ms=NOW_MS - 400,
        event_count=12345,
        transactions=(),
        end_offsets={"inv.a": (1, 2)},
        transaction_offset=3,
    )
    return PublishedCut(cut, 0)


def running(seconds_ago: int = 1, detail: str = "") -> FrontierStatus:
    wall_ms = NOW_MS - 1000 * seconds_ago
    return FrontierStatus(state=FrontierState.RUNNING, detail=detail, wall_ms=wall_ms, sidecar="host/7")


@pytest.fixture
def store() -> InMemoryMarkerStore:
    store = InMemoryMarkerStore()
    store.put_cut(published(0x1_0000_00FF), running())
    return store


class Hurried(SystemClock):
    """A clock by which ten seconds pass whenever it is read."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def monotonic(self) -> float:
        self._seconds += 10
        return self._seconds


@pytest.fixture
def nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "SystemClock", Hurried)


class YoungStore(InMemoryMarkerStore):
    """A Redis that has started over, or was silent: a sidecar reports to it after two questions."""

    def __init__(self, *, has_old_report: bool = False) -> None:
        super().__init__()
        self.questions = 0
        if has_old_report:
            self.set_status("inv", running())

    def status(self, source: str) -> FrontierStatus | None:
        self.questions += 1
        if self.questions == 3:
            self.set_status(source, replace(running(), wall_ms=epoch_ms(datetime.now(UTC))))  # noqa: TID251
        return super().status(source)


def text(store: InMemoryMarkerStore) -> str:
    return "\n".join(status_lines(store, "inv", 1, NOW))


def test_an_unknown_source_gets_advice() -> None:
    assert "no sidecar has reported" in text(InMemoryMarkerStore())


def test_the_frontier_is_shown_as_postgresql_prints_it_with_its_age(store: InMemoryMarkerStore) -> None:
    assert "1/FF (4294967551)" in text(store)
    assert "0.4 s ago" in text(store)
    assert "12,345 in 1 topics, 2 partitions" in text(store)


def test_a_sidecar_without_a_cut_shows_its_state() -> None:
    store = InMemoryMarkerStore()
    store.set_status("inv", running(detail="the topic inv.transaction does not exist"))
    assert "running: the topic inv.transaction does not exist" in text(store)
    assert "no cut yet" in text(store)


def test_the_connector_is_shown_as_the_sidecar_sees_it(store: InMemoryMarkerStore) -> None:
    report = ConnectorReport(
        read_ms=NOW_MS,
        since_ms=NOW_MS,
        state="RUNNING",
        tasks=(TaskReport(number=0, state="RUNNING"),),
        heartbeat_ms=NOW_MS - 2_000,
        slot=SlotReport(name="inv", exists=True, is_active=True, retained_bytes=3 << 20),
    )
    store.set_status("inv", replace(running(), connector=report))
    shown = text(store)
    assert "running, task 0 running" in shown
    assert "heartbeat      2.0 s ago" in shown
    assert "inv, in use, 3.0 MiB of WAL kept" in shown


def test_open_transactions_say_what_is_missing(store: InMemoryMarkerStore) -> None:
    assert "open transactions: none" in text(store)
    waiting = OpenTransaction(
        xid=77,
        commit_lsn=1,
        since_ms=NOW_MS - 5000,
        expected={"inventory.orders": 3},
        received={"inventory.orders": 1, "inventory.order_lines": 2},
    )
    store.set_open("inv", [waiting])
    assert "xid 77" in text(store)
    assert "inventory.order_lines 2 / ?, inventory.orders 1 / 3" in text(store)


def test_the_timeline_that_the_sidecar_follows_is_shown(store: InMemoryMarkerStore) -> None:
    second = replace(published(0xAA).cut, timeline=2)
    store.put_cut(PublishedCut(second, 1), replace(running(), timeline=2))
    assert "inv, timeline 2" in text(store)
    assert "0/AA" in text(store)


def test_a_sidecar_that_gave_up_is_not_called_silent(store: InMemoryMarkerStore) -> None:
    store.set_status("inv", replace(running(60, "offsets are gone"), state=FrontierState.FAILED))
    assert "failed: offsets are gone" in text(store)
    assert "silent" not in text(store)


def test_programs_get_the_same_and_a_verdict(store: InMemoryMarkerStore) -> None:
    found = source_status(store, "inv", 1, NOW_MS, [])
    assert (found.is_well, found.state, found.frontier, found.delay_ms) == (True, "running", "1/FF", 400)
    assert (found.event_count, found.open_transactions, found.pipelines) == (12345, (), ())


def test_a_source_of_which_nothing_is_known_is_not_well() -> None:
    found = source_status(InMemoryMarkerStore(), "inv", 1, NOW_MS, None)
    assert (found.is_well, found.state, found.frontier, found.pipelines) == (False, None, None, None)


@pytest.mark.parametrize("state", [state for state in FrontierState if state is not FrontierState.RUNNING])
def test_a_source_that_does_not_move_is_not_well(store: InMemoryMarkerStore, state: FrontierState) -> None:
    store.set_status("inv", replace(running(), state=state))
    assert not source_status(store, "inv", 1, NOW_MS, []).is_well


def test_a_silent_sidecar_is_not_well(store: InMemoryMarkerStore) -> None:
    store.set_status("inv", running(seconds_ago=600))
    found = source_status(store, "inv", 1, NOW_MS, [])
    assert not found.is_well
    assert [each.kind for each in found.causes] == [ComponentKind.SIDECAR]


@pytest.mark.parametrize(
    ("state", "is_well"), [("running", True), ("left", True), ("failed", False), ("vanished", False)]
)
def test_a_pipeline_that_failed_or_vanished_is_trouble(
    store: InMemoryMarkerStore, state: str, is_well: bool
) -> None:
    pipeline = SimpleNamespace(
        state=PipelineState(state),
        name="orders",
        host="h",
        pid=1,
        failure="no disk",
        ended_ms=None,
        heard_ms=NOW_MS - 60_000 if state == "vanished" else NOW_MS,
    )
    assert source_status(store, "inv", 1, NOW_MS, [pipeline]).is_well is is_well  # type: ignore[list-item]


@pytest.mark.usefixtures("nothing_is_waited_for")
@pytest.mark.parametrize(("is_known", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_says_it_too(
    store: InMemoryMarkerStore,
    is_known: bool,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = store if is_known else InMemoryMarkerStore()
    if is_known:
        kept.set_status("inv", replace(running(), wall_ms=epoch_ms(datetime.now(UTC))))  # noqa: TID251
    monkeypatch.setattr(kept, "close", lambda: None, raising=False)
    monkeypatch.setattr(RedisMarkerStore, "connect", lambda *_, **__: kept)
    arguments = ["status", "--source", "inv", "--redis-url", "redis://h:1"]
    assert main.run([*arguments, "--json"]) == code
    said = json.loads(capsys.readouterr().out)
    assert (said["source"], said["is_well"], said["pipelines"]) == ("inv", is_known, None)
    assert main.run(arguments) == code
    assert "pipelines: not shown, because --bootstrap is not set" in capsys.readouterr().out


@pytest.mark.parametrize("has_old_report", [False, True])
def test_a_redis_that_is_back_is_asked_until_the_sidecar_has_reported(
    has_old_report: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = YoungStore(has_old_report=has_old_report)
    monkeypatch.setattr(store, "close", lambda: None, raising=False)
    monkeypatch.setattr(RedisMarkerStore, "connect", lambda *_, **__: store)
    clock = SimpleNamespace(monotonic=lambda: 0.0, now=SystemClock().now)
    monkeypatch.setattr(pipelines, "SystemClock", lambda: clock)
    assert main.run(["status", "--source", "inv", "--redis-url", "redis://h:1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["causes"] == []
    (found,) = pipelines.read_signs(YoungStore(has_old_report=has_old_report), ["inv"])
    assert found.status is not None
    assert found.status.wall_ms > NOW_MS
    assert found.status.sidecar == "host/7"


@pytest.mark.usefixtures("nothing_is_waited_for")
def test_a_sidecar_that_does_not_report_is_waited_for_once() -> None:
    store = YoungStore()
    assert (pipelines.reported_status(store, "inv"), store.questions) == (None, 1)


def test_who_was_silent_before_is_not_waited_for() -> None:
    (found,) = pipelines.read_signs(YoungStore(), ["inv"], silent=["inv"])
    assert found.status is None


def test_the_page_waits_for_a_sidecar_once_and_again_after_redis_was_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[str]] = []

    def read_signs(_: object, __: object, silent: Container[str]) -> list[SourceSigns]:
        asked.append([name for name in ("away", "heard", "silent", "old") if name in silent])
        return []

    monkeypatch.setattr(pipelines, "read_signs", read_signs)
    monkeypatch.setattr(RedisMarkerStore, "connect", lambda *_, **__: SimpleNamespace(close=lambda: None))
    before = [
        SourceSigns(source="away", redis_error="refused"),
        SourceSigns(source="heard", status=replace(running(), wall_ms=epoch_ms(SystemClock().now()))),
        SourceSigns(source="silent"),
        SourceSigns(source="old", status=running()),
    ]
    settings = Settings(redis=RedisSection(url="redis://h:1"))
    pipelines.signs_of_topology(settings, make_topology([], {}, NOW_MS), before)
    assert asked == [["silent", "old"]]


@pytest.mark.usefixtures("nothing_is_waited_for")
def test_a_source_that_only_its_sidecar_knows_is_shown_and_an_unknown_one_is_an_error(
    store: InMemoryMarkerStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = InMemoryPipelineLog()
    log.register(REGISTRATION)
    monkeypatch.setattr(pipelines, "PipelineLog", lambda *_, **__: log)
    monkeypatch.setattr(pipelines, "CutLog", lambda name, *_, **__: InMemoryCutLog(name))
    monkeypatch.setattr(RedisMarkerStore, "connect", lambda *_, **__: store)
    store.set_status("fresh", replace(running(), state=FrontierState.MISCONFIGURED, detail="no snapshot"))
    where = ("--redis-url", "redis://h:1", "--bootstrap", "h:2")
    assert main.run(["status", "--source", "fresh", *where]) == 1
    assert "misconfigured: no snapshot" in capsys.readouterr().out
    assert main.run(["status", "--source", "inw", *where]) == 1
    said = capsys.readouterr()
    assert (said.out, "unknown source 'inw'; did you mean inv?" in said.err) == ("", True)
