"""Another number of partitions for a pipeline's state: Spark's own tool, with checks before and after.

A stage's keys are in buckets, whose number is fixed; a partition is a task's share of the buckets of all
stages. Spark writes all state anew for other partitions, as a batch without input of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from slackwater_spark.errors import PipelineConfigError, PipelineStateError
from slackwater_spark.state.checkpoint import Checkpoint, CheckpointFacts
from slackwater_spark.state.tables import LOG, META, StateVariable, list_operators, state_table


@dataclass(frozen=True, slots=True)
class StateDigest:
    """A variable's contents in a few numbers, to be compared."""

    entries: int
    bytes: int
    checksum: int

    def __str__(self) -> str:
        return f"{self.entries:,} entries of {self.bytes:,} bytes with checksum {self.checksum:x}"


@dataclass(frozen=True, slots=True)
class Rescaled:
    """The change that a rescaling made."""

    before: int
    after: int
    batch: int
    """The batch that Spark added."""
    buckets: int
    """Buckets with state, of all stages."""
    blobs: int
    """Blobs of their logs."""
    bytes: int
    """Size of the blobs."""


def check_rescaling(folder: Path, partitions: int, buckets: int) -> CheckpointFacts:
    """Refuses what can be refused without Spark; returns which batch the checkpoint stands at.

    Raises:
        PipelineConfigError: there is no state, or `partitions` is not between 1 and `buckets`.
        PipelineStateError: the newest batch is not committed.
    """
    if not 1 <= partitions <= buckets:
        raise PipelineConfigError(
            f"{partitions} partitions: expected 1 to {buckets}, the pipeline's number of buckets, which is "
            "fixed for the life of its checkpoint"
        )
    facts = Checkpoint(folder).facts()
    if not facts.is_settled and facts.unfinished_partitions != partitions:
        raise _unfinished(folder, facts)
    return facts


def rescale(
    session: SparkSession,
    folder: Path,
    partitions: int,
    *,
    buckets: int,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Rescaled | None:
    """Distributes a pipeline's state over another number of partitions; None if it has that number.

    Blocks. The pipeline must not run, and cannot be started meanwhile. Interrupted, it is finished by calling
    it again with the same number. The state before is read, and compared with the state afterwards.

    Raises:
        PipelineUnavailableError: a run holds the checkpoint.
        PipelineConfigError: see :func:`check_rescaling`.
        PipelineStateError: see :func:`check_rescaling`; or Spark's tool has changed more than the partitions.
    """
    checkpoint = Checkpoint(folder)
    with checkpoint.hold(f"a change to {partitions} partitions", alone=True):
        facts = check_rescaling(folder, partitions, buckets)
        if facts.is_settled and facts.partitions == partitions:
            return None
        on_progress(f"reading the state of batch {facts.committed} in {facts.partitions} partitions")
        before = state_digests(session, folder, facts.committed)
        on_progress(f"writing it into {partitions} partitions")
        session._streamingCheckpointManager.repartition(str(folder), partitions)  # noqa: SLF001 - no other way
        batch = checkpoint.facts().committed
        on_progress(f"comparing the state of batch {batch} with that of batch {facts.committed}")
        _compare(folder, before, state_digests(session, folder, batch), batch)
    return _rescaled(facts.partitions, partitions, batch, before)


def _compare(
    folder: Path,
    before: Mapping[StateVariable, StateDigest],
    after: Mapping[StateVariable, StateDigest],
    batch: int,
) -> None:
    for variable in sorted({*before, *after}):
        was, now = str(before.get(variable, "nothing")), str(after.get(variable, "nothing"))
        if was != now:
            raise PipelineStateError(
                f"{folder}: after the change of partitions (batch {batch}), {variable} has {now}, before it "
                f"had {was}",
                "do not run the pipeline with it: restore the checkpoint from a copy or start with a new "
                "one; please report this",
            )


def _unfinished(folder: Path, facts: CheckpointFacts) -> PipelineStateError:
    """Says that the newest batch may or may not be in the output, and how to finish it."""
    partitions = facts.unfinished_partitions
    if partitions is not None:
        problem = f"a change to {partitions} partitions was interrupted (batch {facts.last_batch})"
        return PipelineStateError(f"{folder}: {problem}", f"finish it first, with --partitions {partitions}")
    problem = f"batch {facts.last_batch} was begun and not finished, so it may be in the output already"
    return PipelineStateError(f"{folder}: {problem}", "finish it first: `slackwater run --available-now`")


def _rescaled(before: int, after: int, batch: int, digests: Mapping[StateVariable, StateDigest]) -> Rescaled:
    buckets = [digest for variable, digest in digests.items() if variable.name == META]
    blobs = [digest for variable, digest in digests.items() if variable.name == LOG]
    return Rescaled(
        before=before,
        after=after,
        batch=batch,
        buckets=sum(digest.entries for digest in buckets),
        blobs=sum(digest.entries for digest in blobs),
        bytes=sum(digest.bytes for digest in blobs),
    )


def state_digests(session: SparkSession, folder: Path, batch: int) -> Mapping[StateVariable, StateDigest]:
    """Sums up the contents of all variables after a batch, whatever partition they are in."""
    variables = [
        StateVariable(each, name) for each in list_operators(session, folder) for name in (META, LOG)
    ]
    return {each: _digest(state_table(session, folder, batch, each)) for each in variables}


def _digest(table: DataFrame) -> StateDigest:
    columns = [name for name in table.columns if name != "partition_id"]
    is_log = "user_map_value" in columns
    size = f.length("user_map_value.changes") if is_log else f.lit(0)
    parts = [f.col(name).cast("string") if name == "key" else f.col(name) for name in columns]
    facts = table.select(f.xxhash64(*parts).alias("hash"), size.alias("size"))
    (row,) = facts.agg(f.count("*"), f.coalesce(f.sum("size"), f.lit(0)), f.bit_xor("hash")).collect()
    return StateDigest(row[0], row[1], (row[2] or 0) & 0xFFFF_FFFF_FFFF_FFFF)
