"""Batches as jobs, over a Spark that is a few lists: small and divided ones give the same."""

import json
import pickle
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]  # has no stubs
from pyspark import cloudpickle
from pyspark.serializers import AutoBatchedSerializer, CPickleSerializer
from pyspark.util import _load_from_socket

from slackwater.cdc.batch import BatchTask, OffsetSpan, PlannedBatch, TransactionTable
from slackwater.engine.bucket import state_fingerprint
from slackwater.engine.packer import EventPacker
from slackwater.engine.payloads import PackedPayload, decode_documents, documents_by_view, settled
from slackwater.engine.settings import StageSettings
from slackwater.engine.state.log import BucketLog
from slackwater.engine.state.manifest import SegmentReader, StateKeeper, WrittenManifest, batch_of
from slackwater.engine.state.store import ArrowStore
from slackwater.pipeline import batch_job, jvm
from slackwater.pipeline.batch_job import BatchJobs, BatchResult, KnownState, TaskProgram
from slackwater.pipeline.jvm import SPARK_ERRORS, collect
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.task import IdlePackers
from slackwater.protocol import BatchHeader, KafkaSettings, Servers, SlackwaterError, StateError
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater.sql.row_codec import UNAVAILABLE

TABLES = """
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer_id bigint, total bigint);
CREATE TABLE s.customers (id bigint PRIMARY KEY, region text NOT NULL);
ALTER TABLE s.orders REPLICA IDENTITY FULL;
ALTER TABLE s.customers REPLICA IDENTITY FULL;
"""
VIEWS = {
    "named": """SELECT TRANSACTIONALLY o.id, c.region
        FROM s.orders o JOIN s.customers c ON c.id = o.customer_id""",
    "regions": """SELECT TRANSACTIONALLY c.region, count(*) AS orders, sum(o.total) AS total
        FROM s.orders o JOIN s.customers c ON c.id = o.customer_id GROUP BY c.region""",
}
PLAN = compile_pipeline(
    [(f"{name}.sql", sql) for name, sql in VIEWS.items()], parse_catalog({"t.sql": TABLES})
)
SETTINGS = StageSettings(buckets=5)
OPTIONS = SourceOptions(
    servers=Servers(KafkaSettings("nowhere:1")), source="inv", tables=("s.orders", "s.customers")
)
ORDERS, CUSTOMERS = range(20), range(3)
RESHUFFLED, MOVED = 48, 49
"""Batches in which a task does not have all it needs."""
Views = list[dict[str, Any]]


class Rdd:
    """Lists in place of Spark's partitions; what is run over them travels as it does to Spark."""

    exchanges = 0
    """The number of exchanges between tasks, over all of them."""

    def __init__(self, partitions: list[list[Any]]) -> None:
        self._partitions = partitions

    def mapPartitions(self, work: Callable[[Iterator[Any]], Iterable[Any]]) -> "Rdd":
        return self.mapPartitionsWithIndex(lambda _, rows: work(rows))

    def mapPartitionsWithIndex(self, work: Callable[[int, Iterator[Any]], Iterable[Any]]) -> "Rdd":
        sent: bytes = cloudpickle.dumps(work)  # type: ignore[no-untyped-call]  # has no annotations
        there = pickle.loads(sent)  # noqa: S301 - our own bytes
        found = []
        for number, rows in enumerate(self._partitions):
            given = iter(rows)
            found.append(list(there(number, given)))
            assert next(given, None) is None, "Spark ends a worker that has not read its input"
        return Rdd(pickle.loads(pickle.dumps(found)))  # noqa: S301 - our own bytes

    def partitionBy(self, count: int, place: Callable[[int], int]) -> "Rdd":
        Rdd.exchanges += 1
        partitions: list[list[Any]] = [[] for _ in range(count)]
        for row in (row for rows in self._partitions for row in rows):
            partitions[place(row[0])].append(row)
        return Rdd(partitions)

    def values(self) -> "Rdd":
        return Rdd([[row for _, row in rows] for rows in self._partitions])

    def rows(self) -> list[Any]:
        return [row for rows in self._partitions for row in rows]


