"""What a run reports to the cluster while it continues."""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from slackwater.control import make_topology
from slackwater.cuts import TopicUnavailableError
from slackwater.pipeline import load_pipeline, pipeline_definition
from slackwater.pipeline import progress as progress_module
from slackwater.pipeline.progress import BatchProgress, RunReporter, make_registration, with_checkpoint
from slackwater.protocol import (
    PipelineEntry,
    PipelineRegistration,
    PipelineReport,
    ProgressRecord,
    RegisteredView,
    StateError,
)
from slackwater.sql.postgres import parse_catalog
from slackwater_lab.fakes.memory import InMemoryPipelineLog
from slackwater_lab.fakes.topics import REGISTRATION

ORDERS_PIPELINE = Path(__file__).parents[4] / "pipelines" / "orders"
BATCH = BatchProgress(
    pipeline="orders",
    source="inv",
    timeline=1,
    batch_id=4,
    commit_lsn=20,
    committed_at=datetime.fromtimestamp(1, UTC),
    visible_at=datetime.fromtimestamp(1.75, UTC),
    events=3,
    transactions=1,
    documents=2,
    deletes=1,
    was_covered=False,
    seconds={"plan": 0.1},
)


class StandingClock:
    """Continues when it is asked to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        return self.seconds


class WatchedLog(InMemoryPipelineLog):
    """Lets a test wait for reports."""

    def __init__(self, clock: StandingClock) -> None:
        super().__init__(clock)
        self.reports: list[PipelineReport] = []
        self._news = threading.Condition()

    def report(self, report: PipelineReport) -> None:
        super().report(report)
        with self._news:
            self.reports.append(report)
            self._news.notify_all()

    def await_report(self, number: int) -> PipelineReport:
        with self._news:
            assert self._news.wait_for(lambda: len(self.reports) >= number, 300)
        return self.reports[number - 1]


@pytest.fixture
def clock() -> StandingClock:
    return StandingClock()


@pytest.fixture
def log(clock: StandingClock, monkeypatch: pytest.MonkeyPatch) -> WatchedLog:
    monkeypatch.setattr(progress_module, "_REPORT_SECONDS", 0.001)
    return WatchedLog(clock)


def registration(clock: StandingClock) -> PipelineRegistration:
    definition = load_pipeline(ORDERS_PIPELINE)
    return make_registration(definition, timeline=2, checkpoint="/c", calls_function=False, clock=clock)


def test_the_lag_is_the_time_from_commit_to_visibility() -> None:
    assert BATCH.delay == timedelta(milliseconds=750)


def test_news_are_reported_and_silence_now_and_then(log: WatchedLog, clock: StandingClock) -> None:
    reporter = RunReporter(log, registration(clock), clock)
    with reporter.reporting_end():
        reporter.check(None)
        reporter.register("q")
        first = log.await_report(1)
        assert (first.batch_id, first.timeline, first.end) == (-1, 2, None)
        reporter.report_batch(BATCH)
        second = log.await_report(2)
        assert (second.batch_id, second.commit_lsn, second.events, second.documents) == (4, 20, 3, 2)
        assert (second.commit_ts_ms, second.visible_ms, second.parts_us) == (1000, 1750, {"plan": 100_000})
        clock.seconds += 10
        assert log.await_report(3) == second
        reporter.report_batch(replace(BATCH, batch_id=5))
        third = log.await_report(4)
        assert (third.batch_id, third.events, third.run_events, third.run_documents) == (5, 3, 6, 4)
    assert log.reports[4] == replace(third, end=log.reports[4].end)
    assert len(log.reports) == 5


def test_a_run_that_goes_on_reports_what_is_visible(log: WatchedLog, clock: StandingClock) -> None:
    progress = ProgressRecord(
        pipeline="orders", query_id="q", batch_id=7, source="inv", timeline=2, commit_lsn=30
    )
    reporter = RunReporter(log, registration(clock), clock)
    with reporter.reporting_end():
        reporter.register("q")
        reporter.report_start(None)
        reporter.report_start(progress)
    last = log.reports[-1]
    assert (last.batch_id, last.timeline, last.commit_lsn, last.commit_ts_ms) == (7, 2, 30, None)
    assert last.end is not None


def test_a_failure_that_is_no_text_is_reported_all_the_same(log: WatchedLog, clock: StandingClock) -> None:
    reporter = RunReporter(log, registration(clock), clock)

    def fail() -> None:
        with reporter.reporting_end():
            reporter.register("q")
            raise ValueError("\ud800" + "x" * 5000)

    with pytest.raises(ValueError, match="x"):
        fail()
    end = log.reports[-1].end
    assert end is not None
    assert end.failure.startswith("ValueError: ?x")
    assert len(end.failure) == 2000


def test_an_error_names_who_holds_a_name_and_what_helps(log: WatchedLog, clock: StandingClock) -> None:
    held = replace(registration(clock), query_id="q", owner="team shop", host="host-7", pid=4711)
    log.register(held)
    clock.seconds += 3
    with pytest.raises(StateError) as caught:
        RunReporter(log, registration(clock), clock).check(None)
    for part in (
        "the name 'orders' is taken",
        "from source inv to kafka orders_with_lines runs on host-7 (process 4711)",
        "since 1970-01-01 00:16:40 UTC",
        "checkpoint /c",
        "owner: team shop",
        "last heard of 3 s ago",
        "give this pipeline another name",
    ):
        assert part in str(caught.value)
    RunReporter(log, registration(clock), clock).check("q")


@pytest.mark.parametrize(
    ("name", "base", "following"),
    [("orders", "orders", 2), ("orders.v2", "orders", 3), ("orders.video", "orders.video", 2)],
)
@pytest.mark.parametrize("source", ["inv", "other"])
def test_an_error_about_a_held_name_says_what_to_type_if_the_checkpoint_is_lost(
    name: str, base: str, following: int, source: str, log: WatchedLog, clock: StandingClock
) -> None:
    log.register(replace(registration(clock), pipeline=name, query_id="lost", source=source))
    with pytest.raises(StateError) as caught:
        RunReporter(log, replace(registration(clock), pipeline=name), clock).check(None)
    for command in (
        f"`slackwater pipeline reset {name}`",
        f"`revision = {following}`",
        f"`slackwater revise rollout {base} --to {following}`",
    ):
        assert command in str(caught.value)


def test_a_run_takes_the_place_of_an_earlier_checkpoint_of_its_pipeline(
    log: WatchedLog, clock: StandingClock
) -> None:
    log.register(replace(registration(clock), query_id="lost", run="lost"))
    clock.seconds += 100
    reporter = RunReporter(log, registration(clock), clock)
    with reporter.reporting_end():
        reporter.check(None)
        reporter.register("new")
    found = [e.record for e in log.read() if isinstance(e.record, PipelineRegistration)]
    assert [each.query_id for each in found] == ["new"]


def test_a_registration_describes_the_pipeline(clock: StandingClock) -> None:
    found = registration(clock)
    assert (found.pipeline, found.base_name, found.revision, found.owner) == ("orders", "orders", 1, "")
    assert found.tables == {
        "inventory.order_lines": "inv.inventory.order_lines",
        "inventory.orders": "inv.inventory.orders",
    }
    [stage] = found.stages
    assert (stage.number, stage.level, stage.key, stage.stages) == (1, 1, ("id",), ())
    assert stage.tables == tuple(found.tables)
    assert "joins" in stage.why
    assert found.views == (
        RegisteredView(
            name="orders_with_lines",
            output="orders_with_lines",
            kind="kafka",
            format="json",
            output_source="",
            tables=tuple(found.tables),
            stages=(1,),
        ),
    )


def test_a_registration_of_a_revision_has_its_base_name_and_the_stages_that_follow_each_other(
    clock: StandingClock,
) -> None:
    catalog = parse_catalog({"s": "CREATE TABLE s.t (id int PRIMARY KEY, a int NOT NULL, b int NOT NULL)"})
    views = {
        "sums": "SELECT TRANSACTIONALLY t.a, t.b, count(*) AS n FROM s.t t GROUP BY t.a, t.b",
        "tops": "SELECT TRANSACTIONALLY s.a, max(s.n) AS most FROM sums s GROUP BY s.a",
    }
    definition = pipeline_definition(name="p.v3", source="inv", catalog=catalog, views=views)
    definition = replace(definition, revision=3, owner="ann", topics={"s.t": "elsewhere"})
    found = make_registration(definition, timeline=1, checkpoint="/c", calls_function=True, clock=clock)
    assert (found.base_name, found.revision, found.owner, found.tables) == (
        "p",
        3,
        "ann",
        {"s.t": "elsewhere"},
    )
    assert {view.kind for view in found.views} == {"function"}
    named = with_checkpoint(found, "0123456789")
    assert (named.pipeline, named.base_name, named.query_id) == ("p/01234567", "p", "0123456789")
    assert with_checkpoint(registration(clock), "0123").pipeline == "orders"
    later = [stage for stage in found.stages if stage.level > 1]
    assert later
    assert all(stage.stages and not stage.tables for stage in later)


def test_pipelines_that_read_each_other_are_linked_by_what_they_register(clock: StandingClock) -> None:
    folders = [ORDERS_PIPELINE.with_name(name) for name in ("order_sizes", "order_totals")]
    found = [
        make_registration(load_pipeline(f), timeline=1, checkpoint="/c", calls_function=False, clock=clock)
        for f in folders
    ]
    entries = [PipelineEntry(record, offset, 0) for offset, record in enumerate(found)]
    topology = make_topology(entries, {}, 0)
    [link] = topology.links
    assert (link.pipeline, link.source, link.table, link.read_by) == (
        "order_totals",
        "order_totals",
        "public.order_totals",
        "order_sizes",
    )
    assert [source.name for source in topology.sources] == ["inv", "order_totals", "order_sizes"]


def test_a_chain_begins_at_the_source_that_no_registered_pipeline_of_its_timeline_writes(
    log: WatchedLog, clock: StandingClock
) -> None:
    view = replace(REGISTRATION.views[0], output_source="totals")
    root = replace(REGISTRATION, pipeline="totals", run="1", views=(view,))
    sizes = replace(root, pipeline="sizes", source="totals", views=())
    reporter = RunReporter(log, sizes, clock)
    assert reporter.find_root("totals") == "totals", "who writes it is not known yet"
    assert reporter.find_root("inv") == "inv", "what was known stays"
    log.register(replace(root, timeline=2))
    assert reporter.find_root("totals") == "totals", "commits there have another order"
    log.register(root)
    assert reporter.find_root("totals") == "inv"
    second = replace(root, pipeline="totals.v2", run="2", views=(replace(view, output_source="totals_v2"),))
    log.register(second)
    for source in ("totals", "totals_v2"):  # of both revisions of the chain
        assert RunReporter(log, replace(sizes, source=source), clock).find_root(source) == "inv"


def test_a_chain_that_cannot_be_read_begins_where_it_did_before(clock: StandingClock) -> None:
    class Away(InMemoryPipelineLog):
        def read(self) -> list[PipelineEntry]:
            raise TopicUnavailableError("slackwater.pipelines", "read", "it is away")

    reporter = RunReporter(Away(clock), replace(REGISTRATION, source="totals"), clock)
    assert reporter.find_root("inv") == "inv"
