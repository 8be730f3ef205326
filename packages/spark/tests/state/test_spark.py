"""Checkpoints of a real pipeline of several stages: looked into, and brought into other partitions."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from slackwater_engine.evaluate.evaluators import SqlEvaluators
from slackwater_engine.pack.packer import EventPacker
from slackwater_engine.pack.specification import packing_spec
from slackwater_engine.payloads import HEADER_BUCKET, PACKED_SCHEMA
from slackwater_engine.settings import StageSettings
from slackwater_engine.state.log import LOG_VERSION
from slackwater_protocol import NO_SERVERS
from slackwater_spark.errors import PipelineConfigError
from slackwater_spark.operator.processor import EngineProcessor, stages
from slackwater_spark.pipeline import RunSettings
from slackwater_spark.pipeline.session import spark_session
from slackwater_spark.state import Checkpoint, PipelineState, inspect_state, kept_rows, rescale, show_key
from slackwater_spark.state.rescaling import state_digests
from slackwater_sql.compiler import compile_pipeline
from slackwater_sql.plan import EnginePlan
from slackwater_sql.postgres import parse_catalog

pytestmark = pytest.mark.spark

TABLES = """
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer_id bigint, total bigint);
CREATE TABLE s.customers (id bigint PRIMARY KEY, region text NOT NULL);
ALTER TABLE s.orders REPLICA IDENTITY FULL;
"""
VIEW = """SELECT TRANSACTIONALLY c.region, count(*) AS orders, sum(o.total) AS total
    FROM s.orders o JOIN s.customers c ON c.id = o.customer_id GROUP BY c.region"""
PLAN = compile_pipeline([("regions.sql", VIEW)], parse_catalog({"t.sql": TABLES}))
BUCKETS = 16
CUSTOMERS = range(6)
ORDERS = range(30)
Stages = Callable[[DataFrame, EnginePlan, StageSettings], DataFrame]


class Job:
    """A query over batches that stand in files, one batch per file."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self.session = session
        self.settings = StageSettings(buckets=BUCKETS, index_root=str(folder / "index"))
        self.batches = folder / "batches"
        self.checkpoint = folder / "checkpoint"
        self.regions: dict[str, Any] = {}
        self.taken: list[int] = []
        """Numbers of the batches that were handed to the sink."""
        self.given = 0
        self.refuses = False
        """Whether the sink refuses what it is given."""

    def add_batch(self) -> None:
        """Every order moves to the next customer."""
        self.given += 1
        self._write(self.given, self._payloads(self.given, 0))

    def change_batch(self) -> None:
        """In the newest batch every order moves on once more."""
        number = self.given
        self.given += 1
        self._write(number, [*self._payloads(number, 0), *self._payloads(self.given, 1)])

    def _payloads(self, move: int, sequence: int) -> list[tuple[int, int, int, bytes]]:
        packer = EventPacker(packing_spec(PLAN, BUCKETS))
        for customer in CUSTOMERS if move == 1 else ():
            row = {"id": customer, "region": f"r{customer % 2}"}
            packer.add("s.customers", "c", 100, None, json.dumps(row).encode())
        for order in ORDERS:
            old, new = (
                {"id": order, "customer_id": (order + n) % len(CUSTOMERS), "total": order}
                for n in (move - 1, move)
            )
            before = None if move == 1 else json.dumps(old).encode()
            operation = "c" if move == 1 else "u"
            packer.add("s.orders", operation, 100 * move, before, json.dumps(new).encode())
        return [(stage, bucket, sequence, data) for stage, bucket, data in packer.payloads()]

    def _write(self, number: int, payloads: list[tuple[int, int, int, bytes]]) -> None:
        rows = [(0, HEADER_BUCKET, 0, b""), *payloads]
        types = [pa.int32(), pa.int32(), pa.int64(), pa.binary()]
        columns = [pa.array(v, kind) for v, kind in zip(zip(*rows, strict=True), types, strict=True)]
        target = self.batches / f"{number}.parquet"
        target.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns, names=["stage", "bucket", "sequence", "payload"]), target)
        os.utime(target, (number, number))

    def run(self, stages: Stages = stages) -> None:
        """All batches that are there."""
        reader = self.session.readStream.schema(PACKED_SCHEMA).option("maxFilesPerTrigger", 1)
        documents = stages(reader.parquet(str(self.batches)), PLAN, self.settings)
        writer = documents.writeStream.foreachBatch(self._take).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self.checkpoint)).start().awaitTermination()

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        if self.refuses:
            batch.collect()
            raise RefusedError
        self.taken.append(batch_id)
        for row in batch.where("stage < 0").collect():
            unpacked = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(bytes(row.payload)))
            for _, key, document in unpacked:
                self.regions[json.loads(key)["region"]] = json.loads(document)

    def check(self) -> None:
        """The view is what it is in a query whose partitions never changed: exactly the SELECT's result."""
        for region in (0, 1):
            orders = [order for order in ORDERS if (order + self.given) % len(CUSTOMERS) % 2 == region]
            name = f"r{region}"
            assert self.regions[name] == {"region": name, "orders": len(orders), "total": sum(orders)}


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """Numbers of partitions are set here."""
    return spark.newSession()


