"""Reads the views of a pipeline from its tables in PostgreSQL, as of one commit, and switches their readers.

Readers that are switched use PostgreSQL views in a separate schema, replaced in one transaction.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, timedelta
from functools import partial
from typing import Final

import psycopg
from psycopg import sql

from slackwater.client.errors import NotVisibleError, StateNotKeptError
from slackwater.client.readers import Switched, base_name, check_not_behind, check_views
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
_TYPED_FORMS: Final = {**_FORMS, "jsonb": "{0}::text"}
"""The same for readers who know the types, and would round numbers in nested JSON."""
_VALIDITY: Final = ("valid_from_lsn", "valid_to_lsn")
_INTEGERS: Final = ("numeric(20,0)", "numeric(39,0)")

_RESTORE: Final = f"restore {ledger.LEDGER}, {ledger.TABLES} and the pipeline's tables from one backup"

LEDGER_VIEW: Final = "slackwater_ledger"
"""The view that tells readers which pipeline they read, and at which commit it is."""
_LOCK_WAIT: Final = "300ms"
"""How long one attempt waits for readers in a transaction, while new readers wait for it. It is shorter than
PostgreSQL's ``deadlock_timeout``, so that the switch gives way to readers that lock views in another
order."""
_SWITCHING: Final = f"SELECT set_config('lock_timeout', '{_LOCK_WAIT}', true), {ledger.DURABLE}"
"""Readers that have seen the switch do not go back to the earlier pipeline after a crash of the database."""
_SCHEMAS: Final = """
SELECT schemaname FROM pg_views WHERE viewname = %s
AND has_table_privilege(format('%%I.%%I', schemaname, viewname), 'SELECT') ORDER BY schemaname
"""
_GRANTS: Final = """
SELECT CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END, g.privilege_type, g.is_grantable
FROM pg_class c, aclexplode(c.relacl) g WHERE c.oid = to_regclass(%s) AND g.grantee <> c.relowner
"""


class TableOutput:
    """Implements :class:`slackwater.client.snapshot.PipelineOutput` over the tables of a pipeline.

    Each call is one `REPEATABLE READ` transaction, in which the ledger and all tables are at one commit.
    Close the object after use. ``url`` is the database's address, as libpq takes it.

    Raises:
        UnavailableError: The database does not answer.
    """

    def __init__(self, url: str, pipeline: str) -> None:
        self.pipeline = pipeline
        """See the protocol."""
        try:
            self._database = psycopg.connect(url, connect_timeout=_CONNECT_SECONDS, autocommit=True)
            self._database.execute(_SESSION)
            self._database.autocommit = False
        except psycopg.Error as error:
            raise database_unavailable(error) from error
        self._database.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._database.read_only = True

    def views(self) -> Sequence[str]:
        """See the protocol."""
        with self._moment():
            return list(self._tables())

    def newest(self) -> VisibleCommit | None:
        """See the protocol."""
        with self._moment():
            return self._visible()

    def states(self, views: Sequence[str]) -> ReadableStates | None:
        """See the protocol. Earlier states require `history = true` for all of the views."""
        with self._moment():
            row = self._row()
            seen = None if row is None else visible_commit(row.progress)
            if row is None or seen is None:
                return None
            tables = self._tables()
            begins = [self._history_begins(tables[view][1]) for view in views]
        first = None if None in begins else max(lsn for lsn in begins if lsn is not None)
        every_from = None if first is None else CommitPosition(seen.position.timeline, first)
        return ReadableStates(seen, row.written_at.astimezone(UTC), every_from=every_from)

    def read(self, views: Sequence[str], at: CommitPosition | None, key: Key | None) -> ViewSnapshot:
        """See the protocol. Earlier states require `history = true`."""
        with self._moment():
            return self._read(views, at, key)

    def rows(self, view: str, at: CommitPosition) -> TypedRows:
        """See the protocol. Earlier states require `history = true`."""
        with self._moment():
            seen = visible(self.pipeline, self._visible(), at)
            self._at(view, at)
            return TypedRows(seen.source, self._types(view), self._streamed(view, at))

    def close(self) -> None:
        """See the protocol."""
        self._database.close()

    def _read(self, views: Sequence[str], at: CommitPosition | None, key: Key | None) -> ViewSnapshot:
        seen = visible(self.pipeline, self._visible(), at)
        documents = {view: list(self._documents(view, at, key)) for view in views}
        return ViewSnapshot(seen.source, at or seen.position, documents)

    def _streamed(self, view: str, at: CommitPosition) -> Iterator[bytes]:
        with self._moment():
            yield from self._documents(view, at, None, _TYPED_FORMS)

    def _at(self, view: str, at: CommitPosition | None) -> sql.Composed:
        """Returns the query of a view's rows at a commit."""
        table, history = self._tables()[view]
        seen = visible(self.pipeline, self._visible(), at)
        if at is None or at == seen.position:
            return sql.SQL("SELECT * FROM {}").format(table_identifier(table))
        return self._versions(view, history, at, seen.position)

    def _history_begins(self, history: str | None) -> int | None:
        """Returns the commit from which on a table of versions has every state; None: it is not known."""
        if history is None:
            return None
        found = self._row()
        since = 0 if found is None else found.progress.first_lsn
        query = sql.SQL("SELECT min(valid_from_lsn) FROM {}").format(table_identifier(history))
        row = self._database.execute(query).fetchone()
        return min((lsn for lsn in (since, row and row[0]) if lsn), default=None)

    def _versions(
        self, view: str, history: str | None, at: CommitPosition, newest: CommitPosition
    ) -> sql.Composed:
        """Returns the query of a view's rows at an earlier commit."""
        hint = "read the newest state, or set `history = true` in pipeline.toml to keep states from then on"
        if history is None:
            raise StateNotKeptError(
                f"commit {at} was requested, but pipeline {self.pipeline!r} is at {newest}, and its table "
                f"of view {view!r} keeps only the newest state",
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

    def _types(self, view: str) -> dict[str, str]:
        """Returns the columns of a view's documents with their types, in all states those of the history."""
        table, history = self._tables()[view]
        name = table_identifier(history or table).as_string(self._database)
        found = self._database.execute(_COLUMNS, (name,)).fetchall()
        return {column: kind for column, kind in found if not (history and column in _VALIDITY)}

    def _documents(
        self, view: str, at: CommitPosition | None, key: Key | None, forms: Mapping[str, str] = _FORMS
    ) -> Iterator[bytes]:
        columns = [_form_of(column, kind, forms) for column, kind in self._types(view).items()]
        conditions = [
            sql.SQL("v.{} IS NOT DISTINCT FROM {}").format(sql.Identifier(name), sql.Literal(value))
            for name, value in (key or {}).items()
        ]
        where = sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("")
        query = sql.SQL("SELECT row_to_json(d)::text FROM (SELECT {} FROM ({}) AS v{}) AS d").format(
            sql.SQL(", ").join(columns), self._at(view, at), where
        )
        with self._database.cursor(name="slackwater_rows") as cursor:
            for (document,) in cursor.execute(query):
                yield document.encode()

    def _tables(self) -> dict[str, tuple[str, str | None]]:
        return tables_of(self._database, self.pipeline)

    def _visible(self) -> VisibleCommit | None:
        row = self._row()
        return None if row is None else visible_commit(row.progress)

    def _row(self) -> ledger.LedgerRow | None:
        row = ledger.read(self._database, self.pipeline)
        if row is None:
            self._tables()  # raises if there is no such pipeline
        return row

    @contextmanager
    def _moment(self) -> Iterator[None]:
        """Reads in one transaction, so that all results are of one moment."""
        with translated(self.pipeline), self._database.transaction():
            yield


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


def _form_of(column: str, kind: str, forms: Mapping[str, str]) -> sql.Composed:
    name, value = sql.Identifier(column), sql.SQL("v.{}").format(sql.Identifier(column))
    form = forms.get(kind, "{0}")
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


def switch_tables(
    url: str,
    schema: str,
    pipeline: str,
    readers: tuple[Collection[str], Collection[str]] = ((), ()),
    *,
    accept_earlier: bool = False,
    source: str | None = None,
    timeout: timedelta = timedelta(seconds=30),
) -> Switched:
    """Switches the readers' views to the tables of a pipeline, all of them in one transaction.

    It waits until the pipeline has caught up with the one that is read now, so that readers never go back to
    an earlier commit. No batch of either pipeline becomes visible between that check and the switch.
    Repeating the call changes nothing. The user of ``url`` owns the views, whose schema is for one pipeline
    only and is created if it does not exist. ``accept_earlier`` and ``source`` are those of
    :meth:`slackwater.client.readers.Readers.switch`. ``timeout`` is how long to wait for the pipeline, and
    for readers in a transaction. ``readers`` says which pipelines of other names they may have been switched
    to, and which of the views they have; empty: none, and all.

    Raises:
        ConfigError: The pipeline has not written here, lacks a view that readers have, or reads another
            source; the schema belongs to another pipeline; or other objects depend on a view whose columns
            change.
        NotVisibleError: The pipeline was still behind at the end; nothing was changed.
        UnavailableError: The database does not answer, rejects a statement, or readers kept the views
            locked.
    """
    with _connected(url, pipeline) as database:
        attempt = partial(_try_to_switch, database, schema, pipeline, readers, accept_earlier, source)
        return repeated(attempt, timeout, None, (NotVisibleError,))


def schemas_of_readers(
    url: str, pipeline: str, others: Mapping[str, Collection[str]] | None = None
) -> dict[str, str]:
    """Returns for each schema the pipeline, with its revision, that its readers were switched to.

    The others are pipelines of other names that are revisions of this one, each with its views there.

    Raises:
        UnavailableError: The database does not answer.
    """
    with _connected(url, pipeline) as database:
        schemas = [row[0] for row in database.execute(_SCHEMAS, (LEDGER_VIEW,)).fetchall()]
        found = {schema: _pipeline_read(database, schema) for schema in schemas}
        known = {schema: {*(others or {}).get(read or "", ())} for schema, read in found.items()}
        return {
            schema: read
            for schema, read in found.items()
            if read and (base_name(read) == pipeline or _views_of(database, schema) <= known[schema])
        }


@contextmanager
def _connected(url: str, pipeline: str) -> Iterator[ledger.Database]:
    with (
        translated(pipeline),
        closing(psycopg.connect(url, connect_timeout=_CONNECT_SECONDS, autocommit=True)) as database,
    ):
        yield database


def _try_to_switch(
    database: ledger.Database,
    schema: str,
    pipeline: str,
    readers: tuple[Collection[str], Collection[str]],
    accept_earlier: bool,
    source: str | None,
) -> Switched | UnavailableError:
    """Switches, or returns the error that prevents it at the moment; nothing has changed then."""
    try:
        with database.transaction():
            return _switched(database, schema, pipeline, readers, accept_earlier, source)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        return UnavailableError(
            f"transactions of readers keep the views of schema {schema!r} locked: "
            f"{error.diag.message_primary}",
            "nothing was changed; end long transactions, or raise the time-out",
        )


def _switched(
    database: ledger.Database,
    schema: str,
    pipeline: str,
    readers: tuple[Collection[str], Collection[str]],
    accept_earlier: bool,
    source: str | None,
) -> Switched:
    others, own = readers
    database.execute(_SWITCHING)
    # If two processes switch at once, the second one sees the result of the first.
    database.execute("SELECT pg_advisory_xact_lock(hashtext('slackwater'), hashtext(%s))", (schema,))
    database.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    before = _pipeline_read(database, schema)
    found = tables_of(database, pipeline).items()
    tables = {view: table for view, (table, _) in found if view in own or not own}
    if before is not None and base_name(before) != base_name(pipeline) and before not in others:
        raise ConfigError(
            f"the views in schema {schema!r} belong to pipeline {before!r}",
            f"use another schema for pipeline {pipeline!r}",
        )
    if before is not None:
        check_views(before, _views_of(database, schema) & {*tables_of(database, before)}, pipeline, tables)
    # From here on, no batch of either pipeline becomes visible until the switch is visible.
    names = [name for name in (before, pipeline) if name is not None]
    ledger.keep_rows(database, names)
    if before is not None and not accept_earlier:
        _check_not_behind(database, before, pipeline, source)
    # Readers that read the ledger first lock the views in the same order.
    _replace(database, schema, LEDGER_VIEW, sql.SQL(ledger.ROW_FOR_READERS).format(sql.Literal(pipeline)))
    for view, table in tables.items():
        _replace(database, schema, view, sql.SQL("SELECT * FROM {}").format(table_identifier(table)))
    left_at = None if before is None else _newest(database, before).position
    return Switched(before, left_at, _newest(database, pipeline).position)


def _pipeline_read(database: ledger.Database, schema: str) -> str | None:
    """Returns the pipeline that readers of a schema read; None: the schema has no views for readers."""
    name = sql.Identifier(schema, LEDGER_VIEW)
    there = database.execute("SELECT to_regclass(%s)", (name.as_string(database),)).fetchone()
    if there is None or there[0] is None:
        return None
    row = database.execute(sql.SQL("SELECT pipeline FROM {}").format(name)).fetchone()
    return None if row is None else str(row[0])


def _newest(database: ledger.Database, pipeline: str) -> VisibleCommit:
    row = ledger.read(database, pipeline)
    found = None if row is None else visible_commit(row.progress)
    if found is None:
        raise NotVisibleError(f"pipeline {pipeline!r}: nothing is visible yet", "check that it is running")
    return found


def _check_not_behind(database: ledger.Database, before: str, pipeline: str, source: str | None) -> None:
    seen, found = (_newest(database, name) for name in (before, pipeline))
    if source is not None:
        seen, found = replace(seen, source=source), replace(found, source=source)
    check_not_behind(before, seen, pipeline, found)


def _views_of(database: ledger.Database, schema: str) -> set[str]:
    """Returns the names of the views in a schema of readers, without that of the ledger."""
    found = database.execute("SELECT viewname FROM pg_views WHERE schemaname = %s", (schema,)).fetchall()
    return {name for (name,) in found} - {LEDGER_VIEW}


def _replace(database: ledger.Database, schema: str, view: str, rows: sql.Composed) -> None:
    """Creates a view or replaces its query. Its grants are kept, even if its columns change."""
    name = sql.Identifier(schema, view)
    create = sql.SQL("CREATE OR REPLACE VIEW {} AS {}").format(name, rows)
    try:
        with database.transaction():
            database.execute(create)
    except psycopg.errors.WrongObjectType as error:
        raise ConfigError(
            f"{schema}.{view} cannot be replaced: {error.diag.message_primary}",
            "use a schema for readers that contains no tables of pipelines",
        ) from error
    except psycopg.errors.InvalidTableDefinition:
        grants = database.execute(_GRANTS, (name.as_string(database),)).fetchall()
        _drop(database, schema, view)
        database.execute(create)
        for role, privilege, may_grant in grants:
            option = " WITH GRANT OPTION" if may_grant else ""
            statement = f"GRANT {privilege} ON {{}} TO {role}{option}"  # PostgreSQL quotes the role
            database.execute(sql.SQL(statement).format(name))


def _drop(database: ledger.Database, schema: str, view: str) -> None:
    try:
        database.execute(sql.SQL("DROP VIEW {}").format(sql.Identifier(schema, view)))
    except psycopg.errors.DependentObjectsStillExist as error:
        raise ConfigError(
            f"the columns of view {view!r} change, but other objects depend on it: "
            f"{error.diag.message_detail}",
            "drop these objects, switch, and create them again",
        ) from error
