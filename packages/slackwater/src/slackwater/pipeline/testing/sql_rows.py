"""Transactions in SQL, which DuckDB runs on tables with the rows of the test."""

from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from slackwater.pipeline.testing.table_rows import Event, PlainRow, TableRows
from slackwater.protocol import InputError
from slackwater.sql.catalog import Column
from slackwater.sql.column_type import TypeKind
from slackwater.sql.session import open_connection

Step = list[tuple[TableRows, Event]] | None
"""The changes of a statement; None for COMMIT."""

_CHANGING = (duckdb.StatementType.INSERT, duckdb.StatementType.UPDATE, duckdb.StatementType.DELETE)
_MOMENTS = (TypeKind.DATE, TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ)
_BEGINS = ("BEGIN", "START")
_COMMITS = ("COMMIT", "END")


def run_sql(text: str, tables: Sequence[TableRows]) -> Iterator[Step]:
    """Runs the statements one after the other, each on the rows at its start.

    Raises:
        InputError: A statement does not change rows, or it fails.
    """
    try:
        statements = duckdb.extract_statements(text)
    except duckdb.Error as error:
        raise InputError(f"the SQL cannot be parsed: {_first_line(error)}") from None
    if not statements:
        return
    with open_connection() as connection:
        _create(connection, tables)
        for statement in statements:
            sql = statement.query.strip().rstrip(";").strip()
            word = sql.upper().split(maxsplit=1)[0]
            if statement.type is duckdb.StatementType.TRANSACTION and word in (*_BEGINS, *_COMMITS):
                if word in _COMMITS:
                    yield None
                continue
            if statement.type not in _CHANGING:
                hint = "INSERT, UPDATE, DELETE and TRUNCATE change rows, COMMIT ends a transaction"
                raise InputError(f"{_shown(sql)} does not change rows", hint)
            yield _changes(connection, sql, tables)


def _changes(
    connection: duckdb.DuckDBPyConnection, sql: str, tables: Sequence[TableRows]
) -> list[tuple[TableRows, Event]]:
    _fill(connection, tables)
    before = [_rows(connection, table) for table in tables]
    try:
        connection.execute(sql)
    except duckdb.Error as error:
        raise InputError(f"{_shown(sql)} fails: {_first_line(error)}") from None
    after = [_rows(connection, table) for table in tables]
    changed = [(table, new) for table, old, new in zip(tables, before, after, strict=True) if new != old]
    return [(table, event) for table, rows in changed for event in table.replace(rows)]


def _create(connection: duckdb.DuckDBPyConnection, tables: Sequence[TableRows]) -> None:
    for schema in dict.fromkeys(each.table.schema for each in tables):
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
    for each in tables:
        columns = ", ".join(f"{_quoted(column.name)} {column.type.duckdb}" for column in each.columns)
        connection.execute(f"CREATE TABLE {_name(each)} ({columns})")
    if any(each.table.schema == "public" for each in tables):
        connection.execute("SET schema = 'public'")


def _fill(connection: duckdb.DuckDBPyConnection, tables: Sequence[TableRows]) -> None:
    for each in tables:
        connection.execute(f"DELETE FROM {_name(each)}")  # noqa: S608
        if each.rows:
            arrays = [pa.array([row[c.name] for row in each.rows], c.type.arrow) for c in each.columns]
            names = [f"c{number}" for number in range(len(arrays))]
            connection.register("incoming", pa.table(arrays, names=names))
            values = (c.type.duckdb_expression(n) for c, n in zip(each.columns, names, strict=True))
            connection.execute(f"INSERT INTO {_name(each)} SELECT {', '.join(values)} FROM incoming")  # noqa: S608
            connection.unregister("incoming")


def _rows(connection: duckdb.DuckDBPyConnection, each: TableRows) -> list[PlainRow]:
    names = [column.name for column in each.columns]
    selected = ", ".join(map(_selected, each.columns))
    found: list[tuple[Any, ...]] = connection.execute(
        f"SELECT {selected} FROM {_name(each)}"  # noqa: S608
    ).fetchall()
    return [dict(zip(names, row, strict=True)) for row in found]


def _selected(column: Column) -> str:
    """Returns the expression that reads the column, because Python has no infinite dates."""
    name = _quoted(column.name)
    return f"CAST({name} AS VARCHAR)" if column.type.kind in _MOMENTS else name


def _name(each: TableRows) -> str:
    return f"{_quoted(each.table.schema)}.{_quoted(each.table.name)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _shown(sql: str) -> str:
    line = " ".join(sql.split())
    return f"`{line[:77]}…`" if len(line) > 78 else f"`{line}`"


def _first_line(error: duckdb.Error) -> str:
    return str(error).partition("\n")[0].rstrip(".")
