"""What `slackwater pipeline` lists, and what it removes from the picture."""

import json
from dataclasses import replace

import pytest

from slackwater.cli import main, pipelines
from slackwater.cli.commands.pipeline import check_unread, pipeline_rows, taking_name
from slackwater.control import holder_of, known_runs, make_topology
from slackwater.protocol import (
    InputError,
    Lease,
    PipelineEntry,
    PipelineRecord,
    PipelineReport,
    RunEnd,
    SystemClock,
    epoch_ms,
)
from slackwater_lab.fakes.memory import InMemoryCutLog, InMemoryPipelineLog
from slackwater_lab.fakes.topics import REGISTRATION as ORDERS

NOW_MS = 1_795_206_900_000
END = RunEnd(ended_ms=NOW_MS, failure="")
REPORT = PipelineReport(
    pipeline="orders",
    run="r",
    batch_id=3,
    timeline=1,
    commit_lsn=0x500,
    commit_ts_ms=NOW_MS - 5_000,
    visible_ms=NOW_MS - 4_600,
)
REVENUE = replace(
    ORDERS,
    pipeline="revenue.v2",
    base_name="revenue",
    revision=2,
    owner="",
    source="shop",
    tables={"public.orders": "shop.public.orders"},
    views=(),
    checkpoint="/d.v2",
    started_ms=NOW_MS - 60_000,
)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> InMemoryPipelineLog:
    log = InMemoryPipelineLog()
    monkeypatch.setattr(pipelines, "PipelineLog", lambda *_, **__: log)
    monkeypatch.setattr(pipelines, "CutLog", lambda name, *_, **__: InMemoryCutLog(name))
    monkeypatch.setenv("SLACKWATER_BOOTSTRAP", "kafka:9092")
    return log


def test_each_pipeline_has_a_line(log: InMemoryPipelineLog) -> None:
    records: tuple[PipelineRecord, ...] = (ORDERS, REPORT, REVENUE)
    entries = [PipelineEntry(record, number, NOW_MS - 1_000) for number, record in enumerate(records)]
    _, orders, revenue = pipeline_rows(make_topology(entries, {}, NOW_MS).pipelines, NOW_MS)
    assert orders[:7] == ("orders", "team shop", "inv", "1", "running", "0/500", "4.6 s ago")
    assert revenue == (
        *("revenue.v2", "-", "shop", "2", "running", "-", "-", "60.0 s ago", "/d.v2"),
        "has shown nothing yet",
    )


def test_programs_get_what_the_control_plane_answers(
    log: InMemoryPipelineLog, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["pipeline", "list"]) == 0
    assert "no pipeline has registered" in capsys.readouterr().out
    for each in (ORDERS, REVENUE):
        log.register(each)
    assert main.run(["pipeline", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["owner"]) for each in found] == [("orders", "team shop"), ("revenue.v2", "")]
    assert main.run(["pipeline", "list", "--source", "shop"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["pipeline", "revenue.v2"]


def test_a_pipeline_that_may_run_is_not_deleted(
    log: InMemoryPipelineLog, capsys: pytest.CaptureFixture[str]
) -> None:
    log.register(ORDERS)
    assert main.run(["pipeline", "delete", "orders"]) == 1
    assert "is running on host-7 (process 4711)" in capsys.readouterr().err
    assert len(log.read()) == 1


def test_a_pipeline_that_has_ended_is_deleted_with_all_its_runs(
    log: InMemoryPipelineLog, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in ("r", "r2"):
        log.register(replace(ORDERS, run=run))
        log.report(replace(REPORT, run=run, end=END))
    other = replace(ORDERS, pipeline="other", run="o")
    log.register(other)
    assert main.run(["pipeline", "delete", "orders"]) == 0
    assert [entry.record for entry in log.read()] == [other]
    assert main.run(["pipeline", "delete", "orders"]) == 1
    assert "unknown pipeline 'orders'" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["delete"], ["delete", "--outputs", "--yes"], ["reset", "--yes"]])
def test_a_pipeline_whose_output_another_one_reads_stays(
    log: InMemoryPipelineLog, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    log.register(ORDERS)
    log.report(replace(REPORT, end=END))
    log.register(REVENUE)
    assert main.run(["pipeline", *command, "orders"]) == 1
    assert "'orders' is read by revenue.v2; nothing was removed" in capsys.readouterr().err
    assert len(log.read()) == 3


def test_what_readers_need_stays() -> None:
    lease = Lease(
        id="abc",
        source="inv",
        timeline=1,
        commit_lsn=1,
        pipelines=("orders",),
        holder="report",
        taken_ms=NOW_MS,
        expires_ms=NOW_MS + 5_000,
    )
    with pytest.raises(InputError, match="readers are switched to 'orders'"):
        check_unread("orders", ["orders"], [], NOW_MS)
    with pytest.raises(InputError, match="lease abc of report needs the state of 'orders' for another 5 s"):
        check_unread("orders", [], [lease], NOW_MS)
    check_unread("orders", ["orders.v2"], [lease], NOW_MS + 5_000)
    check_unread("other", [], [lease], NOW_MS)


def test_no_run_begins_while_a_pipeline_is_being_removed(log: InMemoryPipelineLog) -> None:
    now_ms = epoch_ms(SystemClock().now())
    log.register(ORDERS)
    log.report(replace(REPORT, end=END))
    restarted = replace(ORDERS, run="r2")  # with the same checkpoint
    assert holder_of(restarted, log.read(), now_ms) is None
    with taking_name(log, known_runs(log.read()), now_ms):
        holder = holder_of(restarted, log.read(), now_ms)
        assert holder is not None
    assert log.read() == []
    assert holder_of(restarted, log.read(), now_ms) is None


def test_a_run_that_begins_before_the_name_is_taken_goes_on(log: InMemoryPipelineLog) -> None:
    log.register(ORDERS)
    log.report(replace(REPORT, end=END))
    runs, begun = known_runs(log.read()), replace(ORDERS, run="r2")
    log.register(begun)
    with pytest.raises(InputError, match="is running on host-7"), taking_name(log, runs, NOW_MS):
        pytest.fail("it was removed")
    assert [run.registration.run for run in known_runs(log.read())] == ["r", "r2"]


def test_a_removal_that_fails_leaves_the_pipeline_known(log: InMemoryPipelineLog) -> None:
    log.register(ORDERS)
    log.report(replace(REPORT, end=END))
    with pytest.raises(OSError, match="disk"), taking_name(log, known_runs(log.read()), NOW_MS):
        raise OSError("disk")
    assert "r" in [run.registration.run for run in known_runs(log.read())]
