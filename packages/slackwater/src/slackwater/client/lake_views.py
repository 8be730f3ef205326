"""Reads the views of a pipeline from its tables in a lake, as of one commit, and switches their readers."""

import math
import struct
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final

import msgspec

from slackwater.client.errors import StateNotKeptError
from slackwater.client.readers import PASSING, Readers, Switch, Switched
from slackwater.client.snapshot import (
    Key,
    ReadableStates,
    TypedRows,
    ViewSnapshot,
    VisibleCommit,
    repeated,
    visible,
    visible_commit,
)
from slackwater.outputs.lake.ledger import LedgerRow, rows_of
from slackwater.outputs.lake.table import Lake, LakeError, SnapshotConflictError, SnapshotGoneError
from slackwater.protocol import (
    Clock,
    CommitPosition,
    ConfigError,
    MalformedRecordError,
    ReaderSwitch,
    StateError,
    UnavailableError,
    epoch_ms,
    from_epoch_ms,
)
from slackwater.protocol.keys import lake_ledger, lake_readers

_FEWEST_DIGITS: Final = 1
_MOST_DIGITS: Final = 9
"""As many digits tell every two numbers of four bytes apart."""
_OF_SWITCH: Final = ("pipeline", "revision", "source", "timeline", "commit_lsn")
"""What a row has of a switch under the same names."""


class LakeOutput:
    """Implements :class:`slackwater.client.snapshot.PipelineOutput` over the tables of a lake.

    Each call reads the ledger, and then the snapshots that one of its rows names. All tables are therefore at
    one commit, even while the pipeline writes. The name of a view is that of its table, ``schema.name``.
    Documents are those that a topic would have.

    Args:
        lake: The lake, :class:`slackwater.outputs.lake.delta.DeltaLake` or
            :class:`slackwater.outputs.lake.iceberg.IcebergLake`.
        pipeline: The pipeline's name; from revision 2 on it ends in ``.v<revision>``.
        views: The views that it has for readers; empty: all.
    """

    def __init__(self, lake: Lake, pipeline: str, views: Collection[str] = ()) -> None:
        self._lake, self._only = lake, views
        self.pipeline = pipeline
        """See the protocol."""

    def views(self) -> Sequence[str]:
        """See the protocol. Before the first batch there are none."""
        batches = self._batches()
        names = sorted(batches[-1].snapshots) if batches else []
        return [name for name in names if name in self._only or not self._only]

    def newest(self) -> VisibleCommit | None:
        """See the protocol."""
        return _newest(self._batches())

    def states(self, views: Sequence[str]) -> ReadableStates | None:
        """See the protocol; these are the ends of the batches in the ledger."""
        batches = self._batches()
        newest = _newest(batches)
        if newest is None:
            return None
        return ReadableStates(newest, batches[-1].written_at, [batch.position for batch in batches])

    def read(self, views: Sequence[str], at: CommitPosition | None, key: Key | None) -> ViewSnapshot:
        """See the protocol. Earlier states are the ends of batches whose rows the ledger still has."""
        newest, batch = self._batch_at(at)
        documents = {
            view: list(_documents(self._table_at(view, batch, key or {}), key or {})) for view in views
        }
        return ViewSnapshot(newest.source, batch.position, documents)

    def rows(self, view: str, at: CommitPosition) -> TypedRows:
        """See the protocol."""
        newest, batch = self._batch_at(at)
        return TypedRows(newest.source, table=self._table_at(view, batch, {}))

    def close(self) -> None:
        """See the protocol."""
        self._lake.close()

    def _table_at(self, view: str, batch: LedgerRow, key: Key) -> Any:
        """Returns a view after a batch as an Arrow table, at least all rows that have the key."""
        try:
            with translated():
                return self._lake.table(view).read(batch.snapshots[view], key)
        except (SnapshotGoneError, KeyError) as error:
            raise StateNotKeptError(
                f"table {view} of pipeline {self.pipeline!r} no longer has its state at "
                f"{batch.position}: {error}",
                "read a later state; another process may have removed snapshots or the table",
            ) from error

    def _batch_at(self, at: CommitPosition | None) -> tuple[VisibleCommit, LedgerRow]:
        """Returns the newest commit, and the batch that ends at the given one."""
        batches = self._batches()
        newest = visible(self.pipeline, _newest(batches), at)
        if at is None:
            return newest, batches[-1]
        # If several batches end at one commit, the last one shows its state.
        found = next((batch for batch in reversed(batches) if batch.position == at), None)
        if found is None:
            ends = [batch.position for batch in batches]
            place = bisect_left(ends, at)
            around = ", ".join(map(str, ends[max(place - 1, 0) : place + 1]))
            raise StateNotKeptError(
                f"pipeline {self.pipeline!r} keeps no batch that ends at {at}; the nearest batches end at "
                f"{around}",
                "read one of these states; the setting `keep` determines how long they are kept",
            )
        return newest, found

    def _batches(self) -> list[LedgerRow]:
        """Returns the visible batches that the ledger has, ascending."""
        name = lake_ledger(self.pipeline)
        with translated():
            found = self._lake.table(name).read(None)
        if found is None:
            raise ConfigError(
                f"no pipeline {self.pipeline!r} has written to this lake: table {name} does not exist",
                "check the name (from revision 2 on it ends in .v<revision>) and the lake's location",
            )
        try:
            return sorted(rows_of(found), key=lambda row: row.progress.batch_id)
        except MalformedRecordError as error:
            problem = f"the ledger {name} of pipeline {self.pipeline!r} cannot be read: {error.reason}"
            raise StateError(problem, "restore it") from error


