"""Searches in commit records: which commit contains a document, and where does a commit begin?

Pure: a function reads the records, so the command, consumers and tests use the same rules. They rely on the
order of a commit topic: positions increase from record to record, and so do the offsets of each output
partition.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from slackwater.protocol.records import CommitPosition, CommitRecord


@dataclass(frozen=True, slots=True)
class PlacedCommit:
    """A commit record together with its place in the commit topic."""

    offset: int
    record: CommitRecord
    written_ms: int = 0
    """When it was written, milliseconds since the epoch; 0: not known."""

    @property
    def position(self) -> CommitPosition:
        """The commit that the record names."""
        return CommitPosition(self.record.timeline, self.record.commit_lsn)


RecordFrom = Callable[[int, int], PlacedCommit | None]
"""Returns the first visible record at or after an offset and below an end; None if there is none."""
Reached = Callable[[CommitRecord], bool | None]


"""Returns whether the target is at or before this record; None if the record does not tell.

Once it is true, it is true, or None, for all later records.
"""


class Found(StrEnum):
    """What commit records say about an offset or a commit."""

    HELD = "held"
    """The record contains it."""
    NO_DOCUMENT = "no document"
    """The offset lies between the documents of commits: a transaction marker, or an aborted record."""
    NO_COMMIT = "no commit"
    """No record covers the commit, although there are earlier ones: its timeline had ended."""
    SWEPT = "swept"
    """Older than the oldest commit record, and retention removed older records."""
    BEFORE_FIRST = "before the first"
    """Older than everything that the pipeline has written."""
    NOT_YET = "not yet"
    """Newer than everything that is visible."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, with the record that it is based on."""

    found: Found
    commit: PlacedCommit | None = None
    """The holder; for :attr:`Found.NO_DOCUMENT` and what is too old the next record that tells of the place.
    None when there is no such record."""


def first_reached(low: int, end: int, record_from: RecordFrom, reached: Reached) -> PlacedCommit | None:
    """Finds the first record of a commit topic for which a condition holds, by bisection of the offsets.

    Reads a logarithmic number of records, from `low` to below `end`, if the condition can be decided for all
    of them; records for which it cannot are skipped one by one.
    """
    best = None
    while low < end:
        middle = (low + end) // 2
        placed, has_reached = _first_that_tells(middle, end, record_from, reached)
        if placed is None:
            end = middle
        elif has_reached:
            best, end = placed, middle
        else:
            low = placed.offset + 1
    return best


def _first_that_tells(
    start: int, end: int, record_from: RecordFrom, reached: Reached
) -> tuple[PlacedCommit | None, bool]:
    while start < end and (placed := record_from(start, end)) is not None:
        told = reached(placed.record)
        if told is not None:
            return placed, told
        start = placed.offset + 1
    return None, False


def has_reached_lsn(position: CommitPosition) -> Reached:
    """Returns the condition that a commit is at or before a record."""
    return lambda record: CommitPosition(record.timeline, record.commit_lsn) >= position


def has_reached_offset(topic: str, partition: int, offset: int) -> Reached:
    """Returns the condition that an output offset is at or before a record's last document there."""

    def reached(record: CommitRecord) -> bool | None:
        held = record.offsets.get(topic, {}).get(partition)
        return None if held is None else held.last_offset >= offset

    return reached


def find_commit(low: int, end: int, record_from: RecordFrom, position: CommitPosition) -> Answer:
    """Finds the record of a commit. A record covers all commits in ``(previous_lsn, commit_lsn]``."""
    placed = first_reached(low, end, record_from, has_reached_lsn(position))
    if placed is None:
        return Answer(Found.NOT_YET)
    record = placed.record
    if record.timeline == position.timeline and position.lsn > record.previous_lsn:
        return Answer(Found.HELD, placed)
    if low < placed.offset and record_from(low, placed.offset) is not None:
        return Answer(Found.NO_COMMIT, placed)
    return Answer(Found.SWEPT if low else Found.BEFORE_FIRST, placed)


def find_document(
    low: int, end: int, record_from: RecordFrom, topic: str, partition: int, offset: int
) -> Answer:
    """Finds the commit that contains the record at an offset of an output partition.

    The output is not read: one Kafka transaction writes the whole range of a commit, and its marker follows.
    """
    placed = first_reached(low, end, record_from, has_reached_offset(topic, partition, offset))
    if placed is None:
        return Answer(Found.NOT_YET)
    if placed.record.offsets[topic][partition].first_offset <= offset:
        return Answer(Found.HELD, placed)
    earlier = first_reached(low, placed.offset, record_from, has_reached_offset(topic, partition, 0))
    if earlier is not None:
        return Answer(Found.NO_DOCUMENT, placed)
    return Answer(Found.SWEPT if low else Found.BEFORE_FIRST, placed)


def beginnings(record: CommitRecord) -> Mapping[str, Mapping[int, int]]:
    """Returns the offset of a commit's first document by topic and partition."""
    return {
        topic: {partition: held.first_offset for partition, held in ranges.items()}
        for topic, ranges in record.offsets.items()
    }
