"""Reads PostgreSQL: outputs that are tables, and the source's own tables."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads

from slackwater_certify.canonical import DocumentReader, digest
from slackwater_certify.errors import unreadable
from slackwater_certify.evaluation import VersionedTables
from slackwater_certify.output import OutputRecords, Row, from_snapshots
from slackwater_certify.replay import DocumentKey, RowIntervals
from slackwater_certify.specification import Connections, OutputSpecification
from slackwater_certify.tables import Table
from slackwater_certify.view import View


def watch_table(
    output: OutputSpecification,
    reader: DocumentReader,
    connections: Connections,
    is_over: Callable[[], bool],
    now_ms: Callable[[], int],
) -> OutputRecords:
    """Reads the table again and again until it is over, and once more; blocks so long.

    Each snapshot is one statement: what one reader sees of the table at once.

    Raises:
        CertifyUnavailableError: it cannot be read.
    """
    try:
        with psycopg.connect(connections.output_database(), autocommit=True) as connection:
            set_json_loads(_loads, connection)
            found = _snapshots(connection, output.name, is_over, now_ms)
            return from_snapshots(reader, found, "arrival at the certifier")
    except psycopg.Error as error:
        raise unreadable(f"table {output.name}", str(error).strip()) from error


def read_database(view: View, dsn: str) -> dict[DocumentKey, bytes]:
    """Evaluates the view on the state the database is in now; digests of its documents by key.

    All tables are read in one transaction.

    Raises:
        CertifyUnavailableError: it cannot be read.
    """
    try:
        with psycopg.connect(dsn) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            rows = {name: _read_rows(connection, table) for name, table in view.tables.items()}
    except psycopg.Error as error:
        raise unreadable("the source database", str(error).strip()) from error
    with VersionedTables(view, rows) as tables:
        tables.restrict(None)
        return {view.reader.key_of(document): digest(document) for document in tables.documents(0)}


def _snapshots(
    connection: "psycopg.Connection[tuple[Any, ...]]",
    table: str,
    is_over: Callable[[], bool],
    now_ms: Callable[[], int],
) -> Iterator[tuple[int, list[Row]]]:
    query = sql.SQL("SELECT * FROM {}").format(sql.Identifier(*table.split(".")))
    while True:
        was_last = is_over()
        with connection.cursor(row_factory=dict_row) as cursor:
            rows: list[Row] = list(cursor.execute(query).fetchall())
        yield now_ms(), rows
        if was_last:
            return


def _loads(text: str | bytes) -> Any:
    return json.loads(text, parse_float=str)


def _read_rows(connection: "psycopg.Connection[tuple[Any, ...]]", table: Table) -> RowIntervals:
    rows = RowIntervals([[] for _ in table.columns])
    columns = sql.SQL(", ").join(sql.Identifier(name) for name, _ in table.columns)
    query = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(*table.name.split(".")))
    for values in connection.execute(query):
        rows.ends[rows.add(0, 0, values)] = 1
    return rows
