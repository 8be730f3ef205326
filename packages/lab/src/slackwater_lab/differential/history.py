"""Tables, and what transactions do to their rows: as changes that stay possible when others are left out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from slackwater_lab.differential.sql_types import ENUMS, SqlType, Value

Row = tuple[Value | None, ...]
"""Values in the order of the columns as generated; None: NULL."""

SCHEMA = "public"
_KEYWORDS = {"order", "select"}
"""Those among generated names."""


@dataclass(frozen=True, slots=True)
class DrawnColumn:
    """A column.

    Attributes:
        name: Its name.
        type: Its type.
        nullable: Whether it may be NULL.
        position: Where its value is in a `Row`: leaving out a column leaves rows as they are.
    """

    name: str
    type: SqlType
    nullable: bool
    position: int


@dataclass(frozen=True, slots=True)
class DrawnTable:
    """A table with a primary key."""

    name: str
    columns: tuple[DrawnColumn, ...]
    primary_key: tuple[str, ...]
    is_full: bool
    """REPLICA IDENTITY FULL."""

    @property
    def key_positions(self) -> tuple[int, ...]:
        """The places of the primary key in a `Row`."""
        by_name = {column.name: column.position for column in self.columns}
        return tuple(by_name[name] for name in self.primary_key)

    def key(self, row: Row) -> Row:
        """A row's primary key."""
        return tuple(row[position] for position in self.key_positions)

    def ddl(self) -> str:
        """The CREATE statement for PostgreSQL."""
        columns = [f"{quoted(c.name)} {c.type.name}{'' if c.nullable else ' NOT NULL'}" for c in self.columns]
        key = ", ".join(map(quoted, self.primary_key))
        lines = ",\n    ".join([*columns, f"PRIMARY KEY ({key})"])
        full = f"\nALTER TABLE {self.name} REPLICA IDENTITY FULL;" if self.is_full else ""
        return f"CREATE TABLE {self.name} (\n    {lines}\n);{full}"


def schema_ddl(tables: Sequence[DrawnTable]) -> str:
    """CREATE statements of a schema."""
    uses_enum = any(column.type.name == "mood" for table in tables for column in table.columns)
    return "\n".join([*([ENUMS] if uses_enum else []), *(table.ddl() for table in tables)])


@dataclass(frozen=True, slots=True)
class Put:
    """INSERT, or UPDATE if a row of this key is there."""

    table: str
    row: Row
    leaves_out: bool = False
    """An update leaves unchanged values out, as PostgreSQL does if they are stored out of line."""


@dataclass(frozen=True, slots=True)
class Move:
    """UPDATE of the primary key of the row of this key, if there is one."""

    table: str
    key: Row
    row: Row
    leaves_out: bool = False
    """Unchanged values are left out, as PostgreSQL does if they are stored out of line."""


@dataclass(frozen=True, slots=True)
class Renumber:
    """UPDATE of the primary keys of several rows, in one statement.

    Nothing happens if the keys would not be unique afterwards. Meanwhile, they need not be if the primary key
    is deferrable, which it is in tables with REPLICA IDENTITY FULL: PostgreSQL asks for that.
    """

    table: str
    moves: tuple[tuple[Row, Row], ...]
    """Old keys and new rows, in the order in which the rows are found."""


