"""How a run ends, and when it starts its query again instead: queries are scripted, there is no Spark."""

import json
import logging
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]  # has no stubs
from pyspark import SparkContext

from slackwater_protocol import NO_SERVERS, BatchHeader, SystemClock
from slackwater_spark.errors import PipelineUnavailableError, QueryFailedError
from slackwater_spark.pipeline import RunSettings, load_pipeline
from slackwater_spark.pipeline.runner import _PipelineRun
from slackwater_spark.sink import WriteReport

ORDERS_PIPELINE = Path(__file__).parents[4] / "pipelines" / "orders"
TOLD = "[STREAM_FAILED] Query [id = 1] terminated with exception: "
ENDED = f"{TOLD}Broken pipe SQLSTATE: XXKST"
LATE = f"{TOLD}Python worker failed to connect back. SQLSTATE: XXKST"
OTHER = f"{TOLD}Job aborted due to stage failure"


class Query:
    """Ends at once, in a certain way; or when the run is asked to stop."""

    def __init__(self, error: str | None = None, *, visible: bool | None = None) -> None:
        self.error = error
        self.visible = visible
        """Whether it makes a batch visible before it ends; False: one that was visible before."""
        self.is_stopped = False

    isActive = False

    def exception(self) -> str | None:
        return self.error

    def stop(self) -> None:
        self.is_stopped = True


class LostQuery(Query):
    """Of a JVM that has gone."""

    @property
    def isActive(self) -> bool:  # type: ignore[override]
        raise Py4JNetworkError("Answer from Java side is empty")


class Run(_PipelineRun):
    """Starts scripted queries."""

    def __init__(self, folder: Path, *queries: Query, available_now: bool = False) -> None:
        settings = RunSettings(servers=NO_SERVERS, checkpoint=folder, available_now=available_now)
        self.told: list[int] = []
        self.stop = threading.Event()
        super().__init__(
            load_pipeline(ORDERS_PIPELINE),
            settings,
            on_progress=lambda batch: self.told.append(batch.batch_id),
            on_step=lambda _: None,
            stop=self.stop,
            clock=SystemClock(),
        )
        self._sink: Any = SimpleNamespace(place="an output", open=lambda: None, close=lambda: None)
        self._checkpoint.folder.mkdir(parents=True, exist_ok=True)
        self.queries = list(queries)
        self.started: list[Query] = []
        self.is_spark_stopped = False
        self.writers: list[object] = []

    def _start(self, session: Any) -> Any:
        (self._checkpoint.folder / "metadata").write_text(json.dumps({"id": "q"}))
        self._writer = self._new_writer()
        self.writers.append(self._writer)
        query = self.queries.pop(0)
        self.started.append(query)
        if query.visible is not None:
            self._progress.put_written(written(len(self.started), was_covered=not query.visible), 0.0)
            self._progress.put_durations(len(self.started), {})
        return query

    def go(self) -> list[int]:
        """Numbers of the batches it told of."""
        context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: self))
        streams = SimpleNamespace(addListener=lambda _: None, removeListener=lambda _: None)
        session: Any = SimpleNamespace(streams=streams, sparkContext=context)
        self.run(session)
        return self.told

    def isStopped(self) -> bool:
        return self.is_spark_stopped


def written(batch_id: int, *, was_covered: bool) -> WriteReport:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    header = BatchHeader(
        source="inv", timeline=1, from_lsn=0, to_lsn=9, commit_ts_ms=0, event_count=1, transactions=()
    )
    return WriteReport(
        batch_id=batch_id,
        header=header,
        documents=0,
        deletes=0,
        was_covered=was_covered,
        produce_seconds=0,
        commit_seconds=0,
        visible_at=now,
    )


@pytest.fixture(autouse=True)
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)


def jvm_with(monkeypatch: pytest.MonkeyPatch, code: int | None) -> None:
    process = SimpleNamespace(poll=lambda: code, wait=lambda _: code)
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))


