"""Outputs that are PostgreSQL tables."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads

from slackwater_certify.canonical import DocumentReader
from slackwater_certify.connections import Connections
from slackwater_certify.errors import UnreadableError
from slackwater_certify.outputs.output import OutputRecords
from slackwater_certify.outputs.snapshots import Row, records_of
from slackwater_certify.specification import OutputSpecification


def read_table(
    output: OutputSpecification, reader: DocumentReader, connections: Connections, now_ms: Callable[[], int]
) -> OutputRecords:
    """The table as it is now.

    Raises:
        UnreadableError: it cannot be read.
    """
    return watch_table(output, reader, connections, _once(), now_ms)


def watch_table(
    output: OutputSpecification,
    reader: DocumentReader,
    connections: Connections,
    is_over: Callable[[], bool],
    now_ms: Callable[[], int],
) -> OutputRecords:
    """The table again and again until it is over, and once more; blocks so long.

    Each snapshot is one statement: what one reader sees of the table at once.

    Raises:
        UnreadableError: it cannot be read.
    """
    try:
        with psycopg.connect(connections.output_database(), autocommit=True) as connection:
            set_json_loads(_loads, connection)
            found = _snapshots(connection, output.name, is_over, now_ms)
            return records_of(reader, found, "arrival at the certifier")
    except psycopg.Error as error:
        raise UnreadableError(f"table {output.name}", str(error).strip()) from error


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


def _once() -> Callable[[], bool]:
    return lambda: True


def _loads(text: str | bytes) -> Any:
    return json.loads(text, parse_float=str)
