"""Outputs that are Iceberg tables, without a catalogue: every snapshot that is still there is a state."""

from collections.abc import Iterator
from pathlib import Path

from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.table import StaticTable

from slackwater_certify.canonical import DocumentReader
from slackwater_certify.errors import UnreadableError
from slackwater_certify.outputs.output import OutputRecords
from slackwater_certify.outputs.snapshots import Row, records_of
from slackwater_certify.specification import OutputSpecification


def read_iceberg(output: OutputSpecification, reader: DocumentReader) -> OutputRecords:
    """All snapshots of the table, oldest first.

    ``output.name`` is a metadata file, or the table's folder: then its newest metadata file is taken.

    Raises:
        UnreadableError: it cannot be read.
    """
    try:
        return records_of(reader, _snapshots(_metadata(output.name)), "commit times of the table's snapshots")
    except (NoSuchTableError, ValidationError, OSError, ValueError) as error:
        raise UnreadableError(f"Iceberg table {output.name}", str(error)) from error


def _metadata(location: str) -> str:
    folder = Path(location.removeprefix("file://")) / "metadata"
    if not folder.is_dir():
        return location
    files = sorted(folder.glob("*.metadata.json"), key=lambda file: file.stat().st_mtime_ns)
    if not files:
        raise FileNotFoundError(f"no *.metadata.json in {folder}")
    return str(files[-1])


def _snapshots(metadata: str) -> Iterator[tuple[int, list[Row]]]:
    table = StaticTable.from_metadata(metadata)
    for snapshot in sorted(table.metadata.snapshots, key=lambda each: each.timestamp_ms):
        rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist()
        yield snapshot.timestamp_ms, rows
