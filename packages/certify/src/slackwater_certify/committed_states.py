"""Computes the committed states of every document of a view from the source's topics."""

import base64
import gc
import json
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import duckdb
import msgspec
import psycopg
import pyarrow as pa
from duckdb.sqltypes import DuckDBPyType
from psycopg import sql
from psycopg.types.string import TextLoader

from slackwater_certify.canonical import (
    Document,
    DocumentKey,
    UnreadableValueError,
    digest,
    kind_of,
    shape_of,
)
from slackwater_certify.errors import CertifyConfigError, keyless_identity, unreadable, without_transactions
from slackwater_certify.history import NO_DOCUMENT, History, Replay, RowIntervals, Skip
from slackwater_certify.kafka import check_beginnings, existing, place_of, read_topics
from slackwater_certify.specification import Connections, Specification
from slackwater_certify.view import RowKey, Table, View, connect, quoted, row_keys

REPORT_EVERY = 200_000

Progress = Callable[[str], None]


@dataclass(slots=True)
class DocumentVersions:
    """The committed states of one document, without consecutive duplicates."""

    lsns: "array[int]" = field(default_factory=lambda: array("q"))
    """The commit LSN from which each state holds; the first is 0, before the first transaction."""
    times: "array[int]" = field(default_factory=lambda: array("q"))
    """The commit time of each state, in milliseconds since the epoch."""
    digests: list[bytes | None] = field(default_factory=list)
    """The digest of each state; None: the document does not exist."""

    def add(self, lsn: int, time_ms: int, value: bytes | None) -> None:
        """Adds a later state, unless it equals the last one."""
        if not self.digests or self.digests[-1] != value:
            self.lsns.append(lsn)
            self.times.append(time_ms)
            self.digests.append(value)

    def at(self, lsn: int) -> int:
        """Returns the index of the state at an LSN."""
        return bisect_right(self.lsns, lsn) - 1


