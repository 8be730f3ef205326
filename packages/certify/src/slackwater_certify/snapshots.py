"""Reads outputs that are tables: every observed state of a table is a snapshot.

A table in PostgreSQL is watched. For Delta tables, and Iceberg tables without a catalogue, every version that
still exists is read, or every version that a ledger names. The differences from one snapshot to the next are
judged. A ledger names the commit of each snapshot, which its differences then claim; the ledger in PostgreSQL
is read in the same transaction as the table.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg import IsolationLevel, sql
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads

from slackwater_certify.canonical import DocumentKey, DocumentReader, UnreadableValueError, digest
from slackwater_certify.errors import unreadable
from slackwater_certify.output import Commit, OffsetRange, Output, OutputRecords
from slackwater_certify.specification import Connections, OutputKind, OutputSpecification

if TYPE_CHECKING:  # the extra `lake` brings them; each is imported where a table of its kind is read
    from pyiceberg.table import StaticTable

_Row = Mapping[str, Any]
_Shown = dict[DocumentKey, tuple[bytes, list[Any]]]
"""The documents of a snapshot by key: the digest, and the key as it was read."""
_AWAY_SECONDS: Final = 0.5
"""The pause between two attempts to reach a server that is unavailable."""
_ABSENT: Final = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)
_PAUSE: Final = threading.Event()
"""Never set."""
_LEDGER: Final = "SELECT timeline, commit_lsn FROM slackwater.ledger WHERE pipeline = %s AND batch_id >= 0"


class _Claim(NamedTuple):
    timeline: int
    lsn: int
    previous_lsn: int | None = None
    """None: the LSN of the previous snapshot."""


class _Snapshot(NamedTuple):
    visible_ms: int
    rows: Iterable[_Row]
    claim: _Claim | None = None
    """The commit at which the table is, if that is known."""


def watch_table(
    output: OutputSpecification,
    reader: DocumentReader,
    connections: Connections,
    is_over: Callable[[], bool],
    now_ms: Callable[[], int],
) -> OutputRecords:
    """Reads the table repeatedly until ``is_over`` returns true, and then once more; blocks until then.

    Each snapshot is one read-only transaction, in which a reader sees table and ledger together. It waits for
    a table or ledger that does not exist yet, and for a server that becomes unavailable after the first
    snapshot, until ``is_over`` returns true.

    Raises:
        CertifyError: it cannot be read, or the ledger has no batch of the pipeline.
    """
    started_ms = now_ms()
    try:
        found = _watched_snapshots(output, connections, is_over, now_ms)
        records = _from_snapshots(reader, found, "arrival at the certifier", started_ms)
    except psycopg.Error as error:
        raise unreadable(f"table {output.name}", str(error).strip()) from error
    if output.ledger is not None and not records.commits:
        raise unreadable("slackwater.ledger", f"it has no batch of pipeline {output.ledger!r}")
    return records


def read_lake_table(output: OutputSpecification, reader: DocumentReader) -> OutputRecords:
    """Reads all versions of a Delta or Iceberg table, or those that its ledger names, oldest first.

    Raises:
        CertifyError: it cannot be read.
    """
    kind: type[_DeltaTable | _IcebergTable]
    kind = _DeltaTable if output.kind is OutputKind.DELTA else _IcebergTable
    try:
        table = kind(output.name)
        if output.ledger is not None:
            found = _ledger_snapshots(kind(output.ledger).rows(), output.table, table.rows)
            return _from_snapshots(reader, found, "times of the ledger's rows")
        found = (_Snapshot(visible_ms, table.rows(version)) for version, visible_ms in table.versions())
        return _from_snapshots(reader, found, f"commit times of the table's {kind.versions_name}")
    except kind.errors() as error:
        raise unreadable(f"{kind.name} table {output.name}", str(error)) from error


def _from_snapshots(
    reader: DocumentReader, snapshots: Iterable[_Snapshot], clock: str, timed_since_ms: int | None = None
) -> OutputRecords:
    """Returns the outputs of all snapshots, and a commit record for each that claims a new commit."""
    times, outputs, commits = list[int](), list[Output](), list[Commit]()
    shown: _Shown = {}
    for visible_ms, rows, claim in snapshots:
        before, shown = shown, {}
        found = list(_changes(reader, rows, before, shown))
        for position, what in enumerate(found):
            lsn = None if claim is None else claim.lsn
            outputs.append(Output((len(times), position), visible_ms, lsn=lsn, **what))
        if claim is not None:
            _add_commit(commits, claim, visible_ms, OffsetRange(len(times), len(found), 0, len(found) - 1))
        times.append(visible_ms)
    return OutputRecords(outputs, commits, times, clock, timed_since_ms)


def _changes(
    reader: DocumentReader, rows: Iterable[_Row], before: _Shown, shown: _Shown
) -> Iterator[dict[str, Any]]:
    """Yields the contents of outputs for documents that were added, changed or removed since a snapshot.

    Adds the present documents to ``shown``.
    """
    for row in rows:
        try:
            document = reader.document(row)
        except UnreadableValueError as error:
            yield {"problem": f"{error}: {dict(row)}"}
            continue
        key, value = reader.key_of(document), digest(document)
        if key in shown:
            yield {"problem": f"the table has document {key} more than once"}
        elif key not in before or before[key][0] != value:
            yield {"document": row}
        shown[key] = value, [row[column.name] for column in reader.key]
    for key in before.keys() - shown.keys():
        yield {"key": before[key][1]}


def _add_commit(commits: list[Commit], claim: _Claim, visible_ms: int, covered: OffsetRange) -> None:
    """Adds a commit record, unless the snapshot claims the same commit as the previous one."""
    before = commits[-1] if commits else None
    if before is None or (before.timeline, before.lsn) != (claim.timeline, claim.lsn):
        previous = claim.previous_lsn
        if previous is None:
            previous = 0 if before is None else before.lsn
        ranges = (covered,) if covered.count else ()
        commits.append(Commit(claim.timeline, claim.lsn, previous, visible_ms, visible_ms, ranges))


def _ledger_snapshots(
    ledger: list[_Row], table: str | None, read: Callable[[int], list[_Row]]
) -> Iterator[_Snapshot]:
    """Yields the snapshots that the ledger of a lake names."""
    for row in sorted(ledger, key=lambda row: (row["timeline"], row["commit_lsn"])):
        claim = _Claim(row["timeline"], row["commit_lsn"], row["previous_lsn"])
        rows = read(dict(row["snapshots"])[table])
        yield _Snapshot(int(row["written_at"].timestamp() * 1000), rows, claim)


def _watched_snapshots(
    output: OutputSpecification,
    connections: Connections,
    is_over: Callable[[], bool],
    now_ms: Callable[[], int],
) -> Iterator[_Snapshot]:
    has_begun = False
    while True:
        was_over = is_over()
        try:
            with psycopg.connect(connections.output_database()) as connection:
                connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
                set_json_loads(partial(json.loads, parse_float=str), connection)
                while True:
                    yield _table_snapshot(connection, output, now_ms)
                    has_begun = True
                    if was_over:
                        return
                    was_over = is_over()
        except (psycopg.OperationalError, *_ABSENT) as error:
            if was_over or has_begun == isinstance(error, _ABSENT):
                raise
            _PAUSE.wait(_AWAY_SECONDS)


def _table_snapshot(
    connection: "psycopg.Connection[tuple[Any, ...]]", output: OutputSpecification, now_ms: Callable[[], int]
) -> _Snapshot:
    query = sql.SQL("SELECT * FROM {}").format(sql.Identifier(*output.name.split(".")))
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        claim = None if output.ledger is None else connection.execute(_LEDGER, [output.ledger]).fetchone()
        rows: list[_Row] = list(cursor.execute(query).fetchall())
    return _Snapshot(now_ms(), rows, None if claim is None else _Claim(*claim))


class _DeltaTable:
    name, versions_name = "Delta", "versions"

    def __init__(self, location: str) -> None:
        from deltalake import DeltaTable

        self._table = DeltaTable(location)

    @staticmethod
    def errors() -> tuple[type[Exception], ...]:
        from deltalake.exceptions import DeltaError

        return DeltaError, OSError, KeyError

    def versions(self) -> Iterable[tuple[int, int]]:
        """Returns the versions and their times, oldest first."""
        return sorted((int(commit["version"]), int(commit["timestamp"])) for commit in self._table.history())

    def rows(self, version: int | None = None) -> list[_Row]:
        """Returns the rows of a version; None: of the newest."""
        if version is not None:
            self._table.load_as_version(version)
        rows: list[_Row] = self._table.to_pyarrow_table().to_pylist()
        return rows


class _IcebergTable:
    """A table whose location is a metadata file, or a folder, which stands for its newest metadata file."""

    name, versions_name = "Iceberg", "snapshots"

    def __init__(self, location: str) -> None:
        folder = Path(location.removeprefix("file://")) / "metadata"
        if folder.is_dir():
            files = sorted(folder.glob("*.metadata.json"), key=lambda file: file.stat().st_mtime_ns)
            if not files:
                raise FileNotFoundError(f"no *.metadata.json in {folder}")
            location = str(files[-1])
        self._table = _iceberg(location)

    @staticmethod
    def errors() -> tuple[type[Exception], ...]:
        from pyiceberg.exceptions import NoSuchTableError, ValidationError

        return NoSuchTableError, ValidationError, OSError, ValueError, KeyError

    def versions(self) -> Iterable[tuple[int, int]]:
        """Yields the snapshots that readers could see, which are the newest of each commit, and their times.

        A commit may add several snapshots, for instance one that deletes and one that adds. The metadata file
        of the commit shows which is the newest, as long as it exists; of older commits, all are yielded.
        """
        metadata = self._table.metadata
        newest, known_since = {metadata.current_snapshot_id}, metadata.last_updated_ms
        for before in metadata.metadata_log:
            try:
                newest.add(_iceberg(before.metadata_file).metadata.current_snapshot_id)
            except OSError:
                continue  # old metadata files may have been deleted
            known_since = min(known_since, before.timestamp_ms)
        kept = {snapshot.snapshot_id for snapshot in metadata.snapshots}
        for entry in metadata.snapshot_log:
            version, visible_ms = entry.snapshot_id, entry.timestamp_ms
            if version in kept and (version in newest or visible_ms < known_since):
                yield version, visible_ms

    def rows(self, version: int | None = None) -> list[_Row]:
        """Returns the rows of a snapshot; None: of the newest."""
        rows: list[_Row] = self._table.scan(snapshot_id=version).to_arrow().to_pylist()
        return rows


def _iceberg(metadata: str) -> "StaticTable":
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(metadata)
