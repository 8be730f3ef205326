"""Rules for continuing what a pipeline's output holds, the same for every sink. Pure."""

from slackwater_protocol import BatchHeader, ProgressRecord, format_position
from slackwater_spark.errors import PipelineStateError

_OUTPUT = "the pipeline's outputs with their commits and progress"


def check_owner(pipeline: str, progress: ProgressRecord | None, query_id: str | None, kept_in: str) -> None:
    """Refuses a run whose checkpoint did not write the pipeline's progress.

    Args:
        pipeline: Its name.
        progress: What the output holds; None: nothing.
        query_id: Of the run's checkpoint; None: the checkpoint is new.
        kept_in: Names the place of the progress, for people.

    Raises:
        PipelineStateError: the progress is of another query.
    """
    if progress is not None and progress.query_id != query_id:
        mine = f"is of query {query_id}" if query_id else "is new"
        raise PipelineStateError(
            f"the name {pipeline!r} is taken: {kept_in} was written by query {progress.query_id}, the given "
            f"checkpoint {mine}",
            "use the checkpoint of that query to go on, or another pipeline name for a second pipeline; to "
            f"start over, delete {_OUTPUT}",
        )


def is_covered(
    pipeline: str,
    batch_id: int,
    header: BatchHeader,
    progress: ProgressRecord | None,
    without_output: frozenset[int] = frozenset(),
) -> bool:
    """Says whether the output already holds this batch.

    True for the repetition of the newest batch. False for the batch that continues where the newest one
    ended. LSNs alone do not tell: in scope ``aggregate`` they may stay while batches go on. Batches in
    `without_output` have no rows and are never written.

    Raises:
        PipelineStateError: it is neither. A checkpoint that is older than the output (a restored copy) would
            repeat records; one that is ahead of it (the output or its progress was replaced) would leave some
            out.
    """
    reason = None
    if progress is None:
        if not without_output.issuperset(range(batch_id)):
            reason = "its progress has lost its records"
    elif (batch_id, header.timeline, header.to_lsn) == (
        progress.batch_id,
        progress.timeline,
        progress.commit_lsn,
    ):
        return True
    elif batch_id <= progress.batch_id or (header.timeline, header.from_lsn) < (
        progress.timeline,
        progress.commit_lsn,
    ):
        reason = "the checkpoint is older than the output"
    elif header.timeline == progress.timeline and (
        header.from_lsn > progress.commit_lsn
        or not without_output.issuperset(range(progress.batch_id + 1, batch_id))
    ):
        reason = "batches in between were never written"
    if reason is not None:
        raise _mismatch(pipeline, batch_id, header, progress, reason)
    return False


def _mismatch(
    pipeline: str, batch_id: int, header: BatchHeader, progress: ProgressRecord | None, reason: str
) -> PipelineStateError:
    span = f"({format_position(header.from_lsn)}, {format_position(header.to_lsn)}]"
    held = "no batch at all"
    if progress is not None:
        at = format_position(progress.commit_lsn)
        held = f"batch {progress.batch_id} at {at} of timeline {progress.timeline}"
    return PipelineStateError(
        f"pipeline {pipeline!r}: the checkpoint goes on with batch {batch_id} {span} of timeline "
        f"{header.timeline}, but the output holds {held}: {reason}",
        "writing it would repeat or lose records: use the newest checkpoint of this pipeline, or start over: "
        f"delete the checkpoint and {_OUTPUT}",
    )
