"""Random tables."""

from collections.abc import Sequence

from slackwater_differential.case import Feature
from slackwater_differential.dice import Dice
from slackwater_differential.history import Column, Table
from slackwater_differential.sql_types import (
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


def make_tables(dice: Dice) -> tuple[Table, ...]:
    """Two to five tables, each with a primary key, columns that may refer to others, and plain ones."""
    main_type = dice.weighted(_KEY_TYPES)
    return tuple(_table(dice, f"t{number}", main_type) for number in range(1, dice.number(2, 5) + 1))


def _table(dice: Dice, name: str, main_type: SqlType) -> Table:
    makers = _Columns(dice)
    key = [makers.add("id", main_type if dice.chance(0.7) else dice.weighted(_KEY_TYPES), nullable=False)]
    if dice.may(Feature.COMPOSITE_KEY, 0.2):
        key.append(makers.add("sub", dice.weighted(_KEY_TYPES), nullable=False))
    for number in range(dice.number(1, 2)):
        of_type = main_type if dice.chance(0.7) else dice.weighted(_REFERENCES)
        makers.add(f"r{number}", of_type, nullable=dice.chance(0.7))
    for number in range(dice.number(1, 4)):
        makers.add(f"v{number}", dice.one(COLUMN_TYPES), nullable=dice.chance(0.6), may_be_odd=True)
    columns = tuple(makers.columns)
    if dice.chance(0.3):
        columns = tuple(dice.some(columns, len(columns), len(columns)))
    is_full = not dice.may(Feature.PARTIAL_IDENTITY, 0.25)
    return Table(name, columns, tuple(key), is_full)


class _Columns:
    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self.columns: list[Column] = []

    def add(self, name: str, of_type: SqlType, *, nullable: bool, may_be_odd: bool = False) -> str:
        if may_be_odd and self._dice.may(Feature.ODD_NAMES, 0.04):
            name = self._dice.one([odd for odd in _ODD_NAMES if odd not in self._names()])
        self.columns.append(Column(name, of_type, nullable, len(self.columns)))
        return name

    def _names(self) -> set[str]:
        return {column.name for column in self.columns}


def is_reference(table: Table, column: Column) -> bool:
    """Its values identify rows or refer to such."""
    return column.name in table.primary_key or column.name.startswith("r")


def domain(table: Table, column: Column) -> Sequence[Value]:
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