@pytest.mark.parametrize("error", [ENDED, LATE])
def test_a_query_whose_planning_process_failed_is_started_again(
    tmp_path: Path, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen to end the run while every failure did."""
    run = Run(tmp_path, Query(error), Query(error), Query(visible=True), available_now=True)
    with caplog.at_level(logging.WARNING):
        assert run.go() == [3]
    assert all(query.is_stopped for query in run.started)
    assert len(set(map(id, run.writers))) == 3, "a writer that was stopped writes nothing"
    assert "Starting it again from its checkpoint, 2 of at most 5 times" in caplog.text


def test_it_is_not_started_again_for_ever(tmp_path: Path) -> None:
    run = Run(tmp_path, *[Query(LATE) for _ in range(9)])
    with pytest.raises(QueryFailedError, match="did not start within 10 s"):
        run.go()
    assert len(run.started) == 6


def test_batches_that_became_visible_give_new_starts_and_repeated_ones_do_not(tmp_path: Path) -> None:
    run = Run(tmp_path, *[Query(LATE, visible=True) for _ in range(9)], Query(), available_now=True)
    assert run.go() == list(range(1, 10))
    run = Run(tmp_path, *[Query(LATE, visible=False) for _ in range(9)])
    with pytest.raises(QueryFailedError):
        run.go()
    assert len(run.started) == 6


def test_any_other_failure_ends_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, Query(OTHER), Query())
    with pytest.raises(QueryFailedError, match="Job aborted"):
        run.go()
    assert len(run.started) == 1
    assert "the query failed" in caplog.text


@pytest.mark.parametrize("error", [ENDED, LATE, None])
def test_a_run_that_is_asked_to_stop_ends_in_order_whatever_its_processes_do(
    tmp_path: Path, error: str | None
) -> None:
    run = Run(tmp_path, Query(error))
    run.stop.set()
    assert run.go() == []
    assert len(run.started) == 1


def test_a_run_that_is_asked_to_stop_still_tells_of_a_real_failure(tmp_path: Path) -> None:
    run = Run(tmp_path, Query(OTHER))
    run.stop.set()
    with pytest.raises(QueryFailedError):
        run.go()


def test_what_the_sink_raised_is_the_failure(tmp_path: Path) -> None:
    class Failing(Run):
        def _start(self, session: Any) -> Any:
            query = super()._start(session)
            self._writer.failure = PipelineUnavailableError("the output is away")
            return query

    with pytest.raises(PipelineUnavailableError):
        Failing(tmp_path, Query(ENDED)).go()


def test_a_live_query_that_ends_without_an_error_is_a_failure(tmp_path: Path) -> None:
    """A JVM that gets SIGTERM stops its queries and tells nobody: the run ended with 0 and said nothing."""
    with pytest.raises(
        QueryFailedError, match="was stopped from outside; nothing is lost: start the pipeline"
    ):
        Run(tmp_path, Query()).go()


def test_a_query_that_has_read_all_there_is_ends_without_an_error(tmp_path: Path) -> None:
    assert Run(tmp_path, Query(visible=True), available_now=True).go() == [1]


def test_also_then_a_spark_that_was_shut_down_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, Query(), available_now=True)
    run.is_spark_stopped = True
    with pytest.raises(QueryFailedError, match="Spark was shut down from outside"):
        run.go()
    jvm_with(monkeypatch, 143)
    with pytest.raises(QueryFailedError, match=r"Spark's JVM ended \(exit code 143, SIGTERM\)"):
        Run(tmp_path, Query(), available_now=True).go()


def test_a_jvm_that_was_killed_is_named_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it the error was that of a connection, and "unexpected"."""
    jvm_with(monkeypatch, -9)
    with pytest.raises(QueryFailedError, match="exit code -9, SIGKILL: killed by somebody, or by the kernel"):
        Run(tmp_path, LostQuery()).go()
    assert "Answer from Java side is empty" in caplog.text


def test_a_lost_connection_to_a_jvm_that_runs_is_told_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jvm_with(monkeypatch, None)
    with pytest.raises(Py4JNetworkError):
        Run(tmp_path, LostQuery()).go()


def test_a_jvm_that_ends_while_the_run_stops_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """systemd, for one, sends SIGTERM to all processes of a service."""
    jvm_with(monkeypatch, 143)
    run = Run(tmp_path, LostQuery())
    run.stop.set()
    with caplog.at_level(logging.WARNING):
        assert run.go() == []
    assert "(exit code 143, SIGTERM) while the run was being stopped" in caplog.text
