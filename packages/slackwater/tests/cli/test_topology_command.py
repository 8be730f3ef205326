"""What `slackwater topology` shows, and how status and doctor show pipelines."""

import json
from dataclasses import replace
from typing import NoReturn

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from slackwater.cli import main, pipelines
from slackwater.cli.commands.status import make_report, report_lines
from slackwater.cli.commands.topology import topology_dot
from slackwater.cli.diagnosis import Cause, diagnose
from slackwater.cli.examination import SourceFacts
from slackwater.cli.pipelines import pipeline_table, topology_lines, topology_of
from slackwater.control import PipelineNode, Topology, make_topology
from slackwater.cuts import TopicUnavailableError
from slackwater.protocol import Cut, PipelineEntry, PipelineRecord, PipelineReport, RunEnd, SourceTopics
from slackwater_lab.fakes.memory import InMemoryCutLog, InMemoryMarkerStore, InMemoryPipelineLog
from slackwater_lab.fakes.topics import REGISTRATION

NOW_MS = 1_795_206_900_000
ORDERS = replace(
    REGISTRATION,
    stages=(replace(REGISTRATION.stages[0], key=("order_id",)), *REGISTRATION.stages[1:]),
    started_ms=NOW_MS - 60_000,
)
REVENUE = replace(
    ORDERS,
    pipeline="revenue",
    owner="",
    source="shop",
    tables={"public.orders": "shop.public.orders"},
    stages=(),
    views=(replace(ORDERS.views[0], name="revenue", output="revenue", format="json", output_source=""),),
)
REPORT = PipelineReport(
    pipeline="orders",
    run="r",
    batch_id=3,
    timeline=1,
    commit_lsn=0x500,
    commit_ts_ms=NOW_MS - 5_000,
    visible_ms=NOW_MS - 4_600,
    events=3,
    documents=2,
    run_events=3_000,
    run_documents=20,
)
CUT = Cut(
    source="inv",
    timeline=1,
    lsn=0x600,
    previous_lsn=0,
    commit_ts_ms=NOW_MS - 2_000,
    event_count=1,
    transactions=(),
    end_offsets={},
    transaction_offset=1,
)


def picture(*records: PipelineRecord, cut: Cut | None = CUT, silent_ms: int = 1_000) -> Topology:
    entries = [PipelineEntry(record, offset, NOW_MS - silent_ms) for offset, record in enumerate(records)]
    return make_topology(entries, {} if cut is None else {"inv": cut}, NOW_MS)


def test_the_text_names_sources_pipelines_stages_views_and_who_reads_them() -> None:
    assert topology_lines(picture(ORDERS, REPORT, REVENUE)) == [
        "source inv: newest cut 0/600 on timeline 1, committed 2.0 s ago",
        "  tables inventory.lines, inventory.orders",
        "",
        "  pipeline orders, owner team shop: running, 3.0 s behind the newest cut",
        "    run      host-7 process 4711, version 0.1.0, began 2026-11-20 20:34:00 UTC, last "
        "report 1.0 s ago",
        "    shows    0/500, batch 3, visible 0.400 s after its newest commit; "
        "this run: 3,000 change events, 20 documents",
        "    reads    inventory.lines",
        "    reads    inventory.orders",
        "    stage 1  level 1, by order_id: inventory.lines; computes groups",
        "    stage 2  level 2, by id: inventory.orders, stage 1; joins",
        "    view     orders to kafka shop.public.orders (debezium), a table of source shop, read by revenue",
        "",
        "source shop, written by orders: no cut is known",
        "  tables public.orders",
        "",
        "  pipeline revenue: running, has shown nothing yet",
        "    run    host-7 process 4711, version 0.1.0, began 2026-11-20 20:34:00 UTC, last report 1.0 s ago",
        "    reads  public.orders",
        "    view   revenue to kafka revenue (json)",
    ]


def test_an_empty_picture_says_who_fills_it() -> None:
    assert "no pipeline has registered" in "\n".join(topology_lines(picture(cut=None)))


