"""Looking into a checkpoint's state, whether its pipeline runs or not."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater_engine.state.contents import BucketContents
from slackwater_engine.state.log import LogMeta
from slackwater_spark.state.buckets import LoggedBucket, logged_buckets
from slackwater_spark.state.checkpoint import checkpoint_facts
from slackwater_spark.state.reading import LOG, META, StateVariable, operators, state_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class BucketState:
    """A bucket of a stage."""

    stage: int
    bucket: int
    partition: int
    """The state's partition: the task that has it."""
    version: int
    """Of the log's format."""
    meta: LogMeta
    """What the stage knows of it."""
    compressed_bytes: int
    """Of its log."""
    contents: BucketContents


@dataclass(frozen=True, slots=True)
class StageState:
    """A stage with state, in sums over its buckets."""

    stage: int
    buckets: tuple[BucketState, ...]
    """Those with state, ascending."""
    contents: BucketContents
    """Of all of them."""

    @property
    def live_bytes(self) -> int:
        """Size of the contents before compression."""
        return sum(each.meta.live_bytes for each in self.buckets)

    @property
    def log_bytes(self) -> int:
        """Size of the logs before compression."""
        return sum(each.meta.log_bytes for each in self.buckets)

    @property
    def compressed_bytes(self) -> int:
        """Size of the logs."""
        return sum(each.compressed_bytes for each in self.buckets)

    @property
    def blobs(self) -> int:
        """Of all logs."""
        return sum(len(each.meta.blobs) for each in self.buckets)

    @property
    def due(self) -> int:
        """How many buckets compact their logs with their next changes."""
        return sum(each.meta.is_worth_compacting for each in self.buckets)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Of the stage's plan when it wrote the state; one."""
        return tuple(sorted({each.meta.view for each in self.buckets}))

    def largest_buckets(self, top: int) -> list[BucketState]:
        """By size of the contents."""
        return sorted(self.buckets, key=lambda each: -each.meta.live_bytes)[:top]


@dataclass(frozen=True, slots=True)
class PipelineState:
    """The state of a checkpoint after a batch."""

    checkpoint: Path
    batch: int
    partitions: int
    stages: tuple[StageState, ...]


def inspect_state(session: "SparkSession", folder: Path, *, top: int = 5) -> PipelineState:
    """What the state in a checkpoint amounts to after its newest committed batch.

    Reads all of it, in tasks on the session's executors, each with one bucket at a time on local disk. Of a
    pipeline that runs, the files of that batch are there for ten more batches.

    Args:
        session: With the settings that stages require.
        folder: The checkpoint.
        top: How many of the largest keys of each stage.

    Raises:
        NotACheckpointError: there is no state.
    """
    facts = checkpoint_facts(folder)
    found: list[BucketState] = []
    for operator in operators(session, folder):
        metas = _metas(state_table(session, folder, facts.committed, StateVariable(operator, META)))
        table = state_table(session, folder, facts.committed, StateVariable(operator, LOG))
        logged = {(each.stage, each.bucket): each for each in logged_buckets(blob_table(table), top)}
        found += [_bucket_state(place, *metas[place], logged.get(place)) for place in sorted(metas)]
    return PipelineState(folder, facts.committed, facts.partitions, _stages(found, top))


def blob_table(table: "DataFrame") -> "DataFrame":
    """The blobs of logs as columns ``stage, bucket, number, changes``."""
    return table.selectExpr(
        "key.stage AS stage",
        "key.bucket AS bucket",
        "user_map_key.number AS number",
        "user_map_value.changes AS changes",
    )


def _metas(table: "DataFrame") -> Mapping[tuple[int, int], tuple[int, int, LogMeta]]:
    """By stage and bucket: partition, version of the format, meta data."""
    rows = table.select("partition_id", "key.stage", "key.bucket", "value").collect()
    return {
        (row.stage, row.bucket): (
            row.partition_id,
            row.value.version,
            LogMeta(
                row.value.view,
                bytes(row.value.token),
                row.value.log_bytes,
                row.value.live_bytes,
                range(row.value.first, row.value.next),
            ),
        )
        for row in rows
    }


def _bucket_state(
    place: tuple[int, int], partition: int, version: int, meta: LogMeta, logged: LoggedBucket | None
) -> BucketState:
    size, contents = (0, BucketContents()) if logged is None else (logged.compressed_bytes, logged.contents)
    return BucketState(*place, partition, version, meta, size, contents)


def _stages(found: list[BucketState], top: int) -> tuple[StageState, ...]:
    result = []
    for number in sorted({each.stage for each in found}):
        buckets = tuple(sorted((b for b in found if b.stage == number), key=lambda each: each.bucket))
        contents = BucketContents()
        for each in buckets:
            contents.add(each.contents, top)
        result.append(StageState(number, buckets, contents))
    return tuple(result)
