"""Metrics and pages, without servers behind them."""

from http import HTTPStatus
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from slackwater.command.http_server import make_app
from slackwater.command.listening import HttpSettings
from slackwater.cuts import FrontierState
from slackwater.protocol import Clock, Cut, OpenTransaction
from slackwater.protocol.metrics import SIDECAR_METRICS, Metric, MetricKind
from slackwater.settings.model import HttpSection
from slackwater_sidecar import SidecarStatus
from slackwater_sidecar.monitor import SourceMonitor, sidecar_routes

CUT = Cut(
    source="inv",
    timeline=1,
    lsn=500,
    previous_lsn=0,
    commit_ts_ms=1_000,
    event_count=3,
    transactions=(),
    end_offsets={},
    transaction_offset=0,
)
WAITED_FOR = OpenTransaction(
    xid=77, commit_lsn=600, since_ms=0, expected={"s.a": 2}, received={"s.a": 1}, places={"inv.s.a/0": (3, 4)}
)


def status(
    state: FrontierState = FrontierState.RUNNING, *, open_: tuple[OpenTransaction, ...] = (), kafka: str = ""
) -> SidecarStatus:
    return SidecarStatus(
        source="inv",
        timeline=2,
        state=state,
        detail="because",
        lsn=500,
        event_count=3,
        records_read=10,
        records_per_second=1.5,
        delay_ms=7,
        open=open_,
        redis_error=None,
        kafka_error=kafka or None,
    )


@pytest.fixture
def monitor(clock: Clock) -> SourceMonitor:
    return SourceMonitor("inv", clock)


@pytest.fixture
def pages(monitor: SourceMonitor) -> TestClient:
    http = HttpSettings(setting="sidecar.http", address="", access=HttpSection())
    return TestClient(make_app(sidecar_routes([monitor]), http), "http://localhost")


def body(pages: TestClient, path: str) -> tuple[int, dict[str, Any]]:
    found = pages.get(path)
    return found.status_code, found.json()


