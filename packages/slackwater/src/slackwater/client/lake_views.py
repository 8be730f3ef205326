"""Reads the views of a pipeline from its tables in a lake, as of one commit."""

import math
import struct
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, Protocol

import msgspec

from slackwater.client.errors import ClientConfigError, ClientError, ClientUnavailableError, StateNotKeptError
from slackwater.client.snapshot import Key, ReadableStates, ViewSnapshot, VisibleCommit, not_visible
from slackwater.protocol import CommitPosition, LakeSettings
from slackwater.protocol.keys import lake_ledger

_WITHOUT_RETRY = {"commit.retry.num-retries": "0"}
"""A commit is made on top of what was read or not at all."""


_FEWEST_DIGITS: Final = 1
_MOST_DIGITS: Final = 9
"""As many digits tell every two numbers of four bytes apart."""


class NoSuchLakeTableError(Exception):
    """A table does not exist."""


class _SnapshotGoneError(Exception):
    """A snapshot of a table does not exist, or no longer."""


class TableChangedError(Exception):
    """Another process changed a table at the same time; nothing was written."""


class LakeTables(Protocol):
    """The tables of a lake, as Arrow tables. Errors of the lake's libraries are translated."""

    def read(self, name: str, snapshot: int | None, key: Key) -> Any:
        """Returns rows of a table at a snapshot (None: the newest), at least all rows of the key."""
        ...

    def replace(self, name: str, schema: Any, make: Callable[[Any], Any]) -> Any:
        """Replaces all rows of a table in one commit, or creates the table.

        Args:
            name: ``schema.name``.
            schema: The columns of a new table.
            make: Receives the existing rows, or None if there is no table, and returns the new rows. If it
                returns None, the table is not changed.

        Returns:
            The new rows, or None.

        Raises:
            TableChangedError: Another process has replaced the rows since they were read.
        """
        ...

    def close(self) -> None:
        """Frees connections."""
        ...


class DeltaTables:
    """Implements :class:`LakeTables` for Delta; needs the package ``deltalake``.

    Args:
        settings: The folder of the tables, and the options of the storage.
    """

    def __init__(self, settings: LakeSettings) -> None:
        self._settings = settings

    def read(self, name: str, snapshot: int | None, key: Key) -> Any:
        """See the protocol."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        address = self._address(name)
        conditions = [(column, "=", value) for column, value in key.items() if value is not None]
        try:
            table = DeltaTable(address, version=snapshot, storage_options=dict(self._settings.options))
            return table.to_pyarrow_table(filters=conditions or None)
        except TableNotFoundError as error:
            raise NoSuchLakeTableError(str(error)) from error
        except (DeltaError, OSError) as error:
            raise (_SnapshotGoneError if snapshot is not None else _unavailable)(str(error)) from error

    def replace(self, name: str, schema: Any, make: Callable[[Any], Any]) -> Any:
        """See the protocol."""
        from deltalake import DeltaTable, write_deltalake
        from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

        options = dict(self._settings.options)
        address = self._address(name)
        try:
            try:
                table = DeltaTable(address, storage_options=options)
            except TableNotFoundError:
                rows = make(None)
                if rows is not None:
                    write_deltalake(address, rows, mode="error", storage_options=options)
                return rows
            rows = make(table.to_pyarrow_table())
            if rows is not None:
                write_deltalake(table, rows, mode="overwrite")
        except CommitFailedError as error:
            raise TableChangedError from error
        except (DeltaError, OSError) as error:
            if "already exists" in str(error):
                raise TableChangedError from error
            raise _unavailable(str(error)) from error
        return rows

    def close(self) -> None:
        """See the protocol: there are none."""

    def _address(self, name: str) -> str:
        return f"{self._settings.place.rstrip('/')}/{name.replace('.', '/')}"


class IcebergTables:
    """Implements :class:`LakeTables` for Iceberg; needs the package ``pyiceberg``.

    Args:
        settings: The name of the catalogue, and its properties.

    Raises:
        ClientUnavailableError: The catalogue does not answer.
    """

    def __init__(self, settings: LakeSettings) -> None:
        from pyiceberg.catalog import load_catalog

        with _translated():
            self._catalog = load_catalog(settings.place, **settings.options)

    def read(self, name: str, snapshot: int | None, key: Key) -> Any:
        """See the protocol."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
        from pyiceberg.expressions import AlwaysTrue, And, EqualTo

        with _translated():
            condition: Any = AlwaysTrue()
            for column, value in key.items():
                if value is not None:
                    condition = And(condition, EqualTo(column, value))  # type: ignore[arg-type,call-arg]
            try:
                table = self._catalog.load_table(tuple(name.split(".")))
                return table.scan(row_filter=condition, snapshot_id=snapshot).to_arrow()
            except (NoSuchTableError, NoSuchNamespaceError) as error:
                raise NoSuchLakeTableError(str(error)) from error
            except (ValueError, FileNotFoundError) as error:
                if snapshot is None:
                    raise
                raise _SnapshotGoneError(str(error)) from error

    def replace(self, name: str, schema: Any, make: Callable[[Any], Any]) -> Any:
        """See the protocol."""
        from pyiceberg.exceptions import (
            CommitFailedException,
            NoSuchNamespaceError,
            NoSuchTableError,
            TableAlreadyExistsError,
            ValidationException,
        )

        identifier = tuple(name.split("."))
        with _translated():
            try:
                try:
                    table = self._catalog.load_table(identifier)
                except (NoSuchTableError, NoSuchNamespaceError):
                    rows = make(None)
                    if rows is None:
                        return None
                    self._catalog.create_namespace_if_not_exists(identifier[:-1])
                    table = self._catalog.create_table(identifier, schema, properties=_WITHOUT_RETRY)
                    table.append(rows)
                    return rows
                found = table.scan().to_arrow()
                rows = make(found)
                if rows is not None:
                    (table.overwrite if len(found) else table.append)(rows)
            except (CommitFailedException, TableAlreadyExistsError, ValidationException) as error:
                raise TableChangedError from error
        return rows

    def close(self) -> None:
        """See the protocol."""
        self._catalog.close()


