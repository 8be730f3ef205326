"""Every committed state of every document: the view's own SQL on the rows of each version.

Wave w evaluates version w of all documents at once, so there are as many evaluations as the most often
changed document has versions. Without ``[view.rows]`` there is one version per commit, of all documents.
"""

import base64
import json
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import duckdb
import msgspec
import pyarrow as pa
from duckdb.sqltypes import DuckDBPyType

from slackwater_certify.canonical import Canonical, UnreadableValueError, digest, kind_of, shape_of
from slackwater_certify.errors import SpecificationError, ViewError
from slackwater_certify.fold import DocumentKey, Fold, RowIntervals, RowKey
from slackwater_certify.history import Values
from slackwater_certify.specification import Specification
from slackwater_certify.tables import Table, connect, quoted
from slackwater_certify.view import View

Progress = Callable[[str], None]
Document = tuple[Canonical, ...]


@dataclass(slots=True)
class KeyVersions:
    """The committed states of one document, without consecutive equal ones."""

    lsns: "array[int]" = field(default_factory=lambda: array("q"))
    """Commit LSN from which on each holds; the first is 0, before the first transaction."""
    times: "array[int]" = field(default_factory=lambda: array("q"))
    """Its commit time, milliseconds since the epoch."""
    digests: list[bytes | None] = field(default_factory=list)
    """None: there is no such document."""

    def add(self, lsn: int, time_ms: int, value: bytes | None) -> None:
        """Adds a later version."""
        if not self.digests or self.digests[-1] != value:
            self.lsns.append(lsn)
            self.times.append(time_ms)
            self.digests.append(value)

    def at(self, lsn: int) -> int:
        """The version that holds at an LSN."""
        return bisect_right(self.lsns, lsn) - 1

    @property
    def final(self) -> bytes | None:
        """The last one."""
        return self.digests[-1]


def row_keys(specification: Specification, view: View) -> dict[str, RowKey]:
    """How each table's rows find their document.

    Raises:
        SpecificationError: ``[view.rows]`` lacks a table of the view or names a column that is not there.
    """
    named = specification.view.rows
    if not named:
        return dict.fromkeys(view.tables, _whole)
    file, found = str(specification.file), {}
    for name, table in view.tables.items():
        if name not in named:
            raise SpecificationError(file, f'view.rows."{name}"', "missing, but the view reads this table")
        try:
            positions = table.positions(named[name])
        except KeyError as error:
            raise SpecificationError(file, f'view.rows."{name}"', f"no column {error} in it") from error
        found[name] = _row_key(positions, [column.shape.read for column in view.reader.key])
    return found


def _whole(_values: Values) -> DocumentKey:
    return ()


def _row_key(positions: Sequence[int], reads: Sequence[Callable[[object], Canonical]]) -> RowKey:
    pairs = list(zip(positions, reads, strict=True))

    def key(values: Values) -> DocumentKey | None:
        found = tuple([read(values[position]) for position, read in pairs])
        return None if None in found else found

    return key


