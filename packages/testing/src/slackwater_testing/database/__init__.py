"""Executes workloads in PostgreSQL."""

from slackwater_testing.database.session import DatabaseError, RefusedTransactionError
from slackwater_testing.database.statements import execute_transaction
from slackwater_testing.database.tables import create_tables, current_lsn, write_first, write_last
from slackwater_testing.database.writers import Commit, WriterCounts, Writers

__all__ = [
    "Commit",
    "DatabaseError",
    "RefusedTransactionError",
    "WriterCounts",
    "Writers",
    "create_tables",
    "current_lsn",
    "execute_transaction",
    "write_first",
    "write_last",
]
