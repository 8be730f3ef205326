"""Switches the readers of tables in PostgreSQL from one revision of a pipeline to another.

Readers use PostgreSQL views in a separate schema: one per view of the pipeline, and one that shows the
ledger's row, all of the same revision. A switch replaces all of them in one transaction and stores nothing
else, so a process that is killed during a switch has changed nothing.
"""

from collections.abc import Collection
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Final

import psycopg
from psycopg import sql

from slackwater.client.errors import NotVisibleError
from slackwater.client.snapshot import repeated, visible_commit
from slackwater.client.switched import Switched, base_name, check_not_behind, check_views
from slackwater.client.table_views import table_identifier, tables_of, translated
from slackwater.outputs.postgres import ledger
from slackwater.outputs.postgres.ledger import Database
from slackwater.protocol import Clock, CommitPosition, ConfigError, UnavailableError

LEDGER_VIEW: Final = "slackwater_ledger"
"""The view that tells readers which pipeline they read, and at which commit it is."""
_CONNECT_SECONDS: Final = 10
_LOCK_WAIT: Final = "300ms"
"""How long one attempt waits for readers in a transaction, while new readers wait for it. It is shorter than
PostgreSQL's ``deadlock_timeout``, so that the switch gives way to readers that lock views in another
order."""
_SESSION: Final = f"SELECT set_config('lock_timeout', '{_LOCK_WAIT}', true), {ledger.DURABLE}"
"""Readers that have seen the switch do not go back to the earlier pipeline after a crash of the database."""
_SCHEMAS: Final = """
SELECT schemaname FROM pg_views WHERE viewname = %s
AND has_table_privilege(format('%%I.%%I', schemaname, viewname), 'SELECT') ORDER BY schemaname
"""
_GRANTS: Final = """
SELECT CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END, g.privilege_type, g.is_grantable
FROM pg_class c, aclexplode(c.relacl) g WHERE c.oid = to_regclass(%s) AND g.grantee <> c.relowner
"""


def switch_tables(
    url: str,
    schema: str,
    pipeline: str,
    *,
    accept_earlier: bool = False,
    source: str | None = None,
    timeout: timedelta = timedelta(seconds=30),
    clock: Clock | None = None,
) -> Switched:
    """Switches the readers' views to the tables of a pipeline, all of them in one transaction.

    It waits until the pipeline has caught up with the one that is read now, so that readers never go back to
    an earlier commit. No batch of either pipeline becomes visible between that check and the switch.
    Repeating the call changes nothing.

    Args:
        url: The database's address, as libpq takes it. The user owns the views.
        schema: The schema of the views, for one pipeline only. It is created if it does not exist.
        pipeline: The name with the revision.
        accept_earlier: Also switch to a pipeline that is behind; readers then go back to an earlier commit.
        source: The source at the beginning of a chain, if the revisions read different revisions of an output
            and both have the commits of that source. None: both read the same source.
        timeout: How long to wait for the pipeline, and for readers in a transaction.
        clock: Measures the deadline.

    Raises:
        ConfigError: The pipeline has not written here, lacks a view that readers have, or reads another
            source; the schema belongs to another pipeline; or other objects depend on a view whose columns
            change.
        NotVisibleError: The pipeline was still behind at the end; nothing was changed.
        UnavailableError: The database does not answer, rejects a statement, or readers kept the views
            locked.
    """
    with (
        translated(pipeline),
        closing(psycopg.connect(url, connect_timeout=_CONNECT_SECONDS, autocommit=True)) as database,
    ):
        return repeated(
            partial(_try_to_switch, database, schema, pipeline, accept_earlier, source), timeout, clock
        )


def schemas_of_readers(url: str, pipeline: str) -> dict[str, str]:
    """Returns for each schema the pipeline, with its revision, that its readers were switched to.

    Args:
        url: The database's address.
        pipeline: The name without a revision.

    Raises:
        UnavailableError: The database does not answer.
    """
    with (
        translated(pipeline),
        closing(psycopg.connect(url, connect_timeout=_CONNECT_SECONDS, autocommit=True)) as database,
    ):
        schemas = [row[0] for row in database.execute(_SCHEMAS, (LEDGER_VIEW,)).fetchall()]
        found = {schema: _pipeline_read(database, schema) for schema in schemas}
    return {schema: read for schema, read in found.items() if read and base_name(read) == pipeline}


