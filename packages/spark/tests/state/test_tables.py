"""The function that runs in Spark's tasks, without Spark: pickled like there, and given Arrow batches."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame

from slackwater_engine.errors import EngineStateError
from slackwater_engine.index.contract import IndexTransaction
from slackwater_engine.state.contents import find_entries
from slackwater_engine.state.entry import Change, input_tag, part
from slackwater_engine.state.log import encode_changes
from slackwater_spark.state.tables import BucketResult, map_buckets


class Blobs:
    """A frame of blobs in batches that end within buckets."""

    def __init__(self, *rows: tuple[int, int, int, list[Change]]) -> None:
        self._rows = [(s, b, n.to_bytes(8, "big"), encode_changes(changes)) for s, b, n, changes in rows]

    def mapInArrow(self, task: Any, schema: str) -> Any:
        task = cloudpickle.loads(cloudpickle.dumps(task))  # type: ignore[no-untyped-call]  # has no types
        found = [row for batch in task(self._batches()) for row in batch.to_pylist()]
        assert [name for row in found[:1] for name in row] == [each.split()[0] for each in schema.split(", ")]
        return SimpleNamespace(collect=lambda: [SimpleNamespace(**row) for row in found])

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(self._rows), 2):
            columns = zip(*self._rows[start : start + 2], strict=True)
            yield pa.RecordBatch.from_arrays(
                [pa.array(column) for column in columns], names=["stage", "bucket", "number", "changes"]
            )


def packed(*values: object) -> bytes:
    return msgspec.msgpack.encode(values)


def row(key: int, number: int, value: bytes | None = b"row") -> Change:
    return part(packed(key)) + input_tag(0) + packed(number), value


def first_rows(contents: IndexTransaction) -> bytes:
    entries = find_entries(contents, packed(1), 2)
    return b",".join(name[len(packed(1)) + 1 :] + value for name, value in entries)


def mapped(blobs: Blobs) -> list[BucketResult]:
    return map_buckets(cast("DataFrame", blobs), first_rows)


def test_each_bucket_is_read_from_its_own_blobs_and_later_ones_win() -> None:
    found = mapped(
        Blobs(
            (1, 0, 0, [row(1, 7), row(1, 8), row(1, 9), row(2, 7)]),
            (1, 0, 1, [row(1, 7, b"new"), row(1, 8, None)]),
            (1, 0, 5, [row(1, 9, b"x")]),
            (1, 3, 0, [row(2, 7)]),
            (2, 0, 0, [row(1, 1), row(1, 2), row(1, 3)]),
        )
    )
    assert [(each.stage, each.bucket, each.blobs) for each in found] == [(1, 0, 3), (1, 3, 1), (2, 0, 1)]
    results = [packed(7) + b"new," + packed(9) + b"x", b"", packed(1) + b"row," + packed(2) + b"row"]
    assert [each.result for each in found] == results, "at most two of a kind"
    assert found[1].compressed_bytes == len(encode_changes([row(2, 7)]))


def test_a_blob_that_is_not_in_its_place_is_an_error() -> None:
    with pytest.raises(EngineStateError, match=r"bucket 3: .* blob 0 follows blob 1"):
        mapped(Blobs((1, 3, 1, [row(1, 1)]), (1, 3, 0, [row(1, 2)])))