@dataclass(frozen=True, slots=True)
class _Batch:
    """A row of the ledger."""

    batch_id: int
    visible: VisibleCommit
    written_at: datetime
    snapshots: Mapping[str, int]


class LakeOutput:
    """Implements :class:`slackwater.client.snapshot.PipelineOutput` over the tables of a lake.

    Each call reads the ledger, and then the snapshots that one of its rows names. All tables are therefore at
    one commit, even while the pipeline writes. The name of a view is that of its table, ``schema.name``.
    Documents are those that a topic would have.

    Args:
        tables: The lake.
        pipeline: The pipeline's name; from revision 2 on it ends in ``.v<revision>``.
    """

    def __init__(self, tables: LakeTables, pipeline: str) -> None:
        self._tables = tables
        self._pipeline = pipeline

    @property
    def pipeline(self) -> str:
        """See the protocol."""
        return self._pipeline

    def views(self) -> Sequence[str]:
        """See the protocol. Before the first batch there are none."""
        batches = self._batches()
        return sorted(batches[-1].snapshots) if batches else []

    def newest(self) -> VisibleCommit | None:
        """See the protocol."""
        batches = self._batches()
        return batches[-1].visible if batches else None

    def states(self, views: Sequence[str]) -> ReadableStates | None:
        """See the protocol; these are the ends of the batches in the ledger."""
        batches = self._batches()
        if not batches:
            return None
        ends = [batch.visible.position for batch in batches]
        return ReadableStates(batches[-1].visible, batches[-1].written_at, ends)

    def read(self, views: Sequence[str], at: CommitPosition | None, key: Key | None) -> ViewSnapshot:
        """See the protocol. Earlier states are the ends of batches whose rows the ledger still has."""
        batch = self._batch_at(at)
        documents = {}
        for view in views:
            try:
                rows = self._tables.read(view, batch.snapshots[view], key or {})
            except (NoSuchLakeTableError, _SnapshotGoneError, KeyError) as error:
                raise StateNotKeptError(
                    f"table {view} of pipeline {self._pipeline!r} no longer has its state at "
                    f"{batch.visible.position}: {error}",
                    "read a later state; another process may have removed snapshots or the table",
                ) from error
            documents[view] = list(_documents(rows, key or {}))
        return ViewSnapshot(batch.visible.source, batch.visible.position, documents)

    def close(self) -> None:
        """See the protocol."""
        self._tables.close()

    def _batch_at(self, at: CommitPosition | None) -> _Batch:
        batches = self._batches()
        newest = batches[-1] if batches else None
        if newest is None or (at is not None and at > newest.visible.position):
            raise not_visible(at, self._pipeline, None if newest is None else newest.visible)
        if at is None:
            return newest
        # If several batches end at one commit, the last one shows its state.
        found = next((batch for batch in reversed(batches) if batch.visible.position == at), None)
        if found is None:
            around = ", ".join(
                str(batch.visible.position) for batch in (_before(batches, at), _behind(batches, at)) if batch
            )
            raise StateNotKeptError(
                f"pipeline {self._pipeline!r} keeps no batch that ends at {at}; the nearest batches end at "
                f"{around}",
                "read one of these states; the setting `keep` determines how long they are kept",
            )
        return found

    def _batches(self) -> list[_Batch]:
        """Returns the visible batches that the ledger has, ascending."""
        name = lake_ledger(self._pipeline)
        try:
            found = self._tables.read(name, None, {}).to_pylist()
        except NoSuchLakeTableError as error:
            raise ClientConfigError(
                f"no pipeline {self._pipeline!r} has written to this lake: table {name} does not exist",
                "check the name (from revision 2 on it ends in .v<revision>) and the lake's location",
            ) from error
        batches = [
            _Batch(
                row["batch_id"],
                VisibleCommit(row["source"], CommitPosition(row["timeline"], row["commit_lsn"])),
                row["written_at"],
                dict(row["snapshots"]),
            )
            for row in found
        ]
        return sorted(batches, key=lambda batch: batch.batch_id)