def samples(pages: TestClient) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(pages.get("/metrics").text)
    return {(s.name, *(v for k, v in sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def series_of(metric: Metric) -> list[str]:
    parts = ("_bucket", "_count", "_sum") if metric.kind is MetricKind.HISTOGRAM else ("",)
    return [metric.name + part for part in parts]


def test_what_is_exposed_is_the_list(pages: TestClient, monitor: SourceMonitor) -> None:
    monitor.status, monitor.newest = status(), CUT

    families = list(text_string_to_metric_families(pages.get("/metrics").text))

    named = {m.name.removesuffix("_total"): m for m in SIDECAR_METRICS}
    assert [f.name for f in families] == list(named)
    for family in families:
        metric = named[family.name]
        assert (family.type, family.documentation) == (str(metric.kind), metric.help)
        assert {s.name for s in family.samples} == set(series_of(metric))
        for sample in family.samples:
            bound = {"le"} if sample.name.endswith("_bucket") else set()
            assert set(sample.labels) == set(metric.labels) | bound


def test_before_the_first_cut_there_is_no_age_of_a_commit(pages: TestClient) -> None:
    names = {key[0] for key in samples(pages)}
    assert "slackwater_newest_commit_age_seconds" not in names
    assert len(names) == len([n for m in SIDECAR_METRICS for n in series_of(m)]) - 1


def test_values_are_those_of_the_monitor(pages: TestClient, monitor: SourceMonitor, clock: Clock) -> None:
    monitor.status, monitor.newest = status(FrontierState.STALLED, open_=(WAITED_FOR,)), CUT
    monitor.records, monitor.decisions["skip"], monitor.redis_corrections = 10, 2, 3
    monitor.cut_bytes.observe(100)

    seen = samples(pages)

    now = clock.now().timestamp()
    assert seen["slackwater_frontier_lsn", "inv"] == 500
    assert seen["slackwater_timeline", "inv"] == 2
    assert seen["slackwater_newest_commit_age_seconds", "inv"] == pytest.approx(now - 1)
    assert seen["slackwater_oldest_open_transaction_age_seconds", "inv"] == pytest.approx(now)
    assert seen["slackwater_decisions_total", "skip", "inv"] == 2
    assert seen["slackwater_redis_corrections_total", "inv"] == 3
    assert seen["slackwater_records_read_total", "inv"] == 10
    assert (seen["slackwater_cut_bytes_sum", "inv"], seen["slackwater_cut_bytes_count", "inv"]) == (100, 1)
    assert seen["slackwater_cut_bytes_bucket", "64.0", "inv"] == 0
    assert seen["slackwater_cut_bytes_bucket", "256.0", "inv"] == 1


def test_exactly_one_state_is_shown(pages: TestClient, monitor: SourceMonitor) -> None:
    monitor.status = status(FrontierState.REGRESSED)
    states = {key[2]: value for key, value in samples(pages).items() if key[0] == "slackwater_state"}
    assert set(states) == set(FrontierState)
    assert [state for state, value in states.items() if value] == ["regressed"]


def test_no_metric_has_a_label_for_each_transaction(pages: TestClient, monitor: SourceMonitor) -> None:
    monitor.status = status(open_=(WAITED_FOR,))
    assert not any("77" in label for key in samples(pages) for label in key)


def test_a_loop_that_does_not_turn_is_not_healthy(pages: TestClient, clock: Clock) -> None:
    assert body(pages, "/healthz") == (HTTPStatus.OK, {"healthy": True, "why_not": {}})
    clock.seconds += 31  # type: ignore[attr-defined]

    code, said = body(pages, "/healthz")

    assert code == HTTPStatus.SERVICE_UNAVAILABLE
    assert said["why_not"] == {"inv": "its loop has been blocked for 31 s"}


def test_a_loop_that_has_ended_does_not_make_the_others_unhealthy(
    pages: TestClient, monitor: SourceMonitor, clock: Clock
) -> None:
    monitor.failure, monitor.has_ended = "records are gone", True
    clock.seconds += 31  # type: ignore[attr-defined]
    assert body(pages, "/healthz")[0] == HTTPStatus.OK
    assert body(pages, "/readyz")[1]["why_not"] == {"inv": "records are gone"}


@pytest.mark.parametrize("state", [FrontierState.RUNNING, FrontierState.STALLED])
def test_a_source_with_cuts_is_ready(state: FrontierState, pages: TestClient, monitor: SourceMonitor) -> None:
    monitor.status, monitor.newest = status(state), CUT
    assert body(pages, "/readyz") == (HTTPStatus.OK, {"ready": True, "why_not": {}})


@pytest.mark.parametrize(
    "state", [FrontierState.BAD_INPUT, FrontierState.REGRESSED, FrontierState.MISCONFIGURED]
)
def test_a_source_no_cut_can_be_made_of_is_not_ready_and_says_why(
    state: FrontierState, pages: TestClient, monitor: SourceMonitor
) -> None:
    monitor.status, monitor.newest = status(state), CUT
    code, said = body(pages, "/readyz")
    assert code == HTTPStatus.SERVICE_UNAVAILABLE
    assert said["why_not"] == {"inv": f"{state}: because"}


def test_waiting_for_topics_is_ready_only_with_a_cut(pages: TestClient, monitor: SourceMonitor) -> None:
    monitor.status = status(FrontierState.WAITING)
    assert body(pages, "/readyz")[1]["why_not"] == {"inv": "waiting: because"}
    monitor.newest = CUT
    assert body(pages, "/readyz")[0] == HTTPStatus.OK


def test_a_source_whose_kafka_is_away_is_not_ready(pages: TestClient, monitor: SourceMonitor) -> None:
    assert body(pages, "/readyz")[1]["why_not"] == {"inv": "the sidecar is starting"}
    monitor.waits_for = "cut log: no answer"
    assert body(pages, "/readyz")[1]["why_not"] == {"inv": "cut log: no answer"}
    monitor.waits_for, monitor.status, monitor.newest = None, status(kafka="refused"), CUT
    assert body(pages, "/readyz")[1]["why_not"] == {"inv": "refused"}
    assert samples(pages)["slackwater_dependency_trouble", "kafka", "inv"] == 1


def test_the_status_page_names_open_transactions(pages: TestClient, monitor: SourceMonitor) -> None:
    monitor.status, monitor.newest = status(FrontierState.STALLED, open_=(WAITED_FOR,)), CUT
    _, said = body(pages, "/status")
    source: dict[str, Any] = said["sources"][0]
    assert (source["state"], source["frontier"], source["timeline"]) == ("stalled", "0/1F4", 2)
    assert source["open_transactions"][0]["xid"] == 77
    assert source["open_transactions"][0]["places"] == {"inv.s.a/0": [3, 4]}


def test_a_page_that_does_not_exist_lists_those_that_do(pages: TestClient) -> None:
    code, said = body(pages, "/nowhere")
    assert code == HTTPStatus.NOT_FOUND
    assert said["hint"] == "the pages are /metrics, /healthz, /readyz, /status"
