"""The rows of a table, and the change events that a connector would write for changes of them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from slackwater.pipeline.testing.values import wire_value
from slackwater.protocol import InputError
from slackwater.sql.catalog import Column, Table, similar
from slackwater.sql.column_type import TypeKind

PlainRow = Mapping[str, object]
"""Values by the name of their column, as people write them."""
WireRow = dict[str, Any]
"""Values of all columns of supported types, as a connector writes them."""
Event = tuple[str, bytes | None, bytes | None]
"""Debezium's operation, and the old and the new row in JSON."""

_SHOWN_NAMES = 12


class TableRows:
    """The rows of one table in the open transaction. Use it from one thread."""

    def __init__(self, table: Table, read: Collection[str]) -> None:
        """Begins without rows.

        Args:
            table: The declared table.
            read: The names of the columns that views read; rows need a value for these unless NULL is
                allowed.
        """
        self.table = table
        self.columns = tuple(column for column in table.columns if column.type.is_supported)
        self._by_name = {column.name: column for column in table.columns}
        self._needed = frozenset(read) | frozenset(table.primary_key)
        self._rows: dict[object, WireRow] = {}
        self._added = 0

    @property
    def rows(self) -> Sequence[WireRow]:
        """All rows, in the order in which they were inserted."""
        return tuple(self._rows.values())

    def insert(self, row: PlainRow) -> list[Event]:
        """Adds a row.

        Raises:
            InputError: It is not a row of the table, or its primary key exists.
        """
        given = self._wire(row)
        wire = {column.name: given.get(column.name) for column in self.columns}
        for column in self.columns:
            if wire[column.name] is None and not column.nullable and column.name in self._needed:
                problem = f"column {column.name} of {self._name} is NOT NULL and has no value"
                raise InputError(problem, f"a row needs {', '.join(map(_declared, self._wanted()))}")
        key = self._new_key(wire)
        if key in self._rows:
            hint = "change it with an update, or delete it first"
            raise InputError(f"{self._name} already has a row with {self._shown_key(wire)}", hint)
        self._rows[key] = wire
        return [("c", None, _json(wire))]

    def update(self, row: PlainRow, where: PlainRow | None = None) -> list[Event]:
        """Changes the rows that have the values of `where`.

        Args:
            row: The new values; other columns stay the same.
            where: The values; None if the row's own primary key identifies the row.

        Raises:
            InputError: A value is impossible, or no row matches.
        """
        new = self._wire(row)
        found = self._found("update", new if where is None else self._wire(where), is_key=where is None)
        events: list[Event] = []
        for key, old in found:
            changed = {**old, **new}
            moved = self._key(changed) if self.table.primary_key else key
            if moved != key and moved in self._rows:
                raise InputError(f"{self._name} already has a row with {self._shown_key(changed)}")
            events += self._replaced(key, old, moved, changed)
        return events

    def delete(self, where: PlainRow) -> list[Event]:
        """Removes the rows that have these values.

        Raises:
            InputError: A value is impossible, or no row matches.
        """
        found = self._found("delete", self._wire(where), is_key=False)
        for key, _ in found:
            del self._rows[key]
        return [("d", self._old(row), None) for _, row in found]

    def truncate(self) -> list[Event]:
        """Removes all rows."""
        self._rows.clear()
        return [("t", None, None)]

    def replace(self, rows: Sequence[PlainRow]) -> list[Event]:
        """Replaces all rows of the table, with as few changes as possible.

        Raises:
            InputError: A row is not a row of the table, or two have the same primary key.
        """
        new: dict[object, WireRow] = {}
        for row in rows:
            given = self._wire(row)
            wire = {column.name: given.get(column.name) for column in self.columns}
            key = self._new_key(wire) if self.table.primary_key else self._same(wire, new)
            if key in new:
                raise InputError(f"{self._name} has two rows with {self._shown_key(wire)}")
            new[key] = wire
        gone = [(key, row) for key, row in self._rows.items() if key not in new]
        if gone:
            self._check_identity("delete")
        events: list[Event] = [("d", self._old(row), None) for _, row in gone]
        for key, row in new.items():
            old = self._rows.get(key)
            if old is None:
                events.append(("c", None, _json(row)))
            elif old != row:
                events.append(("u", self._old(old) if self.table.replica_identity_full else None, _json(row)))
        self._rows = new
        return events

    def _same(self, wire: WireRow, taken: Mapping[object, WireRow]) -> object:
        """Returns the key of an equal row that is not taken yet, in a table without a primary key."""
        for key, row in self._rows.items():
            if row == wire and key not in taken:
                return key
        return self._new_key(wire)

    def _replaced(self, key: object, old: WireRow, moved: object, new: WireRow) -> list[Event]:
        if moved == key:
            self._rows[key] = new
            return [("u", self._old(old) if self.table.replica_identity_full else None, _json(new))]
        del self._rows[key]
        self._rows[moved] = new
        return [("d", self._old(old), None), ("c", None, _json(new))]

    def _found(self, what: str, where: WireRow, *, is_key: bool) -> list[tuple[object, WireRow]]:
        self._check_identity(what)
        if is_key:
            missing = [name for name in self.table.primary_key if where.get(name) is None]
            if missing or not self.table.primary_key:
                names = ", ".join(self.table.primary_key) or "no primary key"
                problem = f"it is not clear which row of {self._name} to {what}: its primary key is {names}"
                raise InputError(problem, "give the primary key, or say which rows with where=")
            key = self._key(where)
            found = [(key, self._rows[key])] if key in self._rows else []
        else:
            found = [
                (key, row)
                for key, row in self._rows.items()
                if all(self._equal(name, row[name], value) for name, value in where.items())
            ]
        if not found:
            shown = self._shown_key(where) if is_key else _shown(where)
            raise InputError(f"there is no row to {what} in {self._name} with {shown}", self._there())
        return found

    def _check_identity(self, what: str) -> None:
        if not self.table.primary_key and not self.table.replica_identity_full:
            raise InputError(
                f"{self._name} has neither a primary key nor REPLICA IDENTITY FULL: PostgreSQL refuses to "
                f"{what} rows of such a table while it is published",
                f"ALTER TABLE {self._name} REPLICA IDENTITY FULL, in the database and in the schema file",
            )

    def _there(self) -> str:
        keys = [self._shown_key(row) for row in self._rows.values()]
        if not keys:
            return "the table has no rows"
        more = f" and {len(keys) - _SHOWN_NAMES} more" if len(keys) > _SHOWN_NAMES else ""
        return f"it has {', '.join(keys[:_SHOWN_NAMES])}{more}"

    def _wire(self, row: PlainRow) -> WireRow:
        if not isinstance(row, Mapping):
            raise InputError(f"a row of {self._name} must be a mapping of columns to values, not {row!r}")
        wire: WireRow = {}
        for name, value in row.items():
            column = self._by_name.get(name)
            if column is None:
                raise InputError(f"{self._name} has no column {name}", self._meant(name))
            if column.type.is_supported:
                wire[name] = self._value(column, value)
        return wire

    def _value(self, column: Column, value: object) -> Any:
        if value is None:
            if not column.nullable and column.name in self._needed:
                raise InputError(f"column {column.name} of {self._name} is NOT NULL")
            return None
        try:
            return wire_value(column.type, value)
        except ValueError as error:
            raise InputError(f"column {column.name} of {self._name}: {error}") from None

    def _meant(self, name: str) -> str:
        names = similar(name, [column.name for column in self.table.columns])
        if names:
            return f"did you mean {' or '.join(names)}?"
        return f"it has {', '.join(column.name for column in self.table.columns)}"

    def _wanted(self) -> Iterator[Column]:
        return (c for c in self.columns if c.name in self._needed and not c.nullable)

    def _new_key(self, row: WireRow) -> object:
        if self.table.primary_key:
            return self._key(row)
        self._added += 1
        return self._added

    def _key(self, row: WireRow) -> object:
        return tuple(self._comparable(name, row[name]) for name in self.table.primary_key)

    def _equal(self, name: str, one: Any, other: Any) -> bool:
        return bool(self._comparable(name, one) == self._comparable(name, other))

    def _comparable(self, name: str, value: Any) -> Any:
        """Returns a value that is equal if the values are equal in SQL."""
        is_numeric = self._by_name[name].type.kind is TypeKind.NUMERIC
        return Decimal(value) if is_numeric and value is not None else value

    def _old(self, row: WireRow) -> bytes:
        """Returns the old row as far as the table's replica identity writes it to the log."""
        if self.table.replica_identity_full:
            return _json(row)
        return _json({name: row[name] for name in self.table.primary_key})

    def _shown_key(self, row: WireRow) -> str:
        return _shown({name: row.get(name) for name in self.table.primary_key}) or _shown(row)

    @property
    def _name(self) -> str:
        return self.table.full_name


def _declared(column: Column) -> str:
    return f"{column.name} {column.type.name}"


def _shown(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {_text(value)}" for name, value in row.items())


def _text(value: Any) -> str:
    return "NULL" if value is None else str(value)


def _json(row: WireRow) -> bytes:
    return msgspec.json.encode(row)