def _try_to_switch(
    database: Database, schema: str, pipeline: str, accept_earlier: bool, source: str | None
) -> Switched | NotVisibleError | UnavailableError:
    """Switches, or returns the error that prevents it at the moment; nothing has changed then."""
    try:
        with database.transaction():
            return _switched(database, schema, pipeline, accept_earlier, source)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        return UnavailableError(
            f"transactions of readers keep the views of schema {schema!r} locked: "
            f"{error.diag.message_primary}",
            "nothing was changed; end long transactions, or raise the time-out",
        )
    except NotVisibleError as error:
        return error


def _switched(
    database: Database, schema: str, pipeline: str, accept_earlier: bool, source: str | None
) -> Switched:
    database.execute(_SESSION)
    # If two processes switch at once, the second one sees the result of the first.
    database.execute("SELECT pg_advisory_xact_lock(hashtext('slackwater'), hashtext(%s))", (schema,))
    database.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    before = _pipeline_read(database, schema)
    tables = {view: table for view, (table, _) in tables_of(database, pipeline).items()}
    _check_views(database, schema, before, pipeline, tables)
    # From here on, no batch of either pipeline becomes visible until the switch is visible.
    names = [name for name in (before, pipeline) if name is not None]
    ledger.keep_rows(database, names)
    if before is not None and not accept_earlier:
        _check_not_behind(database, before, pipeline, source)
    # Readers that read the ledger first lock the views in the same order.
    _replace(database, schema, LEDGER_VIEW, sql.SQL(ledger.ROW_FOR_READERS).format(sql.Literal(pipeline)))
    for view, table in tables.items():
        _replace(database, schema, view, sql.SQL("SELECT * FROM {}").format(table_identifier(table)))
    left_at = None if before is None else _position(database, before)[1]
    return Switched(before, left_at, _position(database, pipeline)[1])


def _pipeline_read(database: Database, schema: str) -> str | None:
    """Returns the pipeline that readers of a schema read; None: the schema has no views for readers."""
    name = sql.Identifier(schema, LEDGER_VIEW)
    there = database.execute("SELECT to_regclass(%s)", (name.as_string(database),)).fetchone()
    if there is None or there[0] is None:
        return None
    row = database.execute(sql.SQL("SELECT pipeline FROM {}").format(name)).fetchone()
    return None if row is None else str(row[0])


def _position(database: Database, pipeline: str) -> tuple[str, CommitPosition]:
    row = ledger.read(database, pipeline)
    found = None if row is None else visible_commit(row.progress)
    if found is None:
        raise NotVisibleError(f"pipeline {pipeline!r}: nothing is visible yet", "check that it is running")
    return found.source, found.position


def _check_not_behind(database: Database, before: str, pipeline: str, source: str | None) -> None:
    (one, at), (other, there) = _position(database, before), _position(database, pipeline)
    check_not_behind(before, (source or one, at), pipeline, (source or other, there))


def _check_views(
    database: Database, schema: str, before: str | None, pipeline: str, views: Collection[str]
) -> None:
    if before is None:
        return
    if base_name(before) != base_name(pipeline):
        raise ConfigError(
            f"the views in schema {schema!r} belong to pipeline {before!r}",
            f"use another schema for pipeline {pipeline!r}",
        )
    check_views(before, tables_of(database, before), pipeline, views)


def _replace(database: Database, schema: str, view: str, rows: sql.Composed) -> None:
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


def _drop(database: Database, schema: str, view: str) -> None:
    try:
        database.execute(sql.SQL("DROP VIEW {}").format(sql.Identifier(schema, view)))
    except psycopg.errors.DependentObjectsStillExist as error:
        raise ConfigError(
            f"the columns of view {view!r} change, but other objects depend on it: "
            f"{error.diag.message_detail}",
            "drop these objects, switch, and create them again",
        ) from error
