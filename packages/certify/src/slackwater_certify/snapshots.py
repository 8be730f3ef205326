"""Reads outputs that are tables: every state of the table that was seen is a snapshot.

A table in PostgreSQL is watched; of Delta tables, and of Iceberg tables without a catalogue, every version
that is still kept is read, or every one that a ledger names. What differs from one snapshot to the next is
judged. A ledger says at which commit each snapshot is to be read, so what differs claims that commit.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import SnapshotLogEntry

from slackwater_certify.canonical import DocumentReader, UnreadableValueError, digest
from slackwater_certify.errors import unreadable
from slackwater_certify.output import Commit, OffsetRange, Output, OutputRecords
from slackwater_certify.replay import DocumentKey
from slackwater_certify.specification import Connections, OutputSpecification

_Row = Mapping[str, Any]


def watch_table(
    output: OutputSpecification,
    reader: DocumentReader,
    connections: Connections,
    is_over: Callable[[], bool],
    now_ms: Callable[[], int],
) -> OutputRecords:
    """Reads the table again and again until it is over, and once more; blocks so long.

    Each snapshot is one statement: what one reader sees of the table at once.

    Raises:
        CertifyUnavailableError: it cannot be read.
    """
    try:
        with psycopg.connect(connections.output_database(), autocommit=True) as connection:
            set_json_loads(_loads, connection)
            found = _table_snapshots(connection, output.name, is_over, now_ms)
            return _from_snapshots(reader, found, "arrival at the certifier")
    except psycopg.Error as error:
        raise unreadable(f"table {output.name}", str(error).strip()) from error


def read_delta(output: OutputSpecification, reader: DocumentReader) -> OutputRecords:
    """Reads all versions of the table, oldest first, or those that its ledger names.

    Raises:
        CertifyUnavailableError: it cannot be read.
    """
    try:
        if output.ledger is not None:
            rows = DeltaTable(output.ledger).to_pyarrow_table().to_pylist()
            return _from_ledger(reader, rows, output.table, partial(_delta_version, output.name))
        return _from_snapshots(reader, _delta_versions(output.name), "commit times of the table's versions")
    except (DeltaError, OSError, KeyError) as error:
        raise unreadable(f"Delta table {output.name}", str(error)) from error


def read_iceberg(output: OutputSpecification, reader: DocumentReader) -> OutputRecords:
    """Reads all snapshots of the table, oldest first, or those that its ledger names.

    Tables are named by a metadata file, or by their folder: then its newest metadata file is taken.

    Raises:
        CertifyUnavailableError: it cannot be read.
    """
    try:
        if output.ledger is not None:
            ledger, table = map(StaticTable.from_metadata, map(_metadata, (output.ledger, output.name)))
            rows = ledger.scan().to_arrow().to_pylist()
            return _from_ledger(reader, rows, output.table, partial(_iceberg_snapshot, table))
        return _from_snapshots(
            reader, _iceberg_snapshots(_metadata(output.name)), "commit times of the table's snapshots"
        )
    except (NoSuchTableError, ValidationError, OSError, ValueError, KeyError) as error:
        raise unreadable(f"Iceberg table {output.name}", str(error)) from error


class _SnapshotDiff:
    """Turns snapshots into outputs: documents that are new, different or gone since the one before."""

    def __init__(self, reader: DocumentReader) -> None:
        self._reader = reader
        self._rows: dict[DocumentKey, tuple[bytes, list[Any]]] = {}
        """The documents of the last snapshot: digest, and the key as it was read."""
        self._number = 0

    def add(self, rows: Iterable[_Row], visible_ms: int) -> list[Output]:
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


def _from_snapshots(
    reader: DocumentReader, snapshots: Iterable[tuple[int, Iterable[_Row]]], clock: str
) -> OutputRecords:
    """Makes outputs of all snapshots, each given with its time."""
    diff, times, outputs = _SnapshotDiff(reader), [], []
    for visible_ms, rows in snapshots:
        times.append(visible_ms)
        outputs += diff.add(rows, visible_ms)
    return OutputRecords(outputs, snapshots=times, clock=clock)


def _from_ledger(
    reader: DocumentReader, ledger: list[_Row], table: str | None, read: Callable[[int], list[_Row]]
) -> OutputRecords:
    """Makes outputs of the snapshots that a ledger names; each of its rows is a commit that covers them."""
    diff, times, outputs, commits = _SnapshotDiff(reader), [], [], []
    for number, row in enumerate(sorted(ledger, key=lambda row: (row["timeline"], row["commit_lsn"]))):
        lsn, visible_ms = row["commit_lsn"], int(row["written_at"].timestamp() * 1000)
        found = diff.add(read(dict(row["snapshots"])[table]), visible_ms)
        outputs += [replace(output, lsn=lsn) for output in found]
        ranges = (OffsetRange(number, len(found), 0, len(found) - 1),) if found else ()
        commits.append(Commit(row["timeline"], lsn, row["previous_lsn"], visible_ms, visible_ms, ranges))
        times.append(visible_ms)
    return OutputRecords(outputs, commits, times, "times of the ledger's rows")


def _delta_version(location: str, version: int) -> list[_Row]:
    rows: list[_Row] = DeltaTable(location, version=version).to_pyarrow_table().to_pylist()
    return rows


def _table_snapshots(
    connection: "psycopg.Connection[tuple[Any, ...]]",
    table: str,
    is_over: Callable[[], bool],
    now_ms: Callable[[], int],
) -> Iterator[tuple[int, list[_Row]]]:
    query = sql.SQL("SELECT * FROM {}").format(sql.Identifier(*table.split(".")))
    while True:
        was_last = is_over()
        with connection.cursor(row_factory=dict_row) as cursor:
            rows: list[_Row] = list(cursor.execute(query).fetchall())
        yield now_ms(), rows
        if was_last:
            return


def _loads(text: str | bytes) -> Any:
    return json.loads(text, parse_float=str)


def _delta_versions(location: str) -> Iterator[tuple[int, list[_Row]]]:
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


def _iceberg_snapshots(metadata: str) -> Iterator[tuple[int, list[_Row]]]:
    table = StaticTable.from_metadata(metadata)
    for entry in _visible(table):
        rows = table.scan(snapshot_id=entry.snapshot_id).to_arrow().to_pylist()
        yield entry.timestamp_ms, rows


def _iceberg_snapshot(table: StaticTable, snapshot: int) -> list[_Row]:
    rows: list[_Row] = table.scan(snapshot_id=snapshot).to_arrow().to_pylist()
    return rows


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
