"""Makes a workload's tables and first rows, and marks places in the database's log."""

from collections.abc import Iterable, Iterator
from itertools import islice

import psycopg
from psycopg import sql

from slackwater_protocol import parse_position
from slackwater_testing.database.statements import execute_transaction
from slackwater_testing.workloads.workload import Insert, Transaction, Workload

FIRST_CHANGES = 10_000
"""Of a transaction that writes first rows."""


def create_tables(dsn: str, workload: Workload) -> None:
    """Creates the schemas and tables of a workload, in one transaction.

    Raises:
        psycopg.Error: one of the tables exists already, or whatever else the database says.
    """
    schemas = {table.schema for table in workload.tables.values()}
    with psycopg.connect(dsn) as connection:
        for schema in sorted(schemas):
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        connection.execute(workload.schema_text.encode())


def write_first(dsn: str, workload: Workload) -> None:
    """Writes the workload's first rows; several of its first transactions in one, since all of them insert.

    Raises:
        psycopg.Error: whatever the database says.
    """
    with psycopg.connect(dsn) as connection:
        for transaction in merge_inserts(workload.first(), FIRST_CHANGES):
            execute_transaction(connection, transaction)
        connection.commit()
        for name in workload.tables:
            connection.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(*name.split("."))))


def current_lsn(dsn: str, connect_timeout: int = 10) -> int:
    """Asks for an LSN: every commit so far is below it, every later one at or above.

    Raises:
        psycopg.OperationalError: the database does not answer.
    """
    with psycopg.connect(dsn, connect_timeout=connect_timeout, autocommit=True) as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    return parse_position(str(row[0])) if row else 0


def write_last(dsn: str, table: str) -> int:
    """Commits one more change, which alters nothing that is shown; returns an LSN below its commit.

    By commit order, all before is visible when it is.
    """
    lsn = current_lsn(dsn)
    name = sql.Identifier(*table.split("."))
    with psycopg.connect(dsn) as connection:
        connection.execute(
            sql.SQL("UPDATE {} SET id = id WHERE id = (SELECT min(id) FROM {})").format(name, name)
        )
    return lsn


def merge_inserts(transactions: Iterable[Transaction], changes: int) -> Iterator[Transaction]:
    """Transactions that only insert, several in one, their rows by table."""
    stream = (operation for transaction in transactions for operation in transaction.operations)
    while batch := [each for each in islice(stream, changes) if isinstance(each, Insert)]:
        batch.sort(key=lambda insert: insert.table)
        yield Transaction(tuple(batch))