@pytest.mark.parametrize(
    ("report", "cut", "silent_ms", "said"),
    [
        (
            replace(REPORT, commit_lsn=0x600),
            CUT,
            1_000,
            "orders running 0/600 3 1.0 s ago up to date",
        ),
        (replace(REPORT, commit_ts_ms=None), CUT, 0, "behind the newest cut"),
        (replace(REPORT, batch_id=-1), CUT, 0, "- - 0.0 s ago has shown nothing yet"),
        (REPORT, replace(CUT, timeline=2), 0, "timeline 1 has ended: start over on the newest one"),
        (REPORT, None, 31_000, "orders vanished 0/500 3 31.0 s ago"),
        (replace(REPORT, end=RunEnd(ended_ms=NOW_MS, failure="")), None, 31_000, "orders left"),
        (replace(REPORT, end=RunEnd(ended_ms=NOW_MS, failure="E: why\nmore")), None, 0, "E: why"),
    ],
)
def test_a_pipelines_line_says_what_it_does_and_how_far_it_is(
    report: PipelineReport, cut: Cut | None, silent_ms: int, said: str
) -> None:
    nodes = picture(ORDERS, report, cut=cut, silent_ms=silent_ms).pipelines
    heading, line = pipeline_table(nodes, NOW_MS)
    assert heading.split() == ["pipeline", "state", "shows", "batch", "heard", "of"]
    assert said in " ".join(line.split())
    assert "more" not in line


def test_no_pipelines_are_one_line() -> None:
    assert pipeline_table([], NOW_MS) == ["pipelines: none"]


# --- the command


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> InMemoryPipelineLog:
    log, cuts = InMemoryPipelineLog(), InMemoryCutLog("inv")
    cuts.append(
        [replace(CUT, lsn=0x480, barrier_lsn=0x400), replace(CUT, previous_lsn=0x480, barrier_lsn=0x500)]
    )
    monkeypatch.setattr(pipelines, "PipelineLog", lambda *_, **__: log)
    monkeypatch.setattr(
        pipelines, "CutLog", lambda name, *_, **__: cuts if name == "inv" else InMemoryCutLog(name)
    )
    monkeypatch.setenv("SLACKWATER_BOOTSTRAP", "h:1")
    return log