class LakeReaders(Readers):
    """The readers of tables in a lake. One row of one table records which revision they read.

    It is replaced in one commit of that table, based on the version that was read, so if two processes switch
    at the same time, the second one is rejected.
    """

    def __init__(self, lake: Lake, pipeline: str) -> None:
        super().__init__(pipeline)
        self._lake = lake
        self._table = lake.table(lake_readers(self.pipeline))

    def newest_switch(self) -> ReaderSwitch | None:
        """See the base class."""
        with translated():
            rows = self._table.read(None)
        return None if rows is None else _switch_of(self.pipeline, rows)

    def open(self, pipeline: str, views: Collection[str] = ()) -> LakeOutput:
        """See the base class."""
        return LakeOutput(self._lake, pipeline, views)

    def _make(self, wanted: Switch, timeout: timedelta, clock: Clock) -> Switched:
        return repeated(partial(self._try, wanted, clock), timeout, clock, PASSING)

    def _try(self, wanted: Switch, clock: Clock) -> Switched | UnavailableError:
        with translated():
            head = self._table.load()
            before = None if head is None else _switch_of(self.pipeline, self._table.read(head.id))
        old = None if before is None else self.open(before.pipeline)
        done, record = wanted.attempt(before, old, self.open(wanted.pipeline), clock)
        if record is None:
            return done
        try:
            with translated():
                if head is None:
                    self._table.create(_switch_schema(), {})
                self._table.replace(_switch_row(record), {})
        except SnapshotConflictError:
            return UnavailableError(
                f"another process is switching readers of {self.pipeline!r} at the same time",
                "nothing was changed; try again",
            )
        return done


def _newest(batches: Sequence[LedgerRow]) -> VisibleCommit | None:
    return visible_commit(batches[-1].progress) if batches else None


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


def _switch_schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            ("pipeline", pa.string()),
            ("revision", pa.int64()),
            ("ledger", pa.string()),
            ("views", pa.map_(pa.string(), pa.string())),
            ("source", pa.string()),
            ("timeline", pa.int64()),
            ("commit_lsn", pa.int64()),
            ("switched_at", pa.timestamp("us", "UTC")),
        ]
    )


def _switch_row(record: ReaderSwitch) -> Any:
    import pyarrow as pa

    row = {
        **{name: getattr(record, name) for name in _OF_SWITCH},
        "ledger": lake_ledger(record.pipeline),
        "views": list(record.views.items()),
        "switched_at": from_epoch_ms(record.switched_ms),
    }
    return pa.Table.from_pylist([row], schema=_switch_schema())


def _switch_of(base: str, rows: Any) -> ReaderSwitch | None:
    found = rows.to_pylist()
    if not found:
        return None
    (row,) = found
    return ReaderSwitch(
        base_name=base,
        views=dict(row["views"]),
        switched_ms=epoch_ms(row["switched_at"]),
        **{name: row[name] for name in _OF_SWITCH},
    )


@contextmanager
def translated() -> Iterator[None]:
    """Translates the errors of a lake that does not answer, or refuses, for its readers."""
    try:
        yield
    except LakeError as error:
        raise UnavailableError(
            f"the lake cannot be accessed: {error.reason}", "check its location, the rights and the storage"
        ) from error
