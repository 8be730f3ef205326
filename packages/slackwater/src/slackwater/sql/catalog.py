"""Declared tables: what a pipeline knows about its source's schema."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from slackwater.sql.column_type import ColumnType


@dataclass(frozen=True, slots=True)
class Column:
    """A declared column.

    Attributes:
        name: Its name as in the database (unquoted names are lower case).
        type: Its type.
        nullable: Whether it may hold NULL.
        has_default: Whether it has a DEFAULT, which a connector may write for NULL or an unknown value.
    """

    name: str
    type: ColumnType
    nullable: bool
    has_default: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A declared table.

    Attributes:
        schema: Name of its schema.
        name: Its name.
        columns: Its columns in declaration order.
        primary_key: Names of its primary key's columns in key order; empty if it has none.
        replica_identity_full: Whether updates and deletes contain the whole old row.
        identity_index: The index whose columns they contain instead (USING INDEX); may be empty.
        left_out: Names of declared columns without a DEFAULT that a plan does not need.
    """

    schema: str
    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    replica_identity_full: bool
    identity_index: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """`schema.table`, as Debezium's `data_collection` and `source` block name it."""
        return f"{self.schema}.{self.name}"

    def column(self, name: str) -> Column | None:
        """Returns the column of exactly this name."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True)
class Catalog:
    """All declared tables of a pipeline.

    Attributes:
        tables: The tables; no two have the same schema and name.
    """

    tables: tuple[Table, ...]

    @cached_property
    def _by_name(self) -> dict[str, list[Table]]:
        by_name: dict[str, list[Table]] = {}
        for table in self.tables:
            by_name.setdefault(table.name.lower(), []).append(table)
        return by_name

    def find(self, schema: str, name: str) -> tuple[Table, ...]:
        """Returns the tables that this name in a view can refer to.

        Case is ignored, as in DuckDB, unless there are tables of exactly this name.

        Args:
            schema: Schema as written in the view; empty if none was written.
            name: Table name as written.
        """
        named = self._by_name.get(name.lower(), [])
        found = [table for table in named if not schema or table.schema.lower() == schema.lower()]
        exact = [table for table in found if table.name == name and schema in ("", table.schema)]
        return tuple(exact or found)

    def similar_names(self, schema: str, name: str) -> tuple[str, ...]:
        """Returns full names of declared tables with similar names, most similar first."""
        names = {table.name.lower(): table.full_name for table in self.tables}
        full_names = {table.full_name.lower(): table.full_name for table in self.tables}
        wanted = f"{schema}.{name}" if schema else name
        return similar(wanted, full_names if schema else names)


def similar(name: str, candidates: dict[str, str] | Iterable[str]) -> tuple[str, ...]:
    """Returns the candidates most similar to `name`, best first; for a mapping, its values."""
    shown = candidates if isinstance(candidates, dict) else {text.lower(): text for text in candidates}
    return tuple(shown[match] for match in difflib.get_close_matches(name.lower(), shown, n=3, cutoff=0.5))
