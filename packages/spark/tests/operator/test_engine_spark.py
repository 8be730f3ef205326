"""A pipeline of several stages as a Spark query, over a restart that has lost its indexes."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyspark.sql import DataFrame, Row, SparkSession

from slackwater_engine.pack.packer import EventPacker
from slackwater_engine.pack.specification import packing_spec
from slackwater_engine.payloads import HEADER_BUCKET, PACKED_SCHEMA
from slackwater_engine.settings import StageSettings
from slackwater_spark.operator import processor as processor_module
from slackwater_spark.operator.processor import EngineProcessor, stages
from slackwater_sql.compiler import compile_pipeline
from slackwater_sql.postgres import parse_catalog

pytestmark = pytest.mark.spark

TABLES = """
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer_id bigint, total bigint);
CREATE TABLE s.customers (id bigint PRIMARY KEY, region text NOT NULL);
ALTER TABLE s.orders REPLICA IDENTITY FULL;
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
BUCKETS = 4
ORDERS = range(20)


class Job:
    """A query over batches that stand in files, one batch per file."""

    def __init__(self, folder: Path) -> None:
        self.settings = StageSettings(buckets=BUCKETS, index_root=str(folder / "index"))
        self.folder = folder
        self.views: list[dict[str, Any]] = [{} for _ in VIEWS]
        self.headers = 0
        (folder / "batches").mkdir()

    def add_batch(self, number: int) -> None:
        """Every order belongs to the next customer; customers 0 and 1 are in the same region."""
        packer = EventPacker(packing_spec(PLAN, BUCKETS))
        lsn = 100 * number
        for customer in range(3 if number == 1 else 0):
            row = {"id": customer, "region": "a" if customer < 2 else "b"}
            packer.add("s.customers", "c", lsn, None, json.dumps(row).encode())
        for order in ORDERS:
            old, new = ({"id": order, "customer_id": n % 3, "total": order} for n in (number - 1, number))
            before = None if number == 1 else json.dumps(old).encode()
            packer.add("s.orders", "c" if number == 1 else "u", lsn, before, json.dumps(new).encode())
        rows = [(0, HEADER_BUCKET, 0, b"header"), *((s, b, 0, data) for s, b, data in packer.payloads())]
        types = [pa.int32(), pa.int32(), pa.int64(), pa.binary()]
        columns = [
            pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), types, strict=True)
        ]
        target = self.folder / "batches" / f"{number}.parquet"
        pq.write_table(pa.table(columns, names=["stage", "bucket", "sequence", "payload"]), target)
        os.utime(target, (number, number))

    def run(self, spark: SparkSession) -> None:
        """All batches that are there."""
        reader = spark.readStream.schema(PACKED_SCHEMA).option("maxFilesPerTrigger", 1)
        documents = stages(reader.parquet(str(self.folder / "batches")), PLAN, self.settings)
        query = (
            documents.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _take(self, batch: DataFrame, _: int) -> None:
        taken: list[tuple[int, bytes, bytes | None]] = []
        for row in batch.collect():
            if row.stage == 0:
                self.headers += 1
                continue
            assert row.stage < 0, "events have reached the sink"
            unpacked = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(bytes(row.payload)))
            taken += [(-1 - row.stage, key, document) for _, key, document in unpacked]
        for view, key, document in sorted(taken, key=lambda each: each[2] is not None):
            self.views[view].pop(key.decode(), None)
            if document is not None:
                self.views[view][key.decode()] = json.loads(document)

    def check(self, batches: int) -> None:
        named, regions = ([*view.values()] for view in self.views)
        region = "b" if batches % 3 == 2 else "a"
        assert sorted((row["id"], row["region"]) for row in named) == [(order, region) for order in ORDERS]
        assert regions == [{"region": region, "orders": len(ORDERS), "total": sum(ORDERS)}]
        assert self.headers == batches


def test_neither_a_killed_worker_nor_a_restart_without_indexes_is_seen(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker dies in the second batch, after it has committed an index.

    Fails without the token check: the repeated task would find its changes done and hand nothing on.
    """
    killed = tmp_path / "killed"

    class KilledOnce(EngineProcessor):
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            yield from super().handleInputRows(key, rows, timerValues)
            if key[0] == 2 and is_at_second_batch() and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def is_at_second_batch() -> bool:
        from pyspark import TaskContext

        context = TaskContext.get()
        return context is not None and context.getLocalProperty("streaming.sql.batchId") == "1"

    job = Job(tmp_path)
    for number in (1, 2):
        job.add_batch(number)
    with monkeypatch.context() as patch:
        patch.setattr(processor_module, "EngineProcessor", KilledOnce)
        job.run(spark)
    assert killed.exists()
    job.check(2)
    shutil.rmtree(tmp_path / "index")
    job.add_batch(3)
    job.run(spark)
    job.check(3)
