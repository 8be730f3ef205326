"""How a run begins and how it ends: batches are scripted, there is neither Spark nor Kafka."""

import json
import logging
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]  # has no stubs
from pyspark import SparkContext

from slackwater.cdc.change_writer import ChangeWriter, EventSource, WrittenCommit
from slackwater.cdc.connector import reading_properties
from slackwater.cuts import RecordsGoneError, TopicUnavailableError
from slackwater.engine.settings import FormProof
from slackwater.pipeline import RunSettings, load_pipeline, runner, source_check
from slackwater.pipeline import progress as progress_module
from slackwater.pipeline.checkpoint import CHECKPOINT_FILE, Checkpoint
from slackwater.pipeline.definition import pipeline_definition
from slackwater.pipeline.progress import make_registration
from slackwater.pipeline.runner import PipelineRun
from slackwater.protocol import (
    NO_SERVERS,
    CommitPosition,
    ConfigError,
    InputError,
    OvertakenError,
    PipelineRegistration,
    PipelineReport,
    ProgressRecord,
    SlackwaterError,
    StateError,
    SystemClock,
    UnavailableError,
)
from slackwater.protocol.errors import run_overtaken
from slackwater.sql.postgres import parse_catalog
from slackwater_lab.fakes.memory import InMemoryLeaseLog, InMemoryPipelineLog

ORDERS_PIPELINE = Path(__file__).parents[4] / "pipelines" / "orders"
TOLD = "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
CANCELLED = f"{TOLD}: org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 2 cancelled part of tags"
FAILED = f"{TOLD}: org.apache.spark.SparkException: Job aborted due to stage failure"
LOST = "Answer from Java side is empty"


class Context:
    """Spark's, without Spark."""

    defaultParallelism = 2
    master = "local[2]"

    def __init__(self) -> None:
        self.is_stopped = False
        self.tags: set[str] = set()
        self.cancelled = threading.Event()
        self._jsc = SimpleNamespace(sc=lambda: self)

    def isStopped(self) -> bool:
        return self.is_stopped

    def parallelize(self, *_: object) -> None:
        pass

    def addJobTag(self, tag: str) -> None:
        self.tags.add(tag)

    def removeJobTag(self, tag: str) -> None:
        self.tags.remove(tag)

    def cancelJobsWithTag(self, tag: str) -> None:
        assert tag in self.tags
        self.cancelled.set()


class Sink:
    """Holds a progress, and nothing else."""

    place = "an output"

    def __init__(self) -> None:
        self.progress: ProgressRecord | None = None
        self.refuses: StateError | None = None
        self.checked: list[str | None] = []
        self.happened: list[str] = []

    def check(self, query_id: str | None) -> None:
        self.checked.append(query_id)
        if self.refuses is not None:
            raise self.refuses

    def open(self) -> ProgressRecord | None:
        self.happened.append("open")
        return self.progress

    def hold(self, _: object) -> dict[CommitPosition, str]:
        return {}

    def close(self) -> None:
        self.happened.append("close")


