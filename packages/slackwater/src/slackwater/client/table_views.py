"""Reads the views of a pipeline from its tables in PostgreSQL, as of one commit."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from typing import Final, TypeVar

import psycopg
from psycopg import sql

from slackwater.client.errors import StateNotKeptError
from slackwater.client.snapshot import (
    Key,
    ReadableStates,
    ViewSnapshot,
    VisibleCommit,
    not_visible,
    visible_commit,
)
from slackwater.outputs.postgres import ledger
from slackwater.protocol import (
    CommitPosition,
    ConfigError,
    MalformedRecordError,
    StateError,
    UnavailableError,
)

_CONNECT_SECONDS: Final = 10
_SESSION: Final = (
    "SELECT set_config('TimeZone', 'UTC', false), set_config('IntervalStyle', 'postgres', false), "
    "set_config('extra_float_digits', '1', false), set_config('client_encoding', 'UTF8', false)"
)
_COLUMNS: Final = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_TIME: Final = (
    "CASE WHEN isfinite({0}) THEN to_char({0}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US{1}') ELSE {0}::text END"
)
_FLOAT: Final = "CASE WHEN {0}::text ~ '^-?[0-9]+$' THEN ({0}::text || '.0')::json ELSE to_json({0}) END"
_FORMS: Final = {
    "real": _FLOAT,
    "double precision": _FLOAT,
    "bytea": "translate(encode({0}, 'base64'), E'\\n', '')",
    "interval": "replace(replace({0}::text, 'mon', 'month'), '+', '')",
    "timestamp without time zone": _TIME.replace("{1}", ""),
    "timestamp with time zone": _TIME.replace("{1}", '"Z"'),
}
"""By type: how documents have a column that PostgreSQL would write in another way."""
_INTEGERS: Final = ("numeric(20,0)", "numeric(39,0)")

_RESTORE: Final = f"restore {ledger.LEDGER}, {ledger.TABLES} and the pipeline's tables from one backup"

T = TypeVar("T")


class TableOutput:
    """Implements :class:`slackwater.client.snapshot.PipelineOutput` over the tables of a pipeline.

    Each call is one `REPEATABLE READ` transaction, in which the ledger and all tables are at one commit.
    Close the object after use.

    Args:
        url: The database's address, as libpq takes it.
        pipeline: The pipeline's name in the ledger.

    Raises:
        UnavailableError: The database does not answer.
    """

    def __init__(self, url: str, pipeline: str) -> None:
        self._pipeline = pipeline
        try:
            self._database = psycopg.connect(url, connect_timeout=_CONNECT_SECONDS, autocommit=True)
            self._database.execute(_SESSION)
            self._database.autocommit = False
        except psycopg.Error as error:
            raise database_unavailable(error) from error
        self._database.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._database.read_only = True

    @property
    def pipeline(self) -> str:
        """See the protocol."""
        return self._pipeline

    def views(self) -> Sequence[str]:
        """See the protocol."""
        return list(self._ask(self._tables))

    def newest(self) -> VisibleCommit | None:
        """See the protocol."""
        return self._ask(self._visible)

    def states(self, views: Sequence[str]) -> ReadableStates | None:
        """See the protocol. Earlier states require `history = true` for all of the views."""
        return self._ask(lambda: self._states(views))

    def read(self, views: Sequence[str], at: CommitPosition | None, key: Key | None) -> ViewSnapshot:
        """See the protocol. Earlier states require `history = true`."""
        return self._ask(lambda: self._read(views, at, key))

    def close(self) -> None:
        """See the protocol."""
        self._database.close()

    def _read(self, views: Sequence[str], at: CommitPosition | None, key: Key | None) -> ViewSnapshot:
        seen = self._visible()
        if seen is None or (at is not None and at > seen.position):
            raise not_visible(at, self._pipeline, seen)
        tables = self._tables()
        documents = {}
        for view in views:
            table, history = tables[view]
            columns = self._columns(table)
            if at is None or at == seen.position:
                rows = sql.SQL("SELECT * FROM {}").format(table_identifier(table))
            else:
                rows = self._versions(view, history, at, seen.position)
            documents[view] = self._documents(rows, columns, key)
        return ViewSnapshot(seen.source, at or seen.position, documents)

    def _states(self, views: Sequence[str]) -> ReadableStates | None:
        row = self._row()
        seen = None if row is None else visible_commit(row.progress)
        if row is None or seen is None:
            return None
        tables = self._tables()
        begins = [self._history_begins(tables[view][1]) for view in views]
        first = None if None in begins else max(lsn for lsn in begins if lsn is not None)
        every_from = None if first is None else CommitPosition(seen.position.timeline, first)
        return ReadableStates(seen, row.written_at.astimezone(UTC), every_from=every_from)

    def _history_begins(self, history: str | None) -> int | None:
        if history is None:
            return None
        query = sql.SQL("SELECT min(valid_from_lsn) FROM {}").format(table_identifier(history))
        row = self._database.execute(query).fetchone()
        return None if row is None else row[0]

    def _versions(
        self, view: str, history: str | None, at: CommitPosition, newest: CommitPosition
    ) -> sql.Composed:
        """Returns the query of a view's rows at an earlier commit.

        Raises:
            StateNotKeptError: It is not kept.
        """
        hint = "read the newest state, or set `history = true` in pipeline.toml to keep states from then on"
        if history is None:
            raise StateNotKeptError(
                f"commit {at} was requested, but pipeline {self._pipeline!r} is at {newest}, and its table "
                "of "
                f"view {view!r} keeps only the newest state",
                hint,
            )
        table = table_identifier(history)
        first = self._history_begins(history)
        if at.timeline != newest.timeline or first is None or at.lsn < first:
            raise StateNotKeptError(
                f"the versions of view {view!r} in {history} begin after commit {at}",
                "read a later state",
            )
        return sql.SQL(
            "SELECT * FROM {} WHERE valid_from_lsn <= {lsn} "
            "AND (valid_to_lsn > {lsn} OR valid_to_lsn IS NULL)"
        ).format(table, lsn=sql.Literal(at.lsn))

    def _columns(self, table: str) -> list[sql.Composed]:
        """Returns what documents have of the columns of a table."""
        name = table_identifier(table).as_string(self._database)
        found = self._database.execute(_COLUMNS, (name,)).fetchall()
        return [_form_of(column, kind) for column, kind in found]

    def _documents(self, rows: sql.Composed, columns: list[sql.Composed], key: Key | None) -> list[bytes]:
        conditions = [
            sql.SQL("v.{} IS NOT DISTINCT FROM {}").format(sql.Identifier(name), sql.Literal(value))
            for name, value in (key or {}).items()
        ]
        where = sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("")
        query = sql.SQL("SELECT row_to_json(d)::text FROM (SELECT {} FROM ({}) AS v{}) AS d").format(
            sql.SQL(", ").join(columns), rows, where
        )
        return [row[0].encode() for row in self._database.execute(query)]

    def _tables(self) -> dict[str, tuple[str, str | None]]:
        return tables_of(self._database, self._pipeline)

    def _visible(self) -> VisibleCommit | None:
        row = self._row()
        return None if row is None else visible_commit(row.progress)

    def _row(self) -> ledger.LedgerRow | None:
        row = ledger.read(self._database, self._pipeline)
        if row is None:
            self._tables()  # raises if there is no such pipeline
        return row

    def _ask(self, question: Callable[[], T]) -> T:
        """Reads in one transaction, so that all results are of one moment."""
        with translated(self._pipeline), self._database.transaction():
            return question()


@contextmanager
def translated(pipeline: str) -> Iterator[None]:
    """Translates the database's errors within the block for the readers of a pipeline.

    Raises:
        ConfigError: A table of the pipeline or of the ledger does not exist.
        StateError: The row of the pipeline in the ledger was changed by others.
        UnavailableError: The database does not answer, or rejects a statement.
    """
    try:
        yield
    except MalformedRecordError as error:
        problem = f"the row of pipeline {pipeline!r} in {ledger.LEDGER} cannot be read: {error.reason}"
        raise StateError(problem, _RESTORE) from error
    except psycopg.errors.UndefinedTable as error:
        raise ConfigError(
            f"pipeline {pipeline!r} cannot be read: {error.diag.message_primary}",
            "no pipeline has written to this database, or its tables were removed; check the address",
        ) from error
    except psycopg.Error as error:
        raise database_unavailable(error) from error


def tables_of(database: ledger.Database, pipeline: str) -> dict[str, tuple[str, str | None]]:
    """Returns each view's table, and the table of its versions if there is one.

    Raises:
        ConfigError: No pipeline with this name has written here.
        StateError: A table is not the one that the pipeline has written.
    """
    found: dict[str, list[str]] = {}
    for view, name, is_same in ledger.tables_of(database, pipeline):
        if not is_same:
            problem = f"table {name} of view {view!r} is not the one that pipeline {pipeline!r} has written"
            raise StateError(problem, _RESTORE)
        found.setdefault(view, []).append(name)
    if not found:
        raise ConfigError(
            f"no pipeline {pipeline!r} has written to this database",
            "check the name (from revision 2 on it ends in .v<revision>) and the address",
        )
    return {view: _table_and_history(pipeline, view, names) for view, names in found.items()}


def _table_and_history(pipeline: str, view: str, names: list[str]) -> tuple[str, str | None]:
    table, *others = sorted(names, key=len)
    if others not in ([], [f"{table}_history"]):
        problem = f"{ledger.TABLES} has tables {', '.join(names)} for view {view!r} of {pipeline!r}"
        raise StateError(problem, _RESTORE)
    return table, others[0] if others else None


def _form_of(column: str, kind: str) -> sql.Composed:
    name, value = sql.Identifier(column), sql.SQL("v.{}").format(sql.Identifier(column))
    form = _FORMS.get(kind, "{0}")
    if kind.startswith("numeric") and kind not in _INTEGERS:
        form = "{0}::text"
    return sql.SQL(form + " AS {1}").format(value, name)


def table_identifier(table: str) -> sql.Identifier:
    """Returns the quoted form of a table's name in the ledger, ``schema.table``."""
    return sql.Identifier(*table.split(".", 1))


def database_unavailable(error: psycopg.Error) -> UnavailableError:
    """Returns the error for a PostgreSQL server that failed or did not answer."""
    return UnavailableError(
        f"PostgreSQL failed or did not answer: {str(error).strip()}",
        "check the address, the rights and the server",
    )
