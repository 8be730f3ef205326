"""The ledger: one row per pipeline with its newest visible batch, in the same database as its tables.

A batch and its row are written in one transaction, so the row shows a reader of one snapshot at which commit
all views are. The row also contains which run may write. A run that writes holds the row's lock until it
commits.

Runs and clients use the same statements. Functions that read a row raise ``MalformedRecordError`` if it has
another version, or was changed by another writer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from psycopg import Connection

from slackwater.protocol import (
    MalformedRecordError,
    ProgressRecord,
    decode_progress_record,
    encode_progress_record,
    nothing_visible,
)

Database = Connection[tuple[Any, ...]]

LEDGER: Final = "slackwater.ledger"
TABLES: Final = "slackwater.ledger_tables"
DURABLE: Final = (  # commits wait for the disk: a crash of the database must not take back what readers saw
    "set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), false)"
)

_LOCK: Final = 0x736C61636B
"""A lock with which runs that begin at the same time create ledger and tables one after the other."""

_CREATE: Final = """
CREATE SCHEMA IF NOT EXISTS slackwater;
CREATE TABLE IF NOT EXISTS slackwater.ledger (
    pipeline text PRIMARY KEY,
    batch_id bigint NOT NULL,
    source text NOT NULL,
    timeline bigint NOT NULL,
    commit_lsn bigint NOT NULL,
    written_at timestamp with time zone NOT NULL,
    run text NOT NULL,
    backend_pid integer NOT NULL,
    backend_start timestamp with time zone NOT NULL,
    progress text NOT NULL
);
CREATE TABLE IF NOT EXISTS slackwater.ledger_tables (
    name text PRIMARY KEY,
    pipeline text NOT NULL,
    view text NOT NULL,
    oid oid NOT NULL
)
"""
_END_EARLIER: Final = """
SELECT pg_terminate_backend(a.pid) FROM slackwater.ledger l
JOIN pg_stat_activity a ON a.pid = l.backend_pid AND a.backend_start = l.backend_start
WHERE l.pipeline = %s AND a.pid <> pg_backend_pid()
"""
_ADD: Final = """
INSERT INTO slackwater.ledger (pipeline, batch_id, source, timeline, commit_lsn, written_at, run, backend_pid,
                      backend_start, progress)
VALUES (%(pipeline)s, %(batch_id)s, '', 0, 0, clock_timestamp(), '', 0, clock_timestamp(), %(progress)s)
ON CONFLICT (pipeline) DO NOTHING
"""
_READ_ROW: Final = (
    "SELECT written_at, progress, batch_id, source, timeline, commit_lsn FROM slackwater.ledger "
    "WHERE pipeline = %s"
)
_LOCK_ROW: Final = f"{_READ_ROW} FOR UPDATE"
_CLAIM: Final = """
UPDATE slackwater.ledger SET run = %(run)s, progress = %(progress)s, backend_pid = a.pid,
    backend_start = a.backend_start
FROM pg_stat_activity a WHERE a.pid = pg_backend_pid() AND pipeline = %(pipeline)s
"""
_NOTE: Final = """
UPDATE slackwater.ledger SET batch_id = %(batch_id)s, source = %(source)s, timeline = %(timeline)s,
    commit_lsn = %(commit_lsn)s, written_at = clock_timestamp(), progress = %(progress)s
WHERE pipeline = %(pipeline)s
"""
_VIEWS: Final = """
SELECT t.view, t.name, c.oid IS NOT NULL AND c.oid >= 16384
FROM slackwater.ledger_tables t LEFT JOIN (pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace)
    ON c.oid = t.oid AND n.nspname || '.' || c.relname = t.name
WHERE t.pipeline = %s ORDER BY t.view
"""
"""Below 16384 are the ids of PostgreSQL's own tables."""
ROW_FOR_READERS: Final = (
    "SELECT pipeline, source, timeline, commit_lsn, written_at FROM slackwater.ledger WHERE pipeline = {}"
)
"""The query of the view that shows readers the row of a pipeline."""


class LedgerRow(NamedTuple):
    """What the row of a pipeline says."""

    progress: ProgressRecord
    written_at: datetime


class ViewTable(NamedTuple):
    """A table of a view in the ledger."""

    view: str
    name: str
    """``schema.name``."""
    is_same: bool
    """Whether it is the one that the pipeline has written."""


@dataclass(frozen=True, slots=True)
class LedgerTable:
    """A table that a pipeline writes."""

    pipeline: str
    oid: int
    """The object id, which changes if the table is dropped and created again."""


