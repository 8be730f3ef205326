"""What a view needs and how it is evaluated: the result of compiling `SELECT TRANSACTIONALLY`."""

from dataclasses import dataclass

from slackwater_sql.catalog import Column, Table
from slackwater_sql.column_type import ColumnType


@dataclass(frozen=True, slots=True)
class InputPlan:
    """A table in a view's FROM; a table that occurs twice is two inputs.

    Attributes:
        alias: Name of the input, unique in the view, as written.
        table: The declared table.
        columns: The columns a stage has to keep, in table order: key, primary key and all the view uses.
        key: Names of the columns that hold the stage's key, in the order of the view's key.
        needs_replica_identity_full: A row can move to another key by an update, so that updates and deletes
            must carry the old row. Compiling refuses tables that lack it.
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


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """A compiled view. Plain data: it pickles and compares by value.

    Attributes:
        name: The view's name: the file's without its extension.
        sql: The SQL as the user wrote it.
        key: The view's key in the order of `InputPlan.key`.
        inputs: The tables in FROM order.
        outputs: The columns in select order.
        latest_statement: DuckDB SQL that gives the documents of rows that all are live.
        lifted_statement: The same at given LSNs, from row versions.
        fingerprint: Differs when the meaning of the view or of the kept rows differs; equal under changed
            spacing and comments, and under changes of columns the view does not use.
    """

    name: str
    sql: str
    key: tuple[KeyColumn, ...]
    inputs: tuple[InputPlan, ...]
    outputs: tuple[OutputColumn, ...]
    latest_statement: str
    lifted_statement: str
    fingerprint: str

    def input(self, alias: str) -> InputPlan:
        """The input of this alias.

        Raises:
            KeyError: There is none.
        """
        for candidate in self.inputs:
            if candidate.alias == alias:
                return candidate
        raise KeyError(alias)
