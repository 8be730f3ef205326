"""Random transactions."""

from collections.abc import Sequence

from slackwater_differential.case import Feature
from slackwater_differential.dice import Dice
from slackwater_differential.history import (
    Column,
    Delete,
    Intent,
    Move,
    Put,
    Row,
    Table,
    Transaction,
    Truncate,
)
from slackwater_differential.schema_generator import domain, is_reference
from slackwater_differential.sql_types import Value

_MOST_ROWS = 10
"""Of a table."""
_LSN_STEP = 2_000


def make_transactions(dice: Dice, tables: Sequence[Table]) -> tuple[Transaction, ...]:
    """Five to forty transactions, few more often than many; the first ones fill the tables."""
    return _Historian(dice, tables).write(5 + min(dice.number(0, 35), dice.number(0, 35)))


class _Historian:
    def __init__(self, dice: Dice, tables: Sequence[Table]) -> None:
        self._dice = dice
        self._tables = tables
        self._rows: dict[str, dict[Row, Row]] = {table.name: {} for table in tables}
        self._removed: dict[str, list[Row]] = {table.name: [] for table in tables}
        null_shares = (0.0, 0.1, 0.25)
        self._null_share = {
            (table.name, column.name): dice.one(null_shares) for table in tables for column in table.columns
        }
        self._domain = {
            (table.name, column.name): self._narrowed(table, column)
            for table in tables
            for column in table.columns
        }
        self._leaves_out = dice.may(Feature.LEFT_OUT, 0.4)
        self._may_move = dice.may(Feature.PRIMARY_KEY_CHANGE, 0.4)
        self._may_truncate = dice.may(Feature.TRUNCATE, 0.1)
        self._starts_with_snapshot = dice.may(Feature.SNAPSHOT, 0.3)

    def _narrowed(self, table: Table, column: Column) -> Sequence[Value]:
        values = domain(table, column)
        is_whole = is_reference(table, column) or self._dice.chance(0.5)
        return values if is_whole else self._dice.some(values, 2, len(values))

    def write(self, count: int) -> tuple[Transaction, ...]:
        lsn = self._dice.number(1, 1_000_000)
        transactions = []
        for number in range(count):
            lsn += _LSN_STEP + self._dice.number(0, 100)
            intents = self._filling() if number < 2 else self._work()
            is_snapshot = number == 0 and self._starts_with_snapshot
            transactions.append(Transaction(lsn, tuple(intents), is_snapshot))
        return tuple(transactions)

    def _filling(self) -> list[Intent]:
        return [
            self._put(table, self._new_row(table))
            for table in self._tables
            for _ in range(self._dice.number(2, 5))
        ]

    def _work(self) -> list[Intent]:
        intents: list[Intent] = []
        for _ in range(self._dice.weighted([(1, 5), (2, 3), (3, 2), (6, 1)])):
            intents += self._step(self._dice.one(self._tables))
        return intents

    def _step(self, table: Table) -> list[Intent]:
        rows = self._rows[table.name]
        if self._may_truncate and self._dice.chance(0.05):
            rows.clear()
            return [Truncate(table.name)]
        if not rows or (len(rows) < _MOST_ROWS and self._dice.chance(0.35)):
            return [self._insert(table)]
        row = self._dice.one(list(rows.values()))
        kind = self._dice.weighted(
            [("update", 7), ("delete", 2), ("same", 1), ("burst", 1), ("group", 1), ("move", 2)]
        )
        if kind == "delete":
            return [self._delete(table, row)]
        if kind == "same":
            return [self._put(table, row)]
        if kind == "burst":
            return self._burst(table, row)
        if kind == "group":
            return self._empty_group(table, row)
        if kind == "move" and self._may_move:
            return self._move(table, row)
        return [self._put(table, self._changed(table, row))]

    def _insert(self, table: Table) -> Intent:
        removed = self._removed[table.name]
        is_return = removed and self._dice.chance(0.3)
        return self._put(table, self._dice.one(removed) if is_return else self._new_row(table))

    def _burst(self, table: Table, row: Row) -> list[Intent]:
        """Several changes of one row."""
        intents: list[Intent] = []
        for _ in range(self._dice.number(2, 4)):
            is_there = table.key(row) in self._rows[table.name]
            if is_there and self._dice.chance(0.3):
                intents.append(self._delete(table, row))
            else:
                row = self._changed(table, row)
                intents.append(self._put(table, row))
        return intents

    def _empty_group(self, table: Table, row: Row) -> list[Intent]:
        """All rows go that share a value."""
        position = self._dice.one(table.columns).position
        alike = [other for other in self._rows[table.name].values() if other[position] == row[position]]
        return [self._delete(table, other) for other in alike]

    def _move(self, table: Table, row: Row) -> list[Intent]:
        new = self._new_row(table)
        kept = {c.position: row[c.position] for c in table.columns if self._dice.chance(0.7)}
        for position in table.key_positions:
            kept.pop(position, None)
        new = tuple(kept.get(position, value) for position, value in enumerate(new))
        rows = self._rows[table.name]
        if table.key(new) in rows:
            return [self._put(table, self._changed(table, row))]
        del rows[table.key(row)]
        rows[table.key(new)] = new
        return [Move(table.name, table.key(row), new)]

    def _put(self, table: Table, row: Row) -> Intent:
        self._rows[table.name][table.key(row)] = row
        return Put(table.name, row, self._leaves_out and self._dice.chance(0.5))

    def _delete(self, table: Table, row: Row) -> Intent:
        del self._rows[table.name][table.key(row)]
        self._removed[table.name].append(row)
        return Delete(table.name, table.key(row))

    def _changed(self, table: Table, row: Row) -> Row:
        changeable = [c.position for c in table.columns if c.name not in table.primary_key]
        positions = set(self._dice.some(changeable, 1, 2))
        new = self._new_row(table)
        return tuple(new[i] if i in positions else value for i, value in enumerate(row))

    def _new_row(self, table: Table) -> Row:
        ordered = sorted(table.columns, key=lambda column: column.position)
        return tuple(
            None
            if column.nullable and self._dice.chance(self._null_share[table.name, column.name])
            else self._dice.one(self._domain[table.name, column.name])
            for column in ordered
        )