@dataclass(slots=True)
class CommittedStates:
    """The committed states of all documents of a view; a context manager.

    Version n of all documents is evaluated at once, so the number of evaluations is the largest number of
    versions of any document. Without ``[view.rows]``, each commit is one version of all documents.
    """

    transactions: Sequence[tuple[int, int]]
    """The LSN and commit time of each transaction with changes, in commit order."""
    events: int
    """The number of change events that were read."""
    notes: Sequence[str]
    """Remarks for the reader of a certificate."""
    skips: Mapping[int, Skip]
    """The transactions that operators have skipped, by xid."""
    _view: View
    _replay: Replay
    _is_whole: bool
    by_key: dict[DocumentKey, DocumentVersions] = field(default_factory=dict)
    withheld: int = 0
    """The number of documents that the view cannot be evaluated for in the last state."""
    _tables: "VersionedTables" = field(init=False)

    def __post_init__(self) -> None:
        """Moves the rows to DuckDB."""
        self._tables = VersionedTables(self._view, self._replay.intervals)
        for rows in self._replay.intervals.values():
            rows.columns.clear()

    def __enter__(self) -> "CommittedStates":
        return self

    def __exit__(self, *_: object) -> None:
        self._tables.close()

    def evaluate(self, on_progress: Progress) -> None:
        """Computes the committed states of all documents."""
        self._tables.restrict(None)
        count = max((len(lsns) for lsns in self._replay.lsns), default=0)
        ids = [] if self._is_whole else list(self._replay.document_ids.items())
        self.by_key = {key: DocumentVersions() for key, _ in ids}
        shown: dict[DocumentKey, bytes] = {}
        for version in range(count):
            found = self._digests(version)
            if self._is_whole:
                self._add_whole(version, found, shown)
                shown = found
            else:
                ids = [(key, number) for key, number in ids if len(self._replay.lsns[number]) > version]
                self._add_version(version, found, ids)
            if version & (version - 1) == 0 or version % 100 == 0:
                on_progress(
                    f"evaluating the committed states, {version + 1:,} of at most {count:,} per document"
                )

    def values(self, keys: Collection[DocumentKey]) -> Iterator[tuple[DocumentKey, Document]]:
        """Yields the full committed states of some documents, each with its key, possibly more than once."""
        replay = self._replay
        ids = (
            None if self._is_whole else [i for key in keys if (i := replay.document_ids.get(key)) is not None]
        )
        self._tables.restrict(ids)
        numbers: Iterable[int] = range(len(replay.lsns)) if ids is None else ids
        for version in range(max((len(replay.lsns[number]) for number in numbers), default=0)):
            for document in self._tables.documents(version):
                key = self._view.reader.key_of(document)
                if key in keys:
                    yield key, document

    def _digests(self, version: int) -> dict[DocumentKey, bytes]:
        pairs = [(self._view.reader.key_of(each), digest(each)) for each in self._tables.documents(version)]
        found = dict(pairs)
        if shared := len(pairs) - len(found):
            raise CertifyConfigError(
                f"the view: {shared} documents of one state share a key", "check view.key"
            )
        return found

    def _add_version(
        self, version: int, found: dict[DocumentKey, bytes], ids: list[tuple[DocumentKey, int]]
    ) -> None:
        lsns, times, by_key = self._replay.lsns, self._replay.times, self.by_key
        self.withheld += sum(len(lsns[number]) == version + 1 for number in self._tables.failing)
        for key, number in ids:
            by_key[key].add(lsns[number][version], times[number][version], found.pop(key, None))
        if found:
            problem = f"the view: a document has key {next(iter(found))}, but none of its rows has"
            raise CertifyConfigError(problem, "check [view.rows]")

    def _add_whole(
        self, version: int, found: dict[DocumentKey, bytes], before: dict[DocumentKey, bytes]
    ) -> None:
        lsn, time_ms = self._replay.lsns[0][version], self._replay.times[0][version]
        for key, value in found.items():
            if before.get(key) != value:
                if key not in self.by_key:
                    self.by_key[key] = DocumentVersions()
                    if version:
                        self.by_key[key].add(0, 0, None)
                self.by_key[key].add(lsn, time_ms, value)
        for key in before.keys() - found.keys():
            self.by_key[key].add(lsn, time_ms, None)


def read_committed_states(
    specification: Specification, view: View, connections: Connections, on_progress: Progress
) -> CommittedStates:
    """Reads the source's topics and evaluates the view on every committed state.

    Raises:
        CertifyError: a topic cannot be read, or the view cannot be evaluated.
    """
    with without_cyclic_gc():
        history, notes = _read_history(specification, view, connections, on_progress)
        return evaluate_committed_states(history, specification, view, on_progress, notes)


def evaluate_committed_states(
    history: History,
    specification: Specification,
    view: View,
    on_progress: Progress,
    notes: Sequence[str] = (),
) -> CommittedStates:
    """Evaluates the view on a history, which is consumed.

    Raises:
        CertifyConfigError: the view cannot be evaluated.
    """
    replay = Replay(view.tables, row_keys(specification, view))
    if not specification.view.rows:
        replay.add_document(())
    replay.start(history.snapshot())
    transactions: list[tuple[int, int]] = []
    short = 0
    for transaction in history.transactions(is_last_use=True):
        replay.commit(transaction)
        transactions.append((transaction.commit_lsn, transaction.commit_ts_ms))
        short += len(transaction.changes) < transaction.announced
    replay.finish()
    on_progress(f"{len(transactions):,} transactions changed {len(replay.lsns):,} documents")
    all_notes, is_whole = [*notes, *_notes(history, short)], not specification.view.rows
    states = transactions, history.events, all_notes, history.skips
    committed = CommittedStates(*states, view, replay, is_whole)
    committed.evaluate(on_progress)
    return committed


