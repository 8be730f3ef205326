"""Tables of Delta Lake, read and written with delta-rs: one commit of the table's log per snapshot."""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, write_deltalake
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)

from slackwater.outputs.lake.table import (
    DELETED,
    NO_KEY,
    Key,
    Properties,
    Snapshot,
    SnapshotConflictError,
    SnapshotGoneError,
    lake_error,
)
from slackwater.protocol import LakeSettings

_COMPACTED_BYTES: Final = 128 * 1024 * 1024
"""Files of this size or larger are not compacted any more."""
_KEEP_ROWS: Final = frozenset({
    "ADD COLUMN", "ADD COLUMNS", "ADD CONSTRAINT", "ADD FEATURE", "CLUSTER BY", "COMPUTE STATS",
    "CREATE TABLE", "OPTIMIZE", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPDATE SCHEMA",
    "UPGRADE PROTOCOL", "VACUUM END", "VACUUM START",
})  # fmt: skip
"""The names of operations that do not change the rows of a table."""
_LOST_AGE: Final = timedelta(days=1)
"""A file that was written longer ago than this does not belong to a batch that is still being written."""
_REMOVED_RETENTION: Final = "delta.deletedFileRetentionDuration"
_REMOVED_AGE: Final = timedelta(days=6)
"""The time for which checkpoints name removed files by default, minus a day because clocks may differ."""
_LOG_RETENTION: Final = "delta.logRetentionDuration"
_LOG_AGE: Final = timedelta(days=29)
"""The time for which delta-rs keeps commits in the log by default, minus a day because clocks may differ."""
_HOOKS: Final = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""Old commits are only removed by :meth:`DeltaLakeTable.expire`, which considers the ledger."""


class DeltaLake:
    """A :class:`~slackwater.outputs.lake.table.Lake`: a folder of tables, ``schema/name`` each."""

    def __init__(self, settings: LakeSettings) -> None:
        self._settings = settings
        self.place = f"the Delta tables in {settings.place}"

    def table(self, name: str) -> "DeltaLakeTable":
        """See :meth:`Lake.table`."""
        address = f"{self._settings.place.rstrip('/')}/{name.replace('.', '/')}"
        return DeltaLakeTable(name, address, dict(self._settings.options))

    def close(self) -> None:
        """See :meth:`Lake.close`. There are no connections."""


class DeltaLakeTable:
    """A :class:`~slackwater.outputs.lake.table.LakeTable` of Delta Lake; snapshots are versions."""

    def __init__(self, name: str, address: str, options: dict[str, str]) -> None:
        self.name = name
        self._address = address
        self._options = options
        self._loaded: DeltaTable | None = None

    def load(self) -> Snapshot | None:
        """See :meth:`LakeTable.load`."""
        with self._translated():
            self._loaded = self._newest()
            return None if self._loaded is None else _snapshot(self._loaded.history(1)[0])

    def schema(self) -> Any:
        """See :meth:`LakeTable.schema`."""
        return pa.schema(self._table.schema().to_arrow())

    def snapshots_from(self, snapshot_id: int | None) -> list[Snapshot]:
        """See :meth:`LakeTable.snapshots_from`."""
        with self._translated():
            found = [_snapshot(commit) for commit in self._commits_from(snapshot_id)]
        if snapshot_id is not None and (not found or found[0].id != snapshot_id):
            raise SnapshotGoneError(f"version {snapshot_id} is not in the log of {self.name}")
        return found

    def create(self, schema: Any, properties: Properties) -> int:
        """See :meth:`LakeTable.create`. A second commit follows: delta-rs cannot restore version 0."""
        with self._translated():
            try:
                self._loaded = DeltaTable.create(
                    self._address,
                    schema=Schema.from_arrow(schema),
                    mode="error",
                    storage_options=self._options,
                    **_commit(properties),
                )
            except DeltaError as error:
                if "already exists" in str(error):
                    raise SnapshotConflictError from error
                raise
        return self.append(schema.empty_table(), properties)

    def append(self, rows: Any, properties: Properties) -> int:
        """See :meth:`LakeTable.append`."""
        return self._write(rows, "append", properties)

    def replace(self, rows: Any, properties: Properties) -> int:
        """See :meth:`LakeTable.replace`."""
        return self._write(rows, "overwrite", properties)

    def merge(self, changes: Any, key: Collection[str], properties: Properties) -> int:
        """See :meth:`LakeTable.merge`."""
        has_null = any(changes[name].null_count for name in key)
        equal = "IS NOT DISTINCT FROM" if has_null else "="
        is_same = " AND ".join(f't."{name}" {equal} s."{name}"' for name in key)
        columns = {f'"{name}"': f's."{name}"' for name in changes.schema.names if name != DELETED}
        with self._translated():
            merge = self._table.merge(
                changes,
                is_same,
                source_alias="s",
                target_alias="t",
                streamed_exec=False,  # so that the keys' range tells which files need not be read
                **_commit(properties),
            )
            merge = merge.when_matched_delete(f"s.{DELETED}").when_matched_update(columns)
            merge.when_not_matched_insert(columns, f"NOT s.{DELETED}").execute()
            return self._table.version()

    def roll_back(self, snapshot_id: int, properties: Properties) -> int:
        """See :meth:`LakeTable.roll_back`."""
        with self._translated(is_about_past=True):
            self._table.restore(snapshot_id, **_commit(properties))
            self._table.update_incremental()
            return self._table.version()

    def compact(self, properties: Properties) -> int:
        """See :meth:`LakeTable.compact`.

        delta-rs compacts on top of the commits of others, which is detected by the version.
        """
        with self._translated():
            before = self._table.version()
            done = self._table.optimize.compact(
                target_size=_COMPACTED_BYTES,
                **_commit(properties),
            )
            if self._table.version() != before + bool(done["numFilesAdded"]):
                raise SnapshotConflictError
            return self._table.version()

    def read(self, snapshot_id: int | None, key: Key = NO_KEY) -> Any:
        """See :meth:`LakeTable.read`."""
        with self._translated(is_about_past=snapshot_id is not None):
            if snapshot_id is None:
                table = self._newest()
            else:
                table = DeltaTable(self._address, version=snapshot_id, storage_options=self._options)
            if table is None:
                return None
            conditions = [(column, "=", value) for column, value in key.items() if value is not None]
            return pa.table(table.to_pyarrow_table(filters=conditions or None))

    def expire(self, kept: Collection[int], before: datetime, now: datetime, properties: Properties) -> int:
        """See :meth:`LakeTable.expire`.

        A file is removed when a version removed it longer ago than the retention, so every version made since
        `before` has its files. Files of kept versions are excluded by name. Files that no version has, of
        batches that were lost before their commit, are removed when they are so old that no run can still be
        about to commit them.
        """
        with self._translated():
            self._check_newest()  # files of what was not read would count as lost
            self._vacuum(now - before, kept, **_commit(properties))
            lost_age = max(now - before, _LOST_AGE)
            if self._lost_files(lost_age, kept):
                self._vacuum(lost_age, kept, full=True, **_commit(properties))
            self._clean_log(min(kept), now)
            return self._table.version()

    def _vacuum(self, age: timedelta, kept: Collection[int], **options: Any) -> list[str]:
        """Removes files that were removed from the table longer ago than this; returns them."""
        return self._table.vacuum(
            retention_hours=math.ceil(age / timedelta(hours=1)),
            enforce_retention_duration=False,
            keep_versions=sorted(kept),
            **{"dry_run": False, **options},
        )

    def _lost_files(self, age: timedelta, kept: Collection[int]) -> list[str]:
        """Returns files of at least this age that no version has; lists the folder.

        Checkpoints forget after some time which files were removed. Files of versions that must still be
        readable then would appear to belong to no version.
        """
        if age > _REMOVED_AGE or _REMOVED_RETENTION in self._table.metadata().configuration:
            return []
        return self._vacuum(age, kept, full=True, dry_run=True)

    def _clean_log(self, oldest: int, now: datetime) -> None:
        """Removes commits from the log that are older than its retention.

        delta-rs keeps the newest checkpoint that is not after the first recent commit, and everything from
        there on. Every version from a recent one on can therefore be read afterwards, and nothing is removed
        unless the oldest version that is needed is recent itself. A retention that a user has set may be
        shorter than what has to be kept; the user is then responsible for the cleanup.
        """
        if _LOG_RETENTION in self._table.metadata().configuration:
            return
        needed = self._commits_from(oldest)[0]
        made_at = datetime.fromtimestamp(int(needed["timestamp"]) / 1000, UTC)
        if needed["version"] == oldest and now - made_at < _LOG_AGE:
            self._table.cleanup_metadata()

    def _commits_from(self, version: int | None) -> list[dict[str, Any]]:
        """Returns the commits from a version to the loaded one, ascending; fewer if the log has no more.

        delta-rs returns the newest commits of the table, whichever version is loaded, and counts their
        versions back from the loaded one.
        """
        table = self._table
        found = table.history(None if version is None else max(1, table.version() - version + 1))
        self._check_newest()
        return found[::-1]

    def _check_newest(self) -> None:
        """Raises if the table has a newer version than the loaded one."""
        if DeltaTable(self._address, storage_options=self._options).version() != self._table.version():
            raise SnapshotConflictError

    def _newest(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._address, storage_options=self._options)
        except TableNotFoundError as error:
            found = lake_error(error)
            if found.hint:  # it may be there
                raise found from error
            return None

    @property
    def _table(self) -> DeltaTable:
        if self._loaded is None:
            raise SnapshotConflictError
        return self._loaded

    def _write(self, rows: Any, mode: Any, properties: Properties) -> int:
        with self._translated():
            write_deltalake(
                self._table,
                rows,
                mode=mode,
                **_commit(properties),
            )
            return self._table.version()

    @contextmanager
    def _translated(self, *, is_about_past: bool = False) -> Iterator[None]:
        try:
            yield
        except (CommitFailedError, SchemaMismatchError, DeltaProtocolError) as error:
            raise SnapshotConflictError(str(error)) from error
        except (DeltaError, TableNotFoundError, FileNotFoundError) as error:
            if is_about_past:
                raise SnapshotGoneError(str(error)) from error
            raise lake_error(error) from error
        except OSError as error:
            raise lake_error(error) from error


def _commit(properties: Properties) -> dict[str, Any]:
    """Returns how to commit: without retries, delta-rs commits on top of the loaded version, or fails."""
    commit = CommitProperties(custom_metadata=dict(properties), max_commit_retries=0)
    return {"commit_properties": commit, "post_commithook_properties": _HOOKS}


def _snapshot(commit: dict[str, Any]) -> Snapshot:
    noted = {name: value for name, value in commit.items() if isinstance(value, str)}
    operation, parameters = commit.get("operation"), commit.get("operationParameters", {})
    restores = str(parameters.get("version", "")) if operation == "RESTORE" else ""
    version = int(commit["version"])
    return Snapshot(
        version,
        noted,
        # delta-rs compacts on top of another compaction that it has not read, and doubles rows.
        keeps_rows=operation in _KEEP_ROWS and commit.get("readVersion", version - 1) == version - 1,
        restores=int(restores) if restores.isdigit() else None,
    )