class Context:
    """Spark's, of lists."""

    def __init__(self) -> None:
        self.tags: list[str] = []

    def addJobTag(self, tag: str) -> None:
        self.tags.append(tag)

    def removeJobTag(self, tag: str) -> None:
        self.tags.remove(tag)

    def parallelize(self, items: Iterable[Any], count: int) -> Rdd:
        partitions: list[list[Any]] = [[] for _ in range(count)]
        for number, item in enumerate(items):
            partitions[number % count].append(item)
        return Rdd(partitions)


def planned(number: int, tasks: int = 1) -> PlannedBatch:
    """Batch `number`, divided into tasks: orders by their ids."""
    header = BatchHeader(
        source="inv",
        timeline=1,
        from_lsn=100 * number,
        to_lsn=100 * number + 100,
        commit_ts_ms=0,
        event_count=0,
        transactions=(),
    )
    spans = [OffsetSpan(f"{number} of {tasks}", task, 0, 1, task) for task in range(tasks)]
    return PlannedBatch(header, tuple(BatchTask((span,), TransactionTable([])) for span in spans))


def read_packed(options: SourceOptions, packers: IdlePackers, task: BatchTask) -> list[PackedPayload]:
    """In place of Kafka. With each batch every order moves on to the next customer."""
    assert options == OPTIONS
    return [row for span in task.spans for row in read_span(packers, span)]


def read_span(packers: IdlePackers, span: OffsetSpan) -> Iterator[PackedPayload]:
    number, tasks = map(int, span.topic.split(" of "))
    packer = packers.take()
    lsn = 100 * number + 100
    for customer in CUSTOMERS if not number + span.partition else ():
        row = {"id": customer, "region": "a" if customer < 2 else "b"}
        packer.table("s.customers").add("c", lsn, None, json.dumps(row).encode())
    for order in ORDERS[span.partition :: tasks]:
        old, new = ({"id": order, "customer_id": n % 3, "total": order} for n in (number - 1, number))
        before = None if not number else json.dumps(old).encode()
        packer.table("s.orders").add("u" if number else "c", lsn, before, json.dumps(new).encode())
    if number == RESHUFFLED:
        reshuffle(packer, lsn, span.partition)
    if number == MOVED:
        move(packer, lsn, span.partition)
    for stage, bucket, payload in packer.payloads():
        yield stage, bucket, span.sequence, payload
    packers.give_back(packer)


def reshuffle(packer: EventPacker, lsn: int, partition: int) -> None:
    """Another customer takes the key of each customer, whose own row is deleted in another task."""
    for customer in CUSTOMERS:
        row = {"id": customer, "region": "a" if customer < 2 else "b"}
        if partition == 0:
            packer.table("s.customers").add(
                "c", lsn, None, json.dumps({**row, "region": "z"}).encode(), lsn - 9
            )
            packer.table("s.customers").add("c", lsn, None, json.dumps(row).encode(), lsn - 7)
            packer.table("s.customers").add(
                "d", lsn, json.dumps({**row, "region": "z"}).encode(), None, lsn - 5
            )
        else:
            packer.table("s.customers").add("d", lsn, json.dumps(row).encode(), None, lsn - 3)


def move(packer: EventPacker, lsn: int, partition: int) -> None:
    """Each customer takes another key, and takes its own again, without its region, which does not change."""
    for customer in CUSTOMERS:
        old, new = ({"id": customer, "region": UNAVAILABLE}, {"id": customer + 9, "region": UNAVAILABLE})
        for distance, first, second in ((20, old, new), (10, new, old)):
            if partition == 0:
                packer.table("s.customers").add("d", lsn, json.dumps(first).encode(), None, lsn - distance)
            else:
                packer.table("s.customers").add("c", lsn, None, json.dumps(second).encode(), lsn - distance)


def expected(number: int) -> Views:
    """The views after a batch: all orders are of one customer."""
    region = "b" if number % 3 == 2 else "a"
    regions = {"region": region, "orders": len(ORDERS), "total": sum(ORDERS)}
    return [{str(order): {"id": order, "region": region} for order in ORDERS}, {region: regions}]


