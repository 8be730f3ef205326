"""A checkpoint's state as tables, with Spark's data sources ``state-metadata`` and ``statestore``.

The blobs of a bucket's log are read where Spark's tasks are: one bucket after the other, each on local disk.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from slackwater_engine.index.contract import IndexTransaction
from slackwater_engine.state.contents import BlobReader, read_contents

META: Final = "meta"
LOG: Final = "log"

Blob = tuple[int, int, int, bytes]
"""Stage, bucket, number of the blob, the blob."""

_RESULT_SCHEMA: Final = pa.schema(
    [
        ("stage", pa.int32()),
        ("bucket", pa.int32()),
        ("blobs", pa.int64()),
        ("compressed", pa.int64()),
        ("result", pa.binary()),
    ]
)
_RESULT_COLUMNS: Final = "stage INT, bucket INT, blobs BIGINT, compressed BIGINT, result BINARY"


@dataclass(frozen=True, slots=True, order=True)
class StateVariable:
    """A variable of one stateful operator of the query."""

    operator: int
    name: str

    def __str__(self) -> str:
        return f"variable {self.name} of operator {self.operator}"


@dataclass(frozen=True, slots=True)
class BucketResult:
    """The result of a function of a bucket's contents, and the size of the log that they were read from."""

    stage: int
    bucket: int
    blobs: int
    compressed_bytes: int
    result: bytes


def list_operators(session: SparkSession, folder: Path) -> list[int]:
    """Lists the numbers of the query's stateful operators, ascending: one for each stage of the chain."""
    rows = session.read.format("state-metadata").load(str(folder)).select("operatorId").distinct().collect()
    return sorted(row.operatorId for row in rows)


def state_table(session: SparkSession, folder: Path, batch: int, variable: StateVariable) -> DataFrame:
    """Reads the contents of a variable after a batch, partition by partition.

    Columns: `partition_id`, `key` (the bucket's struct); for the log `user_map_key.number` and
    `user_map_value.changes`, for the meta data `value`.
    """
    options = {
        "batchId": str(batch),
        "operatorId": str(variable.operator),
        "stateVarName": variable.name,
    }
    return session.read.format("statestore").options(**options).load(str(folder))


def blob_table(session: SparkSession, folder: Path, batch: int, operator: int) -> DataFrame:
    """Reads the blobs of an operator's logs as columns ``stage, bucket, number, changes``.

    Those of a bucket are side by side, ascending.
    """
    return state_table(session, folder, batch, StateVariable(operator, LOG)).selectExpr(
        "key.stage AS stage",
        "key.bucket AS bucket",
        "user_map_key.number AS number",
        "user_map_value.changes AS changes",
    )


def map_buckets(blobs: DataFrame, function: Callable[[IndexTransaction], bytes]) -> list[BucketResult]:
    """Calls a function with the contents of each bucket, in Spark's tasks.

    Args:
        blobs: A frame of :func:`blob_table`, or some of its rows.
        function: Pure; it travels to the tasks.

    Raises:
        EngineStateError: a blob is damaged; as the cause of Spark's error.
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for (stage, bucket), of_bucket in groupby(_rows(batches), key=lambda row: row[:2]):
            reader = BlobReader(bucket, (row[2:] for row in of_bucket))
            result = read_contents(reader.changes(), function)
            columns = [[stage], [bucket], [reader.blobs], [reader.compressed_bytes], [result]]
            arrays = [pa.array(each, field.type) for each, field in zip(columns, _RESULT_SCHEMA, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=_RESULT_SCHEMA)

    return [
        BucketResult(row.stage, row.bucket, row.blobs, row.compressed, bytes(row.result))
        for row in blobs.mapInArrow(task, _RESULT_COLUMNS).collect()
    ]


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[Blob]:
    for batch in batches:
        stages, buckets, numbers, blobs = (batch.column(i) for i in range(4))
        for row in range(batch.num_rows):
            number = int.from_bytes(numbers[row].as_py(), "big")
            yield stages[row].as_py(), buckets[row].as_py(), number, blobs[row].as_py()
