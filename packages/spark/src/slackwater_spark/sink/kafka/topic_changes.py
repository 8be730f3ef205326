"""Compares a sink's topics with what the pipeline left of them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from slackwater_protocol import CommitRecord, OffsetRange, ProgressRecord, TopicState, format_position

UNKNOWN_ID = ""
"""Of topics of a broker that gives them no ids."""


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A difference between a topic and what the pipeline left of it."""

    expected: str
    found: str


def compare_topic(left: TopicState, found: TopicState) -> TopicChange | None:
    """Finds whether a topic lost what the pipeline wrote to it, or its keys would move.

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


def first_unknown_offsets(left: TopicState | None, found: TopicState) -> dict[int, int]:
    """Returns by partition the offset from which a topic may hold records that are not the pipeline's."""
    ours = found.start if left is None else left.end
    return {
        partition: max(start, own)
        for partition, (start, own, end) in enumerate(zip(found.start, ours, found.end, strict=True))
        if max(start, own) < end
    }


def compare_commits(progress: ProgressRecord, newest: CommitRecord | None) -> TopicChange | None:
    """Finds whether the newest commit record is not the newest batch's: both became visible at once."""
    expected = f"the commit record of batch {progress.batch_id}, at {format_position(progress.commit_lsn)}"
    if newest is None:
        return TopicChange(expected, "no commit record at all: they were removed")
    if newest.pipeline != progress.pipeline:
        return TopicChange(expected, f"one that pipeline {newest.pipeline!r} wrote")
    if (newest.timeline, newest.commit_lsn) != (progress.timeline, progress.commit_lsn):
        found = f"{format_position(newest.commit_lsn)} of timeline {newest.timeline} as the newest one"
        return TopicChange(expected, f"{found}: commit records or progress records were removed")
    return None


def compare_written(
    left: TopicState, topic_id: str, partitions: int, written: Mapping[int, OffsetRange]
) -> TopicChange | None:
    """Finds whether a topic was changed while a batch was being written to it.

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
    if (change := compare_topic(left, found)) is not None:
        return change
    for partition, offsets in written.items():
        if offsets.first_offset < left.end[partition]:
            return TopicChange(
                f"new records of partition {partition} behind offset {left.end[partition] - 1}",
                f"that they went to offset {offsets.first_offset}: the topic was deleted and made anew",
            )
    return None


def offset_gaps(left: TopicState, written: Mapping[int, OffsetRange]) -> dict[int, int]:
    """Returns by partition where more stands between two batches than a transaction's marker.

    That may be records of others, of transactions that were aborted, or of the broker's own.
    """
    return {
        partition: left.end[partition]
        for partition, offsets in written.items()
        if offsets.first_offset > left.end[partition] + 1
    }


def state_after(left: TopicState, written: Mapping[int, OffsetRange]) -> TopicState:
    """Returns a topic's state behind a batch."""
    end = list(left.end)
    for partition, offsets in written.items():
        end[partition] = offsets.last_offset + 1
    return replace(left, end=tuple(end))
