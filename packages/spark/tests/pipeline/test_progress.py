from datetime import UTC, datetime, timedelta

from slackwater_markers import InMemoryMarkerStore, MarkerStoreUnavailableError, PipelineStatus
from slackwater_protocol import ProgressRecord, SystemClock
from slackwater_spark.pipeline import PipelineDefinition, ViewOutput
from slackwater_spark.pipeline.progress import BatchProgress, StatusReporter
from slackwater_spark.sink import Emit
from slackwater_sql.plan import EnginePlan

DEFINITION = PipelineDefinition(
    name="orders",
    source="inv",
    emit=Emit.LATEST,
    buckets=4,
    outputs=(ViewOutput("orders", "out"), ViewOutput("totals", "sums")),
    plan=EnginePlan((), ()),
)


class StoreThatIsAway(InMemoryMarkerStore):
    def register_pipeline(self, pipeline: PipelineStatus) -> None:
        raise MarkerStoreUnavailableError("register", "redis:6379", "connection refused")


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


def test_the_lag_is_the_time_from_commit_to_visibility() -> None:
    assert BATCH.lag == timedelta(milliseconds=750)


def test_the_marker_store_holds_the_newest_visible_batch() -> None:
    store = InMemoryMarkerStore()
    reporter = StatusReporter(DEFINITION, store, SystemClock())
    reporter.report_start("q", None)
    reporter.report_batch("q", BATCH)
    status = store.pipeline("orders")
    assert status is not None
    assert (status.batch_id, status.commit_lsn, status.output, status.query_id) == (4, 20, "out, sums", "q")


def test_a_run_that_goes_on_reports_what_is_visible() -> None:
    store = InMemoryMarkerStore()
    progress = ProgressRecord(
        pipeline="orders", query_id="q", batch_id=7, source="inv", timeline=2, commit_lsn=30
    )
    StatusReporter(DEFINITION, store, SystemClock()).report_start("q", progress)
    status = store.pipeline("orders")
    assert status is not None
    assert (status.batch_id, status.timeline, status.commit_lsn) == (7, 2, 30)


def test_a_pipeline_that_has_shown_nothing_yet_is_on_the_timeline_that_it_reads() -> None:
    store = InMemoryMarkerStore()
    StatusReporter(DEFINITION, store, SystemClock(), timeline=2).report_start("q", None)
    status = store.pipeline("orders")
    assert status is not None
    assert (status.batch_id, status.timeline, status.commit_lsn) == (-1, 2, 0)


def test_a_marker_store_that_is_away_is_no_error() -> None:
    StatusReporter(DEFINITION, StoreThatIsAway(), SystemClock()).report_start("q", None)
