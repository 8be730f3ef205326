"""The dashboards and the alert rules ask for what is there: every metric and label of every query is exposed.

What is exposed is read from a sidecar's, a run's and a control plane's own answers.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import promql_parser
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from promql_parser import AggregateExpr, BinaryExpr, Call, Expr, MatrixSelector, ParenExpr, VectorSelector

from infra.site.observability import FOLDER, alert_rules
from slackwater.cli.commands.run import run_registry
from slackwater.cli.control.api import write_metrics
from slackwater.control import make_topology, measure_delays
from slackwater.cuts import FrontierState
from slackwater.pipeline import BatchProgress, RunMonitor
from slackwater.protocol import OpenTransaction, PipelineEntry, PipelineReport, StageWork, SystemClock
from slackwater_lab.fakes.topics import REGISTRATION, make_cut
from slackwater_sidecar import SidecarStatus
from slackwater_sidecar.monitor import SourceMonitor, sidecar_registry

CUT = replace(make_cut("inv", 0x600, 1_000), ended_ms=1_200)
BATCH = BatchProgress(
    pipeline="orders",
    source="inv",
    timeline=1,
    batch_id=0,
    commit_lsn=0x600,
    committed_at=datetime.fromtimestamp(1, UTC),
    visible_at=datetime.fromtimestamp(2, UTC),
    events=1,
    transactions=1,
    documents=1,
    deletes=0,
    was_covered=False,
    seconds={"plan": 0.1},
    stage_work=(StageWork(stage=1, total_us=1, tasks=1, slowest_us=1, slowest_task=0),),
    state_bytes={1: 1},
)
DASHBOARDS: Mapping[str, Any] = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
PROMETHEUS_OWN = {"up": {"job", "instance"}}
"""What Prometheus says itself of whom it asks."""


def sidecar_answer() -> str:
    monitor = SourceMonitor("inv", SystemClock())
    waited_for = OpenTransaction(xid=1, commit_lsn=1, since_ms=0, expected={}, received={}, places={})
    monitor.newest = CUT
    monitor.status = SidecarStatus(
        source="inv",
        timeline=1,
        state=FrontierState.RUNNING,
        detail="",
        lsn=1,
        event_count=1,
        records_read=1,
        records_per_second=1.0,
        delay_ms=1,
        open=(waited_for,),
        redis_error=None,
        kafka_error=None,
    )
    return generate_latest(sidecar_registry([monitor])).decode()


def run_answer() -> str:
    monitor = RunMonitor("orders", "inv")
    monitor.record_batch(BATCH)
    return generate_latest(run_registry(monitor)).decode()


def control_answer() -> str:
    report = PipelineReport(
        pipeline=REGISTRATION.pipeline,
        run=REGISTRATION.run,
        batch_id=1,
        timeline=1,
        commit_lsn=0x600,
        commit_ts_ms=1_000,
        visible_ms=1_000,
        state_bytes={"1": 1},
    )
    entries = [PipelineEntry(REGISTRATION, 0, 1_000), PipelineEntry(report, 1, 1_000)]
    topology = make_topology(entries, {"inv": CUT}, 2_000)
    return write_metrics(topology, measure_delays(topology), []).decode()


@pytest.fixture(scope="module")
def exposed() -> Mapping[str, set[str]]:
    """The labels of every series that somebody exposes."""
    found: dict[str, set[str]] = {name: set(labels) for name, labels in PROMETHEUS_OWN.items()}
    for answer in (sidecar_answer(), run_answer(), control_answer()):
        for family in text_string_to_metric_families(answer):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


class UnknownError(Exception):
    """A query asks for what nobody exposes."""


def labels_of(expression: Expr, exposed: Mapping[str, set[str]]) -> set[str]:
    """The labels that the result of an expression may have.

    Raises:
        UnknownError: A metric or label in it is not exposed.
    """
    match expression:
        case VectorSelector(name=str(name)):
            if name not in exposed:
                raise UnknownError(f"nobody exposes {name}")
            expect({each.name for each in expression.matchers.matchers}, exposed[name], name)
            return exposed[name]
        case MatrixSelector():
            return labels_of(expression.vector_selector, exposed)
        case ParenExpr():
            return labels_of(expression.expr, exposed)
        case Call():
            labels = set().union(*(labels_of(each, exposed) for each in expression.args))
            return labels - {"le"} if expression.func.name == "histogram_quantile" else labels
        case AggregateExpr():
            labels = labels_of(expression.expr, exposed)
            if expression.modifier is None:
                return labels  # of topk; a sum of all has none, and no legend that asks for any
            expect(set(expression.modifier.labels), labels, expression.prettify())
            return set(expression.modifier.labels)
        case BinaryExpr():
            left, right = labels_of(expression.lhs, exposed), labels_of(expression.rhs, exposed)
            if expression.modifier is not None and expression.modifier.matching is not None:
                expect(set(expression.modifier.matching.labels), left & right, expression.prettify())
            return left
    return set()


def expect(wanted: set[str], there: set[str], where: str) -> None:
    if missing := wanted - there:
        raise UnknownError(f"{where} has no label {', '.join(sorted(missing))}")


def parsed(query: str) -> Expr:
    return promql_parser.parse(query.replace("$__rate_interval", "5m"))


def dashboard_queries(*chosen: str) -> Iterator[tuple[str, str]]:
    for name in chosen or sorted(DASHBOARDS):
        for panel in DASHBOARDS[name]["panels"]:
            yield from ((target["expr"], target["legendFormat"]) for target in panel["targets"])


def test_there_is_a_dashboard_of_a_source_a_pipeline_and_the_fleet() -> None:
    assert set(DASHBOARDS) == {"source", "pipeline", "fleet"}


@pytest.mark.parametrize(("query", "legend"), list(dashboard_queries()))
def test_every_query_of_a_dashboard_uses_what_is_exposed(
    query: str, legend: str, exposed: Mapping[str, set[str]]
) -> None:
    labels = labels_of(parsed(query), exposed)
    expect(set(re.findall(r"{{(\w+)}}", legend)), labels, query)


@pytest.mark.parametrize("name", sorted(DASHBOARDS))
def test_every_choice_of_a_dashboard_is_a_label_and_is_used(
    name: str, exposed: Mapping[str, set[str]]
) -> None:
    queries = [query for query, _ in dashboard_queries(name)]
    datasource, *variables = DASHBOARDS[name]["templating"]["list"]
    assert datasource["name"] == "datasource"
    for variable in variables:
        choice = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
        assert choice is not None, variable["query"]
        metric, label = choice.groups()
        assert label == variable["name"]
        assert label in exposed[metric]
        assert any(f'"${label}"' in query for query in queries)


@pytest.mark.parametrize("name", sorted(DASHBOARDS))
def test_panels_of_a_dashboard_have_numbers_and_room_of_their_own(name: str) -> None:
    panels = DASHBOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    grid = [panel["gridPos"] for panel in panels]
    cells = [(at["x"] + x, at["y"] + y) for at in grid for x in range(at["w"]) for y in range(at["h"])]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24, "the grid of Grafana has 24 columns"


@pytest.mark.parametrize("rule", alert_rules(), ids=lambda rule: rule["alert"])
def test_every_alert_uses_what_is_exposed(rule: Mapping[str, Any], exposed: Mapping[str, set[str]]) -> None:
    labels = labels_of(parsed(rule["expr"]), exposed)
    expect(set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])), labels, rule["alert"])


def test_every_metric_that_is_exposed_is_in_a_dashboard_or_has_no_need_to_be(
    exposed: Mapping[str, set[str]],
) -> None:
    asked = " ".join(query for query, _ in dashboard_queries()) + " ".join(
        rule["expr"] for rule in alert_rules()
    )
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed}
    alone = {"slackwater_frontier_lsn", "slackwater_timeline", "slackwater_run_commit_lsn"}
    rare = {"slackwater_stale_ends", "slackwater_skipped_transactions_total", "slackwater_decisions_total"}
    assert {name for name in names if name not in asked} == alone | rare


@pytest.mark.parametrize(
    "query",
    [
        "sum(rate(slackwater_run_event_total[5m]))",
        'slackwater_state{status="stalled"}',
        "sum by (view) (slackwater_run_commit_lsn)",
        "slackwater_run_commit_lsn - on (state) slackwater_frontier_lsn",
        "histogram_quantile(0.5, sum by (le) (rate(slackwater_run_delay_seconds[5m])))",
    ],
)
def test_what_nobody_exposes_is_noticed(query: str, exposed: Mapping[str, set[str]]) -> None:
    with pytest.raises(UnknownError):
        labels_of(parsed(query), exposed)
