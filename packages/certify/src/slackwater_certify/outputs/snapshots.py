"""Outputs that are tables: from snapshots of the whole to documents that changed."""

from collections.abc import Iterable, Mapping
from typing import Any

from slackwater_certify.canonical import DocumentReader, UnreadableValueError, digest
from slackwater_certify.fold import DocumentKey
from slackwater_certify.outputs.output import Output, OutputRecords

Row = Mapping[str, Any]


class SnapshotDiff:
    """Turns snapshots into outputs: documents that are new, different or gone since the one before."""

    def __init__(self, reader: DocumentReader) -> None:
        self._reader = reader
        self._rows: dict[DocumentKey, tuple[bytes, list[Any]]] = {}
        """The documents of the last snapshot: digest, and the key as it was read."""
        self._number = 0

    def add(self, rows: Iterable[Row], visible_ms: int) -> list[Output]:
        """The outputs of the next snapshot."""
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


def records_of(
    reader: DocumentReader, snapshots: Iterable[tuple[int, Iterable[Row]]], clock: str
) -> OutputRecords:
    """All outputs of snapshots, each given with its time."""
    diff, times, outputs = SnapshotDiff(reader), [], []
    for visible_ms, rows in snapshots:
        times.append(visible_ms)
        outputs += diff.add(rows, visible_ms)
    return OutputRecords(outputs, snapshots=times, clock=clock)
