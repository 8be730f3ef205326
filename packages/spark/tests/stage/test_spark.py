"""The stage as a Spark query: state, index and worker are lost, and nobody can tell from the documents."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from slackwater_spark.sink import DocumentBatch
from slackwater_spark.stage import (
    HEADER_BUCKET,
    ROW_SCHEMA,
    EventPacker,
    StageSettings,
    local_checkpoint_conf,
    packing_spec,
    required_conf,
    required_environment,
    stage,
)
from slackwater_spark.stage.processor import StageProcessor
from slackwater_sql.plan import ViewPlan

pytestmark = pytest.mark.spark

BUCKETS = 8
ORDERS = range(20)
HEADER = b"passes unchanged"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    if (active := SparkSession.getActiveSession()) is not None:
        active.stop()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in required_environment().items():
            patch.setenv(name, value)
        builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.driver.host", "127.0.0.1")
        for name, value in (required_conf() | local_checkpoint_conf()).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        yield session
        session.stop()


class Job:
    """A query over batches that stand in files, one batch per file."""

    def __init__(self, folder: Path, plan: ViewPlan) -> None:
        self.plan = plan
        self.settings = StageSettings(buckets=BUCKETS, index_root=str(folder / "index"))
        self.index_root = folder / "index"
        self.batches = folder / "batches"
        self.batches.mkdir()
        self.checkpoint = folder / "checkpoint"
        self.documents: dict[int, Any] = {}
        self.headers: list[bytes] = []

    def add_batch(self, number: int) -> None:
        """Every order gets a new customer and one line more."""
        packer = EventPacker(packing_spec(self.plan, BUCKETS))
        lsn = 100 * number
        for order in ORDERS:
            row = {"id": order, "customer": f"c{number}", "total": None}
            packer.add("inventory.orders", "u", lsn, None, json.dumps(row).encode())
            line = {"id": 1000 * number + order, "order_id": order, "product": "x"}
            packer.add("inventory.order_lines", "c", lsn, None, json.dumps(line).encode())
        rows = [(0, HEADER_BUCKET, 0, HEADER), *((1, b, 0, data) for _, b, data in packer.payloads())]
        stages, buckets, sequences, payloads = zip(*rows, strict=True)
        columns = [
            pa.array(stages, pa.int32()),
            pa.array(buckets, pa.int32()),
            pa.array(sequences, pa.int64()),
            pa.array(payloads, pa.binary()),
        ]
        target = self.batches / f"{number}.parquet"
        pq.write_table(pa.table(columns, names=["stage", "bucket", "sequence", "payload"]), target)
        os.utime(target, (number, number))

    def packed_rows(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(ROW_SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.batches))

    def run(self, documents: DataFrame) -> None:
        """All batches that are there."""
        query = (
            documents.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        for row in batch.collect():
            if row.bucket == HEADER_BUCKET:
                self.headers.append(bytes(row.payload))
                continue
            (payload,) = DocumentBatch(batch_id, None, {0: (bytes(row.payload),)}).chunks(0)  # type: ignore[arg-type]
            for _, key, document in payload:
                self.documents[json.loads(key)["id"]] = document and json.loads(document)

    def check(self, batches: int) -> None:
        expected = [(order, f"c{batches}", batches) for order in ORDERS]
        assert [(k, d["customer"], d["line_count"]) for k, d in sorted(self.documents.items())] == expected
        assert self.headers == [HEADER] * batches


@pytest.fixture
def job(tmp_path: Path, plan: ViewPlan) -> Job:
    return Job(tmp_path, plan)


def test_a_query_started_again_without_its_index_goes_on(spark: SparkSession, job: Job) -> None:
    for number in (1, 2):
        job.add_batch(number)
    job.run(stage(job.packed_rows(spark), job.plan, job.settings))
    job.check(2)
    shutil.rmtree(job.index_root)
    job.add_batch(3)
    job.run(stage(job.packed_rows(spark), job.plan, job.settings))
    job.check(3)


def test_a_worker_killed_after_its_index_was_committed_changes_nothing(
    spark: SparkSession, job: Job, tmp_path: Path
) -> None:
    """Fails without the token check: the repeated task would find its changes done and emit nothing."""
    killed = tmp_path / "killed"

    class KilledOnce(StageProcessor):
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            yield from super().handleInputRows(key, rows, timerValues)
            if key[0] != HEADER_BUCKET and job_is_at_second_batch() and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def job_is_at_second_batch() -> bool:
        from pyspark import TaskContext

        context = TaskContext.get()
        return context is not None and context.getLocalProperty("streaming.sql.batchId") == "1"

    for number in (1, 2):
        job.add_batch(number)
    processor = KilledOnce(job.plan, job.settings)
    packed = job.packed_rows(spark).groupBy("bucket")
    job.run(packed.transformWithState(processor, ROW_SCHEMA, "Append", "None"))
    assert killed.exists()
    job.check(2)
    shutil.rmtree(job.index_root)
    job.add_batch(3)
    job.run(stage(job.packed_rows(spark), job.plan, job.settings))
    job.check(3)
