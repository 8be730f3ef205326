"""Outputs that are Iceberg tables, without a catalogue: every snapshot that is still there is a state."""

from collections.abc import Iterator
from pathlib import Path

from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import SnapshotLogEntry

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
    for entry in _visible(table):
        rows = table.scan(snapshot_id=entry.snapshot_id).to_arrow().to_pylist()
        yield entry.timestamp_ms, rows


def _visible(table: StaticTable) -> list[SnapshotLogEntry]:
    """The snapshots that readers could see: the newest one of each commit.

    A commit may add several snapshots, for instance one that deletes and one that adds. Which was the newest
    one say the metadata files of the commits, as long as they are kept; of older commits all are taken.
    """
    newest = {table.metadata.current_snapshot_id}
    known_since = table.metadata.last_updated_ms
    for entry in table.metadata.metadata_log:
        try:
            newest.add(StaticTable.from_metadata(entry.metadata_file).metadata.current_snapshot_id)
        except OSError:
            continue  # deleted, as old metadata files may be
        known_since = min(known_since, entry.timestamp_ms)
    kept = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    return [
        entry
        for entry in table.metadata.snapshot_log
        if entry.snapshot_id in kept and (entry.snapshot_id in newest or entry.timestamp_ms < known_since)
    ]