@pytest.fixture(scope="module")
def job(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """After two batches, between which two partitions became three."""
    job = Job(session, tmp_path_factory.mktemp("state"))
    job.add_batch()
    job.run()
    rescale(session, job.checkpoint, 3, buckets=BUCKETS)
    job.add_batch()
    job.run()
    return job


@pytest.fixture(scope="module")
def state(job: Job) -> PipelineState:
    return inspect_state(job.session, job.checkpoint)


def test_a_pipeline_goes_on_with_other_partitions(job: Job) -> None:
    job.check()
    assert Checkpoint(job.checkpoint).facts().partitions == 3
    assert Checkpoint(job.checkpoint).batches_without_input() == {1}


def test_the_comparison_after_a_change_sees_a_changed_state(job: Job) -> None:
    before, after = (state_digests(job.session, job.checkpoint, batch) for batch in (1, 2))
    assert before.keys() == after.keys()
    assert all(before[variable] != after[variable] for variable in before)


def test_the_state_says_what_each_stage_keeps(state: PipelineState) -> None:
    assert (state.batch, state.partitions, [each.stage for each in state.stages]) == (2, 3, [1, 2])
    joined, added = state.stages
    kinds = {kind: amount.entries for kind, amount in joined.contents.kinds.items()}
    assert kinds == {"input 0": len(ORDERS), "input 1": len(CUSTOMERS)}
    assert (joined.contents.keys, added.contents.keys) == (len(CUSTOMERS), 2)
    assert added.contents.kinds["groups"].entries == 2


def test_sizes_in_the_state_are_those_of_the_logs(state: PipelineState) -> None:
    for stage in state.stages:
        assert stage.live_bytes == sum(amount.size for amount in stage.contents.kinds.values())
        assert stage.log_bytes >= stage.live_bytes > 0
        assert stage.compressed_bytes > 0
        assert stage.blobs >= len(stage.buckets)
        assert {bucket.version for bucket in stage.buckets} == {LOG_VERSION}
        assert {bucket.partition for bucket in stage.buckets} <= {0, 1, 2}
        assert len(stage.fingerprints) == 1


def test_the_largest_key_has_the_most(state: PipelineState) -> None:
    joined = state.stages[0].contents.largest
    assert [each.size for each in joined] == sorted((each.size for each in joined), reverse=True)
    per_customer = len(ORDERS) // len(CUSTOMERS) + 1
    assert joined[0].entries == per_customer
    assert json.loads(show_key(PLAN.stage(1), joined[0].key)).keys() == {PLAN.stage(1).key[0].name}


def test_rows_of_a_key_are_shown_as_they_are_kept(job: Job) -> None:
    name = PLAN.stage(1).key[0].name
    (kept,) = kept_rows(job.session, job.checkpoint, PLAN, {name: 4}, buckets=BUCKETS)
    orders = [order for order in ORDERS if (order + 2) % len(CUSTOMERS) == 4]
    rows = {kind.split()[0]: values for kind, values in kept.rows.items()}
    assert sorted(row["id"] for row in rows["o"]) == orders
    assert [row["region"] for row in rows["c"]] == ["r0"]


def test_a_key_no_stage_has_is_an_error_that_tells_those_there_are(job: Job) -> None:
    with pytest.raises(PipelineConfigError, match="there are stage 1"):
        kept_rows(job.session, job.checkpoint, PLAN, {"nothing": 1}, buckets=BUCKETS)


class RefusedError(Exception):
    """Of a sink."""


def test_a_failed_batch_is_planned_anew_with_other_rows(session: SparkSession, tmp_path: Path) -> None:
    """Spark keeps what is there of a version; the next process, which reads it again, finds a mixed state."""
    job = Job(session, tmp_path)
    job.add_batch()
    job.run()
    job.add_batch()
    job.refuses = True
    with pytest.raises(StreamingQueryException):
        job.run()
    assert Checkpoint(job.checkpoint).begun_batch() == 1
    Checkpoint(job.checkpoint).drop_begun_batch(1)
    job.refuses = False
    job.change_batch()
    job.run()
    for _ in range(2):
        job.add_batch()
        job.run()
        job.check()


@pytest.mark.slow
def test_four_partitions_become_sixteen_and_four_again(session: SparkSession, tmp_path: Path) -> None:
    job = Job(session, tmp_path)
    session.conf.set("spark.sql.shuffle.partitions", "4")
    for partitions in (4, 16, 4):
        if job.given:
            assert rescale(session, job.checkpoint, partitions, buckets=BUCKETS) is not None
        for _ in range(2):
            job.add_batch()
        job.run()
        job.check()
        assert Checkpoint(job.checkpoint).facts().partitions == partitions
    assert Checkpoint(job.checkpoint).batches_without_input() == {2, 5}


def stages_that_kill_their_executor(
    rows: DataFrame, plan: EnginePlan, settings: StageSettings, once: Path
) -> DataFrame:
    """As :func:`stages`; in the second batch the first task to finish a bucket kills its JVM."""

    class Killer(EngineProcessor):
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            yield from super().handleInputRows(key, rows, timerValues)
            if key[0] == 1 and is_in_second_batch() and not once.exists():
                once.touch()
                os.kill(executor(), signal.SIGKILL)

    def is_in_second_batch() -> bool:
        from pyspark import TaskContext

        context = TaskContext.get()
        return context is not None and context.getLocalProperty("streaming.sql.batchId") == "1"

    def executor() -> int:
        backend = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
        (found,) = (each for each in psutil.Process().parents() if backend in each.cmdline())
        return found.pid

    for stage in plan.stages:
        processor = Killer(plan, stage.number, settings, SqlEvaluators())
        rows = rows.groupBy("stage", "bucket").transformWithState(processor, PACKED_SCHEMA, "Append", "None")
    return rows


def lose_an_executor(folder: Path) -> None:
    """Three batches on two executors, one of which dies within the second; in a process of its own."""
    folder.mkdir()
    settings = RunSettings(
        servers=NO_SERVERS, checkpoint=folder, master="local-cluster[2,1,1024]", shuffle_partitions=4
    )
    killed = folder / "killed"
    with spark_session("executor loss", settings, folder / "log" / "spark.log") as session:
        job = Job(session, folder)
        for _ in range(3):
            job.add_batch()
        job.run(lambda rows, plan, of: stages_that_kill_their_executor(rows, plan, of, killed))
        job.check()
    assert killed.exists()
    assert job.taken == [0, 1, 2]


@pytest.mark.slow
def test_an_executor_killed_within_a_batch_changes_nothing(tmp_path: Path) -> None:
    """Its tasks are repeated on the other one, which rebuilds the indexes of buckets it has never had."""
    program = [sys.executable, __file__, str(tmp_path / "job")]
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]


if __name__ == "__main__":
    lose_an_executor(Path(sys.argv[1]))
