"""Looking into a checkpoint's state, whether its pipeline runs or not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from slackwater_engine.index.contract import IndexTransaction
from slackwater_engine.payloads import bucket_of
from slackwater_engine.state.contents import (
    BucketContents,
    count_contents,
    decode_entries,
    find_entries,
    key_names,
)
from slackwater_engine.state.entry import Entry, part
from slackwater_engine.state.log import LogMeta
from slackwater_spark.errors import PipelineConfigError
from slackwater_spark.state.checkpoint import Checkpoint
from slackwater_spark.state.tables import (
    META,
    StateVariable,
    blob_table,
    list_operators,
    map_buckets,
    state_table,
)
from slackwater_sql.plan import EnginePlan, StagePlan


@dataclass(frozen=True, slots=True)
class BucketState:
    """The state of one bucket of a stage."""

    stage: int
    bucket: int
    partition: int
    """The state's partition: the task that has it."""
    version: int
    """The version of the log's format."""
    meta: LogMeta
    """The stage's own facts of the bucket's log."""
    compressed_bytes: int
    """The size of its log."""
    contents: BucketContents


@dataclass(frozen=True, slots=True)
class StageState:
    """The state of one stage, in sums over its buckets."""

    stage: int
    buckets: tuple[BucketState, ...]
    """Those with state, ascending."""
    contents: BucketContents
    """The contents of all of them."""

    @property
    def live_bytes(self) -> int:
        """The size of the contents before compression."""
        return sum(each.meta.live_bytes for each in self.buckets)

    @property
    def log_bytes(self) -> int:
        """The size of the logs before compression."""
        return sum(each.meta.log_bytes for each in self.buckets)

    @property
    def compressed_bytes(self) -> int:
        """The size of the logs."""
        return sum(each.compressed_bytes for each in self.buckets)

    @property
    def blobs(self) -> int:
        """The number of blobs in all logs."""
        return sum(len(each.meta.blobs) for each in self.buckets)

    @property
    def due(self) -> int:
        """The number of buckets that compact their logs with their next changes."""
        return sum(each.meta.is_worth_compacting for each in self.buckets)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The fingerprint of the stage's plan when it wrote the state; there is one."""
        return tuple(sorted({each.meta.view for each in self.buckets}))

    def largest_buckets(self, top: int) -> list[BucketState]:
        """Returns the buckets with the largest contents, largest first."""
        return sorted(self.buckets, key=lambda each: -each.meta.live_bytes)[:top]


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows and other entries that a stage keeps under a key."""

    stage: int
    bucket: int
    rows: Mapping[str, tuple[Mapping[str, Any], ...]]
    """Rows by the alias of their input; other entries by their kind."""


@dataclass(frozen=True, slots=True)
class PipelineState:
    """The state of a checkpoint after a batch."""

    checkpoint: Path
    batch: int
    partitions: int
    stages: tuple[StageState, ...]


def inspect_state(session: SparkSession, folder: Path, *, top: int = 5) -> PipelineState:
    """Sums up the state in a checkpoint as it is after the newest committed batch.

    Reads all of it, in tasks on the session's executors, each with one bucket at a time on local disk. The
    files of that batch are there for ten more batches if the pipeline runs.

    Args:
        session: A session with the settings that stages require.
        folder: The checkpoint.
        top: How many of the largest keys of each stage are given.

    Raises:
        PipelineConfigError: there is no state.
    """
    facts = Checkpoint(folder).facts()
    found: list[BucketState] = []
    for operator in list_operators(session, folder):
        found += _operator_state(session, folder, facts.committed, operator, top)
    return PipelineState(folder, facts.committed, facts.partitions, _stages(found, top))


def kept_rows(
    session: SparkSession,
    folder: Path,
    plan: EnginePlan,
    key: Mapping[str, Any],
    *,
    buckets: int,
    limit: int = 20,
) -> list[KeptRows]:
    """Finds what the stages whose key has these columns keep under a key, after the newest committed batch.

    Args:
        session: A session with the settings that stages require.
        folder: The checkpoint.
        plan: The pipeline's plan.
        key: Name to value, as in JSON.
        buckets: The pipeline's number of buckets.
        limit: How many rows of each input are given at most.

    Raises:
        PipelineConfigError: there is no state, or no stage has such a key.
    """
    wanted = [stage for stage in plan.stages if set(key_names(stage)) == set(key)]
    if not wanted:
        known = "; ".join(f"stage {s.number}: {', '.join(key_names(s)) or 'none'}" for s in plan.stages)
        shown = msgspec.json.encode(key).decode()
        raise PipelineConfigError(f"key {shown}: no stage has these key columns; there are {known}")
    batch = Checkpoint(folder).facts().committed
    found = []
    for operator in list_operators(session, folder):
        table = blob_table(session, folder, batch, operator)
        for stage in wanted:
            packed = _pack_key(stage, key)
            bucket, group = bucket_of(packed, buckets), part(packed)
            of_bucket = table.where(f"stage = {stage.number} AND bucket = {bucket}")
            for each in map_buckets(of_bucket, _entry_finder(group, limit)):
                entries = msgspec.msgpack.decode(each.result, type=list[Entry])
                found.append(KeptRows(stage.number, bucket, decode_entries(stage, group, entries)))
    return found


def _pack_key(stage: StagePlan, key: Mapping[str, Any]) -> bytes:
    values = []
    for column in stage.key:
        try:
            values.append(msgspec.convert(key[column.name], column.type.wire | None))
        except msgspec.ValidationError as error:
            problem = f"{column.name} is {column.type}: {error}"
            raise PipelineConfigError(f"key {msgspec.json.encode(key).decode()}: {problem}") from error
    return msgspec.msgpack.encode(values)


def _entry_finder(group: bytes, limit: int) -> Callable[[IndexTransaction], bytes]:
    return lambda contents: msgspec.msgpack.encode(find_entries(contents, group, limit))


def _operator_state(
    session: SparkSession, folder: Path, batch: int, operator: int, top: int
) -> list[BucketState]:
    def counted(contents: IndexTransaction) -> bytes:
        return msgspec.msgpack.encode(count_contents(contents.entries(), top))

    decode = msgspec.msgpack.Decoder(BucketContents).decode
    blobs = blob_table(session, folder, batch, operator)
    read = {(each.stage, each.bucket): each for each in map_buckets(blobs, counted)}
    metas = state_table(session, folder, batch, StateVariable(operator, META))
    rows = metas.select("partition_id", "key.stage", "key.bucket", "value").collect()
    found = []
    for row in sorted(rows, key=lambda row: (row.stage, row.bucket)):
        value, log = row.value, read.get((row.stage, row.bucket))
        blob_numbers = range(value.first, value.next)
        meta = LogMeta(value.view, bytes(value.token), value.log_bytes, value.live_bytes, blob_numbers)
        size = 0 if log is None else log.compressed_bytes
        contents = BucketContents() if log is None else decode(log.result)
        found.append(
            BucketState(row.stage, row.bucket, row.partition_id, value.version, meta, size, contents)
        )
    return found


def _stages(found: list[BucketState], top: int) -> tuple[StageState, ...]:
    result = []
    for number in sorted({each.stage for each in found}):
        buckets = tuple(sorted((b for b in found if b.stage == number), key=lambda each: each.bucket))
        contents = BucketContents()
        for each in buckets:
            contents.add(each.contents, top)
        result.append(StageState(number, buckets, contents))
    return tuple(result)
