"""Inputs, keys and columns of stages and views."""

from dataclasses import dataclass

from slackwater_sql.catalog import Column, Table
from slackwater_sql.column_type import ColumnType


@dataclass(frozen=True, slots=True)
class InputPlan:
    """A table that a stage reads, or an earlier stage's rows in the form of one.

    Attributes:
        alias: Name of the input, unique in the stage, as written.
        table: The declared table, with the needed columns only.
        columns: The columns a stage has to keep: key, primary key and all it uses.
        key: Names of the columns that hold the stage's key, in the order of that key.
        needs_replica_identity_full: A row can move to another key by an update, so that updates and deletes
            must carry the old row; the planner takes such a key only for tables that have it.
        keeps_null_keys: Rows whose key is NULL belong to the result, as the group of the key NULL. Rows of
            other inputs with a NULL key never contribute and need not be kept.
    """

    alias: str
    table: Table
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    needs_replica_identity_full: bool
    keeps_null_keys: bool

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of `columns`, as `RowCodec` takes them."""
        return tuple(column.name for column in self.columns)

    @property
    def key_positions(self) -> tuple[int, ...]:
        """Where in a row of `columns` the key stands."""
        return tuple(self.column_names.index(name) for name in self.key)

    @property
    def primary_key_positions(self) -> tuple[int, ...]:
        """Where in a row of `columns` the primary key stands."""
        return tuple(self.column_names.index(name) for name in self.table.primary_key)


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A part of the view's key.

    Attributes:
        name: Its name in the documents.
        type: Its type; the wire value of such a type is also its value in the document.
    """

    name: str
    type: ColumnType


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of the view.

    Attributes:
        name: Its name in the documents.
        type: Its DuckDB type as DuckDB writes it.
    """

    name: str
    type: str
