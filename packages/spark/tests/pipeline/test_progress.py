from datetime import UTC, datetime, timedelta

from slackwater_markers import InMemoryMarkerStore, MarkerStoreUnavailableError, PipelineStatus
from slackwater_protocol import BatchHeader, SystemClock
from slackwater_spark.pipeline import PipelineDefinition, ViewOutput
from slackwater_spark.pipeline.progress import ProgressQueue, StatusReporter
from slackwater_spark.sink import Emit, WriteReport
from slackwater_sql.plan import EnginePlan

AT_ONCE = timedelta(milliseconds=1)
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


def written(batch_id: int) -> WriteReport:
    header = BatchHeader(
        source="inv",
        timeline=1,
        from_lsn=10,
        to_lsn=20,
        commit_ts_ms=1_000,
        event_count=3,
        transactions=((1, 20, 1_000),),
    )
    return WriteReport(
        batch_id=batch_id,
        header=header,
        documents=2,
        deletes=1,
        was_covered=False,
        produce_seconds=0.25,
        commit_seconds=0.5,
        visible_at=datetime.fromtimestamp(1.75, UTC),
    )


def test_a_batch_is_told_when_sink_and_spark_have_told_of_it() -> None:
    progress = ProgressQueue("orders")
    progress.put_written(written(4), 2.0)
    progress.put_durations(4, {"addBatch": 1500})
    assert progress.next(AT_ONCE) is None
    batch = progress.next(AT_ONCE)
    assert batch is not None
    assert (batch.batch_id, batch.commit_lsn, batch.events, batch.transactions) == (4, 20, 3, 1)
    assert batch.lag == timedelta(milliseconds=750)
    assert batch.seconds == {"collect": 2.0, "produce": 0.25, "commit": 0.5, "addBatch": 1.5}
    assert not progress.has_unfinished


def test_spark_s_news_of_a_batch_that_wrote_nothing_are_of_no_interest() -> None:
    progress = ProgressQueue("orders")
    progress.put_durations(4, {})
    assert progress.next(AT_ONCE) is None
    assert not progress.has_unfinished


def test_batches_spark_never_told_of_are_not_lost() -> None:
    progress = ProgressQueue("orders")
    progress.put_written(written(4), 2.0)
    assert progress.next(AT_ONCE) is None
    assert progress.has_unfinished
    assert [batch.batch_id for batch in progress.take_rest()] == [4]


def test_the_marker_store_holds_the_newest_visible_batch() -> None:
    store = InMemoryMarkerStore()
    reporter = StatusReporter(DEFINITION, store, SystemClock())
    progress = ProgressQueue("orders")
    reporter.report_start("q", None)
    progress.put_written(written(4), 2.0)
    progress.next(AT_ONCE)
    reporter.report_batch("q", progress.take_rest()[0])
    status = store.pipeline("orders")
    assert status is not None
    assert (status.batch_id, status.commit_lsn, status.output, status.query_id) == (4, 20, "out, sums", "q")


def test_a_pipeline_that_has_shown_nothing_yet_is_on_the_timeline_that_it_reads() -> None:
    store = InMemoryMarkerStore()
    StatusReporter(DEFINITION, store, SystemClock(), timeline=2).report_start("q", None)
    status = store.pipeline("orders")
    assert status is not None
    assert (status.batch_id, status.timeline, status.commit_lsn) == (-1, 2, 0)


def test_a_marker_store_that_is_away_is_no_error() -> None:
    StatusReporter(DEFINITION, StoreThatIsAway(), SystemClock()).report_start("q", None)