@dataclass(frozen=True, slots=True)
class Replace:
    """INSERT of a row beside the one of its key, updates of one of them, DELETE of the other one.

    Nothing happens if there is no row of the key, or the primary key is not deferrable.
    """

    table: str
    row: Row
    versions: tuple[Row, ...]
    keeps_old: bool
    """The older row is updated and stays."""


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE of the row of this key, if there is one."""

    table: str
    key: Row


@dataclass(frozen=True, slots=True)
class Truncate:
    """TRUNCATE."""

    table: str


PlannedChange = Put | Move | Renumber | Replace | Delete | Truncate
"""What a transaction is to do; what comes of it depends on the rows that are there by then."""


def rows_of(change: PlannedChange) -> tuple[Row, ...]:
    """The rows that a change writes."""
    match change:
        case Put(row=row) | Move(row=row):
            return (row,)
        case Renumber(moves=moves):
            return tuple(row for _, row in moves)
        case Replace(row=row, versions=versions):
            return (row, *versions)
    return ()


@dataclass(frozen=True, slots=True)
class DrawnTransaction:
    """A transaction.

    Attributes:
        commit_lsn: Its commit.
        changes: In the order of the log.
        is_snapshot: Its rows are read, not written.
    """

    commit_lsn: int
    changes: tuple[PlannedChange, ...]
    is_snapshot: bool = False


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change event of Debezium.

    Attributes:
        table: The table.
        op: c, u, d, r or t.
        commit_lsn: Of its transaction.
        lsn: Its own.
        before: The old row, a key's columns only, or None.
        after: The new row, or None.
        left_out: Positions in `after` of values that were left out.
    """

    table: DrawnTable
    op: str
    commit_lsn: int
    lsn: int
    before: Row | None
    after: Row | None
    left_out: frozenset[int] = frozenset()

    def image(self, row: Row | None, *, is_old: bool) -> bytes | None:
        """A row as JSON."""
        if row is None:
            return None
        is_key_only = is_old and not self.table.is_full
        fields = []
        for column in self.table.columns:
            value = row[column.position]
            wire = "null" if value is None else value.wire
            if is_key_only and column.name not in self.table.primary_key:
                continue
            if not is_old and column.position in self.left_out:
                wire = column.type.unavailable
            fields.append(f"{json.dumps(column.name)}:{wire}")
        return ("{" + ",".join(fields) + "}").encode()

    def event(self) -> tuple[str, str, int, bytes | None, bytes | None, int | None]:
        """The change as the source of a pipeline reads it."""
        before = self.image(self.before, is_old=True)
        after = self.image(self.after, is_old=False)
        lsn = None if self.op == "r" else self.lsn
        return f"{SCHEMA}.{self.table.name}", self.op, self.commit_lsn, before, after, lsn


State = dict[str, dict[Row, Row]]
"""Rows by table and primary key."""


@dataclass(frozen=True, slots=True)
class DrawnCommit:
    """A transaction as it was committed."""

    lsn: int
    changes: tuple[RowChange, ...]
    touched: tuple[tuple[str, tuple[Row, ...]], ...]
    """For each table that it touched all its rows afterwards."""


def play(tables: Sequence[DrawnTable], transactions: Sequence[DrawnTransaction]) -> tuple[DrawnCommit, ...]:
    """Runs the transactions one after the other on empty tables."""
    database = _Database(tables)
    return tuple(database.commit(transaction) for transaction in transactions)


