"""Executes workloads in PostgreSQL."""

from slackwater_lab.database.statements import (
    create_tables,
    current_lsn,
    execute_transaction,
    write_first,
    write_last,
)
from slackwater_lab.database.writers import WriterCounts, Writers

__all__ = [
    "WriterCounts",
    "Writers",
    "create_tables",
    "current_lsn",
    "execute_transaction",
    "write_first",
    "write_last",
]
