"""Whether a run may continue what a pipeline's topics hold: pure rules, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from slackwater_protocol import (
    BatchHeader,
    CommitRecord,
    OffsetRange,
    ProgressRecord,
    TopicState,
    format_position,
)
from slackwater_spark.sink.errors import PipelineNameTakenError, ProgressMismatchError

UNKNOWN_ID = ""
"""Of topics of a broker that gives them no ids."""


@dataclass(frozen=True, slots=True)
class TopicChange:
    """How a topic differs from what the pipeline left."""

    expected: str
    found: str


def check_owner(pipeline: str, progress: ProgressRecord | None, query_id: str | None) -> None:
    """Whether a run with this checkpoint (None: a new one) may continue the pipeline's progress.

    Raises:
        PipelineNameTakenError: the progress is of another query.
    """
    if progress is not None and progress.query_id != query_id:
        raise PipelineNameTakenError(pipeline, progress.query_id, query_id)


def is_covered(
    pipeline: str,
    batch_id: int,
    header: BatchHeader,
    progress: ProgressRecord | None,
    without_output: frozenset[int] = frozenset(),
) -> bool:
    """Whether the output already holds this batch.

    True for the repetition of the newest batch. False for the batch that continues where the newest one
    ended. LSNs alone do not tell: in scope ``aggregate`` they may stay while batches go on. Batches in
    `without_output` have no rows and are never written.

    Raises:
        ProgressMismatchError: it is neither. A checkpoint that is older than the output (a restored copy)
        would repeat
            records; one that is ahead of it (the progress topic or the broker was replaced) would leave some
            out.
    """
    reason = None
    if progress is None:
        if not without_output.issuperset(range(batch_id)):
            reason = "the progress topic has lost its records"
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
        raise ProgressMismatchError(pipeline, batch_id, header, progress, reason)
    return False


def output_change(left: TopicState, found: TopicState) -> TopicChange | None:
    """Whether an output or commit topic lost what the pipeline wrote to it, or its keys would move.

    Compaction is no change: it leaves the first offset where it was.
    """
    if UNKNOWN_ID not in (left.topic_id, found.topic_id) and left.topic_id != found.topic_id:
        return TopicChange(
            f"the topic that the pipeline has written (id {left.topic_id})",
            f"another one of this name (id {found.topic_id}): it was deleted and made anew",
        )
    if len(left.end) != len(found.end):
        return TopicChange(
            f"{len(left.end)} partition(s), as when the pipeline wrote to it",
            f"{len(found.end)}: documents of a key would go to another partition than before",
        )
    for partition, (start, end) in enumerate(zip(left.start, left.end, strict=True)):
        if found.end[partition] < end:
            return TopicChange(
                f"records up to offset {end - 1} in partition {partition}",
                f"that it ends at offset {found.end[partition]}: newer records were lost, "
                "or the topic was deleted and made anew",
            )
        if found.start[partition] > start:
            return TopicChange(
                f"all records since offset {start} in partition {partition}",
                f"that it begins at offset {found.start[partition]}: older records were removed, "
                "by retention (cleanup.policy=delete) or by hand",
            )
    return None


def unseen(left: TopicState | None, found: TopicState) -> dict[int, int]:
    """By partition, from where on a topic may hold records that are not the pipeline's."""
    ours = found.start if left is None else left.end
    return {
        partition: max(start, own)
        for partition, (start, own, end) in enumerate(zip(found.start, ours, found.end, strict=True))
        if max(start, own) < end
    }


def commits_change(progress: ProgressRecord, newest: CommitRecord | None) -> TopicChange | None:
    """Whether an output's newest commit record is not the newest batch's: both became visible at once."""
    expected = f"the commit record of batch {progress.batch_id}, at {format_position(progress.commit_lsn)}"
    if newest is None:
        return TopicChange(expected, "no commit record at all: they were removed")
    if newest.pipeline != progress.pipeline:
        return TopicChange(expected, f"one that pipeline {newest.pipeline!r} wrote")
    if (newest.timeline, newest.commit_lsn) != (progress.timeline, progress.commit_lsn):
        found = f"{format_position(newest.commit_lsn)} of timeline {newest.timeline} as the newest one"
        return TopicChange(expected, f"{found}: commit records or progress records were removed")
    return None


def written_change(
    left: TopicState, topic_id: str, partitions: int, written: Mapping[int, OffsetRange]
) -> TopicChange | None:
    """Whether a topic was changed while a batch was being written to it.

    Args:
        left: The topic before the batch.
        topic_id: After its records were acknowledged.
        partitions: Their number then: it never falls, so it was no larger when keys were assigned.
        written: Offsets that the records were given, by partition.
    """
    found = TopicState(topic_id, left.start, left.end)
    partitions = max(partitions, max(written, default=-1) + 1)
    if partitions != len(left.end):
        found = replace(found, start=(0,) * partitions, end=(0,) * partitions)
    if (change := output_change(left, found)) is not None:
        return change
    for partition, offsets in written.items():
        if offsets.first_offset < left.end[partition]:
            return TopicChange(
                f"new records of partition {partition} behind offset {left.end[partition] - 1}",
                f"that they went to offset {offsets.first_offset}: the topic was deleted and made anew",
            )
    return None


def gaps(left: TopicState, written: Mapping[int, OffsetRange]) -> dict[int, int]:
    """By partition, from where on there is more between two batches than the marker of a transaction.

    Records of others, of transactions that were aborted, or what a broker keeps for itself.
    """
    return {
        partition: left.end[partition]
        for partition, offsets in written.items()
        if offsets.first_offset > left.end[partition] + 1
    }


def state_after(left: TopicState, written: Mapping[int, OffsetRange]) -> TopicState:
    """A topic behind a batch."""
    end = list(left.end)
    for partition, offsets in written.items():
        end[partition] = offsets.last_offset + 1
    return replace(left, end=tuple(end))
