"""Switches the readers of tables in PostgreSQL from one revision of a pipeline to another.

Readers use views in a schema of their own: one per view of the pipeline, and one of the ledger's row, all of
one revision. A switch replaces all of them in one transaction, which is also all that is ever remembered of
it: whoever is killed meanwhile has changed nothing.
"""

from collections.abc import Collection
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any, Final

import psycopg
from psycopg import sql

from slackwater_client.errors import ClientConfigError, ClientUnavailableError, NotVisibleError
from slackwater_client.snapshot import repeated
from slackwater_client.switched import Switched, base_name, check_not_behind, check_views
from slackwater_client.table_views import table_identifier, tables_of, translated
from slackwater_protocol import Clock, CommitPosition

LEDGER_VIEW: Final = "slackwater_ledger"
"""The view of readers that says which pipeline they read, and at which commit it stands."""
_CONNECT_SECONDS: Final = 10
_LOCK_WAIT: Final = "300ms"
"""So long a reader in a transaction may hold up the switch, and new readers wait, before it is tried again.
Less than PostgreSQL's ``deadlock_timeout``: if a reader takes views in another order, this gives way."""
_POSITION: Final = (
    "SELECT source, timeline, commit_lsn FROM slackwater.ledger WHERE pipeline = %s AND batch_id >= 0"
)
_LEDGER: Final = (
    "SELECT pipeline, source, timeline, commit_lsn, written_at FROM slackwater.ledger WHERE pipeline = {}"
)
_SCHEMAS: Final = """
SELECT schemaname FROM pg_views WHERE viewname = %s
AND has_table_privilege(format('%%I.%%I', schemaname, viewname), 'SELECT') ORDER BY schemaname
"""
_GRANTS: Final = """
SELECT CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END, g.privilege_type, g.is_grantable
FROM pg_class c, aclexplode(c.relacl) g WHERE c.oid = to_regclass(%s) AND g.grantee <> c.relowner
"""

Database = psycopg.Connection[Any]


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
    """Lets the views of readers show the tables of a pipeline, all of them from one moment on.

    Waits until the pipeline has come as far as the one that is read now, so that readers never go back to an
    earlier commit. No batch of either becomes visible between that look and the switch. To do it again
    changes nothing.

    Args:
        url: Of the database, as libpq takes it; its user owns the views.
        schema: Where the views are; it is made if it is missing. One pipeline's only.
        pipeline: The name with the revision.
        accept_earlier: Switch to a pipeline that is behind, too: readers go back to an earlier commit.
        source: The one at the beginning of a chain, if both revisions have its commits though each reads
            another revision of an output; None: both read one source.
        timeout: How long to wait, for the pipeline and for readers who are in a transaction.
        clock: For the deadline.

    Raises:
        ClientConfigError: The pipeline has not written here, lacks a view that readers have, or reads another
            source; the schema belongs to another pipeline; or other objects depend on a view whose columns
            change.
        NotVisibleError: The pipeline was still behind in the end; nothing was changed.
        ClientUnavailableError: The database does not answer, refuses, or readers did not let go of the views.
    """
    with (
        translated(pipeline),
        closing(psycopg.connect(url, connect_timeout=_CONNECT_SECONDS, autocommit=True)) as database,
    ):
        return repeated(
            partial(_try_to_switch, database, schema, pipeline, accept_earlier, source), timeout, clock
        )


def schemas_of_readers(url: str, pipeline: str) -> dict[str, str]:
    """Returns by schema the pipeline, with its revision, that its readers were switched to.

    Args:
        url: Of the database.
        pipeline: The name without a revision.

    Raises:
        ClientUnavailableError: The database does not answer.
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
) -> Switched | NotVisibleError | ClientUnavailableError:
    """Switches, or says what keeps it from being done at this moment: then nothing has changed."""
    try:
        with database.transaction():
            return _switched(database, schema, pipeline, accept_earlier, source)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        return ClientUnavailableError(
            f"readers of schema {schema!r} do not let go of its views: {error.diag.message_primary}",
            "nothing was changed; end transactions that are open for long, or try for longer",
        )
    except NotVisibleError as error:
        return error


def _switched(
    database: Database, schema: str, pipeline: str, accept_earlier: bool, source: str | None
) -> Switched:
    database.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_LOCK_WAIT)))
    # Of two who switch at once the second one sees what the first one has done.
    database.execute("SELECT pg_advisory_xact_lock(hashtext('slackwater'), hashtext(%s))", (schema,))
    database.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    before = _pipeline_read(database, schema)
    tables = {view: table for view, (table, _) in tables_of(database, pipeline).items()}
    _check_views(database, schema, before, pipeline, tables)
    # From here on, until the switch is visible, no batch of the two becomes visible.
    names = [name for name in (before, pipeline) if name is not None]
    database.execute("SELECT 1 FROM slackwater.ledger WHERE pipeline = ANY(%s) FOR SHARE", (names,))
    if before is not None and not accept_earlier:
        _check_not_behind(database, before, pipeline, source)
    # Readers who ask the ledger first have views in this order, too.
    _replace(database, schema, LEDGER_VIEW, sql.SQL(_LEDGER).format(sql.Literal(pipeline)))
    for view, table in tables.items():
        _replace(database, schema, view, sql.SQL("SELECT * FROM {}").format(table_identifier(table)))
    left_at = None if before is None else _position(database, before)[1]
    return Switched(before, left_at, _position(database, pipeline)[1])


def _pipeline_read(database: Database, schema: str) -> str | None:
    """Returns the pipeline that readers of a schema read; None: the schema has no such views."""
    name = sql.Identifier(schema, LEDGER_VIEW)
    there = database.execute("SELECT to_regclass(%s)", (name.as_string(database),)).fetchone()
    if there is None or there[0] is None:
        return None
    row = database.execute(sql.SQL("SELECT pipeline FROM {}").format(name)).fetchone()
    return None if row is None else str(row[0])


def _position(database: Database, pipeline: str) -> tuple[str, CommitPosition]:
    row = database.execute(_POSITION, (pipeline,)).fetchone()
    if row is None:
        raise NotVisibleError(f"pipeline {pipeline!r}: nothing is visible yet", "is it running?")
    return row[0], CommitPosition(row[1], row[2])


def _check_not_behind(database: Database, before: str, pipeline: str, source: str | None) -> None:
    (one, at), (other, there) = _position(database, before), _position(database, pipeline)
    check_not_behind(before, (source or one, at), pipeline, (source or other, there))


def _check_views(
    database: Database, schema: str, before: str | None, pipeline: str, views: Collection[str]
) -> None:
    if before is None:
        return
    if base_name(before) != base_name(pipeline):
        raise ClientConfigError(
            f"the views of schema {schema!r} are those of pipeline {before!r}",
            f"give pipeline {pipeline!r} another schema",
        )
    check_views(before, tables_of(database, before), pipeline, views)


def _replace(database: Database, schema: str, view: str, rows: sql.Composed) -> None:
    """Makes a view or gives it another query. Its grants stay, also if its columns change."""
    name = sql.Identifier(schema, view)
    create = sql.SQL("CREATE OR REPLACE VIEW {} AS {}").format(name, rows)
    try:
        with database.transaction():
            database.execute(create)
    except psycopg.errors.WrongObjectType as error:
        raise ClientConfigError(
            f"{schema}.{view} is no view: {error.diag.message_primary}",
            "give readers a schema in which there are no tables of pipelines",
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
        raise ClientConfigError(
            f"columns of view {view!r} change, and other objects depend on it: {error.diag.message_detail}",
            "drop those, switch, and make them anew",
        ) from error