@contextmanager
def without_cyclic_gc() -> Iterator[None]:
    """Disables the cyclic collector, which would traverse millions of small objects without cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read_history(
    specification: Specification, view: View, connections: Connections, on_progress: Progress
) -> tuple[History, list[str]]:
    brokers = connections.brokers("to read the change topics; or judge by invariants alone")
    source, history = specification.source, History(view.tables)
    wanted = sorted({source.topic(table) for table in view.tables})
    topics = existing(brokers, wanted)
    check_beginnings(brokers, [*topics, source.transactions])
    for message in read_topics(brokers, cuts) if (cuts := existing(brokers, [source.cuts])) else ():
        history.add_cut(message.value() or b"")
    # The transaction topic first: an END that arrives while rows are read may count rows that are not read.
    for message in read_topics(brokers, [source.transactions]):
        value = message.value()
        if value is not None:
            history.add_transaction_record(value, place_of(message))
    for message in read_topics(brokers, topics) if topics else ():
        value = message.value()
        if value is not None:
            history.add_row(value, place_of(message))
            if history.events % REPORT_EVERY == 0:
                on_progress(f"reading the change topics, {history.events:,} change events")
    if history.unfinished() and not history.has_ends:
        raise without_transactions(f"topic {source.transactions} has no END of any transaction")
    missing = sorted(set(wanted) - set(topics))
    return history, [f"topic {topic} does not exist: treated as empty" for topic in missing]


def _notes(history: History, short: int) -> Iterator[str]:
    unfinished = history.unfinished()
    if unfinished:
        yield f"{len(unfinished):,} transactions have changes but no END: treated as not committed"
    if history.skips:
        yield f"{len(history.skips):,} transactions were skipped by an operator"
    if short:
        yield f"{short:,} transactions have fewer changes in the topics than their END announces"
    if history.void_snapshot_rows:
        yield f"{history.void_snapshot_rows:,} rows of interrupted or later snapshots were left out"
    for kind, count in history.ignored.items():
        yield f"{count:,} {kind} were left out"


class VersionedTables:
    """Keeps the rows of all states in DuckDB, and evaluates the view one version at a time.

    Attributes:
        failing: The documents that the view could not be evaluated for in the newest version, if they are
            withheld; otherwise, such a document is an error.
    """

    def __init__(self, view: View, rows: Mapping[str, RowIntervals]) -> None:
        self._view = view
        self._end = 1 + max((max(each.documents, default=0) for each in rows.values()), default=0)
        self.failing: set[int] = set()
        self._connection = connect(view.sql)
        self._query = f"SELECT CAST(to_json(d) AS VARCHAR) FROM ({_readable(view)}) d"  # noqa: S608 - quoted names, and the user's own SQL
        for name, table in view.tables.items():
            _load(self._connection, table, rows[name], view.withholds)

    def close(self) -> None:
        """Frees the database."""
        self._connection.close()

    def restrict(self, documents: Collection[int] | None) -> None:
        """Begins a series of versions, of some documents or, with None, of all."""
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
        """Yields the view's documents in one version; the versions of a series must ascend."""
        if version & (version - 1) == 0:
            self._drop_before(version)
        self._connection.execute(f"SET VARIABLE version = {version}")
        self.failing = set()
        found = self._found(NO_DOCUMENT, self._end)
        decode, read = msgspec.json.Decoder(float_hook=str).decode, self._view.reader.document
        try:
            for (text,) in found:
                yield read(decode(text))
        except (msgspec.MsgspecError, UnreadableValueError) as error:
            raise CertifyConfigError(f"the view: a document cannot be read: {error}") from error

    def _found(self, first: int, end: int) -> list[tuple[str]]:
        """Returns the documents of a range of numbers, without those that fail by themselves."""
        if self._view.withholds:
            self._connection.execute(f"SET VARIABLE first = {first}; SET VARIABLE past = {end}")
        try:
            return self._connection.execute(self._query).fetchall()
        except duckdb.Error as error:
            is_of_value = isinstance(error, (duckdb.DataError, duckdb.InvalidInputException))
            if not self._view.withholds or not is_of_value:
                raise CertifyConfigError(f"the view: DuckDB cannot evaluate it: {error}") from error
        if end - first == 1:
            self.failing.add(first)
            return []
        middle = (first + end) // 2
        return self._found(first, middle) + self._found(middle, end)

    def _drop_before(self, version: int) -> None:
        """Removes rows that no later version contains, because they would slow down all later versions."""
        for table in self._view.tables.values():
            live = quoted("live", table.name)
            self._connection.execute(f"DELETE FROM {live} WHERE version_end <= {version}")  # noqa: S608 - quoted names, and the user's own SQL


