"""Random tables, and random transactions on them."""

from collections.abc import Sequence

from slackwater_lab.differential.case import Choices, Feature
from slackwater_lab.differential.history import (
    Delete,
    DrawnColumn,
    DrawnTable,
    DrawnTransaction,
    Move,
    PlannedChange,
    Put,
    Renumber,
    Replace,
    Row,
    Truncate,
)
from slackwater_lab.differential.sql_types import (
    BIGINT,
    COLUMN_TYPES,
    DATE,
    INTEGER,
    SMALLINT,
    TEXT,
    UUID,
    VARCHAR,
    Family,
    SqlType,
    Value,
    integer,
    text,
)

_ODD_NAMES = ("Amount", "with space", "order", "größe", "select", "a-b", "count")
_KEY_TYPES = ((INTEGER, 5.0), (BIGINT, 3.0), (TEXT, 1.0), (SMALLINT, 1.0), (UUID, 0.5), (VARCHAR, 0.5))
_REFERENCES = ((INTEGER, 4.0), (BIGINT, 3.0), (TEXT, 1.0), (SMALLINT, 0.5), (DATE, 0.3), (UUID, 0.3))
_KEYS = 4
"""Different values of a column that identifies or refers."""


def make_tables(choices: Choices) -> tuple[DrawnTable, ...]:
    """Two to five tables, each with a primary key, columns that may refer to others, and plain ones."""
    main_type = choices.weighted(_KEY_TYPES)
    return tuple(_table(choices, f"t{number}", main_type) for number in range(1, choices.number(2, 5) + 1))


def _table(choices: Choices, name: str, main_type: SqlType) -> DrawnTable:
    makers = _Columns(choices)
    key = [
        makers.add("id", main_type if choices.chance(0.7) else choices.weighted(_KEY_TYPES), nullable=False)
    ]
    if choices.may(Feature.COMPOSITE_KEY, 0.2):
        key.append(makers.add("sub", choices.weighted(_KEY_TYPES), nullable=False))
    for number in range(choices.number(1, 2)):
        of_type = main_type if choices.chance(0.7) else choices.weighted(_REFERENCES)
        makers.add(f"r{number}", of_type, nullable=choices.chance(0.7))
    for number in range(choices.number(1, 4)):
        makers.add(f"v{number}", choices.one(COLUMN_TYPES), nullable=choices.chance(0.6), may_be_odd=True)
    columns = tuple(makers.columns)
    if choices.chance(0.3):
        columns = tuple(choices.some(columns, len(columns), len(columns)))
    is_full = not choices.may(Feature.PARTIAL_IDENTITY, 0.25)
    return DrawnTable(name, columns, tuple(key), is_full)


class _Columns:
    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self.columns: list[DrawnColumn] = []

    def add(self, name: str, of_type: SqlType, *, nullable: bool, may_be_odd: bool = False) -> str:
        if may_be_odd and self._choices.may(Feature.ODD_NAMES, 0.04):
            name = self._choices.one([odd for odd in _ODD_NAMES if odd not in self._names()])
        self.columns.append(DrawnColumn(name, of_type, nullable, len(self.columns)))
        return name

    def _names(self) -> set[str]:
        return {column.name for column in self.columns}


def is_reference(table: DrawnTable, column: DrawnColumn) -> bool:
    """Its values identify rows or refer to such."""
    return column.name in table.primary_key or (column.name[:1] == "r" and column.name[1:].isdigit())


def domain(table: DrawnTable, column: DrawnColumn) -> Sequence[Value]:
    """The values that rows of a table have in a column, NULL aside."""
    if is_reference(table, column):
        return key_values(column.type)
    return column.type.values


def key_values(of_type: SqlType) -> Sequence[Value]:
    """Few values, the same in all tables, so that rows find each other."""
    if of_type.family is Family.INTEGER:
        return [integer(number) for number in range(1, _KEYS + 1)]
    if of_type.family is Family.TEXT:
        return [text(letter) for letter in ("a", "b", "c", "A", "")]
    return of_type.values[:_KEYS]


