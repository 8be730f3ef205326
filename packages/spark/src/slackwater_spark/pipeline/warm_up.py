"""A small query with the parts that those of pipelines have: their source, stages and writer are Python's."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from slackwater_engine.pack.packer import EventPacker
from slackwater_engine.pack.specification import packing_spec
from slackwater_engine.payloads import PACKED_SCHEMA
from slackwater_engine.settings import StageSettings
from slackwater_spark.operator.processor import stages

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from slackwater_sql.plan import EnginePlan

_BUCKETS = 4
_TABLES = """
CREATE TABLE s.a (id bigint PRIMARY KEY, kind text NOT NULL);
ALTER TABLE s.a REPLICA IDENTITY FULL;
"""
_VIEW = "SELECT TRANSACTIONALLY a.kind, count(*) AS number FROM s.a AS a GROUP BY a.kind"


@lru_cache(maxsize=1)
def _plan() -> "EnginePlan":
    from slackwater_sql.compiler import compile_pipeline
    from slackwater_sql.postgres import parse_catalog

    return compile_pipeline([("v.sql", _VIEW)], parse_catalog({"schema.sql": _TABLES}))


def run_small_query(session: "SparkSession", folder: Path) -> int:
    """Two batches through a stage with state; the number of rows that came out."""
    session.dataSource.register(_Source)
    documents = stages(
        session.readStream.format(_Source.name()).load(),
        _plan(),
        StageSettings(buckets=_BUCKETS, index_root=str(folder / "index")),
    )
    rows: list[int] = []
    query = (
        documents.writeStream.foreachBatch(lambda batch, _: rows.append(batch.toArrow().num_rows))
        .option("checkpointLocation", str(folder / "query"))
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return sum(rows)


class _Source(DataSource):
    @classmethod
    def name(cls) -> str:
        return "slackwater-warm-up"

    def schema(self) -> str:
        return PACKED_SCHEMA

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        return _Reader()


class _Reader(DataSourceStreamReader):
    BATCHES = 2

    def __init__(self) -> None:
        self._newest = 0

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        self._newest = min(self._newest + 1, self.BATCHES)
        return {"batch": self._newest}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(start["batch"], end["batch"])]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        import pyarrow as pa

        packer = EventPacker(packing_spec(_plan(), _BUCKETS))
        packer.add("s.a", "c", 100, None, b'{"id": %d, "kind": "k"}' % partition.value)
        rows = [(stage, bucket, 0, data) for stage, bucket, data in packer.payloads()]
        names = ["stage", "bucket", "sequence", "payload"]
        types = [pa.int32(), pa.int32(), pa.int64(), pa.binary()]
        columns = [
            pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), types, strict=True)
        ]
        yield pa.record_batch(columns, names=names)
