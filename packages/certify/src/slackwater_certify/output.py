"""Describes an output as it is judged, whatever it was read from.

Of topics that is every record; of tables it is every document that differs from one snapshot to the next.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackwater_certify.canonical import DocumentReader, UnreadableValueError, digest
from slackwater_certify.replay import DocumentKey

Row = Mapping[str, Any]


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


class SnapshotDiff:
    """Turns snapshots into outputs: documents that are new, different or gone since the one before."""

    def __init__(self, reader: DocumentReader) -> None:
        self._reader = reader
        self._rows: dict[DocumentKey, tuple[bytes, list[Any]]] = {}
        """The documents of the last snapshot: digest, and the key as it was read."""
        self._number = 0

    def add(self, rows: Iterable[Row], visible_ms: int) -> list[Output]:
        """Returns the outputs of the next snapshot."""
        outputs: list[Output] = []
        seen: dict[DocumentKey, tuple[bytes, list[Any]]] = {}
        for row in rows:
            place = (self._number, len(outputs))
            try:
                document = self._reader.document(row)
            except UnreadableValueError as error:
                outputs.append(Output(place, visible_ms, problem=f"{error}: {dict(row)}"))
                continue
            key, value = self._reader.key_of(document), digest(document)
            if key in seen:
                problem = f"the table has document {key} more than once"
                outputs.append(Output(place, visible_ms, problem=problem))
            elif key not in self._rows or self._rows[key][0] != value:
                outputs.append(Output(place, visible_ms, document=row))
            seen[key] = value, [row[column.name] for column in self._reader.key]
        for key in self._rows.keys() - seen.keys():
            place = (self._number, len(outputs))
            outputs.append(Output(place, visible_ms, key=self._rows[key][1]))
        self._rows = seen
        self._number += 1
        return outputs


def from_snapshots(
    reader: DocumentReader, snapshots: Iterable[tuple[int, Iterable[Row]]], clock: str
) -> OutputRecords:
    """Makes outputs of all snapshots, each given with its time."""
    diff, times, outputs = SnapshotDiff(reader), [], []
    for visible_ms, rows in snapshots:
        times.append(visible_ms)
        outputs += diff.add(rows, visible_ms)
    return OutputRecords(outputs, snapshots=times, clock=clock)