class WaveTables:
    """The rows of all states in DuckDB, shown to the view one version at a time. A context manager."""

    def __init__(self, view: View, rows: Mapping[str, RowIntervals]) -> None:
        self._view = view
        self._connection = connect()
        self._query = f"SELECT CAST(to_json(d) AS VARCHAR) FROM ({_readable(view)}) d"  # noqa: S608 - quoted names, and the user's own SQL
        for name, table in view.tables.items():
            _load(self._connection, table, rows[name])

    def __enter__(self) -> "WaveTables":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def restrict(self, documents: Collection[int] | None) -> None:
        """Starts a series of waves, over some documents or all of them."""
        chosen = ""
        if documents is not None:
            ids = pa.table({"document": pa.array(documents, pa.int64())})
            self._connection.register("chosen", ids)
            chosen = "WHERE document IN (SELECT document FROM chosen)"
        for table in self._view.tables.values():
            rows = quoted(f"rows.{table.name.replace('.', '_')}")
            live = quoted(f"live.{table.name.replace('.', '_')}")
            self._connection.execute(f"CREATE OR REPLACE TABLE {live} AS SELECT * FROM {rows} {chosen}")  # noqa: S608 - quoted names, and the user's own SQL

    def documents(self, wave: int) -> Iterator[Document]:
        """The view's documents in one wave; waves of a series come in rising order."""
        if wave & (wave - 1) == 0:
            self._drop_before(wave)
        self._connection.execute(f"SET VARIABLE wave = {wave}")
        try:
            found = self._connection.execute(self._query).fetchall()
        except duckdb.Error as error:
            raise ViewError("the view", f"DuckDB cannot evaluate it: {error}") from error
        decode, read = msgspec.json.Decoder(float_hook=str).decode, self._view.reader.document
        try:
            for (text,) in found:
                yield read(decode(text))
        except (msgspec.MsgspecError, UnreadableValueError) as error:
            raise ViewError("the view", f"a document cannot be read: {error}") from error

    def _drop_before(self, wave: int) -> None:
        """Rows that no later wave has make every later wave slower."""
        for table in self._view.tables.values():
            live = quoted(f"live.{table.name.replace('.', '_')}")
            self._connection.execute(f"DELETE FROM {live} WHERE version_end <= {wave}")  # noqa: S608 - quoted names, and the user's own SQL


class Versions:
    """The committed states of all documents, by key."""

    def __init__(self, view: View, fold: Fold, *, is_whole: bool) -> None:
        self.by_key: dict[DocumentKey, KeyVersions] = {}
        self._view = view
        self._fold = fold
        self._is_whole = is_whole

    def evaluate(self, tables: WaveTables, on_progress: Progress) -> None:
        """Finds them all."""
        tables.restrict(None)
        waves = max((len(lsns) for lsns in self._fold.lsns), default=0)
        ids = self._ids()
        shown: dict[DocumentKey, bytes] = {}
        for wave in range(waves):
            found = self._digests(tables, wave)
            if self._is_whole:
                self._add_whole(wave, found, shown)
                shown = found
            else:
                ids = [(key, number) for key, number in ids if len(self._fold.lsns[number]) > wave]
                self._add_wave(wave, found, ids)
            if wave & (wave - 1) == 0 or wave % 100 == 0:
                on_progress(
                    f"evaluating the committed states, {wave + 1:,} of at most {waves:,} per document"
                )

    def values(
        self, tables: WaveTables, keys: Collection[DocumentKey]
    ) -> Iterator[tuple[DocumentKey, Document]]:
        """The committed states of some documents in full, each with its key; repeats are possible."""
        fold = self._fold
        ids = None if self._is_whole else [i for key in keys if (i := fold.document_ids.get(key)) is not None]
        tables.restrict(ids)
        numbers: Iterable[int] = range(len(fold.lsns)) if ids is None else ids
        for wave in range(max((len(fold.lsns[number]) for number in numbers), default=0)):
            for document in tables.documents(wave):
                key = self._view.reader.key_of(document)
                if key in keys:
                    yield key, document

    def _digests(self, tables: WaveTables, wave: int) -> dict[DocumentKey, bytes]:
        found: dict[DocumentKey, bytes] = {}
        count = 0
        for document in tables.documents(wave):
            found[self._view.reader.key_of(document)] = digest(document)
            count += 1
        if len(found) != count:
            raise ViewError(
                "the view", f"{count - len(found)} documents of one state share a key; check view.key"
            )
        return found

    def _ids(self) -> list[tuple[DocumentKey, int]]:
        if self._is_whole:
            return []
        self.by_key = {key: KeyVersions() for key in self._fold.document_ids}
        return list(self._fold.document_ids.items())

    def _add_wave(
        self, wave: int, found: dict[DocumentKey, bytes], ids: list[tuple[DocumentKey, int]]
    ) -> None:
        lsns, times, by_key = self._fold.lsns, self._fold.times, self.by_key
        for key, number in ids:
            by_key[key].add(lsns[number][wave], times[number][wave], found.pop(key, None))
        if found:
            problem = f"a document has key {next(iter(found))}, but none of its rows has; check [view.rows]"
            raise ViewError("the view", problem)

    def _add_whole(
        self, wave: int, found: dict[DocumentKey, bytes], before: dict[DocumentKey, bytes]
    ) -> None:
        lsn, time_ms = self._fold.lsns[0][wave], self._fold.times[0][wave]
        for key, value in found.items():
            if before.get(key) != value:
                self._versions(key, wave).add(lsn, time_ms, value)
        for key in before.keys() - found.keys():
            self.by_key[key].add(lsn, time_ms, None)

    def _versions(self, key: DocumentKey, wave: int) -> KeyVersions:
        versions = self.by_key.get(key)
        if versions is None:
            versions = self.by_key[key] = KeyVersions()
            if wave:
                versions.add(0, 0, None)
        return versions


