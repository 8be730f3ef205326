"""Evaluates the view's own SQL in DuckDB, on the rows of each version or on those of the database now."""

import base64
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import duckdb
import msgspec
import psycopg
import pyarrow as pa
from duckdb.sqltypes import DuckDBPyType
from psycopg import sql
from psycopg.types.string import TextLoader

from slackwater_certify.canonical import Document, UnreadableValueError, digest, kind_of, shape_of
from slackwater_certify.errors import CertifyConfigError, keyless_identity, unreadable
from slackwater_certify.replay import DocumentKey, RowIntervals
from slackwater_certify.view import Table, View, connect, quoted


class VersionedTables:
    """Keeps the rows of all states in DuckDB and shows the view one version at a time. A context manager."""

    def __init__(self, view: View, rows: Mapping[str, RowIntervals]) -> None:
        self._view = view
        self._connection = connect(view.sql)
        self._query = f"SELECT CAST(to_json(d) AS VARCHAR) FROM ({_readable(view)}) d"  # noqa: S608 - quoted names, and the user's own SQL
        for name, table in view.tables.items():
            _load(self._connection, table, rows[name])

    def __enter__(self) -> "VersionedTables":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the database."""
        self._connection.close()

    def restrict(self, documents: Collection[int] | None) -> None:
        """Starts a series of versions, of some documents or all of them."""
        chosen = ""
        if documents is not None:
            ids = pa.table({"document": pa.array(documents, pa.int64())})
            self._connection.register("chosen", ids)
            chosen = "WHERE document IN (SELECT document FROM chosen)"
        for table in self._view.tables.values():
            rows = quoted("rows", table.name)
            live = quoted("live", table.name)
            self._connection.execute(f"CREATE OR REPLACE TABLE {live} AS SELECT * FROM {rows} {chosen}")  # noqa: S608 - quoted names, and the user's own SQL

    def documents(self, version: int) -> Iterator[Document]:
        """Yields the view's documents in one version; the versions of a series come in rising order."""
        if version & (version - 1) == 0:
            self._drop_before(version)
        self._connection.execute(f"SET VARIABLE version = {version}")
        try:
            found = self._connection.execute(self._query).fetchall()
        except duckdb.Error as error:
            raise CertifyConfigError(f"the view: DuckDB cannot evaluate it: {error}") from error
        decode, read = msgspec.json.Decoder(float_hook=str).decode, self._view.reader.document
        try:
            for (text,) in found:
                yield read(decode(text))
        except (msgspec.MsgspecError, UnreadableValueError) as error:
            raise CertifyConfigError(f"the view: a document cannot be read: {error}") from error

    def _drop_before(self, version: int) -> None:
        """Removes rows that no later version has: they would make every later version slower."""
        for table in self._view.tables.values():
            live = quoted("live", table.name)
            self._connection.execute(f"DELETE FROM {live} WHERE version_end <= {version}")  # noqa: S608 - quoted names, and the user's own SQL


def read_database(view: View, dsn: str) -> dict[DocumentKey, bytes]:
    """Evaluates the view on the state the database is in now; digests of its documents by key.

    All tables are read in one transaction.

    Raises:
        CertifyUnavailableError: it cannot be read.
        CertifyConfigError: changes of a table do not tell its primary key.
    """
    try:
        with psycopg.connect(dsn) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            connection.execute("SET TimeZone = 'UTC'; SET DateStyle = 'ISO'")
            for kind in ("date", "timestamp", "timestamptz"):  # Python has no infinite ones
                connection.adapters.register_loader(kind, TextLoader)
            for table in view.tables.values():
                _check_identity(connection, table)
            rows = {name: _read_rows(connection, table) for name, table in view.tables.items()}
    except psycopg.Error as error:
        raise unreadable("the source database", str(error).strip()) from error
    with VersionedTables(view, rows) as tables:
        tables.restrict(None)
        return {view.reader.key_of(document): digest(document) for document in tables.documents(0)}


def _check_identity(connection: "psycopg.Connection[tuple[Any, ...]]", table: Table) -> None:
    name = sql.Identifier(*table.parts).as_string(connection)
    for (found,) in connection.execute(_WITHOUT_KEY, {"table": name}):
        raise keyless_identity(f"{found} in the database")


def _read_rows(connection: "psycopg.Connection[tuple[Any, ...]]", table: Table) -> RowIntervals:
    rows = RowIntervals([[] for _ in table.columns])
    columns = sql.SQL(", ").join(sql.Identifier(name) for name, _ in table.columns)
    query = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(*table.parts))
    for values in connection.execute(query):
        rows.ends[rows.add(0, 0, values)] = 1
    return rows


def _readable(view: View) -> str:
    """Returns the view with binary columns as base64, which JSON can hold."""
    binary = [column.name for column in view.reader.columns if kind_of(column.type) == "blob"]
    if not binary:
        return view.sql
    replaced = ", ".join(f"to_base64({quoted(name)}) AS {quoted(name)}" for name in binary)
    return f"SELECT * REPLACE ({replaced}) FROM ({view.sql})"  # noqa: S608 - quoted names, and the user's own SQL


def _load(connection: duckdb.DuckDBPyConnection, table: Table, rows: RowIntervals) -> None:
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
    for schema in ("rows", "live", table.parts[0]):
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
    versions = "document, version_start, version_end"
    connection.execute(
        f"CREATE TABLE {quoted('rows', table.name)} AS SELECT {versions}, {', '.join(casts)} "  # noqa: S608 - quoted names, and the user's own SQL
        "FROM incoming ORDER BY version_start"
    )
    connection.unregister("incoming")
    connection.execute(
        f"CREATE TABLE {quoted('live', table.name)} AS FROM {quoted('rows', table.name)} LIMIT 0"
    )
    names = ", ".join(quoted(column) for column, _ in table.columns)
    connection.execute(
        f"CREATE VIEW {quoted(*table.parts)} AS SELECT {names} FROM {quoted('live', table.name)} "  # noqa: S608 - quoted names, and the user's own SQL
        "WHERE version_start <= getvariable('version') AND getvariable('version') < version_end"
    )


def arrow_values(kind: DuckDBPyType, values: Sequence[object]) -> pa.Array:
    """Returns a column as Debezium writes it, in a form that DuckDB casts to its type without loss."""
    name = kind_of(kind)
    if name in {"tinyint", "smallint", "integer", "bigint"} and all(type(v) in _WHOLE for v in values):
        return pa.array(values, pa.int64())
    if name in {"date", "time"} or name.startswith("timestamp"):
        read = shape_of(kind).read
        return pa.array([read(value) for value in values], _ARROW_TIMES.get(name, pa.timestamp("us", "UTC")))
    if name == "blob":
        return pa.array([_bytes(value) for value in values], pa.binary())
    return pa.array([_text(value) for value in values], pa.string())


_WITHOUT_KEY = """
SELECT c.oid::regclass::text FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_index p ON p.indrelid = c.oid AND p.indisprimary
WHERE c.relreplident = 'i' AND (
    c.oid = %(table)s::regclass
    OR c.oid IN (SELECT relid FROM pg_catalog.pg_partition_tree(%(table)s::regclass))
) AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_index r WHERE r.indrelid = c.oid AND r.indisreplident
    AND (p.indkey::int2[])[0:p.indnkeyatts - 1] <@ (r.indkey::int2[])[0:r.indnkeyatts - 1]
)
"""
"""A table and its partitions, as far as an index without the primary key identifies their old rows."""
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
