"""Describes an output as it is judged, whatever it was read from.

Of topics that is every record; of tables it is every document that differs from one snapshot to the next.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Output:
    """Holds one document that became visible, or vanished."""

    place: tuple[int, int]
    """Partition and offset; number of the snapshot and position in it."""
    visible_ms: int
    """Milliseconds since the epoch."""
    key: object = None
    """The record's key, decoded; None when the document itself says it."""
    document: Mapping[str, Any] | None = None
    """None: the document is gone."""
    lsn: int | None = None
    """The commit LSN it claims to belong to."""
    problem: str | None = None
    """Why it cannot be read."""

    @property
    def partition(self) -> int:
        """Records of one partition come in order."""
        return self.place[0]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one partition that a commit record covers."""

    partition: int
    count: int
    first: int
    last: int
    """Inclusive."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Holds a commit record: the output has all source transactions up to an LSN."""

    timeline: int
    lsn: int
    previous_lsn: int
    commit_ts_ms: int
    visible_ms: int
    ranges: tuple[OffsetRange, ...]
    skipped: tuple[int, ...] = ()
    """Transactions that it says an operator has skipped."""


@dataclass(frozen=True, slots=True)
class OutputRecords:
    """Holds everything an adapter found."""

    outputs: Iterable[Output]
    """In order within each partition; of snapshots, what changed from one to the next."""
    commits: Sequence[Commit] = ()
    snapshots: Sequence[int] | None = None
    """When each was seen, if the output is a table; the numbers are their outputs' partitions."""
    clock: str = "record timestamps"
    """Where the times come from."""
    timed_since_ms: int | None = None
    """Delays are only meaningful for transactions committed since then; None: for all."""