_MOST_ROWS = 10
"""Of a table."""
_LSN_STEP = 2_000


def make_transactions(
    choices: Choices,
    tables: Sequence[DrawnTable],
    count: int = 0,
    null_shares: Sequence[float] = (0.0, 0.1, 0.25),
) -> tuple[DrawnTransaction, ...]:
    """This many transactions, or five to forty, few more often than many; the first ones fill the tables.

    Each column that may be NULL has one of the shares of NULLs.
    """
    historian = _Historian(choices, tables, null_shares)
    return historian.write(count or 5 + min(choices.number(0, 35), choices.number(0, 35)))


class _Historian:
    def __init__(self, choices: Choices, tables: Sequence[DrawnTable], null_shares: Sequence[float]) -> None:
        self._choices = choices
        self._tables = tables
        self._rows: dict[str, dict[Row, Row]] = {table.name: {} for table in tables}
        self._removed: dict[str, list[Row]] = {table.name: [] for table in tables}
        self._null_share = {
            (table.name, column.name): choices.one(null_shares)
            for table in tables
            for column in table.columns
        }
        self._domain = {
            (table.name, column.name): self._narrowed(table, column)
            for table in tables
            for column in table.columns
        }
        self._leaves_out = choices.may(Feature.LEFT_OUT, 0.4)
        self._may_move = choices.may(Feature.PRIMARY_KEY_CHANGE, 0.4)
        self._may_overlap = choices.may(Feature.OVERLAP, 0.3)
        self._may_truncate = choices.may(Feature.TRUNCATE, 0.1)
        self._starts_with_snapshot = choices.may(Feature.SNAPSHOT, 0.3)

    def _narrowed(self, table: DrawnTable, column: DrawnColumn) -> Sequence[Value]:
        values = domain(table, column)
        is_whole = is_reference(table, column) or self._choices.chance(0.5)
        return values if is_whole else self._choices.some(values, min(2, len(values)), len(values))

    def write(self, count: int) -> tuple[DrawnTransaction, ...]:
        lsn = self._choices.number(1, 1_000_000)
        transactions = []
        for number in range(count):
            lsn += _LSN_STEP + self._choices.number(0, 100)
            changes = self._filling() if number < 2 else self._work()
            is_snapshot = number == 0 and self._starts_with_snapshot
            transactions.append(DrawnTransaction(lsn, tuple(changes), is_snapshot))
        return tuple(transactions)

    def _filling(self) -> list[PlannedChange]:
        return [
            self._put(table, self._new_row(table))
            for table in self._tables
            for _ in range(self._choices.number(2, 5))
        ]

    def _work(self) -> list[PlannedChange]:
        changes: list[PlannedChange] = []
        for _ in range(self._choices.weighted([(1, 5), (2, 3), (3, 2), (6, 1)])):
            changes += self._step(self._choices.one(self._tables))
        return changes

    def _step(self, table: DrawnTable) -> list[PlannedChange]:
        rows = self._rows[table.name]
        if self._may_truncate and self._choices.chance(0.05):
            rows.clear()
            return [Truncate(table.name)]
        if not rows or (len(rows) < _MOST_ROWS and self._choices.chance(0.35)):
            return [self._insert(table)]
        row = self._choices.one(list(rows.values()))
        kind = self._choices.weighted(
            [
                ("update", 7),
                ("delete", 2),
                ("same", 1),
                ("burst", 1),
                ("group", 1),
                ("move", 2),
                ("overlap", 1),
            ]
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
        if kind == "overlap" and self._may_overlap and table.is_full:
            return self._renumber(table) if self._choices.chance(0.5) else self._replace(table, row)
        return [self._put(table, self._changed(table, row))]

    def _insert(self, table: DrawnTable) -> PlannedChange:
        removed = self._removed[table.name]
        is_return = removed and self._choices.chance(0.3)
        return self._put(table, self._choices.one(removed) if is_return else self._new_row(table))

    def _burst(self, table: DrawnTable, row: Row) -> list[PlannedChange]:
        """Several changes of one row."""
        changes: list[PlannedChange] = []
        for _ in range(self._choices.number(2, 4)):
            is_there = table.key(row) in self._rows[table.name]
            if is_there and self._choices.chance(0.3):
                changes.append(self._delete(table, row))
            else:
                row = self._changed(table, row)
                changes.append(self._put(table, row))
        return changes

    def _empty_group(self, table: DrawnTable, row: Row) -> list[PlannedChange]:
        """All rows go that share a value."""
        position = self._choices.one(table.columns).position
        alike = [other for other in self._rows[table.name].values() if other[position] == row[position]]
        return [self._delete(table, other) for other in alike]

    def _move(self, table: DrawnTable, row: Row) -> list[PlannedChange]:
        new = self._new_row(table)
        kept = {c.position: row[c.position] for c in table.columns if self._choices.chance(0.7)}
        for position in table.key_positions:
            kept.pop(position, None)
        new = tuple(kept.get(position, value) for position, value in enumerate(new))
        rows = self._rows[table.name]
        if table.key(new) in rows:
            return [self._put(table, self._changed(table, row))]
        del rows[table.key(row)]
        rows[table.key(new)] = new
        return [Move(table.name, table.key(row), new, self._leaves_out and self._choices.chance(0.5))]

    def _renumber(self, table: DrawnTable) -> list[PlannedChange]:
        """The keys of some rows go around, so that each but the last meets the row that had its new key."""
        rows = self._rows[table.name]
        found = self._choices.some(list(rows.values()), 1, 4)
        keys = [table.key(row) for row in (*found[1:], found[0])]
        moved = [_with_key(table, row, key) for row, key in zip(found, keys, strict=True)]
        if self._choices.chance(0.5):
            moved[-1] = self._new_row(table)
        for row in found:
            del rows[table.key(row)]
        if any(table.key(row) in rows for row in moved) or len({*map(table.key, moved)}) < len(moved):
            rows.update((table.key(row), row) for row in found)
            return []
        rows.update((table.key(row), row) for row in moved)
        return [Renumber(table.name, tuple(zip(map(table.key, found), moved, strict=True)))]

    def _replace(self, table: DrawnTable, row: Row) -> list[PlannedChange]:
        new = self._changed(table, row)
        versions = tuple(self._changed(table, row) for _ in range(self._choices.number(0, 2)))
        keeps_old = self._choices.chance(0.5)
        self._rows[table.name][table.key(row)] = (row if keeps_old else new, *versions)[-1]
        return [Replace(table.name, new, versions, keeps_old)]

    def _put(self, table: DrawnTable, row: Row) -> PlannedChange:
        self._rows[table.name][table.key(row)] = row
        return Put(table.name, row, self._leaves_out and self._choices.chance(0.5))

    def _delete(self, table: DrawnTable, row: Row) -> PlannedChange:
        del self._rows[table.name][table.key(row)]
        self._removed[table.name].append(row)
        return Delete(table.name, table.key(row))

    def _changed(self, table: DrawnTable, row: Row) -> Row:
        changeable = [c.position for c in table.columns if c.name not in table.primary_key]
        positions = set(self._choices.some(changeable, 1, 2))
        new = self._new_row(table)
        return tuple(new[i] if i in positions else value for i, value in enumerate(row))

    def _new_row(self, table: DrawnTable) -> Row:
        ordered = sorted(table.columns, key=lambda column: column.position)
        return tuple(
            None
            if column.nullable and self._choices.chance(self._null_share[table.name, column.name])
            else self._choices.one(self._domain[table.name, column.name])
            for column in ordered
        )


def _with_key(table: DrawnTable, row: Row, key: Row) -> Row:
    values = dict(zip(table.key_positions, key, strict=True))
    return tuple(values.get(position, value) for position, value in enumerate(row))