class Pipeline:
    """Runs batches as a run does, without a source and without an output."""

    def __init__(self, folder: Path, parallelism: int = 3) -> None:
        self.folder = folder
        self.store = ArrowStore(str(folder / "checkpoint"))
        self.keeper = StateKeeper(self.store, state_fingerprint(PLAN, SETTINGS))
        self.keeper.open("")
        self.views: Views = [{} for _ in VIEWS]
        self.written: list[WrittenManifest] = []
        self.jobs = self.new_jobs("index", parallelism)

    def new_jobs(self, index: str, parallelism: int = 3) -> BatchJobs:
        """Of executors with this folder of indexes."""
        program = TaskProgram(
            plan=PLAN,
            settings=SETTINGS,
            evaluators=None,
            options=OPTIONS,
            checkpoint=str(self.folder / "checkpoint"),
            query_id="q",
            index_root=str(self.folder / index),
        )
        context: Any = Context()
        return BatchJobs(context, program, parallelism)

    def compute(self, number: int, tasks: int = 1, *, is_told: bool = True) -> BatchResult:
        """Runs a batch; nothing of it is true afterwards."""
        told = tuple(self.written) if is_told else ()
        return self.jobs.run(number, planned(number, tasks), KnownState(self.keeper.state.name, told))

    def keep(self, result: BatchResult) -> None:
        """Makes it true."""
        number = self.keeper.state.batch_id + 1
        self.keeper.adopt(self.keeper.prepare({}, result.writes, result.updates))
        if self.keeper.newest_manifest is not None:
            self.written.append(self.keeper.newest_manifest)
        for view, payloads in documents_by_view(number, result.rows).items():
            chunks = [each for chunk in decode_documents(number, payloads) for each in chunk]
            for _, key, document in settled(chunks, every_commit=False):
                name = str(next(iter(json.loads(key).values())))
                self.views[view].pop(name, None)
                if document is not None:
                    self.views[view][name] = json.loads(document)

    def batch(self, number: int, tasks: int = 1, *, is_told: bool = True) -> BatchResult:
        """Both."""
        result = self.compute(number, tasks, is_told=is_told)
        self.keep(result)
        assert self.views == expected(number)
        return result

    def contents(self) -> dict[tuple[int, int], dict[bytes, bytes]]:
        """The entries of each bucket that has some, as its log tells them."""
        found = {}
        for place, head in self.keeper.state.heads.items():
            entries: dict[bytes, bytes] = {}
            for changes in BucketLog(*place, head, SegmentReader(self.store)).changes():
                for name, value in changes:
                    entries.pop(name, None)
                    if value is not None:
                        entries[name] = value
            found[place] = entries
        return {place: entries for place, entries in found.items() if entries}


@pytest.fixture(autouse=True)
def source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_job, "read_packed", read_packed)
    monkeypatch.setattr(batch_job, "collect", Rdd.rows)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path)


def test_a_worker_keeps_few_states_however_many_batches_it_runs(pipeline: Pipeline) -> None:
    worker = batch_job._worker(pipeline.jobs._program)  # noqa: SLF001 - its memory shows nowhere else
    for number in range(5):
        pipeline.batch(number)
        assert len(worker._states) <= 2  # noqa: SLF001 - as above


@pytest.mark.parametrize(("tasks", "parallelism"), [(2, 1), (2, 4), (5, 2)])
def test_small_and_divided_batches_give_the_same_documents_and_contents(
    tmp_path: Path, tasks: int, parallelism: int
) -> None:
    small, divided = Pipeline(tmp_path / "small"), Pipeline(tmp_path / "divided", parallelism)
    for number in range(4):
        small.batch(number)
        divided.batch(number, tasks)
        assert small.contents() == divided.contents()
    keepers = {stage.kept_by or stage.number for stage in PLAN.stages}
    assert {stage for stage, _ in small.contents()} == keepers


def test_a_divided_batch_of_which_a_task_does_not_have_all_it_needs_is_done_by_one_task(
    pipeline: Pipeline,
) -> None:
    for number in (*CUSTOMERS, RESHUFFLED, MOVED):
        pipeline.batch(number, 2)
    customers = [
        value for entries in pipeline.contents().values() for value in entries.values() if b"z" in value
    ]
    assert not customers


def test_only_a_divided_batch_is_exchanged_between_tasks_once_for_each_level(pipeline: Pipeline) -> None:
    assert len(PLAN.levels) > 1
    for number, tasks in enumerate((1, 2)):
        before = Rdd.exchanges
        pipeline.batch(number, tasks)
        assert Rdd.exchanges - before == (0 if tasks == 1 else len(PLAN.levels))