class Run:
    """A run whose loop is a function of the test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "checkpoint"
        self.settings = RunSettings(
            servers=NO_SERVERS, checkpoint=str(self.folder), parallelism=6, allow_missing_tables=True
        )
        self.definition = replace(load_pipeline(ORDERS_PIPELINE), buckets=None)
        self.context, self.sink, self.stop = Context(), Sink(), threading.Event()
        self.loop: Callable[[], None] = lambda: None
        self.topics: set[str] = set()
        self.first_values: list[bytes] = []
        """The first records in the topics of tables."""
        self.steps: list[str] = []
        self.on_step: Callable[[str], object] = lambda _: None
        self.pipelines = InMemoryPipelineLog()
        monkeypatch.setattr(progress_module, "PipelineLog", lambda *_, **__: self.pipelines)
        monkeypatch.setattr(runner, "LeaseLog", lambda *_: InMemoryLeaseLog())
        monkeypatch.setattr(SparkContext, "_gateway", None)
        monkeypatch.setattr(runner, "existing_topics", lambda *_: self.topics)
        monkeypatch.setattr(source_check, "first_values", lambda *_: self.first_values)
        monkeypatch.setattr(runner, "BatchLoop", lambda **_: SimpleNamespace(run=lambda **_: self.loop()))

    def new(self) -> PipelineRun:
        sink: Any = self.sink
        return PipelineRun(
            self.definition,
            self.settings,
            sink,
            on_progress=lambda _: None,
            on_step=self._note_step,
            stop=self.stop,
            clock=SystemClock(),
        )

    def _note_step(self, step: str) -> None:
        self.steps.append(step)
        self.on_step(step)

    def go(self) -> None:
        run = self.new()
        run.check()
        context: Any = self.context
        run.run(lambda: context)

    def fails(self, error: Exception, *, stopping: bool = False) -> None:
        """The loop fails like this, perhaps while the run is to stop."""

        def loop() -> None:
            if stopping:
                self.stop.set()
            raise error

        self.loop = loop


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, monkeypatch)


def jvm_with(monkeypatch: pytest.MonkeyPatch, code: int | None) -> None:
    process = SimpleNamespace(poll=lambda: code, wait=lambda _: code)
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))


def progress(query_id: str, state: str) -> ProgressRecord:
    return ProgressRecord(
        pipeline="orders",
        query_id=query_id,
        batch_id=3,
        source="inv",
        timeline=1,
        commit_lsn=40,
        state=state,
    )


# --- how it begins


def test_what_the_output_refuses_is_refused_before_anything_is_written(run: Run) -> None:
    run.sink.refuses = StateError("the name 'orders' is taken")
    with pytest.raises(StateError, match="is taken"):
        run.go()
    assert run.sink.checked == [None]
    assert run.sink.happened == []
    assert not run.folder.exists()


def test_a_checkpoint_of_another_pipeline_is_refused_before_the_output_is_asked(run: Run) -> None:
    run.go()
    run.definition = replace(run.definition, source="other")
    run.sink = Sink()
    with pytest.raises(StateError, match="source was inv, is other"):
        run.go()
    assert run.sink.checked == run.sink.happened == []


def test_the_first_run_chooses_the_buckets_and_later_ones_keep_them(run: Run) -> None:
    run.go()
    identity = Checkpoint(str(run.folder)).identity()
    assert identity is not None
    assert identity.buckets == 12, "two for each of six"
    run.settings = replace(run.settings, parallelism=40)
    run.go()
    assert Checkpoint(str(run.folder)).identity() == identity
    assert run.sink.checked == [None, identity.query_id]


def test_a_definition_that_says_other_buckets_is_refused(run: Run) -> None:
    run.go()
    run.definition = replace(run.definition, buckets=64)
    with pytest.raises(StateError, match="buckets was 12, is 64"):
        run.go()


def test_a_run_says_that_no_sidecar_has_published_a_cut(run: Run) -> None:
    run.go()
    assert run.steps[-1] == "waiting for the first cut; `slackwater sidecar --source inv` publishes it"
    run.topics.add("inv.slackwater.cuts")
    run.go()
    assert run.steps[-1] == "waiting for a cut with something new"


def test_a_run_says_once_why_the_sidecar_publishes_no_cut(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = ["no snapshot", "no snapshot", "", "no snapshot", "a fault", "a fault"]

    def loop(**arguments: Any) -> Any:
        def turns(**_: object) -> None:
            for reason in reasons:
                made._connector.refusal = reason  # noqa: SLF001 - as its thread does
                arguments["between_batches"]()

        return SimpleNamespace(run=turns)

    monkeypatch.setattr(runner, "BatchLoop", loop)
    made = run.new()
    made.check()
    context: Any = run.context
    made.run(lambda: context)
    said = [step.partition(": ")[2] for step in run.steps if "no further cut of inv" in step]
    assert said == ["no snapshot", "no snapshot", "a fault"]


OWN = (
    ChangeWriter(EventSource("inv", "d"), WrittenCommit(7, 8, 0, 9), 10)
    .table("s", "t")
    .event(None, b'{"id": 1}')
)
FROM_CONNECTOR = b'{"op": "c", "source": {"version": "3.7.0.Final", "schema": "s", "table": "t"}}'


@pytest.mark.parametrize(
    "value",
    [
        FROM_CONNECTOR,
        b'{"schema": {}, "payload": %b}' % FROM_CONNECTOR,
        b"\0\0\0\0\1Avro",
        *(FROM_CONNECTOR.replace(b'"3.7.0.Final"', v) for v in (b"null", b'""', b'"Slackwater"', b"1")),
    ],
)
def test_a_source_that_begins_with_what_may_be_a_connectors_is_refused(
    run: Run, caplog: pytest.LogCaptureFixture, value: bytes
) -> None:
    """Also if it begins with records of a pipeline, and those of a connector are in other partitions."""
    for topics in ([value], [OWN, value, OWN]):
        run.first_values = topics
        with pytest.raises(ConfigError, match=r"is not known: .*unavailable\.value\.placeholder"):
            run.go()
    assert "inv is unknown" not in caplog.text, "it says more than a warning could"


NUMBERS = pipeline_definition(
    name="v",
    source="inv",
    catalog=parse_catalog({"": "CREATE TABLE s.t (id int PRIMARY KEY, n int NOT NULL);"}),
    views={"v": "SELECT TRANSACTIONALLY id, n FROM s.t"},
)
"""A pipeline that can run although nobody knows the connector."""


def proofs_of(run: Run, monkeypatch: pytest.MonkeyPatch, *, is_known_later: bool) -> list[FormProof]:
    """Returns what proves the form of values in one batch of a run, and in the next one."""
    found: list[FormProof] = []

    def loop(**arguments: Any) -> Any:
        def turns(**_: Any) -> None:
            for is_known in (False, is_known_later):
                made._connector.is_known |= is_known  # noqa: SLF001 - as its thread does
                arguments["between_batches"]()
                found.append(pickle.loads(arguments["jobs"]._program).settings.proof)  # noqa: S301, SLF001

        return SimpleNamespace(run=turns)

    monkeypatch.setattr(runner, "BatchLoop", loop)
    made = run.new()
    made.check()
    context: Any = run.context
    made.run(lambda: context)
    return found


@pytest.mark.parametrize("values", [[], [OWN]])
def test_only_own_records_are_read_of_a_source_that_begins_with_none_of_a_connector(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, values: list[bytes]
) -> None:
    run.first_values = values
    assert proofs_of(run, monkeypatch, is_known_later=False) == [FormProof.WRITER] * 2
    assert "the configuration of the connector" not in caplog.text


def test_records_of_a_connector_are_read_from_when_on_it_is_known(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    proofs = proofs_of(run, monkeypatch, is_known_later=True)
    assert proofs == [FormProof.WRITER, FormProof.CONFIGURATION]


def test_values_of_a_connector_that_nobody_knows_prove_their_form(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.definition, run.first_values = NUMBERS, [FROM_CONNECTOR]
    assert proofs_of(run, monkeypatch, is_known_later=True) == [FormProof.VALUES] * 2


def test_a_pipeline_that_can_run_without_a_known_connector_is_told_what_cannot_be_noticed(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.definition = NUMBERS
    run.topics, run.first_values = {"inv.transaction"}, [FROM_CONNECTOR]
    run.go()
    assert "the configuration of the connector of source inv is unknown" in caplog.text
    assert "skipped.operations" in caplog.text
    assert "set connect.url" in caplog.text


def test_a_stated_configuration_of_the_connector_is_relied_on(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.topics, run.first_values = {"inv.transaction"}, [FROM_CONNECTOR]
    with pytest.raises(ConfigError, match="configuration is not known"):
        run.go()
    run.settings = replace(run.settings, connector_properties=reading_properties("inv"))
    run.go()
    assert "the configuration of the connector" not in caplog.text
    own = {**reading_properties("inv"), "unavailable.value.placeholder": "gone"}
    run.settings = replace(run.settings, connector_properties=own)
    with pytest.raises(InputError, match=r"unavailable\.value\.placeholder: gone"):
        run.go()


def test_a_table_without_a_topic_is_told_before_it_is_waited_for(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run.go()
    assert "table inventory.orders is treated as empty" in caplog.text


def test_a_table_without_a_topic_is_refused_unless_it_is_allowed(run: Run) -> None:
    run.settings = RunSettings(servers=NO_SERVERS, checkpoint=str(run.folder))
    run.topics.add("inv.transaction")
    problem = r"table inventory.order_lines: there is no topic inv.inventory.order_lines \(and for 1 more\)"
    with pytest.raises(ConfigError, match=problem):
        run.go()
    assert "open" not in run.sink.happened


def test_a_source_that_has_not_begun_is_waited_for(run: Run) -> None:
    run.settings = replace(run.settings, allow_missing_tables=False)
    run.topics.add("inv.slackwater.cuts")
    tables = {"inv.inventory.orders", "inv.inventory.order_lines"}

    def begin(step: str) -> None:
        if "has no topics yet" in step:
            run.topics.update(tables)

    run.on_step = begin
    run.go()
    assert run.steps[1].startswith("waiting for source 'inv', which has no topics yet: start its connector")
    assert "open" in run.sink.happened
    run.topics.difference_update(tables)
    run.settings = replace(run.settings, available_now=True)
    with pytest.raises(ConfigError, match="there is no topic"):
        run.go()


def test_a_run_that_is_stopped_while_its_source_has_not_begun_ends_in_order(run: Run) -> None:
    run.settings = replace(run.settings, allow_missing_tables=False)

    def ask_to_stop(step: str) -> None:
        if "has no topics yet" in step:
            run.stop.set()

    run.on_step = ask_to_stop
    run.go()
    assert "open" not in run.sink.happened


def test_progress_of_an_earlier_version_is_refused_with_the_way_out(run: Run) -> None:
    run.go()
    identity = Checkpoint(str(run.folder)).identity()
    assert identity is not None
    run.sink.progress = progress(identity.query_id, "")
    with pytest.raises(StateError, match=r"by an earlier version.*set `revision = 2`"):
        run.go()
    assert run.sink.happened[-1] == "close"


def test_a_state_that_the_checkpoint_has_lost_is_named(run: Run) -> None:
    run.go()
    name = f"{3:020d}-{'a' * 32}"
    run.sink.progress = progress("q", name)
    with pytest.raises(StateError, match=f"has no file manifests/{name}, which the state needs"):
        run.go()
    assert run.sink.happened[-1] == "close"


def test_an_output_that_has_lost_its_progress_is_refused(run: Run) -> None:
    run.go()
    (run.folder / "published").write_bytes(b"a state")
    with pytest.raises(StateError, match="progress records are gone"):
        run.go()


def test_a_checkpoint_is_claimed_before_the_output_is_taken_over(run: Run) -> None:
    noted: list[bool] = []

    def opened() -> None:
        noted.append((run.folder / CHECKPOINT_FILE).exists())

    run.sink.open = opened  # type: ignore[method-assign]
    run.go()
    assert noted == [True]
    assert json.loads((run.folder / CHECKPOINT_FILE).read_text())["version"] == "3"


def test_a_name_that_is_taken_is_refused_before_anything_is_written_or_asked(run: Run) -> None:
    run.go()
    holder = registered(run)
    run.folder = run.folder.with_name("another")
    run.settings = replace(run.settings, checkpoint=str(run.folder))
    run.definition, run.sink = replace(run.definition, source="crm"), Sink()
    with pytest.raises(StateError, match=r"'orders' is taken: .* from source inv .*pipeline delete"):
        run.go()
    assert run.sink.checked == run.sink.happened == []
    assert not run.folder.exists()
    assert registered(run) == holder


def test_a_name_that_is_taken_in_the_same_moment_is_refused_before_the_output_is_taken_over(
    run: Run,
) -> None:
    """Both have looked and found nobody: the one that registers first continues."""
    late = run.new()
    late.check()
    run.loop = lambda: pytest.fail("it runs")
    first = replace(make_registration_of(run), query_id="another", source="crm")
    run.pipelines.register(first)
    context: Any = run.context
    with pytest.raises(StateError, match="'orders' is taken: a pipeline from source crm"):
        late.run(lambda: context)
    assert run.sink.happened == ["close"]
    assert registered(run) == first


def test_a_run_that_cannot_withdraw_is_refused_all_the_same(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise TopicUnavailableError("removal", "slackwater.pipelines", "timed out")

    late = run.new()
    late.check()
    run.pipelines.register(replace(make_registration_of(run), query_id="another"))
    monkeypatch.setattr(run.pipelines, "forget", away)
    context: Any = run.context
    with pytest.raises(StateError, match="'orders' is taken"):
        late.run(lambda: context)
    assert run.sink.happened == ["close"]


def make_registration_of(run: Run) -> PipelineRegistration:
    return make_registration(
        run.definition, timeline=1, checkpoint="c", calls_function=False, clock=SystemClock()
    )


def registered(run: Run) -> PipelineRegistration:
    [found] = [e.record for e in run.pipelines.read() if isinstance(e.record, PipelineRegistration)]
    return found


# --- how it ends


def reported(run: Run) -> PipelineReport:
    [found] = [e.record for e in run.pipelines.read() if isinstance(e.record, PipelineReport)]
    return found


def test_a_run_registers_and_says_that_it_leaves(run: Run) -> None:
    run.go()
    identity = Checkpoint(str(run.folder)).identity()
    assert identity is not None
    assert (registered(run).query_id, registered(run).checkpoint) == (identity.query_id, str(run.folder))
    end = reported(run).end
    assert end is not None
    assert end.failure == ""


def test_a_run_that_fails_says_why(run: Run) -> None:
    run.fails(Py4JError(FAILED))
    with pytest.raises(SlackwaterError):
        run.go()
    end = reported(run).end
    assert end is not None
    assert end.failure.startswith("SlackwaterError: pipeline 'orders' stopped: Job aborted")


def test_a_run_that_was_overtaken_says_nothing_about_the_one_that_goes_on(run: Run) -> None:
    run.fails(run_overtaken("orders", "fenced"))
    with pytest.raises(OvertakenError):
        run.go()
    assert not any(isinstance(e.record, PipelineReport) and e.record.end for e in run.pipelines.read())


def test_a_topic_of_pipelines_that_is_away_costs_a_run_nothing_but_lines_in_its_log(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: object) -> None:
        raise TopicUnavailableError("read", "slackwater.pipelines", "no right")

    for method in ("read", "ensure", "register"):
        monkeypatch.setattr(run.pipelines, method, away)
    ran: list[bool] = []
    run.loop = lambda: ran.append(True)
    run.go()
    assert ran == [True]
    assert caplog.text.count("no right") == 2, "when it looks, and when it registers"


def test_a_run_that_has_shown_all_there_is_ends_and_leaves_spark_as_it_was(run: Run) -> None:
    seen: list[set[str]] = []
    run.loop = lambda: seen.append(set(run.context.tags))
    run.go()
    assert [len(tags) for tags in seen] == [1]
    assert run.context.tags == set()
    assert run.sink.happened == ["open", "close"]


def test_the_batch_of_a_run_that_is_to_stop_is_cancelled_and_the_run_ends_in_order(run: Run) -> None:
    def loop() -> None:
        run.stop.set()
        assert run.context.cancelled.wait(60)
        raise Py4JError(CANCELLED)

    run.loop = loop
    run.go()
    assert run.sink.happened == ["open", "close"]


def test_a_batch_that_somebody_else_cancelled_is_a_failure(run: Run) -> None:
    run.fails(Py4JError(CANCELLED))
    with pytest.raises(SlackwaterError, match="Job 2 cancelled"):
        run.go()
    assert not run.context.cancelled.is_set()


@pytest.mark.parametrize("stopping", [True, False])
def test_a_batch_that_fails_ends_the_run_also_while_it_is_to_stop(
    run: Run, stopping: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run.fails(Py4JError(FAILED), stopping=stopping)
    with pytest.raises(SlackwaterError, match="'orders' stopped: Job aborted due to stage failure"):
        run.go()
    assert "the batch failed" in caplog.text
    assert run.sink.happened == ["open", "close"]


@pytest.mark.parametrize(
    "error", [UnavailableError("the output is away"), RecordsGoneError("gone", "start over")]
)
def test_what_planning_or_the_output_raise_is_the_failure(run: Run, error: Exception) -> None:
    run.fails(error)
    with pytest.raises(type(error), match=str(error)):
        run.go()
    assert run.sink.happened == ["open", "close"]


def test_an_error_of_whoever_is_told_of_batches_is_not_taken_for_one_of_spark(run: Run) -> None:
    run.fails(BrokenPipeError("standard output was closed"))
    with pytest.raises(BrokenPipeError, match="standard output was closed"):
        run.go()
    assert run.sink.happened == ["open", "close"]


def test_a_spark_that_was_shut_down_is_a_failure(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.context.is_stopped = True
    run.fails(Py4JError(CANCELLED))
    with pytest.raises(
        SlackwaterError, match="Spark was shut down from outside; nothing is lost: start the pipeline again"
    ):
        run.go()
    assert CANCELLED in caplog.text


def test_a_jvm_that_was_killed_is_named_with_its_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jvm_with(monkeypatch, -9)
    run.fails(Py4JNetworkError(LOST))
    with pytest.raises(SlackwaterError, match="exit code -9, SIGKILL: killed, possibly by the kernel"):
        run.go()
    assert LOST in caplog.text


@pytest.mark.parametrize(
    ("code", "told"), [(143, "Spark's JVM ended (exit code 143, SIGTERM)"), (None, "Spark was shut down")]
)
def test_a_jvm_that_ends_while_the_run_stops_is_no_failure(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: int | None,
    told: str,
) -> None:
    """systemd, for one, sends SIGTERM to all processes of a service."""
    jvm_with(monkeypatch, code)
    run.context.is_stopped = True
    run.fails(Py4JNetworkError(LOST), stopping=True)
    with caplog.at_level(logging.WARNING):
        run.go()
    assert told in caplog.text
    assert "while the run was being stopped" in caplog.text


def test_a_run_that_is_stopped_while_its_output_is_away_ends_in_order(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    away = UnavailableError("PostgreSQL at h does not answer", "start it")
    run.fails(away)
    with pytest.raises(UnavailableError, match="does not answer"):
        run.go()
    run.fails(away, stopping=True)
    with caplog.at_level(logging.WARNING):
        run.go()
    assert "the run stops: PostgreSQL at h does not answer" in caplog.text


def test_a_run_that_is_stopped_before_its_output_has_answered_takes_nothing_over(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(_: object) -> None:
        run.stop.set()
        raise UnavailableError("away")

    monkeypatch.setattr(run.sink, "check", check)
    run.go()
    assert run.sink.happened == []
