"""Another number of partitions for a pipeline's state: Spark's own tool, with checks before and after.

A stage's keys are in buckets, whose number is fixed; a partition is a task's share of the buckets of all
stages. Spark writes all state anew for other partitions, as a batch without input of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater_spark.state.checkpoint import CheckpointFacts, checkpoint_facts
from slackwater_spark.state.errors import (
    RescaledStateError,
    UnfinishedBatchError,
    UselessPartitionsError,
)
from slackwater_spark.state.hold import hold_checkpoint
from slackwater_spark.state.reading import StateVariable, state_digests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from slackwater_spark.state.reading import StateDigest


@dataclass(frozen=True, slots=True)
class Rescaled:
    """What was done."""

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
    """Refuses what can be refused without Spark; gives where the checkpoint stands.

    Raises:
        NotACheckpointError: there is no state.
        UnfinishedBatchError: the newest batch is not committed.
        UselessPartitionsError: `partitions` is not between 1 and `buckets`.
    """
    if not 1 <= partitions <= buckets:
        raise UselessPartitionsError(partitions, buckets)
    facts = checkpoint_facts(folder)
    if not facts.is_settled and facts.unfinished_partitions != partitions:
        raise UnfinishedBatchError(str(folder), facts.last_batch, facts.unfinished_partitions)
    return facts


def rescale(
    session: "SparkSession",
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
        CheckpointInUseError: a run holds the checkpoint.
        StateError: see :func:`check_rescaling`.
        RescaledStateError: Spark's tool has changed more than the partitions.
    """
    with hold_checkpoint(folder, f"a change to {partitions} partitions", alone=True):
        facts = check_rescaling(folder, partitions, buckets)
        if facts.is_settled and facts.partitions == partitions:
            return None
        on_progress(f"reading the state of batch {facts.committed} in {facts.partitions} partitions")
        before = state_digests(session, folder, facts.committed)
        on_progress(f"writing it into {partitions} partitions")
        session._streamingCheckpointManager.repartition(str(folder), partitions)  # noqa: SLF001 - no other way
        batch = checkpoint_facts(folder).committed
        on_progress(f"comparing the state of batch {batch} with that of batch {facts.committed}")
        _compare(folder, before, state_digests(session, folder, batch), batch)
    return _rescaled(facts.partitions, partitions, batch, before)


def _compare(
    folder: Path,
    before: "Mapping[StateVariable, StateDigest]",
    after: "Mapping[StateVariable, StateDigest]",
    batch: int,
) -> None:
    for variable in sorted({*before, *after}):
        values = str(before.get(variable, "nothing")), str(after.get(variable, "nothing"))
        if values[0] != values[1]:
            raise RescaledStateError(str(folder), str(variable), *values, batch)


def _rescaled(
    before: int, after: int, batch: int, digests: "Mapping[StateVariable, StateDigest]"
) -> Rescaled:
    buckets = [digest for variable, digest in digests.items() if variable.name == "meta"]
    blobs = [digest for variable, digest in digests.items() if variable.name == "log"]
    return Rescaled(
        before=before,
        after=after,
        batch=batch,
        buckets=sum(digest.entries for digest in buckets),
        blobs=sum(digest.entries for digest in blobs),
        bytes=sum(digest.bytes for digest in blobs),
    )