def test_batches_of_both_kinds_follow_each_other(pipeline: Pipeline) -> None:
    for number, tasks in enumerate((3, 1, 1, 2, 1, 4)):
        pipeline.batch(number, tasks)


def test_what_small_and_medium_batches_write_is_one_segment_of_the_driver(pipeline: Pipeline) -> None:
    for number, tasks in enumerate((1, 3)):
        result = pipeline.batch(number, tasks)
        assert result.updates == []
        assert result.writes
    assert sorted(map(batch_of, pipeline.store.list("segments"))) == [0, 1]


def test_what_is_too_large_to_travel_is_a_segment_of_its_task(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_job, "CARRIED_BYTES", 1)
    for number in range(3):
        result = pipeline.batch(number, 3)
        assert result.writes == []
        assert {batch_of(blob.segment) for update in result.updates for blob in update.blobs} == {number}
    assert len(pipeline.store.list("segments")) > 3


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_batch_that_was_lost_after_its_tasks_had_run_gives_the_same_again(
    pipeline: Pipeline, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its indexes have the changes already."""
    monkeypatch.setattr(batch_job, "CARRIED_BYTES", 1)
    pipeline.batch(0, tasks)
    lost = pipeline.compute(1, tasks)
    again = pipeline.compute(1, tasks)
    assert sorted(lost.rows) == sorted(again.rows)
    pipeline.keep(again)
    assert pipeline.views == expected(1)
    pipeline.batch(2, tasks)


def test_a_batch_may_be_another_one_when_it_is_planned_anew(pipeline: Pipeline) -> None:
    pipeline.batch(0)
    pipeline.compute(1)
    pipeline.compute(1, 4)
    pipeline.batch(1, 2)
    pipeline.batch(2)


@pytest.mark.parametrize("tasks", [1, 3])
def test_executors_that_have_nothing_go_on_from_the_store_alone(pipeline: Pipeline, tasks: int) -> None:
    for number in range(3):
        pipeline.batch(number, tasks)
    pipeline.jobs = pipeline.new_jobs("elsewhere")
    pipeline.batch(3, tasks, is_told=False)
    pipeline.batch(4, tasks)


def test_workers_follow_what_they_are_told_without_asking_the_store(pipeline: Pipeline) -> None:
    """Spark gives small batches to them in turn."""
    workers = [pipeline.new_jobs(name) for name in "abc"]
    for number in range(12):
        shutil.rmtree(pipeline.folder / "checkpoint" / "manifests", ignore_errors=True)
        pipeline.jobs = workers[number % 3]
        pipeline.batch(number)


def test_a_worker_that_has_missed_batches_reads_their_manifests(pipeline: Pipeline) -> None:
    for number in range(2):
        pipeline.batch(number)
    pipeline.jobs, before = pipeline.new_jobs("elsewhere"), pipeline.jobs
    for number in range(2, 5):
        pipeline.batch(number)
    pipeline.jobs = before
    del pipeline.written[:-1]
    pipeline.batch(5)


def poisoned(pipeline: Pipeline, folder: str, poison: Callable[[Path], object]) -> str:
    """Why a batch fails on executors that have nothing, when files of a folder are poisoned."""
    for number in range(3):
        pipeline.batch(number)
    pipeline.jobs, pipeline.written = pipeline.new_jobs("elsewhere"), []
    for path in (pipeline.folder / "checkpoint" / folder).iterdir():
        poison(path)
    with pytest.raises(StateError) as caught:
        pipeline.compute(3)
    assert "estore the checkpoint or start with a new one" in str(caught.value)
    return str(caught.value)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("poison", "says"),
    [
        (Path.unlink, "has no file segments/0000"),
        (truncate, "the state in the checkpoint cannot be read: segment 0000"),
        (flip, "the state in the checkpoint cannot be read: segment 0000"),
    ],
)
def test_a_segment_that_is_missing_or_damaged_is_named(
    pipeline: Pipeline, poison: Callable[[Path], object], says: str
) -> None:
    assert says in poisoned(pipeline, "segments", poison)


@pytest.mark.parametrize(
    ("poison", "says"),
    [(Path.unlink, "has no file manifests/0000"), (truncate, "its content does not match its name")],
)
def test_a_manifest_that_is_missing_or_damaged_is_named(
    pipeline: Pipeline, poison: Callable[[Path], object], says: str
) -> None:
    assert says in poisoned(pipeline, "manifests", poison)


def test_a_worker_of_another_plan_refuses_the_state(pipeline: Pipeline) -> None:
    pipeline.batch(0)
    other = compile_pipeline([("named.sql", VIEWS["named"])], parse_catalog({"t.sql": TABLES}))
    program = TaskProgram(
        plan=other,
        settings=SETTINGS,
        evaluators=None,
        options=OPTIONS,
        checkpoint=str(pipeline.folder / "checkpoint"),
        query_id="q",
        index_root=str(pipeline.folder / "other"),
    )
    context: Any = Context()
    pipeline.jobs = BatchJobs(context, program, 2)
    with pytest.raises(SlackwaterError, match="it belongs to other stages"):
        pipeline.compute(1)


def test_a_task_tells_how_long_it_took(pipeline: Pipeline) -> None:
    for tasks in (1, 3):
        result = pipeline.compute(0, tasks)
        assert result.read_seconds > 0
        assert result.evaluate_seconds > 0


def test_nothing_of_a_program_that_is_shown_is_a_secret() -> None:
    servers = Servers(KafkaSettings("nowhere:1", {"sasl.password": "hush"}))
    program = TaskProgram(
        plan=PLAN,
        settings=SETTINGS,
        evaluators=None,
        options=replace(OPTIONS, servers=servers),
        checkpoint="s3://ann:hush@bucket/x",
        query_id="q",
        index_root=None,
    )
    assert "hush" not in repr(program)


def test_a_jvm_that_has_ended_is_noticed_without_a_batch(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = pipeline.new_jobs("index")
    jobs.check()
    monkeypatch.setattr(batch_job, "explain_jvm_end", lambda: "Spark's JVM ended (exit code 143, SIGTERM)")
    with pytest.raises(SPARK_ERRORS, match="SIGTERM"):
        jobs.check()


def messages(sent: bytes) -> Iterator[bytes]:
    stream = BytesIO(sent)
    while length := stream.read(4):
        yield stream.read(int.from_bytes(length))


class Served:
    """An RDD whose rows a JVM serves through a connection that ends after some bytes."""

    def __init__(self, rows: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self._jrdd_deserializer = AutoBatchedSerializer(CPickleSerializer(), bestSize=64)  # type: ignore[no-untyped-call]
        sent = BytesIO()
        self._jrdd_deserializer.dump_stream(rows, sent)  # type: ignore[no-untyped-call]
        self.sent = sent.getvalue()
        self.context = self._jrdd = MagicMock()
        self._jrdd.collectAsync().get().__len__.return_value = sum(1 for _ in messages(self.sent))
        monkeypatch.setattr(jvm, "_load_from_socket", self._load)

    @contextmanager
    def _load(self, _served: object, serializer: Any) -> Iterator[Any]:
        yield serializer.load_stream(BytesIO(self.sent))


def test_the_rows_of_a_batch_are_all_that_the_tasks_have_made(monkeypatch: pytest.MonkeyPatch) -> None:
    served: Any = Served(list(range(100)), monkeypatch)
    assert collect(served) == list(range(100))


def test_a_connection_that_breaks_anywhere_within_the_rows_gives_no_part_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: Any = Served(list(range(100)), monkeypatch)
    whole = served.sent
    for length in range(len(whole)):
        served.sent = whole[:length]
        with pytest.raises(SPARK_ERRORS, match=r"of a batch (did not arrive|arrived)"):
            collect(served)


def test_a_jvm_that_ended_before_it_sent_the_rows_is_an_error_of_spark_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: Any = Served([1], monkeypatch)
    monkeypatch.setattr(jvm, "_load_from_socket", _load_from_socket)
    with closing(socket.create_server(("127.0.0.1", 0))) as ended:
        port = ended.getsockname()[1]
    served.context._jvm.PythonRDD.serveIterator.return_value = (port, "secret")  # noqa: SLF001 - Spark has no other name
    with pytest.raises(SPARK_ERRORS):
        collect(served)


def test_an_error_of_the_connection_is_one_of_spark_s(monkeypatch: pytest.MonkeyPatch) -> None:
    served: Any = Served([1], monkeypatch)

    def refuse(*_: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(jvm, "_load_from_socket", refuse)
    with pytest.raises(Py4JNetworkError, match="did not arrive: timed out"):
        collect(served)
