"""A database to try SQL on, empty again after each view."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

from slackwater_sql.session import open_connection


class _Kept(threading.local):
    """One connection per thread: opening one costs more than reading a view."""

    connection: duckdb.DuckDBPyConnection | None = None
    process = 0


_kept = _Kept()
_inherited: list[duckdb.DuckDBPyConnection | None] = []
"""Connections of a parent process, which must not even be closed here."""


@contextmanager
def scratch_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection of the session that views have; what is created in it is gone afterwards."""
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
