"""Reads outputs that are lake tables: every version that is still there is a state.

Delta tables, and Iceberg tables without a catalogue.
"""

from collections.abc import Iterator
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import SnapshotLogEntry

from slackwater_certify.canonical import DocumentReader
from slackwater_certify.errors import unreadable
from slackwater_certify.output import OutputRecords, Row, from_snapshots
from slackwater_certify.specification import OutputSpecification


def read_delta(output: OutputSpecification, reader: DocumentReader) -> OutputRecords:
    """Reads all versions of the table, oldest first.

    Raises:
        CertifyUnavailableError: it cannot be read.
    """
    try:
        return from_snapshots(reader, _delta_versions(output.name), "commit times of the table's versions")
    except (DeltaError, OSError) as error:
        raise unreadable(f"Delta table {output.name}", str(error)) from error


def read_iceberg(output: OutputSpecification, reader: DocumentReader) -> OutputRecords:
    """Reads all snapshots of the table, oldest first.

    ``output.name`` is a metadata file, or the table's folder: then its newest metadata file is taken.

    Raises:
        CertifyUnavailableError: it cannot be read.
    """
    try:
        return from_snapshots(
            reader, _iceberg_snapshots(_metadata(output.name)), "commit times of the table's snapshots"
        )
    except (NoSuchTableError, ValidationError, OSError, ValueError) as error:
        raise unreadable(f"Iceberg table {output.name}", str(error)) from error


def _delta_versions(location: str) -> Iterator[tuple[int, list[Row]]]:
    table = DeltaTable(location)
    history = sorted(table.history(), key=lambda commit: int(commit["version"]))
    for commit in history:
        table.load_as_version(int(commit["version"]))
        yield int(commit["timestamp"]), table.to_pyarrow_table().to_pylist()


def _metadata(location: str) -> str:
    folder = Path(location.removeprefix("file://")) / "metadata"
    if not folder.is_dir():
        return location
    files = sorted(folder.glob("*.metadata.json"), key=lambda file: file.stat().st_mtime_ns)
    if not files:
        raise FileNotFoundError(f"no *.metadata.json in {folder}")
    return str(files[-1])


def _iceberg_snapshots(metadata: str) -> Iterator[tuple[int, list[Row]]]:
    table = StaticTable.from_metadata(metadata)
    for entry in _visible(table):
        rows = table.scan(snapshot_id=entry.snapshot_id).to_arrow().to_pylist()
        yield entry.timestamp_ms, rows


def _visible(table: StaticTable) -> list[SnapshotLogEntry]:
    """Returns the snapshots that readers could see: the newest one of each commit.

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
