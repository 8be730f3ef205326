"""The database itself: its tables by plain SELECT, and the view evaluated on them."""

from typing import Any

import psycopg
from psycopg import sql

from slackwater_certify.canonical import digest
from slackwater_certify.errors import UnreadableError
from slackwater_certify.fold import DocumentKey, RowIntervals
from slackwater_certify.tables import Table
from slackwater_certify.versions import WaveTables
from slackwater_certify.view import View


def read_database(view: View, dsn: str) -> dict[DocumentKey, bytes]:
    """The view's documents in the state the database is in now, as digests by key.

    All tables are read in one transaction.

    Raises:
        UnreadableError: it cannot be read.
    """
    try:
        with psycopg.connect(dsn) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            rows = {name: _read(connection, table) for name, table in view.tables.items()}
    except psycopg.Error as error:
        raise UnreadableError("the source database", str(error).strip()) from error
    with WaveTables(view, rows) as tables:
        tables.restrict(None)
        return {view.reader.key_of(document): digest(document) for document in tables.documents(0)}


def _read(connection: "psycopg.Connection[tuple[Any, ...]]", table: Table) -> RowIntervals:
    rows = RowIntervals([[] for _ in table.columns])
    columns = sql.SQL(", ").join(sql.Identifier(name) for name, _ in table.columns)
    query = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(*table.name.split(".")))
    for values in connection.execute(query):
        rows.ends[rows.add(0, 0, values)] = 1
    return rows
