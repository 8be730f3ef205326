"""Tables of Iceberg, read and written with pyiceberg: one commit of the catalogue per snapshot.

A batch replaces the files that contain its keys by files without them, and adds one with its rows.
pyiceberg's own writers would create one snapshot for removed rows and another for added rows.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
    ValidationException,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.snapshots import Snapshot as TableSnapshot
from sqlalchemy.exc import SQLAlchemyError

from slackwater.outputs.lake.table import (
    DELETED,
    NO_KEY,
    RIGHTS_HINT,
    Key,
    LakeError,
    Properties,
    Snapshot,
    SnapshotConflictError,
    SnapshotGoneError,
    lake_error,
)
from slackwater.protocol import LakeSettings, epoch_ms

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_COMPACTED_BYTES: Final = 64 * 1024 * 1024
"""Files are compacted up to this total size in storage."""
_COMPARED_KEYS: Final = 200
"""Up to this number of keys, each is compared with the statistics of a file; of more keys, only the smallest
and the largest."""
_IS: Final[Any] = expressions
"""Pydantic models, whose declared arguments differ from those that they accept."""
_NO_SNAPSHOT: Final = -1
"""The newest snapshot of a table that was created and not written yet."""
_WITHOUT_RETRY: Final = {"commit.retry.num-retries": "0"}
"""A commit is made on top of the loaded snapshot, or fails."""
_PROPERTIES: Final = {
    **_WITHOUT_RETRY,
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


class IcebergLake:
    """A :class:`~slackwater.outputs.lake.table.Lake`: a catalogue, with a namespace for each schema."""

    def __init__(self, settings: LakeSettings) -> None:
        self._settings = settings
        self._catalog: Catalog | None = None
        self.place = f"the Iceberg tables of catalogue {settings.place!r}"

    def table(self, name: str) -> "IcebergTable":
        """See :meth:`Lake.table`."""
        return IcebergTable(name, self)

    def catalog(self) -> Catalog:
        """Returns the catalogue.

        Raises:
            LakeError: It does not answer, is not configured, or its library is not installed.
        """
        if self._catalog is None:
            try:
                with _translated():
                    self._catalog = load_catalog(self._settings.place, **self._settings.options)
            except (ValueError, NotInstalledError) as error:
                hint = "configure the catalogue in [iceberg.options] or in .pyiceberg.yaml"
                raise LakeError(f"catalogue {self._settings.place!r}: {error}", hint) from error
        return self._catalog

    def close(self) -> None:
        """See :meth:`Lake.close`."""
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            with suppress(SQLAlchemyError, OSError):
                catalog.close()


class IcebergTable:
    """A :class:`~slackwater.outputs.lake.table.LakeTable` of Iceberg."""

    def __init__(self, name: str, lake: IcebergLake) -> None:
        self.name = name
        self._identifier = tuple(name.split("."))
        self._lake = lake
        self._loaded: Table | None = None

    def load(self) -> Snapshot | None:
        """See :meth:`LakeTable.load`."""
        with _translated():
            try:
                self._loaded = self._lake.catalog().load_table(self._identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                self._loaded = None
                return None
            return _snapshot(self._loaded.current_snapshot())

    def schema(self) -> Any:
        """See :meth:`LakeTable.schema`."""
        return self._table.schema().as_arrow()

    def snapshots_from(self, snapshot_id: int | None) -> list[Snapshot]:
        """See :meth:`LakeTable.snapshots_from`."""
        metadata = self._table.metadata
        found: list[Snapshot] = []
        for snapshot in _ancestors(metadata):
            found.append(_snapshot(snapshot))
            if snapshot.snapshot_id == snapshot_id:
                break
        if snapshot_id is not None and (not found or found[-1].id != snapshot_id):
            raise SnapshotGoneError(f"{snapshot_id} is no ancestor of {metadata.current_snapshot_id}")
        return found[::-1]

    def create(self, schema: Any, properties: Properties) -> int:
        """See :meth:`LakeTable.create`."""
        catalog = self._lake.catalog()
        with _translated():
            with suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace(self._identifier[0])
            try:
                self._loaded = catalog.create_table(self._identifier, schema, properties=_PROPERTIES)
            except TableAlreadyExistsError as error:
                raise SnapshotConflictError from error
        return self._commit([], [schema.empty_table()], properties)

    def append(self, rows: Any, properties: Properties) -> int:
        """See :meth:`LakeTable.append`."""
        return self._commit([], [rows], properties)

    def replace(self, rows: Any, properties: Properties) -> int:
        """See :meth:`LakeTable.replace`."""
        with _translated():
            removed = list(self._table.scan().plan_files())
            return self._commit(removed, [rows], properties)

    def merge(self, changes: Any, key: Collection[str], properties: Properties) -> int:
        """See :meth:`LakeTable.merge`."""
        import duckdb  # clients, which only read, do not have it

        names = list(key)
        with _translated(), duckdb.connect() as database:
            database.register("changes", changes.select(names))
            tasks = self._table.scan(row_filter=_may_hold(names[0], changes[names[0]])).plan_files()
            removed = [t for t in tasks if _unchanged(database, self._rows([t], names), names) is not None]
            return self._commit(removed, self._merged(database, removed, names, changes), properties)

    def roll_back(self, snapshot_id: int, properties: Properties) -> int:
        """See :meth:`LakeTable.roll_back`. It creates no snapshot, so no properties are stored."""
        with _translated():
            try:
                self._table.manage_snapshots().rollback_to_snapshot(snapshot_id).commit()
            except ValueError as error:
                raise SnapshotGoneError(str(error)) from error
            return snapshot_id

    def compact(self, properties: Properties) -> int:
        """See :meth:`LakeTable.compact`: it compacts the smallest files, up to a total size."""
        with _translated():
            tasks = sorted(self._table.scan().plan_files(), key=lambda task: task.file.file_size_in_bytes)
            chosen: list[FileScanTask] = []
            size = 0
            for task in tasks:
                size += task.file.file_size_in_bytes
                if size > _COMPACTED_BYTES:
                    break
                chosen.append(task)
            if len(chosen) < 2:
                return self._head
            return self._commit(chosen, [self._rows(chosen)], properties)

    def read(self, snapshot_id: int | None, key: Key = NO_KEY) -> Any:
        """See :meth:`LakeTable.read`."""
        is_known = snapshot_id is not None and self._loaded is not None
        if not is_known and self.load() is None:
            if snapshot_id is None:
                return None
            raise SnapshotGoneError(f"table {self.name} does not exist")
        at = None if snapshot_id == _NO_SNAPSHOT else snapshot_id
        with _translated():
            try:
                return self._table.scan(_has(key), snapshot_id=at).to_arrow()
            except (ValueError, FileNotFoundError) as error:
                if snapshot_id is None:
                    raise
                raise SnapshotGoneError(str(error)) from error

    def expire(self, kept: Collection[int], before: datetime, now: datetime, properties: Properties) -> int:
        """See :meth:`LakeTable.expire`. It creates no snapshot, so no properties are stored.

        pyiceberg only removes snapshots from the metadata. Their files are removed here, when no snapshot
        refers to them any more. If this fails, files remain that nobody reads.
        """
        with _translated():
            self._check_unchanged()
            table = self._table
            old, guards = _old_snapshots(table.metadata, kept, epoch_ms(before))
            if old:
                files = _files_of(table, old, guards)
                table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in old]).commit()
                for path in files:
                    with suppress(FileNotFoundError):
                        table.io.delete(path)
            return self._head

    @property
    def _table(self) -> Table:
        if self._loaded is None:
            raise SnapshotConflictError
        return self._loaded

    @property
    def _head(self) -> int:
        snapshot = self._table.current_snapshot()
        return _NO_SNAPSHOT if snapshot is None else snapshot.snapshot_id

    def _check_unchanged(self) -> None:
        """Raises if the catalogue has a newer snapshot or schema of the table than the loaded one."""
        newest = self._lake.catalog().load_table(self._identifier)
        if _state(newest.metadata) != _state(self._table.metadata):
            raise SnapshotConflictError
        self._loaded = newest

    def _rows(self, tasks: Iterable[FileScanTask], names: Iterable[str] = ("*",)) -> Any:
        scan = self._table.scan(selected_fields=tuple(names))
        return ArrowScan(self._table.metadata, self._table.io, scan.projection(), AlwaysTrue()).to_table(
            tasks
        )

    def _merged(
        self, database: "DuckDBPyConnection", removed: list[FileScanTask], key: list[str], changes: Any
    ) -> Iterator[Any]:
        """Yields the rows that replace those of files: the remaining rows of each file, then the new rows."""
        for task in removed:
            rows = self._rows([task])
            stay = _unchanged(database, rows, key)
            yield rows if stay is None else rows.take(stay)
        yield changes.filter(pc.invert(changes[DELETED])).drop_columns([DELETED])

    def _commit(self, removed: list[FileScanTask], added: Iterable[Any], properties: Properties) -> int:
        with _translated():
            self._check_unchanged()
            table = self._table
            if table.properties.items() & _WITHOUT_RETRY.items() != _WITHOUT_RETRY.items():
                with table.transaction() as settings:  # a table that somebody else has made
                    settings.set_properties(_WITHOUT_RETRY)
            transaction = table.transaction()
            update = transaction.update_snapshot(snapshot_properties=dict(properties))
            with update.overwrite() as files:
                for task in removed:
                    files.delete_data_file(task.file)
                for rows in filter(len, added):
                    for file in _dataframe_to_data_files(transaction.table_metadata, rows, table.io):
                        files.append_data_file(file)
            self._loaded = transaction.commit_transaction()
            return self._head


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (CommitFailedException, ValidationException) as error:
        raise SnapshotConflictError(str(error)) from error
    except (ForbiddenError, UnauthorizedError) as error:
        raise LakeError(str(error), RIGHTS_HINT) from error
    except (RESTError, SQLAlchemyError, OSError) as error:
        raise lake_error(error) from error


def _snapshot(snapshot: TableSnapshot | None) -> Snapshot:
    if snapshot is None or (summary := snapshot.summary) is None:
        return Snapshot(_NO_SNAPSHOT if snapshot is None else snapshot.snapshot_id, {})
    keeps_rows = summary.operation is Operation.REPLACE
    return Snapshot(snapshot.snapshot_id, summary.additional_properties, keeps_rows)


def _has(key: Key) -> Any:
    """Returns a condition that is true for every row with a key."""
    condition: Any = AlwaysTrue()
    for column, value in key.items():
        if value is not None:
            condition = _IS.And(condition, _IS.EqualTo(column, value))
    return condition


def _may_hold(name: str, values: Any) -> Any:
    """Returns a condition that is true for every row with one of the values in the column."""
    distinct = pc.unique(values.combine_chunks()).drop_null()
    if len(distinct) <= _COMPARED_KEYS:
        found = _IS.In(name, distinct.to_pylist())
    else:
        ends = pc.min_max(distinct).as_py()
        found = _IS.And(_IS.GreaterThanOrEqual(name, ends["min"]), _IS.LessThanOrEqual(name, ends["max"]))
    return _IS.Or(found, _IS.IsNull(name)) if values.null_count else found


def _unchanged(database: "DuckDBPyConnection", rows: Any, key: list[str]) -> Any:
    """Returns the numbers of rows whose key is not among the changes; None if these are all rows."""
    keys = rows.select(key).append_column("slackwater_row", pa.array(range(len(rows)), pa.int64()))
    database.register("rows", keys)
    is_same = " AND ".join(f'r."{name}" IS NOT DISTINCT FROM c."{name}"' for name in key)
    query = f"SELECT r.slackwater_row FROM rows r ANTI JOIN changes c ON {is_same} ORDER BY 1"  # noqa: S608
    found = pa.array(database.execute(query).fetchnumpy()["slackwater_row"], pa.int64())
    return None if len(found) == len(rows) else found


def _state(metadata: TableMetadata) -> tuple[object, ...]:
    return metadata.current_snapshot_id, metadata.current_schema_id, metadata.table_uuid


def _ancestors(metadata: TableMetadata) -> Iterator[TableSnapshot]:
    """Yields the newest snapshot, its parent, and so on."""
    at = metadata.current_snapshot_id
    while at is not None and (snapshot := metadata.snapshot_by_id(at)) is not None:
        yield snapshot
        at = snapshot.parent_snapshot_id


def _old_snapshots(
    metadata: TableMetadata, kept: Collection[int], before_ms: int
) -> tuple[list[TableSnapshot], list[TableSnapshot]]:
    """Returns the snapshots to be removed, and those that determine which of their files must stay.

    The newest snapshot stays, and its ancestors as far back as one is kept or recent. The oldest of these has
    every file that an older snapshot shares with any of them. All other snapshots that stay are recent, or
    have a tag or branch.
    """
    ancestors = list(_ancestors(metadata))
    wanted = [
        n for n, each in enumerate(ancestors) if each.snapshot_id in kept or each.timestamp_ms >= before_ms
    ]
    needed = ancestors[: max(wanted, default=0) + 1]
    names = {each.snapshot_id for each in needed}
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    others = [each for each in metadata.snapshots if each.snapshot_id not in names]
    old = [each for each in others if each.timestamp_ms < before_ms and each.snapshot_id not in named]
    return old, needed[-1:] + [each for each in others if each not in old]


def _files_of(table: Table, old: list[TableSnapshot], guards: list[TableSnapshot]) -> list[str]:
    """Returns the files of old snapshots that no other snapshot has."""
    ancestors = {snapshot.snapshot_id for snapshot in _ancestors(table.metadata)}
    manifests = [manifest for snapshot in guards for manifest in snapshot.manifests(table.io)]
    kept = {manifest.manifest_path: manifest for manifest in manifests}
    live = {entry.data_file.file_path for manifest in kept.values() for entry in _entries(table, manifest)}
    found: dict[str, None] = {}
    for snapshot in old:
        for manifest in snapshot.manifests(table.io):
            # What was rolled back shares the rest with snapshots that may be younger than the guards.
            is_own = snapshot.snapshot_id in ancestors or manifest.added_snapshot_id == snapshot.snapshot_id
            if manifest.manifest_path in kept or not is_own:
                continue
            for entry in _entries(table, manifest):
                if snapshot.snapshot_id in ancestors or entry.snapshot_id == snapshot.snapshot_id:
                    found[entry.data_file.file_path] = None
            found[manifest.manifest_path] = None
        found[snapshot.manifest_list] = None
    return [path for path in found if path not in live]


def _entries(table: Table, manifest: ManifestFile) -> list[ManifestEntry]:
    return manifest.fetch_manifest_entry(table.io, discard_deleted=True)