def test_the_picture_is_shown_as_text_json_and_graph(
    log: InMemoryPipelineLog, capsys: pytest.CaptureFixture[str]
) -> None:
    log.register(ORDERS)
    log.register(REVENUE)
    assert main.run(["topology"]) == 0
    assert "source inv: newest cut 0/600" in capsys.readouterr().out
    assert main.run(["topology", "--json", "--source", "shop"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [pipeline["name"] for pipeline in found["pipelines"]] == ["revenue"]
    assert main.run(["topology", "--dot"]) == 0
    assert capsys.readouterr().out.startswith("digraph slackwater {")
    assert main.run(["topology", "--dot", "--json"]) == 2


# --- snapshots, sharing


def test_snapshots_says_what_all_pipelines_show_and_who_is_waited_for(
    log: InMemoryPipelineLog, capsys: pytest.CaptureFixture[str]
) -> None:
    log.register(ORDERS)
    log.report(REPORT)
    log.register(replace(ORDERS, pipeline="stock", base_name="stock", run="s"))
    log.report(replace(REPORT, pipeline="stock", run="s", commit_lsn=0x4FF))
    assert main.run(["snapshots"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "source inv: newest barrier 0/500; all pipelines show 0/400 on timeline 1"
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "pipeline state processed committed",
        "orders running 0/500 0/500",
        "stock running 0/400 0/400 the others are waiting for it",
    ]
    assert main.run(["snapshots", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["snapshot"] == "0/400"
    for command in ("snapshots", "topology", "delay"):
        assert main.run([command, "--source", "inw"]) == 1
        assert "unknown source 'inw'; did you mean inv?" in capsys.readouterr().err


def test_sharing_says_what_one_pipeline_would_save(
    log: InMemoryPipelineLog, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = (replace(ORDERS.stages[0], identity="aa"),)
    for name in ("orders", "stock"):
        log.register(replace(ORDERS, pipeline=name, base_name=name, run=name, stages=stages))
        log.report(replace(REPORT, pipeline=name, run=name, state_bytes={"1": 18_432}))
    log.register(replace(REVENUE, stages=ORDERS.stages))
    assert main.run(["explain", "--sharing"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "source inv: orders (stage 1), stock (stage 1) computes groups, by order_id"
    assert lines[2] == "  keeps  orders 18,432 bytes, stock 18,432 bytes"
    assert "save 18,432 bytes of state" in lines[3]
    assert lines[-1].startswith("not compared: revenue")
    assert main.run(["explain", "--sharing", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["equal"][0]["saved_bytes"] == 18_432
    assert main.run(["explain"]) == 2
    assert main.run(["explain", "--sharing", "pipelines/orders"]) == 2


# --- status


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_REDIS_URL", "redis://h")
    monkeypatch.setattr("slackwater.cuts.RedisMarkerStore.connect", lambda *_, **__: InMemoryMarkerStore())


@pytest.mark.usefixtures("redis")
def test_status_shows_the_pipelines_of_its_source(
    log: InMemoryPipelineLog, capsys: pytest.CaptureFixture[str]
) -> None:
    log.register(ORDERS)
    log.register(REVENUE)
    assert main.run(["status", "--source", "inv"]) == 1, "no sidecar is known"
    shown = capsys.readouterr().out
    assert "orders running" in " ".join(shown.split())
    assert "revenue" not in shown


@pytest.mark.full
@pytest.mark.usefixtures("redis")
def test_status_without_brokers_or_their_answer_says_that_pipelines_are_not_shown(
    log: InMemoryPipelineLog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away() -> list[PipelineEntry]:
        raise TopicUnavailableError("read", "slackwater.pipelines", "no right")

    monkeypatch.setattr(log, "read", away)
    assert main.run(["status", "--source", "inv"]) == 1, "no sidecar is known"
    assert "pipelines: not known: read of Kafka topic" in capsys.readouterr().out
    monkeypatch.delenv("SLACKWATER_BOOTSTRAP")
    assert main.run(["status", "--source", "inv"]) == 1, "no sidecar is known"
    assert "pipelines: not shown, because --bootstrap is not set" in capsys.readouterr().out


# --- doctor


def nodes(*records: PipelineRecord, silent_ms: int = 0) -> tuple[PipelineNode, ...]:
    return picture(*records, silent_ms=silent_ms).pipelines


@pytest.mark.parametrize(
    ("pipelines", "causes"),
    [
        (nodes(ORDERS, REPORT), []),
        (nodes(ORDERS, replace(REPORT, end=RunEnd(ended_ms=1, failure=""))), []),
        (nodes(ORDERS, replace(REPORT, end=RunEnd(ended_ms=1, failure="why"))), [Cause.PIPELINE_FAILED]),
        (nodes(ORDERS, REPORT, silent_ms=31_000), [Cause.PIPELINE_VANISHED]),
    ],
)
def test_the_doctor_finds_pipelines_that_failed_or_vanished(
    pipelines: tuple[PipelineNode, ...], causes: list[Cause]
) -> None:
    facts = SourceFacts(topics=SourceTopics("inv"), now_ms=NOW_MS, pipelines=pipelines, redis_error="refused")
    findings = [finding for finding in diagnose(facts) if finding.cause is not Cause.REDIS_AWAY]
    assert [finding.cause for finding in findings] == causes
    assert all("slackwater pipeline delete orders" in finding.advice[-1] for finding in findings)
    assert any(line.startswith("orders ") for line in report_lines(facts, findings))
    assert b"host-7" in msgspec.json.encode(make_report(facts, findings))


def test_the_doctor_says_that_pipelines_are_not_known() -> None:
    facts = SourceFacts(topics=SourceTopics("inv"), now_ms=NOW_MS, pipelines_error="no right")
    assert any(
        line.split() == ["pipelines", "not", "known:", "no", "right"] for line in report_lines(facts, [])
    )


def test_a_kafka_that_is_silent_is_not_asked_for_the_next_cut_as_well() -> None:
    asked = []

    def newest_cut(source: str) -> NoReturn:
        asked.append(source)
        error = TopicUnavailableError("read", f"{source}.cuts", "no answer")
        raise error from KafkaException(KafkaError(code))

    entries = [PipelineEntry(record, 0, NOW_MS) for record in (ORDERS, REVENUE)]
    code = KafkaError._TIMED_OUT  # noqa: SLF001 - librdkafka's own codes have no other name
    with pytest.raises(TopicUnavailableError):
        topology_of(entries, newest_cut, NOW_MS)
    assert asked == ["inv"]
    code = KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert len(topology_of(entries, newest_cut, NOW_MS).pipelines) == 2
    assert asked == ["inv", "inv", "shop"]


def test_the_graph_leads_from_tables_through_stages_and_views_to_outputs() -> None:
    reader = replace(
        REVENUE,
        stages=(replace(ORDERS.stages[0], tables=("public.orders",)),),
        views=(replace(REVENUE.views[0], output='with "quotes"', tables=("public.orders",), stages=(1,)),),
    )
    entries = [PipelineEntry(each, offset, NOW_MS) for offset, each in enumerate((reader, ORDERS))]
    lines = [line.strip() for line in topology_dot(make_topology(entries, {}, NOW_MS)).splitlines()]
    for edge in (
        '"kafka inv.inventory.lines" -> "orders stage 1"',
        '"orders stage 1" -> "orders stage 2"',
        '"orders stage 2" -> "orders view orders"',
        '"orders view orders" -> "kafka shop.public.orders"',
        '"kafka shop.public.orders" -> "revenue stage 1"',
        '"revenue view revenue" -> "kafka with \\"quotes\\""',
    ):
        assert edge in lines
    assert lines.count("}") == lines.count("digraph slackwater {") + 4, "two sources, two pipelines"
