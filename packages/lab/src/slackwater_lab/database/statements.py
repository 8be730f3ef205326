"""A workload as SQL: its tables, its first rows, and each transaction in few statements, however large."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql

from slackwater.protocol import parse_position
from slackwater_lab.workloads.workload import (
    BusinessTransaction,
    Delete,
    Insert,
    Operation,
    Plus,
    Undone,
    Update,
    Workload,
)

Connection = psycopg.Connection[Any]
MAX_ROWS = 20_000
"""Of one statement."""
_types: "WeakKeyDictionary[Connection, dict[str, dict[str, str]]]" = WeakKeyDictionary()
_FIRST_CHANGES = 10_000
"""Of a transaction that writes first rows."""


def execute_transaction(connection: Connection, transaction: BusinessTransaction) -> None:
    """Executes a transaction and commits it, or rolls it back if the workload says so.

    ``held_open_for`` means nothing here.

    Raises:
        psycopg.Error: whatever the database says; the transaction is then still open.
    """
    send(connection, transaction.operations)
    if transaction.is_rolled_back:
        connection.rollback()
    else:
        connection.commit()


def send(connection: Connection, operations: Sequence[Operation]) -> str | None:
    """Executes operations in the open transaction, in one round trip if the tables are known.

    Returns:
        The transaction's id; None if it has changed nothing.
    """
    types = {table: _column_types(connection, table) for table in tables_of(operations)}
    with connection.pipeline():
        _execute(connection, operations, types)
        own = connection.execute("SELECT pg_current_xact_id_if_assigned()::text")
    row = own.fetchone()
    return None if row is None else row[0]


def _execute(
    connection: Connection, operations: Iterable[Operation], types: Mapping[str, dict[str, str]]
) -> None:
    for group in grouped(operations):
        first = group[0]
        if isinstance(first, Undone):
            connection.execute("SAVEPOINT undone")
            _execute(connection, first.operations, types)
            connection.execute("ROLLBACK TO SAVEPOINT undone")
        else:
            query, parameters = statement(group, types[first.table])
            connection.execute(query, parameters)


def tables_of(operations: Iterable[Operation]) -> set[str]:
    """The tables that operations touch, also those of which all is undone."""
    found: set[str] = set()
    for operation in operations:
        found |= tables_of(operation.operations) if isinstance(operation, Undone) else {operation.table}
    return found


def grouped(operations: Iterable[Operation]) -> Iterator[list[Any]]:
    """Neighbours of one kind that change the same columns of different rows of one table."""
    group: list[Operation] = []
    shape: object = None
    ids: set[int] = set()
    for operation in operations:
        own, row_id = _shape(operation), _row_id(operation)
        if group and (own != shape or row_id in ids or len(group) >= MAX_ROWS):
            yield group
            group, ids = [], set()
        shape = own
        group.append(operation)
        ids.add(row_id)
    if group:
        yield group


def _row_id(operation: Operation) -> int:
    if isinstance(operation, Undone):
        return 0
    if isinstance(operation, Insert):
        row_id = operation.row["id"]
        return row_id if isinstance(row_id, int) else 0
    return operation.id


def _shape(operation: Operation) -> tuple[object, ...]:
    match operation:
        case Insert(table, row):
            return Insert, table, *row
        case Update(table, _, changes):
            return Update, table, *((name, isinstance(value, Plus)) for name, value in changes.items())
        case Undone():
            return (object(),)  # never in one statement with anything else
        case _:
            return type(operation), operation.table


def statement(group: Sequence[Any], types: dict[str, str]) -> tuple[sql.Composed, list[list[Any]]]:
    """One statement for operations of one shape, with an array for each column."""
    first = group[0]
    table = sql.Identifier(*first.table.split("."))
    match first:
        case Insert(_, row):
            values: list[list[Any]] = [[each.row[name] for each in group] for name in row]
            names = [sql.Identifier(name) for name in row]
            query = sql.SQL("INSERT INTO {} ({}) SELECT * FROM unnest({})").format(
                table, sql.SQL(", ").join(names), _arrays(types, row)
            )
        case Update(_, _, changes):
            values = [[each.id for each in group]]
            values += [[_amount(each.changes[name]) for each in group] for name in changes]
            query = sql.SQL("UPDATE {} t SET {} FROM unnest({}) AS v(key, {}) WHERE t.id = v.key").format(
                table,
                sql.SQL(", ").join(_assignment(name, value) for name, value in changes.items()),
                _arrays(types, ["id", *changes]),
                sql.SQL(", ").join(_new(name) for name in changes),
            )
        case Delete():
            values = [[each.id for each in group]]
            query = sql.SQL("DELETE FROM {} WHERE id = ANY(%s)").format(table)
        case _:
            values = [[each.id for each in group]]
            query = sql.SQL("SELECT count(t::text) FROM {} t WHERE id = ANY(%s)").format(table)
    return query, values


def _amount(value: Any) -> Any:
    return value.amount if isinstance(value, Plus) else value


def _new(name: str) -> sql.Identifier:
    return sql.Identifier(f"new_{name}")


def _assignment(name: str, value: object) -> sql.Composed:
    column, new = sql.Identifier(name), _new(name)
    if isinstance(value, Plus):
        return sql.SQL("{} = t.{} + v.{}").format(column, column, new)
    return sql.SQL("{} = v.{}").format(column, new)


def _arrays(types: dict[str, str], names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("%s::{}[]").format(sql.SQL(types[name])) for name in names)


def _column_types(connection: Connection, table: str) -> dict[str, str]:
    """Column to the name of its type, asked for once per connection and table."""
    known = _types.setdefault(connection, {})
    if table not in known:
        rows = connection.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            [table],
        ).fetchall()
        known[table] = dict(rows)
    return known[table]


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
        for transaction in merge_inserts(workload.first(), _FIRST_CHANGES):
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


def merge_inserts(transactions: Iterable[BusinessTransaction], changes: int) -> Iterator[BusinessTransaction]:
    """Transactions that only insert, several in one, their rows by table."""
    stream = (operation for transaction in transactions for operation in transaction.operations)
    while batch := [each for each in islice(stream, changes) if isinstance(each, Insert)]:
        batch.sort(key=lambda insert: insert.table)
        yield BusinessTransaction(tuple(batch))
