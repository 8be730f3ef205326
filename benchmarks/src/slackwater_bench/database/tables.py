"""Makes a workload's tables and first rows."""

import psycopg
from psycopg import sql

from slackwater_bench.database.statements import execute_transaction, merged
from slackwater_bench.workloads.tables import schema_text, tables_of
from slackwater_bench.workloads.workload import Workload

FIRST_CHANGES = 10_000
"""Of a transaction that writes first rows."""


def create_tables(dsn: str, workload: Workload) -> None:
    """Creates the schemas and tables of a workload, in one transaction.

    Raises:
        psycopg.Error: one of the tables exists already, or whatever else the database says.
    """
    schemas = {table.schema for table in tables_of(workload).values()}
    with psycopg.connect(dsn) as connection:
        for schema in sorted(schemas):
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        connection.execute(schema_text(workload).encode())


def write_first(dsn: str, workload: Workload) -> None:
    """Writes the workload's first rows; several of its first transactions in one, since all of them insert.

    Raises:
        psycopg.Error: whatever the database says.
    """
    with psycopg.connect(dsn) as connection:
        for transaction in merged(workload.first(), FIRST_CHANGES):
            execute_transaction(connection, transaction)
        connection.commit()
        for name in tables_of(workload):
            connection.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(*name.split("."))))