class _Database:
    def __init__(self, tables: Sequence[DrawnTable]) -> None:
        self._tables = {table.name: table for table in tables}
        self._rows: State = {table.name: {} for table in tables}
        self._lsn = 0

    def commit(self, transaction: DrawnTransaction) -> DrawnCommit:
        changes: list[RowChange] = []
        for planned in transaction.changes:
            table = self._tables.get(planned.table)
            if table is not None:
                changes += self._apply(table, planned, transaction)
        touched = sorted({change.table.name for change in changes})
        rows = tuple((name, tuple(self._rows[name].values())) for name in touched)
        return DrawnCommit(transaction.commit_lsn, tuple(changes), rows)

    def _apply(
        self, table: DrawnTable, planned: PlannedChange, transaction: DrawnTransaction
    ) -> list[RowChange]:
        rows = self._rows[table.name]
        commit_lsn = transaction.commit_lsn
        lsn = self._next_lsn(commit_lsn)
        match planned:
            case Truncate():
                rows.clear()
                return [RowChange(table, "t", commit_lsn, lsn, None, None)]
            case Delete(key=key):
                old = rows.pop(key, None)
                return [] if old is None else [RowChange(table, "d", commit_lsn, lsn, old, None)]
            case Move(key=key, row=row, leaves_out=leaves_out):
                is_possible = key in rows and table.key(row) not in rows
                return self._move(table, key, row, commit_lsn, leaves_out=leaves_out) if is_possible else []
            case Renumber(moves=moves):
                return self._renumber(table, moves, commit_lsn)
            case Replace():
                return self._replace(table, planned, commit_lsn)
            case Put(row=row):
                old = rows.get(table.key(row))
                rows[table.key(row)] = row
                if old is None:
                    op = "r" if transaction.is_snapshot else "c"
                    return [RowChange(table, op, commit_lsn, lsn, None, row)]
                left_out = _left_out(table, old, row) if planned.leaves_out else frozenset()
                before = old if table.is_full else None
                return [RowChange(table, "u", commit_lsn, lsn, before, row, left_out)]

    def _next_lsn(self, commit_lsn: int) -> int:
        self._lsn = max(self._lsn + 1, commit_lsn - 500)
        return self._lsn

    def _move(
        self, table: DrawnTable, key: Row, row: Row, commit_lsn: int, *, leaves_out: bool
    ) -> list[RowChange]:
        old = self._rows[table.name].pop(key)
        self._rows[table.name][table.key(row)] = row
        # Debezium takes the values from the old row if the record has it.
        left_out = _left_out(table, old, row) if leaves_out and not table.is_full else frozenset[int]()
        delete = RowChange(table, "d", commit_lsn, self._lsn, old, None)
        return [delete, RowChange(table, "c", commit_lsn, self._lsn, None, row, left_out)]

    def _renumber(
        self, table: DrawnTable, moves: tuple[tuple[Row, Row], ...], commit_lsn: int
    ) -> list[RowChange]:
        before = self._rows[table.name]
        found = {key: row for key, row in moves if key in before and table.key(row) != key}
        after = {key: row for key, row in before.items() if key not in found}
        if after.keys() & {table.key(row) for row in found.values()}:
            return []
        changes: list[RowChange] = []
        keys = set(before)
        for key, row in found.items():
            lsn = self._next_lsn(commit_lsn)
            if (table.key(row) in keys and not table.is_full) or table.key(row) in after:
                return []
            keys ^= {key, table.key(row)}
            after[table.key(row)] = row
            changes.append(RowChange(table, "d", commit_lsn, lsn, before[key], None))
            changes.append(RowChange(table, "c", commit_lsn, lsn, None, row))
        self._rows[table.name] = after
        return changes

    def _replace(self, table: DrawnTable, planned: Replace, commit_lsn: int) -> list[RowChange]:
        key = table.key(planned.row)
        old = self._rows[table.name].get(key)
        if old is None or not table.is_full:
            return []
        changes = [RowChange(table, "c", commit_lsn, self._lsn, None, planned.row)]
        kept, removed = (old, planned.row) if planned.keeps_old else (planned.row, old)
        for version in planned.versions:
            changes.append(RowChange(table, "u", commit_lsn, self._next_lsn(commit_lsn), kept, version))
            kept = version
        self._rows[table.name][key] = kept
        return [*changes, RowChange(table, "d", commit_lsn, self._next_lsn(commit_lsn), removed, None)]


def _left_out(table: DrawnTable, old: Row, new: Row) -> frozenset[int]:
    return frozenset(
        column.position
        for column in table.columns
        if column.type.is_toastable
        and column.name not in table.primary_key
        and new[column.position] is not None
        and new[column.position] == old[column.position]
    )


def quoted(name: str) -> str:
    """A name in SQL."""
    is_plain = name.isascii() and name.islower() and name.isidentifier() and name not in _KEYWORDS
    return name if is_plain else f'"{name}"'