def read_database(view: View, dsn: str, keys: Mapping[str, RowKey]) -> dict[DocumentKey, bytes]:
    """Evaluates the view on the present state of the database; returns digests of its documents by key.

    All tables are read in one transaction. The keys are those of the documents that rows belong to.

    Raises:
        CertifyError: it cannot be read.
        CertifyConfigError: the changes of a table do not contain its primary key.
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
            ids: dict[DocumentKey | None, int] = {None: NO_DOCUMENT}
            rows = {
                name: _read_rows(connection, table, keys[name], ids) for name, table in view.tables.items()
            }
    except psycopg.Error as error:
        raise unreadable("the source database", str(error).strip()) from error
    with closing(VersionedTables(view, rows)) as tables:
        tables.restrict(None)
        return {view.reader.key_of(document): digest(document) for document in tables.documents(0)}


def _check_identity(connection: "psycopg.Connection[tuple[Any, ...]]", table: Table) -> None:
    name = sql.Identifier(*table.parts).as_string(connection)
    for (found,) in connection.execute(_WITHOUT_KEY, {"table": name}):
        raise keyless_identity(f"{found} in the database")


def _read_rows(
    connection: "psycopg.Connection[tuple[Any, ...]]",
    table: Table,
    row_key: RowKey,
    ids: dict[DocumentKey | None, int],
) -> RowIntervals:
    rows = RowIntervals([[] for _ in table.columns])
    columns = sql.SQL(", ").join(sql.Identifier(name) for name, _ in table.columns)
    query = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(*table.parts))
    for values in connection.execute(query):
        rows.ends[rows.add(ids.setdefault(row_key(values), len(ids)), 0, values)] = 1
    return rows


def _readable(view: View) -> str:
    """Returns the view's SQL with binary columns in base64, which JSON can represent."""
    binary = [column.name for column in view.reader.columns if kind_of(column.type) == "blob"]
    if not binary:
        return view.sql
    replaced = ", ".join(f"to_base64({quoted(name)}) AS {quoted(name)}" for name in binary)
    return f"SELECT * REPLACE ({replaced}) FROM ({view.sql})"  # noqa: S608 - quoted names, and the user's own SQL


def _load(connection: duckdb.DuckDBPyConnection, table: Table, rows: RowIntervals, in_ranges: bool) -> None:
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
    in_range = "document >= getvariable('first') AND document < getvariable('past')"
    connection.execute(
        f"CREATE VIEW {quoted(*table.parts)} AS SELECT {names} FROM {quoted('live', table.name)} "  # noqa: S608 - quoted names, and the user's own SQL
        "WHERE version_start <= getvariable('version') AND getvariable('version') < version_end "
        f"AND {in_range if in_ranges else 'true'}"
    )


def arrow_values(kind: DuckDBPyType, values: Sequence[object]) -> pa.Array:
    """Returns the values of a column that Debezium wrote, in a form that DuckDB can cast without loss."""
    name = kind_of(kind)
    if name in {"tinyint", "smallint", "integer", "bigint"} and all(type(v) in _WHOLE for v in values):
        return pa.array(values, pa.int64())
    if name in {"date", "time"} or name.startswith("timestamp"):
        read = shape_of(kind).read
        read_values = [None if value is None else read(value) for value in values]
        return pa.array(read_values, _ARROW_TIMES.get(name, pa.timestamp("us", "UTC")))
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
"""Selects a table and its partitions if an index without the primary key identifies their old rows."""
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
