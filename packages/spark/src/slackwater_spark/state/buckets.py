"""Buckets' logs read where the state is: in Spark's tasks, one bucket after the other, each on local disk."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from slackwater_engine.index.contract import IndexTransaction
from slackwater_engine.state.contents import BucketContents, count_contents
from slackwater_engine.state.entry import Change, Entry
from slackwater_engine.state.log import unreadable_state

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

T = TypeVar("T")

_COLUMNS = "stage INT, bucket INT, blobs BIGINT, compressed BIGINT, facts BINARY"
Blob = tuple[int, int, int, bytes]
"""Stage, bucket, number of the blob, the blob."""


@dataclass(frozen=True, slots=True)
class LoggedBucket:
    """What the log of a bucket amounts to."""

    stage: int
    bucket: int
    blobs: int
    compressed_bytes: int
    contents: BucketContents


def logged_buckets(blobs: "DataFrame", top: int) -> list[LoggedBucket]:
    """What each bucket holds.

    Args:
        blobs: Columns ``stage, bucket, number, changes``; those of a bucket are side by side, ascending.
        top: How many of the largest keys of a bucket.

    Raises:
        EngineStateError: a blob is damaged; as the cause of Spark's error.
    """
    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(BucketContents).decode
    task = _task(lambda contents: encode(count_contents(contents.entries(), top)))
    return [
        LoggedBucket(row.stage, row.bucket, row.blobs, row.compressed, decode(bytes(row.facts)))
        for row in blobs.mapInArrow(task, _COLUMNS).collect()
    ]


def entries_of_group(blobs: "DataFrame", group: bytes, limit: int) -> list[tuple[int, list[Entry]]]:
    """Per stage, the first entries of a key of each kind.

    Args:
        blobs: As above, of one bucket.
        group: The key as in entries' names.
        limit: Entries of each kind that are given at most.
    """

    def first_ones(contents: IndexTransaction) -> bytes:
        found: dict[bytes, list[Entry]] = {}
        for entry in contents.scan(group):
            of_kind = found.setdefault(entry[0][len(group) : len(group) + 1], [])
            if len(of_kind) < limit:
                of_kind.append(entry)
        return msgspec.msgpack.encode([entry for of_kind in found.values() for entry in of_kind])

    decode = msgspec.msgpack.Decoder(list[Entry]).decode
    rows = blobs.mapInArrow(_task(first_ones), _COLUMNS).collect()
    return [(row.stage, decode(bytes(row.facts))) for row in rows]


def _task(facts: Callable[[IndexTransaction], bytes]) -> Any:
    """A function for ``mapInArrow``: for each bucket a row with what `facts` says of its contents."""

    def task(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa

        schema = pa.schema(
            [
                ("stage", pa.int32()),
                ("bucket", pa.int32()),
                ("blobs", pa.int64()),
                ("compressed", pa.int64()),
                ("facts", pa.binary()),
            ]
        )
        for (stage, bucket), blobs in groupby(_rows(batches), key=lambda row: row[:2]):
            reader = BlobReader(blobs, bucket)
            result = on_index(reader.changes(), facts)
            columns = [[stage], [bucket], [reader.blobs], [reader.compressed], [result]]
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
                schema=schema,
            )

    return task


class BlobReader:
    """Decodes the blobs of a bucket and counts them."""

    def __init__(self, blobs: Iterator[Blob], bucket: int) -> None:
        self._blobs = blobs
        self._bucket = bucket
        self.blobs = 0
        self.compressed = 0

    def changes(self) -> Iterator[list[Change]]:
        """The changes of each blob.

        Raises:
            EngineStateError: a blob is damaged or not in its place.
        """
        from slackwater_engine.state.log import decode_changes

        before = -1
        for _, _, number, blob in self._blobs:
            if number <= before:
                raise unreadable_state(self._bucket, f"blob {number} follows blob {before}")
            before = number
            self.blobs += 1
            self.compressed += len(blob)
            yield decode_changes(self._bucket, blob)


def on_index(changes: Iterator[list[Change]], work: Callable[[IndexTransaction], T]) -> T:
    """What `work` finds in an index of these changes, which is gone afterwards."""
    from slackwater_engine.index.lmdb_index import LmdbIndex

    with TemporaryDirectory(prefix="slackwater-state-") as folder:
        index = LmdbIndex(Path(folder) / "index")
        try:
            index.load(changes, b"read")
            return index.update(work)
        finally:
            index.close()


def _rows(batches: Iterator["pa.RecordBatch"]) -> Iterator[Blob]:
    for batch in batches:
        stages, buckets, numbers, blobs = (batch.column(i) for i in range(4))
        for row in range(batch.num_rows):
            number = int.from_bytes(numbers[row].as_py(), "big")
            yield stages[row].as_py(), buckets[row].as_py(), number, blobs[row].as_py()