def _readable(view: View) -> str:
    """The view with binary columns as base64, which JSON can hold."""
    binary = [column.name for column in view.reader.columns if kind_of(column.type) == "blob"]
    if not binary:
        return view.sql
    replaced = ", ".join(f"to_base64({quoted(name)}) AS {quoted(name)}" for name in binary)
    return f"SELECT * REPLACE ({replaced}) FROM ({view.sql})"  # noqa: S608 - quoted names, and the user's own SQL


def _load(connection: duckdb.DuckDBPyConnection, table: Table, rows: RowIntervals) -> None:
    name = table.name.replace(".", "_")
    arrays = {
        "document": pa.array(rows.documents, pa.int64()),
        "version_start": pa.array(rows.starts, pa.int64()),
    }
    arrays["version_end"] = pa.array(rows.ends, pa.int64())
    casts = []
    for (column, kind), values in zip(table.columns, rows.columns, strict=True):
        arrays[f"c_{column}"] = arrow_values(kind, values)
        casts.append(f"CAST({quoted(f'c_{column}')} AS {kind}) AS {quoted(column)}")
    connection.register("incoming", pa.table(arrays))
    for schema in ("rows", "live", table.name.rpartition(".")[0]):
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
    versions = "document, version_start, version_end"
    connection.execute(
        f"CREATE TABLE {quoted(f'rows.{name}')} AS SELECT {versions}, {', '.join(casts)} "  # noqa: S608 - quoted names, and the user's own SQL
        "FROM incoming ORDER BY version_start"
    )
    connection.unregister("incoming")
    connection.execute(f"CREATE TABLE {quoted(f'live.{name}')} AS FROM {quoted(f'rows.{name}')} LIMIT 0")
    names = ", ".join(quoted(column) for column, _ in table.columns)
    connection.execute(
        f"CREATE VIEW {quoted(table.name)} AS SELECT {names} FROM {quoted(f'live.{name}')} "  # noqa: S608 - quoted names, and the user's own SQL
        "WHERE version_start <= getvariable('wave') AND getvariable('wave') < version_end"
    )


def arrow_values(kind: DuckDBPyType, values: Sequence[object]) -> pa.Array:
    """A column of rows as Debezium writes them, in a form that DuckDB casts to its type without loss."""
    name = kind_of(kind)
    if name in {"tinyint", "smallint", "integer", "bigint"} and all(type(v) in _WHOLE for v in values):
        return pa.array(values, pa.int64())
    if name in {"date", "time"} or name.startswith("timestamp"):
        read = shape_of(kind).read
        return pa.array([read(value) for value in values], _ARROW_TIMES.get(name, pa.timestamp("us", "UTC")))
    if name == "blob":
        return pa.array([_bytes(value) for value in values], pa.binary())
    return pa.array([_text(value) for value in values], pa.string())


_WHOLE = (int, type(None))
_ARROW_TIMES = {
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
}


def _bytes(value: object) -> bytes | None:
    return base64.b64decode(value) if isinstance(value, str) else value if isinstance(value, bytes) else None


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, default=str) if isinstance(value, (dict, list, bool)) else str(value)