def exists(database: Database) -> bool:
    """Returns whether the ledger exists."""
    row = database.execute("SELECT to_regclass(%s), to_regclass(%s)", (LEDGER, TABLES)).fetchone()
    return row is not None and None not in row


def create_missing(database: Database) -> None:
    """Creates the ledger if it does not exist."""
    if not exists(database):
        with database.transaction():
            begin_alone(database)
            database.execute(_CREATE)


def begin_alone(database: Database) -> None:
    """Makes other runs that begin wait until the transaction ends: they may create the same tables."""
    database.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))


def end_earlier_run(database: Database, pipeline: str) -> None:
    """Ends the session of the pipeline's earlier run, which may hold its row for as long as it lives."""
    database.execute(_END_EARLIER, (pipeline,))


def read(database: Database, pipeline: str) -> LedgerRow | None:
    """Returns what the pipeline's row says; None if there is none."""
    row = database.execute(_READ_ROW, (pipeline,)).fetchone()
    return None if row is None else _decoded(pipeline, *row)


def lock_row(database: Database, pipeline: str) -> ProgressRecord:
    """Locks the pipeline's row until the transaction ends; creates it if it does not exist."""
    row = database.execute(_LOCK_ROW, (pipeline,), prepare=True).fetchone()
    if row is None:
        nothing = nothing_visible(pipeline)
        database.execute(_ADD, _parameters(nothing))
        row = database.execute(_LOCK_ROW, (pipeline,)).fetchone()
    assert row is not None  # noqa: S101 - it was there, or this transaction has made it
    return _decoded(pipeline, *row).progress


def claim(database: Database, progress: ProgressRecord) -> None:
    """Writes the newest progress with the id of a run, and the session of that run."""
    database.execute(_CLAIM, _parameters(progress))


def note(database: Database, progress: ProgressRecord) -> None:
    """Writes the progress of a batch, in the batch's transaction."""
    database.execute(_NOTE, _parameters(progress), prepare=True)


def tables(database: Database) -> dict[str, LedgerTable]:
    """Returns all tables of all pipelines, by full name."""
    rows = database.execute("SELECT name, pipeline, oid::bigint FROM slackwater.ledger_tables", prepare=True)
    return {name: LedgerTable(pipeline, oid) for name, pipeline, oid in rows}


def tables_of(database: Database, pipeline: str) -> list[ViewTable]:
    """Returns the tables of a pipeline, in order of their views."""
    return [ViewTable(*row) for row in database.execute(_VIEWS, (pipeline,))]


def take_table(database: Database, pipeline: str, view: str, name: str, oid: int) -> bool:
    """Records that the pipeline writes a table; returns False if another pipeline already does."""
    row = database.execute(
        "INSERT INTO slackwater.ledger_tables AS t (name, pipeline, view, oid) VALUES (%s, %s, %s, %s) "
        "ON CONFLICT (name) DO UPDATE SET view = EXCLUDED.view, oid = EXCLUDED.oid "
        "WHERE t.pipeline = EXCLUDED.pipeline RETURNING 1",
        (name, pipeline, view, oid),
    ).fetchone()
    return row is not None


def keep_rows(database: Database, pipelines: Sequence[str]) -> None:
    """Prevents the rows of pipelines from changing until the transaction ends."""
    database.execute("SELECT 1 FROM slackwater.ledger WHERE pipeline = ANY(%s) FOR SHARE", (pipelines,))


def forget(database: Database, pipeline: str) -> None:
    """Removes a pipeline from the ledger."""
    database.execute("DELETE FROM slackwater.ledger_tables WHERE pipeline = %s", (pipeline,))
    database.execute("DELETE FROM slackwater.ledger WHERE pipeline = %s", (pipeline,))


def _decoded(pipeline: str, written_at: datetime, progress: str, *columns: int | str) -> LedgerRow:
    """Returns the progress in a row, whose columns have to say the same."""
    found = decode_progress_record(progress.encode())
    expected = (found.pipeline, found.batch_id, found.source, found.timeline, found.commit_lsn)
    if (pipeline, *columns) != expected:
        reason = f"its columns {columns} contradict its progress {expected}"
        raise MalformedRecordError(f"row of pipeline {pipeline!r} in {LEDGER}", reason)
    return LedgerRow(found, written_at)


def _parameters(progress: ProgressRecord) -> dict[str, Any]:
    return {
        "pipeline": progress.pipeline,
        "batch_id": progress.batch_id,
        "source": progress.source,
        "timeline": progress.timeline,
        "commit_lsn": progress.commit_lsn,
        "run": progress.run,
        "progress": encode_progress_record(progress).decode(),
    }
