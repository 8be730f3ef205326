"""Executes workloads in PostgreSQL."""

from slackwater_bench.database.errors import DatabaseError, RefusedTransactionError
from slackwater_bench.database.rate import Schedule
from slackwater_bench.database.statements import execute_transaction
from slackwater_bench.database.tables import create_tables, write_first
from slackwater_bench.database.writers import Commit, WriterCounts, Writers

__all__ = [
    "Commit",
    "DatabaseError",
    "RefusedTransactionError",
    "Schedule",
    "WriterCounts",
    "Writers",
    "create_tables",
    "execute_transaction",
    "write_first",
]