def _before(batches: Sequence[_Batch], at: CommitPosition) -> _Batch | None:
    return next((batch for batch in reversed(batches) if batch.visible.position < at), None)


def _behind(batches: Sequence[_Batch], at: CommitPosition) -> _Batch | None:
    return next((batch for batch in batches if batch.visible.position > at), None)


def _documents(table: Any, key: Key) -> Iterator[bytes]:
    """Yields the rows of a key as documents, as topics have them."""
    fields = list(table.schema)
    for row in table.to_pylist():
        if all(row.get(column) == value for column, value in key.items()):
            yield msgspec.json.encode({field.name: _json_value(row[field.name], field) for field in fields})


def _json_value(value: Any, field: Any) -> Any:
    """Returns an Arrow value as a JSON value; the field's comment names a type that Arrow does not have."""
    kind, noted = field.type, (field.metadata or {}).get(b"doc", b"")
    if value is None:
        return None
    if hasattr(kind, "item_field"):
        return {str(name): _json_value(item, kind.item_field) for name, item in value}
    if hasattr(kind, "value_field"):
        return [_json_value(item, kind.value_field) for item in value]
    if isinstance(value, dict):
        return {each.name: _json_value(value[each.name], each) for each in kind}
    if isinstance(value, Decimal):
        return f"{value:f}" if kind.scale or noted else int(value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + ("Z" if kind.tz else "")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, float):
        return _json_float(value, is_short=str(kind) == "float")
    return msgspec.Raw(value.encode()) if noted == b"JSON" else value


def _json_float(value: float, *, is_short: bool) -> float | str:
    """Returns a number with as few digits as its type needs; JSON has no NaN and no infinities."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if not is_short:
        return value
    texts = (f"{value:.{digits}g}" for digits in range(_FEWEST_DIGITS, _MOST_DIGITS + 1))
    return next(
        float(text) for text in texts if struct.unpack("f", struct.pack("f", float(text)))[0] == value
    )


@contextmanager
def _translated() -> Iterator[None]:
    """Translates the errors of any catalogue that does not answer."""
    try:
        yield
    except (NoSuchLakeTableError, _SnapshotGoneError, TableChangedError, ClientError):
        raise
    except Exception as error:
        raise _unavailable(str(error)) from error


def _unavailable(reason: str) -> ClientUnavailableError:
    return ClientUnavailableError(
        f"the lake cannot be accessed: {reason}", "check its location, the rights and the storage"
    )
