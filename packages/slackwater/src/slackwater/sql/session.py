"""DuckDB connections for views: in memory, with one thread, without access to files and network, in UTC."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

from slackwater.sql.limits import DEFAULT_LIMITS, StatementLimits


class _Kept(threading.local):
    """One connection per thread, because opening one costs more than reading a view."""

    connection: duckdb.DuckDBPyConnection | None = None
    process = 0


_kept = _Kept()
_inherited: list[duckdb.DuckDBPyConnection | None] = []
"""Connections of a parent process, which must not even be closed here."""


def open_connection(limits: StatementLimits = DEFAULT_LIMITS) -> duckdb.DuckDBPyConnection:
    """Opens a database in memory that reads no files, loads no extensions and is deterministic.

    Args:
        limits: Their memory is DuckDB's limit for intermediate results; nothing is spilled to disk.
    """
    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "async_threads": 0,  # they read files
            "memory_limit": limits.duckdb_memory,
            "temp_directory": "",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET enable_external_access = false")
    return connection


@contextmanager
def scratch_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """Yields a connection for trying out SQL; everything that is created in it is removed afterwards."""
    connection = _connection()
    connection.begin()
    try:
        yield connection
    finally:
        connection.rollback()
        connection.execute("SET errors_as_json = false")


def _connection() -> duckdb.DuckDBPyConnection:
    if _kept.process != os.getpid():
        _inherited.append(_kept.connection)
        _kept.connection, _kept.process = None, os.getpid()
    if _kept.connection is None:
        _kept.connection = open_connection()
    return _kept.connection
