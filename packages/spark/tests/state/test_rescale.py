"""Other partitions for a checkpoint: every stage's state goes on as if nothing had happened.

The query has two chained stages that keep logs as real stages do, over batches that stand in files.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from slackwater_spark.stage import local_checkpoint_conf, required_conf
from slackwater_spark.state import (
    Rescaled,
    RescaledStateError,
    checkpoint_facts,
    rescale,
    rescaled_batches,
)
from slackwater_spark.state.reading import StateDigest, StateVariable, state_digests

BUCKETS = 16
SCHEMA = "stage INT, bucket INT, sequence BIGINT, payload BINARY"


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """With the settings that stages require, as far as they can be set afterwards."""
    session = spark.newSession()
    for name, value in (required_conf() | local_checkpoint_conf()).items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


@dataclass
class ChainJob:
    """Each stage appends what it gets to its log and hands on how much it has in all."""

    session: SparkSession
    folder: Path
    partitions: int
    given: int = 0
    outputs: list[list[tuple[int, int, bytes]]] = field(default_factory=list)
    """Of each batch: stage, bucket and what the bucket of the last stage has in all."""

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def add_batch(self) -> None:
        """One row for each bucket."""
        self.given += 1
        columns = {
            "stage": pa.array([1] * BUCKETS, pa.int32()),
            "bucket": pa.array(range(BUCKETS), pa.int32()),
            "sequence": pa.array([0] * BUCKETS, pa.int64()),
            "payload": pa.array([b"%d" % self.given] * BUCKETS, pa.binary()),
        }
        target = self.folder / "batches" / f"{self.given}.parquet"
        target.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), target)
        os.utime(target, (self.given, self.given))

    def run(self) -> None:
        """All batches that are there."""
        self.session.conf.set("spark.sql.shuffle.partitions", str(self.partitions))
        rows = self.session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        documents = chained(rows.parquet(str(self.folder / "batches")))
        writer = documents.writeStream.foreachBatch(self._take).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self.checkpoint)).start().awaitTermination()

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        rows = [(row.stage, row.bucket, bytes(row.payload)) for row in batch.collect()]
        self.outputs.append(sorted(rows))


def chained(rows: DataFrame) -> DataFrame:
    """Two stages; the second one's bucket is the neighbour of the first one's."""

    class Stage(StatefulProcessor):  # within a function: workers do not import test modules
        def __init__(self, number: int) -> None:
            self._number = number

        def init(self, handle: StatefulProcessorHandle) -> None:
            from slackwater_spark.stage.state_log import (
                LOG_KEY_SCHEMA,
                LOG_SCHEMA,
                META_SCHEMA,
                StateLog,
            )

            blobs = handle.getMapState("log", LOG_KEY_SCHEMA, LOG_SCHEMA)
            self._log = StateLog(handle.getValueState("meta", META_SCHEMA), blobs)

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            from slackwater_spark.stage.state_log import LogMeta, LogWrite

            stage, bucket = key
            if stage != self._number:
                yield from rows
                return
            meta = self._log.meta(bucket, "view") or LogMeta("view", b"", 0, 0)
            payloads = [bytes(row.payload) for row in rows]
            meta = self._log.write(LogWrite([(b"k", payload) for payload in payloads], meta))
            logged = [value for blob in self._log.changes(bucket, meta) for _, value in blob]
            payload = b" ".join(value for value in logged if value is not None)
            yield Row(stage=stage + 1, bucket=(bucket + 1) % BUCKETS, sequence=0, payload=payload)

        def close(self) -> None:
            """Nothing."""

    for number in (1, 2):
        rows = rows.groupBy("stage", "bucket").transformWithState(Stage(number), SCHEMA, "Append", "None")
    return rows


@pytest.fixture
def job(session: SparkSession, tmp_path: Path) -> ChainJob:
    return ChainJob(session, tmp_path, 2)


def expected_output(batch: int) -> list[tuple[int, int, bytes]]:
    """What a query that never changed its partitions hands on in this batch."""
    first = [b" ".join(b"%d" % i for i in range(1, until + 1)) for until in range(1, batch + 1)]
    return [(3, bucket, b" ".join(first)) for bucket in range(BUCKETS)]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("few", "many"), [(2, 5), pytest.param(4, 16, marks=pytest.mark.slow)], ids=["2-5-2", "4-16-4"]
)
def test_a_query_of_two_stages_goes_on_with_more_partitions_and_with_fewer(
    job: ChainJob, few: int, many: int
) -> None:
    job.partitions = few
    for partitions in (few, many, few):
        if job.given:
            done = rescale(job.session, job.checkpoint, partitions, buckets=BUCKETS)
            assert done is not None
            assert (done.after, done.buckets, done.blobs) == (
                partitions,
                2 * BUCKETS,
                2 * BUCKETS * job.given,
            )
        job.add_batch()
        job.run()
        assert checkpoint_facts(job.checkpoint).partitions == partitions
    assert job.outputs == [expected_output(number) for number in (1, 2, 3)]
    assert rescaled_batches(job.checkpoint) == {1, 3}
    before, after = (state_digests(job.session, job.checkpoint, batch) for batch in (3, 4))
    assert all(before[variable] != after[variable] for variable in {*before, *after})


class FakeSession:
    """Its tool adds the batch, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self._streamingCheckpointManager = self
        self.folder = folder
        for log in ("offsets", "commits"):
            (folder / log).mkdir()
        self.repartition("", 4)

    def repartition(self, folder: str, partitions: int) -> None:
        number = len(list((self.folder / "offsets").iterdir()))
        conf = json.dumps({"conf": {"spark.sql.shuffle.partitions": str(partitions)}})
        (self.folder / "offsets" / str(number)).write_text(f"v1\n{conf}\n-")
        (self.folder / "commits" / str(number)).write_text("v1\n{}")


def rescaled(folder: Path, monkeypatch: pytest.MonkeyPatch, *, checksum_after: int) -> Rescaled | None:
    digests = iter([7, checksum_after])

    def state_digests(session: object, folder: Path, batch: int) -> dict[StateVariable, StateDigest]:
        meta, log = StateVariable(0, "meta"), StateVariable(0, "log")
        return {meta: StateDigest(3, 0, 1), log: StateDigest(5, 500, next(digests))}

    monkeypatch.setattr("slackwater_spark.state.rescaling.state_digests", state_digests)
    return rescale(cast("SparkSession", FakeSession(folder)), folder, 16, buckets=64)


def test_what_was_done_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = rescaled(tmp_path, monkeypatch, checksum_after=7)
    assert done == Rescaled(before=4, after=16, batch=1, buckets=3, blobs=5, bytes=500)


def test_state_that_is_not_what_it_was_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RescaledStateError, match=r"variable log of operator 0 .* checksum 8, .* checksum 7"):
        rescaled(tmp_path, monkeypatch, checksum_after=8)


def test_nothing_is_done_when_the_number_is_the_same(tmp_path: Path) -> None:
    session = cast("SparkSession", FakeSession(tmp_path))
    assert rescale(session, tmp_path, 4, buckets=64) is None
